//! Tensors of requests and responses as bytes, and a client that sends them in each form of the protocols.

use std::net::SocketAddr;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use nereid_test_support::grpc::{Grpc, Status, code};
use nereid_test_support::http::{Answer, Peer, infer_with_tail, request};
use nereid_test_support::repository::TYPES;

#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<i64>,
    /// The elements in little-endian order; each of BYTES behind its length.
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub fn new(name: &str, datatype: &str, shape: &[i64], bytes: Vec<u8>) -> Tensor {
        Tensor { name: name.to_owned(), datatype: datatype.to_owned(), shape: shape.to_vec(), bytes }
    }

    pub fn floats(name: &str, shape: &[i64], numbers: &[f32]) -> Tensor {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Tensor::new(name, "FP32", shape, bytes)
    }

    pub fn as_floats(&self) -> Vec<f32> {
        assert_eq!(self.datatype, "FP32", "{}", self.name);
        self.bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
    }

    /// Its description in JSON, with one further member.
    pub fn with(&self, key: &str, value: Value) -> Value {
        json!({ "name": self.name, "datatype": self.datatype, "shape": self.shape, key: value })
    }
}

/// How the tensors of a request and of its response are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    Json,
    /// HTTP with binary data after the JSON, in both directions.
    Binary,
    Grpc,
}

pub const FORMS: [Form; 3] = [Form::Json, Form::Binary, Form::Grpc];

impl Form {
    /// JSON has no half floats.
    pub fn carries(self, datatype: &str) -> bool {
        self != Form::Json || !matches!(datatype, "FP16" | "BF16")
    }
}

/// What both protocols call the same error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    InvalidArgument,
    Internal,
    Other(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub kind: Kind,
    pub text: String,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        let kind = match status.code {
            code::INVALID_ARGUMENT => Kind::InvalidArgument,
            code::INTERNAL => Kind::Internal,
            other => Kind::Other(other),
        };
        Refusal { kind, text: status.message }
    }
}

/// One connection of each protocol.
pub struct Client {
    pub http: Peer,
    pub grpc: Grpc,
}

impl Client {
    pub fn connect(http: SocketAddr, grpc: SocketAddr) -> Client {
        Client { http: Peer::connect(http), grpc: Grpc::connect(grpc) }
    }

    /// The outputs of these names, or all if none is named.
    pub fn infer(
        &mut self,
        form: Form,
        model: &str,
        inputs: &[Tensor],
        outputs: &[&str],
    ) -> Result<Vec<Tensor>, Refusal> {
        match form {
            Form::Grpc => {
                let answer = self.grpc.call("ModelInfer", &message(model, inputs, outputs));
                answer.map(|answer| of_message(&answer)).map_err(Refusal::from)
            }
            form => of_answer(&self.http.send(&http_request(form, model, inputs, outputs)).answer()),
        }
    }
}

/// The bytes of a request over HTTP. What JSON cannot carry is sent as bytes in either form.
pub fn http_request(form: Form, model: &str, inputs: &[Tensor], outputs: &[&str]) -> Vec<u8> {
    let path = format!("/v2/models/{model}/infer");
    let is_binary = form == Form::Binary;
    let is_in_tail = |tensor: &Tensor| is_binary || !form.carries(&tensor.datatype);
    let describe = |tensor: &Tensor| match is_in_tail(tensor) {
        true => tensor.with("parameters", json!({ "binary_data_size": tensor.bytes.len() })),
        false => tensor.with("data", Value::Array(values_of(&tensor.datatype, &tensor.bytes))),
    };
    let inputs_described: Vec<Value> = inputs.iter().map(describe).collect();
    let mut body = json!({ "inputs": inputs_described, "parameters": { "binary_data_output": is_binary } });
    if !outputs.is_empty() {
        let name = |name: &&str| json!({ "name": name, "parameters": { "binary_data": is_binary } });
        body["outputs"] = Value::Array(outputs.iter().map(name).collect());
    }
    let in_tail = inputs.iter().filter(|tensor| is_in_tail(tensor));
    let tail: Vec<u8> = in_tail.flat_map(|tensor| tensor.bytes.iter().copied()).collect();
    match tail.is_empty() {
        true => request("POST", &path, &[], body.to_string().as_bytes()),
        false => infer_with_tail(&path, &body.to_string(), &tail),
    }
}

/// The outputs of a response over HTTP.
pub fn of_answer(answer: &Answer) -> Result<Vec<Tensor>, Refusal> {
    if answer.status != 200 {
        let kind = match answer.status {
            400 => Kind::InvalidArgument,
            500 => Kind::Internal,
            other => Kind::Other(u32::from(other)),
        };
        return Err(Refusal { kind, text: answer.error() });
    }
    let (json, mut tail) = answer.split();
    let outputs = json["outputs"].as_array().unwrap_or_else(|| panic!("no outputs: {json}"));
    let tensor = |output: &Value| {
        let datatype = output["datatype"].as_str().expect("a datatype");
        let shape: Vec<i64> = serde_json::from_value(output["shape"].clone()).expect("a shape");
        let values = output["data"].as_array();
        let bytes = match output["parameters"]["binary_data_size"].as_u64() {
            Some(size) => {
                let (own, rest) = tail.split_at(size as usize);
                tail = rest;
                own.to_vec()
            }
            // In shared memory.
            None => values.into_iter().flatten().flat_map(|value| bytes_of(datatype, value)).collect(),
        };
        Tensor::new(output["name"].as_str().expect("a name"), datatype, &shape, bytes)
    };
    let tensors = outputs.iter().map(tensor).collect();
    assert!(tail.is_empty(), "{} bytes belong to no output: {json}", tail.len());
    Ok(tensors)
}

