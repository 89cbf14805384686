//! Shorthand for inference messages.

use std::collections::BTreeMap;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, InferTensorContents, ModelInferRequest};

pub fn infer(model: &str) -> ModelInferRequest {
    ModelInferRequest { model_name: model.to_string(), ..Default::default() }
}

/// An input whose data stands in raw_input_contents.
pub fn raw(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_string(),
        datatype: datatype.to_string(),
        shape: shape.to_vec(),
        ..Default::default()
    }
}

pub fn typed(name: &str, datatype: &str, shape: &[i64], contents: InferTensorContents) -> InferInputTensor {
    InferInputTensor { contents: Some(contents), ..raw(name, datatype, shape) }
}

pub fn output(name: &str) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor { name: name.to_string(), ..Default::default() }
}

pub fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

pub fn parameters<const N: usize>(entries: [(&str, ParameterChoice); N]) -> BTreeMap<String, InferParameter> {
    entries.into_iter().map(|(key, choice)| (key.to_string(), parameter(choice))).collect()
}

/// A request for one INT32 vector, which stands raw.
pub fn numbers(model: &str, id: &str, values: &[i32]) -> ModelInferRequest {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    ModelInferRequest {
        id: id.to_string(),
        inputs: vec![raw("INPUT0", "INT32", &[values.len() as i64])],
        raw_input_contents: vec![Bytes::from(bytes)],
        ..infer(model)
    }
}
