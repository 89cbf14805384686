//! Requests and answers of both protocols as one type, with their tensors in the binary form.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value, json};

use super::bounded;
use super::format::{RequestFacts, TensorFacts};
use super::values::{self, put_text};
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};

const BINARY_SIZE: &str = "binary_data_size";
const REGION: &str = "shared_memory_region";
const REGION_BYTES: &str = "shared_memory_byte_size";

/// The fields of raw contents in a request and in an answer.
const RAW_INPUTS: u64 = 7;
const RAW_OUTPUTS: u64 = 6;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("its JSON cannot be read: {0}")]
    Json(String),
    #[error("its message cannot be read: {0}")]
    Grpc(String),
    #[error("its JSON has {json} bytes, its body only {body}")]
    JsonLength { json: usize, body: usize },
    #[error("tensor '{0}' has fewer bytes than it states")]
    Short(String),
    #[error("'{0}' is no datatype")]
    Datatype(String),
    #[error("an element is no {0} or has no such form")]
    Element(&'static str),
    #[error("a shape is open or too large")]
    Shape,
    #[error("it has more than is read of a message: tensors, parameters or bytes outside of raw or binary contents")]
    TooLarge,
    #[error("tensor '{0}' is in shared memory")]
    SharedMemory(String),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
}

pub type Parameters = BTreeMap<String, Parameter>;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tensor {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<i64>,
    pub parameters: Parameters,
    /// In the binary form; none: in a region of shared memory.
    pub contents: Option<Vec<u8>>,
}

/// A request for inference.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Infer {
    pub model: String,
    /// Empty: the server chooses.
    pub version: String,
    pub id: String,
    pub parameters: Parameters,
    pub inputs: Vec<Tensor>,
    /// Requested outputs; none: all.
    pub outputs: Vec<(String, Parameters)>,
}

/// A tensor in JSON, its data as `D`.
#[derive(Deserialize)]
#[serde(bound = "D: DeserializeOwned")]
struct JsonTensor<D> {
    #[serde(default)]
    name: String,
    #[serde(default)]
    datatype: String,
    #[serde(default, deserialize_with = "bounded::list")]
    shape: Vec<i64>,
    #[serde(default, deserialize_with = "bounded::members")]
    parameters: Map<String, Value>,
    #[serde(default = "none")]
    data: Option<D>,
}

fn none<D>() -> Option<D> {
    None
}

#[derive(Deserialize)]
#[serde(bound = "D: DeserializeOwned")]
struct JsonMessage<D> {
    #[serde(default)]
    id: String,
    #[serde(default, deserialize_with = "bounded::members")]
    parameters: Map<String, Value>,
    #[serde(default = "Vec::new", deserialize_with = "bounded::list")]
    inputs: Vec<JsonTensor<D>>,
    #[serde(default = "Vec::new", deserialize_with = "bounded::list")]
    outputs: Vec<JsonTensor<D>>,
}

/// The JSON of a body and what follows it. `json_len`: none, all of it is JSON.
fn split(body: &[u8], json_len: Option<usize>) -> Result<(&[u8], &[u8]), MessageError> {
    let json = json_len.unwrap_or(body.len());
    body.split_at_checked(json).ok_or(MessageError::JsonLength { json, body: body.len() })
}

fn parse<D: DeserializeOwned>(json: &[u8]) -> Result<JsonMessage<D>, MessageError> {
    serde_json::from_slice(json).map_err(|error| MessageError::Json(error.to_string()))
}

impl<D> JsonTensor<D> {
    fn facts(self) -> TensorFacts {
        let shared_memory = self.parameters.contains_key(REGION);
        let size = if shared_memory { REGION_BYTES } else { BINARY_SIZE };
        let byte_size = self.parameters.get(size).and_then(Value::as_u64);
        TensorFacts { name: self.name, datatype: self.datatype, shape: self.shape, byte_size, shared_memory }
    }
}

