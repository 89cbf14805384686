//! Row "sequence".

use std::collections::BTreeSet;

use super::super::Error;
use super::scheduling::check_preferred;
use crate::wire::inference::model_sequence_batching::control::Kind;
use crate::wire::inference::model_sequence_batching::{Control, StrategyChoice};
use crate::wire::inference::{DataType, ModelConfig, ModelSequenceBatching};

pub(super) fn check(config: &ModelConfig, batching: &ModelSequenceBatching) -> Result<(), Error> {
    // Kind by kind, as Triton looks them up: which of several errors is reported depends on it.
    for kind in
        [Kind::ControlSequenceStart, Kind::ControlSequenceEnd, Kind::ControlSequenceReady, Kind::ControlSequenceCorrid]
    {
        check_controls(&config.name, batching, kind)?;
    }
    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            check_preferred(config, &oldest.preferred_batch_size, "sequence batching preferred batch size")
        }
        // Written so that a NaN is out of range too.
        Some(StrategyChoice::Direct(direct)) if !(0.0..=1.0).contains(&direct.minimum_slot_utilization) => {
            Err(Error::invalid(format!(
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for {}",
                config.name
            )))
        }
        _ => Ok(()),
    }
}

/// The tensors that carry the control `kind`, of which there may be one.
fn check_controls(model: &str, batching: &ModelSequenceBatching, kind: Kind) -> Result<(), Error> {
    let mut tensors = BTreeSet::new();
    let mut seen = false;
    for input in &batching.control_input {
        if input.name.is_empty() {
            return Err(Error::invalid(format!("sequence batching control tensor must have a name for {model}")));
        }
        if !tensors.insert(&input.name) {
            return Err(Error::invalid(format!(
                "sequence batching control tensor '{}' is specified for multiple control kinds for {model}",
                input.name
            )));
        }
        for control in input.control.iter().filter(|control| control.kind() == kind) {
            if std::mem::replace(&mut seen, true) {
                return Err(Error::invalid(format!(
                    "sequence batching specifies multiple {} tensors for {model}",
                    kind.as_str_name()
                )));
            }
            if kind == Kind::ControlSequenceCorrid {
                check_correlation_id(model, control)?;
            } else {
                check_boolean(model, control, kind)?;
            }
        }
    }
    Ok(())
}

const BOOLEAN_FORMS: &str = "'int32_false_true', 'fp32_false_true' and 'bool_false_true'";

/// The forms of a boolean control that are given, with their numbers of entries.
fn forms(control: &Control) -> impl Iterator<Item = (&'static str, usize)> {
    [
        ("int32_false_true", control.int32_false_true.len()),
        ("fp32_false_true", control.fp32_false_true.len()),
        ("bool_false_true", control.bool_false_true.len()),
    ]
    .into_iter()
    .filter(|(_, entries)| *entries > 0)
}

fn check_boolean(model: &str, control: &Control, kind: Kind) -> Result<(), Error> {
    let kind = kind.as_str_name();
    let mut given = forms(control);
    let message = match (given.next(), given.next()) {
        (None, _) => format!(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             {kind} for {model}"
        ),
        (Some(_), Some(_)) => {
            format!("sequence batching specifies more than one from {BOOLEAN_FORMS} for {kind} for {model}")
        }
        (Some((form, entries)), None) if entries != 2 => {
            format!("sequence batching control '{form}' must have exactly 2 entries for {kind} for {model}")
        }
        _ => return Ok(()),
    };
    Err(Error::invalid(message))
}

fn check_correlation_id(model: &str, control: &Control) -> Result<(), Error> {
    let kind = Kind::ControlSequenceCorrid.as_str_name();
    if forms(control).next().is_some() {
        return Err(Error::invalid(format!(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             {kind} for {model}"
        )));
    }
    match control.data_type() {
        DataType::TypeUint64
        | DataType::TypeInt64
        | DataType::TypeUint32
        | DataType::TypeInt32
        | DataType::TypeString => Ok(()),
        _ => Err(Error::invalid(format!(
            "unexpected data type for control {kind} for {model}. Allowed data types are TYPE_UINT64, TYPE_INT64, \
             TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        ))),
    }
}
