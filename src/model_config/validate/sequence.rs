//! Row "sequence".

use std::collections::BTreeSet;

use super::Findings;
use super::scheduling::check_preferred;
use nereid_wire::inference::model_sequence_batching::control::Kind;
use nereid_wire::inference::model_sequence_batching::{Control, StrategyChoice};
use nereid_wire::inference::{DataType, ModelConfig, ModelSequenceBatching};

pub(super) fn check(config: &ModelConfig, batching: &ModelSequenceBatching, findings: &mut Findings) {
    // Kind by kind, in Triton's order: which of several errors is reported first depends on it.
    for kind in
        [Kind::ControlSequenceStart, Kind::ControlSequenceEnd, Kind::ControlSequenceReady, Kind::ControlSequenceCorrid]
    {
        check_controls(&config.name, batching, kind, findings);
    }
    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            let (prefix, path) =
                ("sequence batching preferred batch size", "sequence_batching.oldest.preferred_batch_size");
            check_preferred(config, &oldest.preferred_batch_size, prefix, path, findings);
        }
        // Written so that a NaN is out of range too.
        Some(StrategyChoice::Direct(direct)) if !(0.0..=1.0).contains(&direct.minimum_slot_utilization) => {
            let message =
                format!("sequence batching minimum slot utilization must be in range (0.0, 1.0] for {}", config.name);
            findings.invalid("sequence_batching.direct.minimum_slot_utilization", message);
        }
        _ => {}
    }
}

/// The tensors that carry the control `kind`, of which there may be one.
fn check_controls(model: &str, batching: &ModelSequenceBatching, kind: Kind, findings: &mut Findings) {
    let mut tensors = BTreeSet::new();
    let mut seen = false;
    for (index, input) in batching.control_input.iter().enumerate() {
        let path = format!("sequence_batching.control_input[{index}]");
        if input.name.is_empty() {
            let message = format!("sequence batching control tensor must have a name for {model}");
            findings.invalid(format!("{path}.name"), message);
        } else if !tensors.insert(&input.name) {
            let message = format!(
                "sequence batching control tensor '{}' is specified for multiple control kinds for {model}",
                input.name
            );
            findings.invalid(format!("{path}.name"), message);
        }
        for (index, control) in input.control.iter().enumerate().filter(|(_, control)| control.kind() == kind) {
            let path = format!("{path}.control[{index}]");
            if std::mem::replace(&mut seen, true) {
                let kind = kind.as_str_name();
                findings.invalid(path, format!("sequence batching specifies multiple {kind} tensors for {model}"));
                continue;
            }
            let checked = match kind {
                Kind::ControlSequenceCorrid => check_correlation_id(model, control),
                _ => check_boolean(model, control, kind),
            };
            if let Err(message) = checked {
                findings.invalid(path, message);
            }
        }
    }
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

fn check_boolean(model: &str, control: &Control, kind: Kind) -> Result<(), String> {
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
    Err(message)
}

fn check_correlation_id(model: &str, control: &Control) -> Result<(), String> {
    let kind = Kind::ControlSequenceCorrid.as_str_name();
    if forms(control).next().is_some() {
        return Err(format!(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             {kind} for {model}"
        ));
    }
    match control.data_type() {
        DataType::TypeUint64
        | DataType::TypeInt64
        | DataType::TypeUint32
        | DataType::TypeInt32
        | DataType::TypeString => Ok(()),
        _ => Err(format!(
            "unexpected data type for control {kind} for {model}. Allowed data types are TYPE_UINT64, TYPE_INT64, \
             TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )),
    }
}