impl JsonTensor<Value> {
    /// Takes the bytes of a binary tensor from the front of `rest`.
    fn tensor(self, rest: &mut &[u8]) -> Result<Tensor, MessageError> {
        let contents = match (self.parameters.get(BINARY_SIZE).and_then(Value::as_u64), self.data) {
            (Some(size), _) => {
                let size = usize::try_from(size).ok();
                let taken = size.and_then(|size| rest.split_at_checked(size));
                let (contents, behind) = taken.ok_or_else(|| MessageError::Short(self.name.clone()))?;
                *rest = behind;
                Some(contents.to_vec())
            }
            (None, Some(data)) => {
                let mut contents = Vec::new();
                values::from_json(&self.datatype, &data, &mut contents)?;
                Some(contents)
            }
            (None, None) => None,
        };
        let own = |name: &str| name == BINARY_SIZE;
        let parameters = parameters(self.parameters, own);
        Ok(Tensor { name: self.name, datatype: self.datatype, shape: self.shape, parameters, contents })
    }
}

/// Those that the other protocol has too.
fn parameters(all: Map<String, Value>, is_left_out: impl Fn(&str) -> bool) -> Parameters {
    let kept = all.into_iter().filter(|(name, _)| !is_left_out(name));
    kept.filter_map(|(name, value)| {
        let value = match value {
            Value::Bool(value) => Parameter::Bool(value),
            Value::String(value) => Parameter::Text(value),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Parameter::Int(value),
                (None, Some(value)) => Parameter::Uint(value),
                (None, None) => Parameter::Double(number.as_f64()?),
            },
            _ => return None,
        };
        Some((name, value))
    })
    .collect()
}

fn parameters_of_grpc(all: BTreeMap<String, InferParameter>) -> Parameters {
    let one = |(name, parameter): (String, InferParameter)| {
        let value = match parameter.parameter_choice? {
            ParameterChoice::BoolParam(value) => Parameter::Bool(value),
            ParameterChoice::Int64Param(value) => Parameter::Int(value),
            ParameterChoice::Uint64Param(value) => Parameter::Uint(value),
            ParameterChoice::DoubleParam(value) => Parameter::Double(value),
            ParameterChoice::StringParam(value) => Parameter::Text(value),
        };
        Some((name, value))
    };
    all.into_iter().filter_map(one).collect()
}

fn parameters_to_grpc(all: &Parameters) -> BTreeMap<String, InferParameter> {
    let one = |(name, value): (&String, &Parameter)| {
        let choice = match value {
            Parameter::Bool(value) => ParameterChoice::BoolParam(*value),
            Parameter::Int(value) => ParameterChoice::Int64Param(*value),
            Parameter::Uint(value) => ParameterChoice::Uint64Param(*value),
            Parameter::Double(value) => ParameterChoice::DoubleParam(*value),
            Parameter::Text(value) => ParameterChoice::StringParam(value.clone()),
        };
        (name.clone(), InferParameter { parameter_choice: Some(choice) })
    };
    all.iter().map(one).collect()
}

fn parameters_to_json(all: &Parameters) -> Map<String, Value> {
    let one = |(name, value): (&String, &Parameter)| {
        let value = match value {
            Parameter::Bool(value) => json!(value),
            Parameter::Int(value) => json!(value),
            Parameter::Uint(value) => json!(value),
            Parameter::Double(value) => json!(value),
            Parameter::Text(value) => json!(value),
        };
        (name.clone(), value)
    };
    all.iter().map(one).collect()
}

