//! The implicit states of a sequence batcher: which of the configured ones count.
//!
//! Of states with one name for their input, or for their output, only the first is used, as in Triton; the others stay
//! in the configuration that clients read.

use std::collections::BTreeSet;

use nereid_wire::inference::ModelSequenceBatching;
use nereid_wire::inference::model_sequence_batching::State;

/// The states that are used, in the order of the configuration.
pub fn states(batching: &ModelSequenceBatching) -> Vec<&State> {
    sorted_out(batching).0
}

/// Why states are not used, one text for each of them.
pub fn ignored_states(batching: &ModelSequenceBatching) -> Vec<String> {
    sorted_out(batching).1
}

fn sorted_out(batching: &ModelSequenceBatching) -> (Vec<&State>, Vec<String>) {
    let (mut used, mut ignored) = (Vec::new(), Vec::new());
    let (mut inputs, mut outputs) = (BTreeSet::new(), BTreeSet::new());
    for state in &batching.state {
        if inputs.contains(&state.input_name) {
            // The dot stands within the quotes.
            ignored.push(format!(
                "Detected duplicate 'input_name' in the state configuration: '{}.' This state configuration will be \
                 ignored.",
                state.input_name
            ));
        } else if outputs.contains(&state.output_name) {
            ignored.push(format!(
                "Detected duplicate 'output_name' in the state configuration: '{}'. This state configuration will be \
                 ignored.",
                state.output_name
            ));
        } else {
            inputs.insert(&state.input_name);
            outputs.insert(&state.output_name);
            used.push(state);
        }
    }
    (used, ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_state_of_a_name_is_used() {
        let state = |input: &str, output: &str| State {
            input_name: input.to_owned(),
            output_name: output.to_owned(),
            ..State::default()
        };
        let given = [("A", "B"), ("A", "C"), ("D", "B"), ("D", "C")].map(|(input, output)| state(input, output));
        let batching = ModelSequenceBatching { state: given.to_vec(), ..ModelSequenceBatching::default() };
        // Unused states take no name.
        assert_eq!(states(&batching), [&given[0], &given[3]]);
        let texts = [("input_name", "'A.'"), ("output_name", "'B'.")].map(|(field, name)| {
            format!(
                "Detected duplicate '{field}' in the state configuration: {name} This state configuration will be \
                 ignored."
            )
        });
        assert_eq!(ignored_states(&batching), texts);
    }
}