pub fn message(model: &str, inputs: &[Tensor], outputs: &[&str]) -> ModelInferRequest {
    let input = |tensor: &Tensor| InferInputTensor {
        name: tensor.name.clone(),
        datatype: tensor.datatype.clone(),
        shape: tensor.shape.clone(),
        ..Default::default()
    };
    let output = |name: &&str| InferRequestedOutputTensor { name: (*name).to_owned(), ..Default::default() };
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: inputs.iter().map(input).collect(),
        outputs: outputs.iter().map(output).collect(),
        raw_input_contents: inputs.iter().map(|tensor| Bytes::from(tensor.bytes.clone())).collect(),
        ..Default::default()
    }
}

pub fn of_message(answer: &ModelInferResponse) -> Vec<Tensor> {
    assert_eq!(answer.outputs.len(), answer.raw_output_contents.len(), "one entry for each output");
    let pairs = answer.outputs.iter().zip(&answer.raw_output_contents);
    pairs.map(|(output, raw)| Tensor::new(&output.name, &output.datatype, &output.shape, raw.to_vec())).collect()
}

pub fn string_parameter(text: &str) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::StringParam(text.to_owned())) }
}

pub fn number_parameter(number: i64) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(number)) }
}

/// The bytes of an element; 0 for BYTES.
pub fn size_of(datatype: &str) -> usize {
    TYPES.iter().find(|known| known.name == datatype).expect("a known datatype").size
}

/// Three elements of a datatype: for the integers the smallest, the largest and one between, where INT64 has as many
/// bits as are given.
pub fn samples(datatype: &str, int64_bits: u32) -> Vec<u8> {
    let size = size_of(datatype);
    let floats = |numbers: [f32; 3]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let signed = |bits: u32| {
        let numbers = [i64::MIN >> (64 - bits), i64::MAX >> (64 - bits), 0x0707_0707_0707_0707 >> (64 - bits)];
        numbers.iter().flat_map(|number| number.to_le_bytes()[..size].to_vec()).collect()
    };
    match datatype {
        "BOOL" => vec![1, 0, 1],
        "BYTES" => b"\x02\0\0\0ab\0\0\0\0\x03\0\0\0cde".to_vec(),
        // 1.5, -2 and 0.
        "FP16" => vec![0x00, 0x3e, 0x00, 0xc0, 0, 0],
        "BF16" => vec![0xc0, 0x3f, 0x00, 0xc0, 0, 0],
        "FP32" => floats([1.5, -2e30, 1e-30]),
        "FP64" => [1.5f64, -2e300, 1e-300].iter().flat_map(|number| number.to_le_bytes()).collect(),
        "INT64" => signed(int64_bits),
        unsigned if unsigned.starts_with('U') => [vec![0; size], vec![0xff; size], vec![7; size]].concat(),
        _ => signed(8 * size as u32),
    }
}

/// The elements as JSON.
fn values_of(datatype: &str, bytes: &[u8]) -> Vec<Value> {
    if datatype == "BYTES" {
        return strings(bytes).into_iter().map(Value::from).collect();
    }
    let value = |element: &[u8]| match datatype {
        "BOOL" => json!(element != [0]),
        "FP32" => json!(f32::from_le_bytes(element.try_into().expect("four bytes"))),
        "FP64" => json!(f64::from_le_bytes(element.try_into().expect("eight bytes"))),
        _ => {
            let mut eight = [0; 8];
            eight[..element.len()].copy_from_slice(element);
            let unsigned = u64::from_le_bytes(eight);
            let unused_bits = 64 - 8 * element.len() as u32;
            match datatype.starts_with('U') {
                true => json!(unsigned),
                false => json!((unsigned as i64) << unused_bits >> unused_bits),
            }
        }
    };
    bytes.chunks(size_of(datatype)).map(value).collect()
}

fn bytes_of(datatype: &str, value: &Value) -> Vec<u8> {
    let size = size_of(datatype);
    match datatype {
        "BOOL" => vec![u8::from(value.as_bool().expect("a truth value"))],
        "BYTES" => {
            let text = value.as_str().expect("a text");
            [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
        }
        "FP32" => (value.as_f64().expect("a number") as f32).to_le_bytes().to_vec(),
        "FP64" => value.as_f64().expect("a number").to_le_bytes().to_vec(),
        unsigned if unsigned.starts_with('U') => value.as_u64().expect("a number").to_le_bytes()[..size].to_vec(),
        _ => value.as_i64().expect("a number").to_le_bytes()[..size].to_vec(),
    }
}

/// The texts of a tensor of BYTES.
fn strings(mut bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (text, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        found.push(String::from_utf8(text.to_vec()).expect("UTF-8"));
        bytes = rest;
    }
    found
}