/// Typed contents in the binary form; none: there are none.
fn typed(datatype: &str, contents: &InferTensorContents) -> Result<Vec<u8>, MessageError> {
    let mut bytes = Vec::new();
    let wrong = |name| move |_| MessageError::Element(name);
    match datatype {
        "BOOL" => bytes.extend(contents.bool_contents.iter().map(|value| u8::from(*value))),
        "INT8" => {
            for value in &contents.int_contents {
                bytes.extend(i8::try_from(*value).map_err(wrong("INT8"))?.to_le_bytes());
            }
        }
        "INT16" => {
            for value in &contents.int_contents {
                bytes.extend(i16::try_from(*value).map_err(wrong("INT16"))?.to_le_bytes());
            }
        }
        "UINT8" => {
            for value in &contents.uint_contents {
                bytes.push(u8::try_from(*value).map_err(wrong("UINT8"))?);
            }
        }
        "UINT16" => {
            for value in &contents.uint_contents {
                bytes.extend(u16::try_from(*value).map_err(wrong("UINT16"))?.to_le_bytes());
            }
        }
        "INT32" => bytes.extend(contents.int_contents.iter().flat_map(|value| value.to_le_bytes())),
        "INT64" => bytes.extend(contents.int64_contents.iter().flat_map(|value| value.to_le_bytes())),
        "UINT32" => bytes.extend(contents.uint_contents.iter().flat_map(|value| value.to_le_bytes())),
        "UINT64" => bytes.extend(contents.uint64_contents.iter().flat_map(|value| value.to_le_bytes())),
        "FP32" => bytes.extend(contents.fp32_contents.iter().flat_map(|value| value.to_le_bytes())),
        "FP64" => bytes.extend(contents.fp64_contents.iter().flat_map(|value| value.to_le_bytes())),
        "BYTES" => contents.bytes_contents.iter().try_for_each(|text| put_text(text, &mut bytes))?,
        other => return Err(MessageError::Datatype(other.to_owned())),
    }
    Ok(bytes)
}

/// A tensor of a message over gRPC: an input, or an output.
struct GrpcTensor {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    parameters: BTreeMap<String, InferParameter>,
    contents: Option<InferTensorContents>,
}

impl GrpcTensor {
    fn in_region(&self) -> bool {
        self.parameters.contains_key(REGION)
    }

    fn tensor(self, raw: &mut impl Iterator<Item = Bytes>) -> Result<Tensor, MessageError> {
        let contents = match (&self.contents, self.in_region()) {
            (_, true) => None,
            (Some(contents), false) => Some(typed(&self.datatype, contents)?),
            (None, false) => Some(raw.next().ok_or_else(|| MessageError::Short(self.name.clone()))?.to_vec()),
        };
        let parameters = parameters_of_grpc(self.parameters);
        Ok(Tensor { name: self.name, datatype: self.datatype, shape: self.shape, parameters, contents })
    }

    fn facts(self, raw: &mut impl Iterator<Item = Bytes>) -> TensorFacts {
        let shared_memory = self.in_region();
        let byte_size = match (&self.contents, shared_memory) {
            (_, true) => match self.parameters.get(REGION_BYTES).and_then(|size| size.parameter_choice.as_ref()) {
                Some(ParameterChoice::Int64Param(size)) => u64::try_from(*size).ok(),
                _ => None,
            },
            (Some(_), false) => None,
            (None, false) => raw.next().map(|raw| raw.len() as u64),
        };
        TensorFacts { name: self.name, datatype: self.datatype, shape: self.shape, byte_size, shared_memory }
    }
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, MessageError> {
    M::decode(message).map_err(|error| MessageError::Grpc(error.to_string()))
}

/// Inputs, and their raw contents.
fn inputs(message: ModelInferRequest) -> (impl Iterator<Item = GrpcTensor>, impl Iterator<Item = Bytes>) {
    let one = |input: InferInputTensor| {
        let InferInputTensor { name, datatype, shape, parameters, contents } = input;
        GrpcTensor { name, datatype, shape, parameters, contents }
    };
    (message.inputs.into_iter().map(one), message.raw_input_contents.into_iter())
}

/// Outputs, and their raw contents.
fn outputs(message: ModelInferResponse) -> (impl Iterator<Item = GrpcTensor>, impl Iterator<Item = Bytes>) {
    let one = |output: nereid_wire::inference::model_infer_response::InferOutputTensor| GrpcTensor {
        name: output.name,
        datatype: output.datatype,
        shape: output.shape,
        parameters: output.parameters,
        contents: output.contents,
    };
    (message.outputs.into_iter().map(one), message.raw_output_contents.into_iter())
}

impl Infer {
    /// From a body, which does not name the model.
    pub fn from_http(body: &[u8], json_len: Option<usize>) -> Result<Infer, MessageError> {
        let (json, mut rest) = split(body, json_len)?;
        if json.len() > bounded::JSON_BYTES_MAX {
            return Err(MessageError::TooLarge);
        }
        let message: JsonMessage<Value> = parse(json)?;
        let inputs = message.inputs.into_iter().map(|input| input.tensor(&mut rest));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let left_out = |name: &str| name == "binary_data_output" || name == "binary_data";
        let outputs = message.outputs.into_iter().map(|output| (output.name, parameters(output.parameters, left_out)));
        Ok(Infer {
            id: message.id,
            parameters: parameters(message.parameters, left_out),
            inputs,
            outputs: outputs.collect(),
            ..Infer::default()
        })
    }

