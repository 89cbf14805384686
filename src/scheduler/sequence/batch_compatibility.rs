//! What requests of one batch must have in common (contract/schedulers.md section 2, row "shape differs").
//!
//! Tensors of a fixed size and ragged ones never differ; inputs of variable size, the set of optional inputs and states
//! may. Most models have none of these, and nothing is compared.

use smallvec::SmallVec;

use nereid_model_config::{ModelSpec, states};
use nereid_request::{Request, Shape, States};
use nereid_wire::inference::ModelSequenceBatching;

#[derive(Default)]
pub(super) struct BatchCompatibility {
    /// By input: its shape has to be equal.
    is_compared: Vec<bool>,
    compares_presence: bool,
    compares_states: bool,
}

/// The properties of the first request of a batch that others are compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BatchPattern {
    inputs: SmallVec<[(usize, Shape); 4]>,
    states: Vec<Shape>,
}

impl BatchCompatibility {
    pub fn new(spec: &ModelSpec, config: &ModelSequenceBatching) -> BatchCompatibility {
        let inputs = &spec.config.input;
        let is_variable = |dims: &[i64]| dims.contains(&-1);
        BatchCompatibility {
            is_compared: inputs.iter().map(|it| is_variable(&it.dims) && !it.allow_ragged_batch).collect(),
            compares_presence: inputs.iter().any(|input| input.optional),
            compares_states: states(config).iter().any(|state| is_variable(&state.dims)),
        }
    }

    /// False where all requests of the model are alike.
    pub fn is_needed(&self) -> bool {
        self.compares_presence || self.compares_states || self.is_compared.contains(&true)
    }

    /// `states` are those that the request will find.
    pub fn pattern(&self, request: &Request, states: Option<&States>, initial: &[Shape]) -> BatchPattern {
        let relevant = request.inputs.iter().filter_map(|input| {
            let is_compared = *self.is_compared.get(input.index)?;
            let shape = if is_compared { input.shape.clone() } else { Shape::new() };
            (is_compared || self.compares_presence).then_some((input.index, shape))
        });
        let mut inputs: SmallVec<[(usize, Shape); 4]> = relevant.collect();
        inputs.sort_unstable_by_key(|(index, _)| *index);
        let states = match (self.compares_states, states) {
            (false, _) => Vec::new(),
            (true, Some(states)) => states.shapes(),
            (true, None) => initial.to_vec(),
        };
        BatchPattern { inputs, states }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{model, request};
    use super::*;
    use nereid_request::{DataType, InputTensor, Text};

    fn input(index: usize, dims: &[i64]) -> InputTensor {
        let mut input = InputTensor::new(Text::default(), DataType::Uint8, Shape::from_slice(dims));
        input.index = index;
        input
    }

    fn pattern(compatibility: &BatchCompatibility, inputs: &[InputTensor]) -> BatchPattern {
        let mut request = request(1);
        request.inputs = inputs.to_vec();
        compatibility.pattern(&request, None, &[])
    }

    #[test]
    fn only_what_may_differ_is_compared() {
        let of = |inputs: &str| {
            let (spec, config) = model(&format!("max_batch_size: 4 {inputs} sequence_batching {{ }}"));
            BatchCompatibility::new(&spec, &config)
        };
        let fixed = of("");
        assert!(!fixed.is_needed());
        // The fixture's own input is number 0.
        let more = |dims: &str, more: &str| {
            of(&format!("input {{ name: \"MORE\" data_type: TYPE_UINT8 dims: [ {dims} ] {more} }}"))
        };
        assert!(!more("2", "").is_needed());
        assert!(!more("-1", "allow_ragged_batch: true").is_needed());
        let variable = more("-1", "");
        assert!(variable.is_needed());
        let one = pattern(&variable, &[input(0, &[1, 9]), input(1, &[1, 2])]);
        assert_eq!(one, pattern(&variable, &[input(1, &[1, 2]), input(0, &[1, 8])]), "in any order");
        assert_ne!(one, pattern(&variable, &[input(0, &[1, 9]), input(1, &[1, 3])]));
        let optional = more("2", "optional: true");
        assert!(optional.is_needed());
        let both = pattern(&optional, &[input(0, &[1, 1]), input(1, &[1, 2])]);
        assert_ne!(both, pattern(&optional, &[input(0, &[1, 1])]));
    }

    #[test]
    fn states_of_variable_size_are_compared() {
        let (spec, config) = model(
            "max_batch_size: 4 sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_UINT8 \
             dims: [ -1 ] } }",
        );
        let compatibility = BatchCompatibility::new(&spec, &config);
        assert!(compatibility.is_needed());
        let initial = [Shape::from_slice(&[1, 1])];
        let fresh = compatibility.pattern(&request(1), None, &initial);
        let empty = States::default();
        assert_ne!(fresh, compatibility.pattern(&request(1), Some(&empty), &initial));
    }
}
