//! Tensors that describe the batch, with what the library needs to know of their targets.

use std::ffi::CString;
use std::ops::Deref;

use super::element::ElementType;
use super::plan::c_name;
use crate::batch_input::BatchInputPlan as Described;
use nereid_request::Status;
use nereid_wire::inference::BatchInput;

/// One `batch_input` of the configuration.
#[derive(Debug)]
pub struct BatchInputPlan {
    described: Described,
    /// The inputs of the model that get the tensor.
    pub names: Vec<CString>,
    pub element: ElementType,
}

impl BatchInputPlan {
    pub fn new(given: &BatchInput, source: usize) -> Result<BatchInputPlan, Status> {
        let described = Described::new(given, source);
        let names = described.targets.iter().map(|name| c_name(name)).collect::<Result<_, Status>>()?;
        Ok(BatchInputPlan { names, element: described.datatype.into(), described })
    }
}

impl Deref for BatchInputPlan {
    type Target = Described;

    fn deref(&self) -> &Described {
        &self.described
    }
}
