//! The inputs of a model that get a `batch_input` tensor (contract/model_config.md section 7, "batch_input kinds").

use std::ffi::CString;

use super::element::ElementType;
use super::plan::c_name;
use crate::rows::BatchInputTensor;
use nereid_request::Status;
use nereid_wire::inference::BatchInput;

/// One `batch_input` of the configuration.
#[derive(Debug)]
pub struct BatchInputPlan {
    /// The inputs of the model that get the tensor.
    pub names: Vec<CString>,
    pub element: ElementType,
    pub tensor: BatchInputTensor,
}

impl BatchInputPlan {
    /// `source` is the position of the input that it describes.
    pub fn new(given: &BatchInput, source: usize) -> Result<BatchInputPlan, Status> {
        let tensor = BatchInputTensor::new(given, source);
        let names = given.target_name.iter().map(|name| c_name(name)).collect::<Result<_, Status>>()?;
        Ok(BatchInputPlan { names, element: tensor.datatype.into(), tensor })
    }
}
