//! Answers to gRPC inference requests: one message, tensors by reference (grpc.md sections 4 and 5).

use std::sync::Arc;

use super::{AnswerForm, contiguous};
use crate::api::watch::Watch;
use crate::memory::{Gather, Pool, Slice};
use crate::protocol::grpc::{Encoder, InferResponse, OutputTensor, TooLarge, Value};
use crate::repository::ServedModel;
use crate::request::{Response, Status, Text, Value as Parameter};

impl From<TooLarge> for Status {
    fn from(error: TooLarge) -> Status {
        Status::invalid(error.to_string())
    }
}

/// A response with its texts checked: protobuf strings are UTF-8.
struct Parts<'a> {
    id: std::borrow::Cow<'a, str>,
    version: itoa::Buffer,
    parameters: Vec<(std::borrow::Cow<'a, str>, OwnedValue<'a>)>,
    outputs: Vec<(std::borrow::Cow<'a, str>, &'static str, &'a [i64], Slice)>,
}

enum OwnedValue<'a> {
    Bool(bool),
    Int(i64),
    Double(f64),
    String(std::borrow::Cow<'a, str>),
}

impl OwnedValue<'_> {
    fn borrow(&self) -> Value<'_> {
        match self {
            OwnedValue::Bool(bool) => Value::Bool(*bool),
            OwnedValue::Int(int) => Value::Int64(*int),
            OwnedValue::Double(double) => Value::Double(*double),
            OwnedValue::String(text) => Value::String(text),
        }
    }
}

impl<'a> Parts<'a> {
    fn of(response: &'a Response, pool: &Pool) -> Result<Parts<'a>, Status> {
        let mut parameters = Vec::with_capacity(response.parameters.len() + 1);
        for parameter in response.parameters.iter() {
            let value = match &parameter.value {
                Parameter::Bool(bool) => OwnedValue::Bool(*bool),
                Parameter::Int(int) => OwnedValue::Int(*int),
                Parameter::Double(double) => OwnedValue::Double(*double),
                Parameter::String(text) => OwnedValue::String(text.to_str_lossy()),
                Parameter::Bytes(_) => {
                    return Err(Status::unsupported(format!(
                        "response parameter '{}' has type BYTES, which is not supported",
                        parameter.name
                    )));
                }
            };
            parameters.push((parameter.name.to_str_lossy(), value));
        }
        let outputs = response
            .outputs
            .iter()
            .map(|output| {
                (output.name.to_str_lossy(), output.datatype.name(), output.shape.as_slice(), contiguous(output, pool))
            })
            .collect();
        Ok(Parts { id: response.id.to_str_lossy(), version: itoa::Buffer::new(), parameters, outputs })
    }
}

/// Frames a ModelInferResponse.
pub fn unary(
    encoder: &mut Encoder,
    response: &Response,
    model: &Arc<ServedModel>,
    pool: &Pool,
) -> Result<Gather, Status> {
    let mut parts = Parts::of(response, pool)?;
    let message = InferResponse {
        model_name: &model.name,
        model_version: parts.version.format(model.version),
        id: &parts.id,
        parameters: parts.parameters.iter().map(|(name, value)| (&**name, value.borrow())),
        outputs: parts.outputs.iter().map(|(name, datatype, shape, data)| OutputTensor { name, datatype, shape, data }),
    };
    let mut framed = Gather::new();
    encoder.infer_response(&message, pool, &mut framed)?;
    Ok(framed)
}

/// How a ModelStreamInferResponse speaks of its model.
pub struct StreamedFrom<'a> {
    pub model: &'a Arc<ServedModel>,
    /// As the request names it.
    pub asked_version: &'a Text,
    /// Nothing follows.
    pub is_final: bool,
    pub watch: Option<&'a Arc<Watch>>,
}

impl<'a> StreamedFrom<'a> {
    pub fn new(model: &'a Arc<ServedModel>, form: &'a AnswerForm, is_final: bool) -> StreamedFrom<'a> {
        StreamedFrom { model, asked_version: &form.version, is_final, watch: form.watch.as_ref() }
    }
}

/// Frames a ModelStreamInferResponse with a result, or with the error that the model answered.
pub fn streamed(
    encoder: &mut Encoder,
    response: &Response,
    from: &StreamedFrom<'_>,
    pool: &Pool,
) -> Result<Gather, Status> {
    let Some(error) = &response.error else {
        let mut version = itoa::Buffer::new();
        return with_flag(encoder, "", response, from, version.format(from.model.version), pool);
    };
    without_outputs(encoder, &error.message, &response.id, from, pool)
}

/// Frames what stands for a response where there is none: an error, or the bare end (grpc.md section 5, "Empty final").
pub fn without_outputs(
    encoder: &mut Encoder,
    error: &str,
    id: &Text,
    from: &StreamedFrom<'_>,
    pool: &Pool,
) -> Result<Gather, Status> {
    let version = from.asked_version.to_str_lossy();
    with_flag(encoder, error, &Response::new(id.clone()), from, &version, pool)
}

fn with_flag(
    encoder: &mut Encoder,
    error: &str,
    response: &Response,
    from: &StreamedFrom<'_>,
    version: &str,
    pool: &Pool,
) -> Result<Gather, Status> {
    let parts = Parts::of(response, pool)?;
    let flag = [("triton_final_response", Value::Bool(from.is_final))];
    let message = InferResponse {
        model_name: &from.model.name,
        model_version: version,
        id: &parts.id,
        parameters: parts.parameters.iter().map(|(name, value)| (&**name, value.borrow())).chain(flag),
        outputs: parts.outputs.iter().map(|(name, datatype, shape, data)| OutputTensor { name, datatype, shape, data }),
    };
    let mut framed = Gather::new();
    encoder.stream_response(error, &message, pool, &mut framed)?;
    Ok(framed)
}

/// Frames the in-band error of a request that was not accepted: its id and nothing else of the response.
pub fn refused(encoder: &mut Encoder, id: &Text, error: &Status, pool: &Pool) -> Gather {
    let id = id.to_str_lossy();
    let message = InferResponse {
        model_name: "",
        model_version: "",
        id: &id,
        parameters: std::iter::empty(),
        outputs: std::iter::empty(),
    };
    let mut framed = Gather::new();
    // A text and an id, both bounded far below gRPC's limit: they came in a message themselves.
    let _ = encoder.stream_response(&error.message, &message, pool, &mut framed);
    framed
}