    pub fn from_grpc(message: Bytes) -> Result<Infer, MessageError> {
        bounded::check_message(&message, RAW_INPUTS)?;
        let mut message: ModelInferRequest = decode(message)?;
        let taken = |text: &mut String| std::mem::take(text);
        let (model, version) = (taken(&mut message.model_name), taken(&mut message.model_version));
        let (id, of_request) = (taken(&mut message.id), std::mem::take(&mut message.parameters));
        let requested = std::mem::take(&mut message.outputs).into_iter();
        let requested = requested.map(|output| (output.name, parameters_of_grpc(output.parameters))).collect();
        let (inputs, mut raw) = inputs(message);
        let inputs = inputs.map(|input| input.tensor(&mut raw)).collect::<Result<Vec<_>, _>>()?;
        let parameters = parameters_of_grpc(of_request);
        Ok(Infer { model, version, id, parameters, inputs, outputs: requested })
    }

    /// A body, and how many bytes of it are JSON where it has binary tensors, which it then requests as well.
    pub fn to_http(&self, is_binary: bool) -> Result<(Vec<u8>, Option<usize>), MessageError> {
        let (mut inputs, mut tail) = (Vec::new(), Vec::new());
        for input in &self.inputs {
            let contents = input.contents.as_ref().ok_or_else(|| MessageError::SharedMemory(input.name.clone()))?;
            let mut of_input = parameters_to_json(&input.parameters);
            let mut one = json!({"name": input.name, "datatype": input.datatype, "shape": input.shape});
            match is_binary {
                true => {
                    of_input.insert(BINARY_SIZE.to_owned(), json!(contents.len()));
                    tail.extend_from_slice(contents);
                }
                false => one["data"] = values::to_json(&input.datatype, contents)?,
            }
            if !of_input.is_empty() {
                one["parameters"] = Value::Object(of_input);
            }
            inputs.push(one);
        }
        let mut of_request = parameters_to_json(&self.parameters);
        if is_binary {
            of_request.insert("binary_data_output".to_owned(), json!(true));
        }
        let mut message = json!({"inputs": inputs});
        if !self.id.is_empty() {
            message["id"] = json!(self.id);
        }
        if !of_request.is_empty() {
            message["parameters"] = Value::Object(of_request);
        }
        if !self.outputs.is_empty() {
            let one = |(name, of_output): &(String, Parameters)| match of_output.is_empty() {
                true => json!({"name": name}),
                false => json!({"name": name, "parameters": parameters_to_json(of_output)}),
            };
            message["outputs"] = self.outputs.iter().map(one).collect();
        }
        let mut body = message.to_string().into_bytes();
        let json_len = body.len();
        body.extend_from_slice(&tail);
        Ok((body, is_binary.then_some(json_len)))
    }

