//! Row "state", as far as it needs no file; `data_files` checks the files.

use std::collections::BTreeSet;

use super::super::datatype::element_bytes;
use super::super::shape_match::{WILDCARD, element_count};
use super::Findings;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_sequence_batching::initial_state::StateData;
use nereid_wire::inference::model_sequence_batching::{InitialState, State};
use nereid_wire::inference::{DataType, ModelConfig};

/// The bytes of one element of a type without a fixed size: its length prefix.
const LENGTH_BYTES: u64 = 4;

pub(super) fn check(config: &ModelConfig, findings: &mut Findings) {
    let mut inputs = BTreeSet::new();
    for (index, state) in states(config).iter().enumerate() {
        if let Err((field, message)) = check_state(state, &mut inputs) {
            findings.invalid(format!("sequence_batching.state[{index}].{field}"), message);
        }
    }
}

/// The states of a model that has any.
pub(super) fn states(config: &ModelConfig) -> &[State] {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(sequence)) => &sequence.state,
        _ => &[],
    }
}

/// Bytes of a tensor without open dimensions; `None` where they cannot be counted, or exceed any memory.
pub(super) fn tensor_bytes(data_type: DataType, dims: &[i64]) -> Option<u64> {
    let element = element_bytes(data_type).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(LENGTH_BYTES);
    element_count(dims)?.checked_mul(element).filter(|bytes| i64::try_from(*bytes).is_ok())
}

fn check_state<'a>(state: &'a State, inputs: &mut BTreeSet<&'a str>) -> Result<(), (&'static str, String)> {
    let name = &state.input_name;
    let initial = match state.initial_state.as_slice() {
        [] => return Ok(()),
        [initial] => initial,
        several => {
            let message = format!(
                "initial_state field for state input '{name}' must contain exactly one or zero element. Found '{}' \
                 elements.",
                several.len()
            );
            return Err(("initial_state[1]", message));
        }
    };
    if initial.data_type != state.data_type {
        let message = format!(
            "The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        );
        return Err(("initial_state[0].data_type", message));
    }
    if initial.name.is_empty() {
        let message = format!("Field 'name' must be set when using initial_state for state input '{name}'.");
        return Err(("initial_state[0].name", message));
    }
    if !inputs.insert(name) {
        return Err(("input_name", format!("State input name '{name}' specified more than once.")));
    }
    check_dims(state, initial).map_err(|message| ("initial_state[0].dims", message))?;
    if initial.state_data.is_none() {
        let message = format!("initial_state setting expects state'{name}' to have state_data set");
        return Err(("initial_state[0]", message));
    }
    Ok(())
}

fn check_dims(state: &State, initial: &InitialState) -> Result<(), String> {
    let name = &state.input_name;
    if initial.dims.len() != state.dims.len() {
        return Err(format!(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input \
             '{name}'. {} != {}",
            initial.dims.len(),
            state.dims.len()
        ));
    }
    for (given, expected) in initial.dims.iter().zip(&state.dims) {
        if *given == WILDCARD {
            return Err(format!("'initial_state' field for state input name '{name}' contains variable dimensions."));
        }
        if *expected != WILDCARD && given != expected {
            return Err(format!(
                "'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {given} != \
                 {expected}"
            ));
        }
    }
    // With a file, only its size is checked.
    let is_zero = matches!(initial.state_data, Some(StateData::ZeroData(_)));
    if is_zero && tensor_bytes(initial.data_type(), &initial.dims).is_none() {
        return Err(format!("'initial_state' for state input name '{name}' has a size that cannot be held in memory."));
    }
    Ok(())
}
