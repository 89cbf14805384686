//! The smallest requests, one for each protocol, to a model that returns an INT32.

use nereid_wire::inference::ModelInferRequest;
use nereid_wire::inference::model_infer_request::InferInputTensor;

pub const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[8]}]}"#;

/// The same over gRPC, with another number.
pub fn message(model: &str) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.into(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".into(),
            datatype: "INT32".into(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_input_contents: vec![bytes::Bytes::from_static(b"\x09\0\0\0")],
        ..Default::default()
    }
}