    pub fn to_grpc(&self) -> Result<Vec<u8>, MessageError> {
        let mut raw = Vec::new();
        let mut inputs = Vec::new();
        for input in &self.inputs {
            let contents = input.contents.as_ref().ok_or_else(|| MessageError::SharedMemory(input.name.clone()))?;
            raw.push(Bytes::copy_from_slice(contents));
            inputs.push(InferInputTensor {
                name: input.name.clone(),
                datatype: input.datatype.clone(),
                shape: input.shape.clone(),
                parameters: parameters_to_grpc(&input.parameters),
                contents: None,
            });
        }
        let outputs = self.outputs.iter().map(|(name, of_output)| InferRequestedOutputTensor {
            name: name.clone(),
            parameters: parameters_to_grpc(of_output),
        });
        let message = ModelInferRequest {
            model_name: self.model.clone(),
            model_version: self.version.clone(),
            id: self.id.clone(),
            parameters: parameters_to_grpc(&self.parameters),
            inputs,
            outputs: outputs.collect(),
            raw_input_contents: raw,
        };
        Ok(message.encode_to_vec())
    }
}

/// What a record states of a request over HTTP whose JSON this is.
pub(crate) fn facts_of_http(json: &[u8]) -> Result<RequestFacts, MessageError> {
    let message: JsonMessage<IgnoredAny> = parse(json)?;
    Ok(RequestFacts {
        inputs: message.inputs.into_iter().map(JsonTensor::facts).collect(),
        outputs: message.outputs.into_iter().map(|output| output.name).collect(),
        parameters: message.parameters.into_iter().map(|(name, _)| name).collect(),
        ..RequestFacts::default()
    })
}

/// The same of a message over gRPC; the model and its version.
pub(crate) fn facts_of_grpc(message: Bytes) -> Result<(RequestFacts, String, String), MessageError> {
    bounded::check_message(&message, RAW_INPUTS)?;
    let mut message: ModelInferRequest = decode(message)?;
    let (model, version) = (std::mem::take(&mut message.model_name), std::mem::take(&mut message.model_version));
    let parameters = std::mem::take(&mut message.parameters).into_keys().collect();
    let outputs = std::mem::take(&mut message.outputs).into_iter().map(|output| output.name).collect();
    let (inputs, mut raw) = inputs(message);
    let inputs = inputs.map(|input| input.facts(&mut raw)).collect();
    Ok((RequestFacts { inputs, outputs, parameters, ..RequestFacts::default() }, model, version))
}

/// What a record states of the outputs of an answer over HTTP whose JSON this is.
pub(crate) fn outputs_of_http(json: &[u8]) -> Result<Vec<TensorFacts>, MessageError> {
    let message: JsonMessage<IgnoredAny> = parse(json)?;
    Ok(message.outputs.into_iter().map(JsonTensor::facts).collect())
}

pub(crate) fn outputs_of_grpc(message: Bytes) -> Result<Vec<TensorFacts>, MessageError> {
    bounded::check_message(&message, RAW_OUTPUTS)?;
    let (outputs, mut raw) = outputs(decode(message)?);
    Ok(outputs.map(|output| output.facts(&mut raw)).collect())
}

impl Tensor {
    /// The outputs of an answer over HTTP.
    pub fn of_http_answer(body: &[u8], json_len: Option<usize>) -> Result<Vec<Tensor>, MessageError> {
        let (json, mut rest) = split(body, json_len)?;
        let message: JsonMessage<Value> = parse(json)?;
        message.outputs.into_iter().map(|output| output.tensor(&mut rest)).collect()
    }

    /// The outputs of an answer over gRPC.
    pub fn of_grpc_answer(message: Bytes) -> Result<Vec<Tensor>, MessageError> {
        let (outputs, mut raw) = outputs(decode(message)?);
        outputs.map(|output| output.tensor(&mut raw)).collect()
    }

