//! Which requests may share a batch (contract/schedulers.md section 2, "shape differs").
//!
//! Most models need no comparison: inputs of fixed size fit together, and ragged ones need not. The inputs to compare
//! are chosen when the model is loaded.

use nereid_model_config::ModelSpec;
use nereid_request::{ByNumber, InputTensor, Request, numbered};

/// For so few inputs to compare, no order of all inputs of a request is worth its time.
const SEARCHED_MAX: usize = 16;

/// What has to be equal in the requests of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Equality {
    /// Positions of the inputs with shapes to compare; true: their contents as well.
    inputs: Vec<(usize, bool)>,
    /// Some input is optional: the same ones must be present.
    same_set: bool,
    /// Leading dimensions that are the batch's.
    batch_dims: usize,
}

impl Equality {
    pub fn of(spec: &ModelSpec) -> Equality {
        let inputs = spec.config.input.iter().enumerate();
        let counts = inputs.filter_map(|(position, input)| {
            let is_variable = input.dims.contains(&-1);
            let counts = input.is_shape_tensor || is_variable && !input.allow_ragged_batch;
            counts.then_some((position, input.is_shape_tensor))
        });
        Equality {
            inputs: counts.collect(),
            same_set: spec.config.input.iter().any(|input| input.optional),
            batch_dims: usize::from(spec.is_batching()),
        }
    }

    /// Every request fits to every other one.
    pub fn is_given(&self) -> bool {
        self.inputs.is_empty() && !self.same_set
    }

    pub fn holds(&self, a: &Request, b: &Request) -> bool {
        if self.same_set && !same_inputs(a, b) {
            return false;
        }
        if self.inputs.is_empty() {
            return true;
        }
        if self.inputs.len() <= SEARCHED_MAX {
            return self.agree(|position| (numbered(&a.inputs, position), numbered(&b.inputs, position)));
        }
        let (a, b) = (ByNumber::new(&a.inputs), ByNumber::new(&b.inputs));
        self.agree(|position| (a.get(position), b.get(position)))
    }

    /// `pair`: the tensors of two requests for the input at a position.
    fn agree<'a>(&self, pair: impl Fn(usize) -> (Option<&'a InputTensor>, Option<&'a InputTensor>)) -> bool {
        self.inputs.iter().all(|&(position, is_shape_tensor)| match pair(position) {
            (Some(a), Some(b)) => self.rows(a) == self.rows(b) && (!is_shape_tensor || same_bytes(a, b)),
            (None, None) => true,
            _ => false,
        })
    }

    /// The shape without the batch.
    fn rows<'a>(&self, input: &'a InputTensor) -> &'a [i64] {
        input.model_shape.get(self.batch_dims..).unwrap_or_default()
    }
}

fn same_inputs(a: &Request, b: &Request) -> bool {
    let in_order = || a.inputs.iter().zip(&b.inputs).all(|(a, b)| a.index == b.index);
    let are_in_b = || {
        let b = ByNumber::new(&b.inputs);
        a.inputs.iter().all(|input| b.get(input.index).is_some())
    };
    a.inputs.len() == b.inputs.len() && (in_order() || are_in_b())
}

/// Data on a device is not read: it equals nothing else.
fn same_bytes(a: &InputTensor, b: &InputTensor) -> bool {
    if a.on_device().is_some() || b.on_device().is_some() {
        return false;
    }
    let bytes = |input: &InputTensor| {
        let mut bytes = Vec::with_capacity(input.byte_size());
        input.data.iter().for_each(|piece| piece.append_to(&mut bytes));
        bytes
    };
    match (&a.data[..], &b.data[..]) {
        ([a], [b]) if a.shared().is_none() && b.shared().is_none() => a[..] == b[..],
        _ => a.byte_size() == b.byte_size() && bytes(a) == bytes(b),
    }
}

#[cfg(test)]
mod tests;
