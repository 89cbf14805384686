//! Implicit state: tensors that a model hands from one request of a sequence to the next (schedulers.md section 3).
//!
//! A request brings the present values as ordinary inputs; what its backend puts here becomes the inputs of the next
//! request of the same sequence.

use std::sync::{Mutex, PoisonError};

use super::{DataType, Shape, Status};
use crate::memory::Slice;

/// One state tensor.
#[derive(Debug, Clone)]
pub struct StateTensor {
    /// The model's input that gets it.
    pub input_name: String,
    /// The model's output that updates it.
    pub output_name: String,
    pub datatype: DataType,
    /// Full shape, batch dimension included.
    pub shape: Shape,
    pub data: Slice,
}

/// The states of one sequence, shared by its scheduler and the request that executes.
#[derive(Debug, Default)]
pub struct States(Mutex<Vec<StateTensor>>);

impl States {
    pub fn new(tensors: Vec<StateTensor>) -> States {
        States(Mutex::new(tensors))
    }

    /// Replaces the state that the output `name` updates; any type and shape that the model gives.
    pub fn update(&self, name: &str, datatype: DataType, shape: Shape, data: Slice) -> Result<(), Status> {
        let mut tensors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = tensors.iter_mut().find(|state| state.output_name == name);
        let state = state.ok_or_else(|| Status::invalid(format!("state '{name}' is not a valid state name.")))?;
        (state.datatype, state.shape, state.data) = (datatype, shape, data);
        Ok(())
    }

    /// The present values.
    pub fn tensors(&self) -> Vec<StateTensor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