    pub fn facts(&self) -> TensorFacts {
        TensorFacts {
            name: self.name.clone(),
            datatype: self.datatype.clone(),
            shape: self.shape.clone(),
            byte_size: None,
            shared_memory: self.contents.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer() -> Infer {
        let tensor = |name: &str, datatype: &str, contents: &[u8]| Tensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![1, 2],
            parameters: Parameters::from([("p".to_owned(), Parameter::Int(-1))]),
            contents: Some(contents.to_vec()),
        };
        Infer {
            model: "m".to_owned(),
            version: "3".to_owned(),
            id: "i".to_owned(),
            parameters: Parameters::from([
                ("a".to_owned(), Parameter::Bool(true)),
                ("b".to_owned(), Parameter::Uint(u64::MAX)),
                ("c".to_owned(), Parameter::Text("x".to_owned())),
                ("d".to_owned(), Parameter::Double(0.5)),
            ]),
            inputs: vec![tensor("x", "INT16", &[1, 0, 2, 0]), tensor("y", "BYTES", b"\x01\0\0\0a\0\0\0\0")],
            outputs: vec![("z".to_owned(), Parameters::from([("classification".to_owned(), Parameter::Int(2))]))],
        }
    }

    #[test]
    fn a_request_has_three_forms() {
        let sent = infer();
        let over_grpc = Infer::from_grpc(sent.to_grpc().unwrap().into()).unwrap();
        assert_eq!(over_grpc, sent);
        for is_binary in [false, true] {
            let (body, json_len) = sent.to_http(is_binary).unwrap();
            assert_eq!(json_len.is_some(), is_binary);
            let over_http = Infer::from_http(&body, json_len).unwrap();
            let named = Infer { model: sent.model.clone(), version: sent.version.clone(), ..over_http };
            assert_eq!(named, sent, "{}", String::from_utf8_lossy(&body));
        }
    }

    #[test]
    fn facts_leave_contents_out() {
        let sent = infer();
        let (facts, model, version) = facts_of_grpc(sent.to_grpc().unwrap().into()).unwrap();
        assert_eq!((&*model, &*version), ("m", "3"));
        assert_eq!(facts.inputs[0].byte_size, Some(4));
        let (body, json_len) = sent.to_http(true).unwrap();
        let of_http = facts_of_http(&body[..json_len.unwrap()]).unwrap();
        assert_eq!((&of_http.inputs, &of_http.outputs), (&facts.inputs, &facts.outputs));
        assert_eq!(facts.parameters, ["a", "b", "c", "d"]);
        let region = br#"{"inputs":[{"name":"x","datatype":"INT8","shape":[4],
            "parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}}]}"#;
        let input = facts_of_http(region).unwrap().inputs.remove(0);
        assert!(input.shared_memory && input.byte_size == Some(4));
    }

    #[test]
    fn typed_contents_and_lies_are_read() {
        let contents = InferTensorContents { int_contents: vec![1, -1], ..InferTensorContents::default() };
        assert_eq!(typed("INT8", &contents), Ok(vec![1, 255]));
        assert_eq!(typed("INT32", &contents), Ok(vec![1, 0, 0, 0, 255, 255, 255, 255]));
        assert!(typed("FP16", &contents).is_err());
        let lying = br#"{"outputs":[{"name":"x","datatype":"INT8","shape":[4],"parameters":{"binary_data_size":5}}]}"#;
        let with_tail = [&lying[..], b"abcd"].concat();
        let error = Tensor::of_http_answer(&with_tail, Some(lying.len()));
        assert_eq!(error, Err(MessageError::Short("x".to_owned())));
        let body = with_tail.len();
        assert_eq!(Infer::from_http(&with_tail, Some(900)), Err(MessageError::JsonLength { json: 900, body }));
        let large = vec![0; bounded::JSON_BYTES_MAX + 1];
        assert_eq!(Infer::from_http(&large, None), Err(MessageError::TooLarge));
        assert!(matches!(Infer::from_http(&large, Some(large.len() - 1)), Err(MessageError::Json(_))));
        assert!(Infer::from_http(b"[", None).is_err() && Infer::from_grpc(Bytes::from_static(b"\xff")).is_err());
    }
}
