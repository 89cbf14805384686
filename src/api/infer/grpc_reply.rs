//! Answers to gRPC inference requests: one message, tensors by reference (contract/grpc.md sections 4 and 5).

use std::sync::Arc;

use super::AnswerForm;
use super::contiguous::contiguous;
use crate::api::error::too_large;
use crate::api::plan_cache::grpc_answers::GrpcAnswers;
use crate::api::watch::Watch;
use nereid_memory::{Exhausted, Gather, Pool, REFUSED, Slice};
use nereid_protocol::grpc::{Encoder, FINAL, InferResponse, OutputTensor, Value};
use nereid_request::{Response, Status, Text, Value as Parameter};
use nereid_scheduler::ServedModel;

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
                    let text = "Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported";
                    return Err(Status::unsupported(text));
                }
            };
            parameters.push((parameter.name.to_str_lossy(), value));
        }
        let outputs = response
            .outputs
            .iter()
            .map(|output| {
                let data = contiguous(output, pool)?;
                Ok((output.name.to_str_lossy(), output.datatype.name(), output.shape.as_slice(), data))
            })
            .collect::<Result<_, Exhausted>>()?;
        Ok(Parts { id: response.id.to_str_lossy(), version: itoa::Buffer::new(), parameters, outputs })
    }

    fn message<'m>(
        &'m mut self,
        model: &'m ServedModel,
    ) -> InferResponse<
        'm,
        impl Iterator<Item = (&'m str, Value<'m>)> + Clone,
        impl Iterator<Item = OutputTensor<'m>> + Clone,
    > {
        let outputs = self.outputs.iter();
        InferResponse {
            model_name: &model.name,
            model_version: self.version.format(model.version),
            id: &self.id,
            parameters: self.parameters.iter().map(|(name, value)| (&**name, value.borrow())),
            outputs: outputs.map(|(name, datatype, shape, data)| OutputTensor { name, datatype, shape, data }),
        }
    }
}

/// Writes answers with what a shard has for that.
pub struct Writer<'w> {
    pub encoder: &'w mut Encoder,
    /// None where nothing is kept.
    pub answers: Option<&'w mut GrpcAnswers>,
}

impl Writer<'_> {
    /// Frames a response whose head is known; `None` where that does not come to a message.
    fn known(
        &mut self,
        response: &Response,
        model: &ServedModel,
        is_final: Option<bool>,
        pool: &Pool,
    ) -> Option<Gather> {
        let answers = self.answers.as_deref_mut()?;
        let id = std::str::from_utf8(response.id.as_bytes()).ok()?;
        let head = answers.find(response, model)?;
        let mut framed = Gather::new();
        let scattered = response.outputs.iter().any(|output| output.data.len() > 1);
        let framing = if scattered {
            let contents = response.outputs.iter().map(|output| contiguous(output, pool));
            let contents = contents.collect::<Result<Vec<Slice>, Exhausted>>().ok()?;
            self.encoder.known_response(head, id, is_final, contents.iter(), pool, &mut framed)
        } else {
            let contents = response.outputs.iter().map(|output| output.data.first().unwrap_or(&NOTHING));
            self.encoder.known_response(head, id, is_final, contents, pool, &mut framed)
        };
        framing.ok()?;
        answers.note_hit();
        Some(framed)
    }

    fn keep<'a, P, O>(&mut self, response: &Response, model: &ServedModel, message: &InferResponse<'a, P, O>)
    where
        P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
        O: Iterator<Item = OutputTensor<'a>> + Clone,
    {
        if let Some(answers) = &mut self.answers
            && answers.is_worth_keeping(response)
        {
            let head = self.encoder.response_head(message);
            answers.keep(response, model, head);
        }
    }
}

static NOTHING: Slice = Slice::empty();

/// Frames a ModelInferResponse.
pub fn unary(
    writer: &mut Writer<'_>,
    response: &Response,
    model: &Arc<ServedModel>,
    pool: &Pool,
) -> Result<Gather, Status> {
    if let Some(framed) = writer.known(response, model, None, pool) {
        return Ok(framed);
    }
    let mut parts = Parts::of(response, pool)?;
    let message = parts.message(model);
    writer.keep(response, model, &message);
    let mut framed = Gather::new();
    writer.encoder.infer_response(&message, pool, &mut framed).map_err(too_large)?;
    Ok(framed)
}

/// How a ModelStreamInferResponse names its model.
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
    writer: &mut Writer<'_>,
    response: &Response,
    from: &StreamedFrom<'_>,
    pool: &Pool,
) -> Result<Gather, Status> {
    if let Some(error) = &response.error {
        error.refusal.inspect(|reason| reason.count());
        return without_outputs(writer.encoder, Some(error), &response.id, from, pool);
    }
    if let Some(framed) = writer.known(response, from.model, Some(from.is_final), pool) {
        return Ok(framed);
    }
    let mut parts = Parts::of(response, pool)?;
    let message = parts.message(from.model);
    writer.keep(response, from.model, &message);
    with_flag(writer.encoder, "", message, from.is_final, pool)
}

/// Frames what stands for a response where there is none: an error, or the bare end (contract/grpc.md section 5, "Empty
/// final").
pub fn without_outputs(
    encoder: &mut Encoder,
    error: Option<&Status>,
    id: &Text,
    from: &StreamedFrom<'_>,
    pool: &Pool,
) -> Result<Gather, Status> {
    let message = InferResponse {
        model_name: &from.model.name,
        model_version: &from.asked_version.to_str_lossy(),
        id: &id.to_str_lossy(),
        parameters: reason_of(error),
        outputs: std::iter::empty(),
    };
    with_flag(encoder, error.map_or("", |error| &error.message), message, from.is_final, pool)
}

fn with_flag<'a, P, O>(
    encoder: &mut Encoder,
    error: &str,
    message: InferResponse<'a, P, O>,
    is_final: bool,
    pool: &Pool,
) -> Result<Gather, Status>
where
    P: Iterator<Item = (&'a str, Value<'a>)> + Clone,
    O: Iterator<Item = OutputTensor<'a>> + Clone,
{
    let InferResponse { model_name, model_version, id, parameters, outputs } = message;
    let parameters = parameters.chain([(FINAL, Value::Bool(is_final))]);
    let mut framed = Gather::new();
    let message = InferResponse { model_name, model_version, id, parameters, outputs };
    encoder.stream_response(error, &message, pool, &mut framed).map_err(too_large)?;
    Ok(framed)
}

/// The parameter of an in-band error that states what the server lacked: the call goes on, so there is no metadata.
fn reason_of<'a>(error: Option<&Status>) -> impl Iterator<Item = (&'a str, Value<'a>)> + Clone + use<'a> {
    let reason = error.and_then(|error| error.refusal);
    reason.map(|reason| (REFUSED, Value::String(reason.name()))).into_iter()
}

/// Frames the in-band error of a request that was not accepted: its id, the reason, and nothing else of the response.
pub fn refused(encoder: &mut Encoder, id: &Text, error: &Status, pool: &Pool) -> Gather {
    let id = id.to_str_lossy();
    let message = InferResponse {
        model_name: "",
        model_version: "",
        id: &id,
        parameters: reason_of(Some(error)),
        outputs: std::iter::empty(),
    };
    error.refusal.inspect(|reason| reason.count());
    let mut framed = Gather::new();
    // A text and an id, both bounded far below gRPC's limit: they came in a message themselves.
    let _ = encoder.stream_response(&error.message, &message, pool, &mut framed);
    framed
}
