//! Requests of two tensors with an id and parameters, each of which may differ from all others: in its shapes, its
//! elements, the order of tensors, outputs and members of JSON, the parameters that it has, its id.
//!
//! They are made before the load begins, a number of them for each slot. While it runs only a number is written into
//! the id and a parameter, so that bytes never come again when shapes and orders do. The client's own CPU time is
//! reported beside the server's.

use std::cell::Cell;

use nereid_memory::Slice;
use nereid_protocol::http1::{RequestBody, RequestHead};
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, ModelInferRequest};
use prost::Message;

use super::answer::Check;
use super::http::JSON_LENGTH;
use super::question::{Named, Question};
use super::request::{Request, UNREPEATED};

/// Different requests of a slot.
const VARIANTS: usize = 256;
/// Of so many answers that are different one is taken apart; of the others the status is checked.
const TAKEN_APART: usize = 16;
/// As long as [`UNREPEATED`], which takes a number.
const REPEATED: &str = "repeated-00000000000000";

/// A request, and what its answer must be.
pub struct Pair {
    pub question: Question,
    pub id: String,
    pub parameters: Vec<(&'static str, ParameterChoice)>,
    /// Decides the order of the members of JSON.
    order: Draw,
}

/// Numbers that follow from a seed (SplitMix64).
#[derive(Clone)]
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }

    /// An object of JSON from members that are JSON, in any order.
    fn object(&mut self, mut members: Vec<(&str, String)>) -> String {
        self.shuffle(&mut members);
        let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    }
}

/// The requests of a slot over gRPC, and the check of their framed answers.
pub fn grpc(model: &'static str, slot: usize, is_varied: bool) -> (Request, Check) {
    exchange(model, slot, is_varied, Pair::grpc_request, Pair::check_unary)
}

/// The requests of a slot over HTTP, tensors behind the JSON, and the check of their answers.
pub fn http(model: &'static str, slot: usize, is_varied: bool) -> (Request, Check) {
    exchange(model, slot, is_varied, Pair::http_request, Pair::check_http)
}

fn exchange(
    model: &'static str,
    slot: usize,
    is_varied: bool,
    request: fn(&Pair) -> Slice,
    check: fn(&Pair, &[u8]) -> Result<(), String>,
) -> (Request, Check) {
    let pairs: Vec<Pair> = match is_varied {
        true => (0..VARIANTS).map(|at| Pair::varied(model, slot * VARIANTS + at)).collect(),
        false => vec![Pair::repeated(model, slot)],
    };
    let requests = Request::in_turn(pairs.iter().map(request));
    let (turn, answers) = (requests.turn(), Cell::new(0usize));
    let check = move |answer: &[u8]| {
        let nth = answers.replace(answers.get() + 1);
        if !is_varied || nth.is_multiple_of(TAKEN_APART) { check(&pairs[turn.get()], answer) } else { Ok(()) }
    };
    (requests, Box::new(check))
}

/// Elements that no other request has, exact as FP32.
fn tensor(name: &'static str, shape: Vec<i64>, number: usize, from: usize) -> Named {
    let count = shape.iter().product::<i64>() as usize;
    let element = |at: usize| (number as f32) * 16.0 + (at as f32) / 4.0;
    let data = (from..from + count).flat_map(|at| element(at).to_le_bytes()).collect();
    Named { name, datatype: "FP32", shape, data }
}

fn pair_of(model: &'static str, number: usize, length: i64, rows: i64, columns: i64) -> Question {
    let sides = |vector, matrix| {
        vec![tensor(vector, vec![length], number, 0), tensor(matrix, vec![rows, columns], number, length as usize)]
    };
    Question { model, inputs: sides("INPUT0", "INPUT1"), outputs: sides("OUTPUT0", "OUTPUT1") }
}

impl Pair {
    /// The request of a slot that sends the same each time. It is about as large as varied ones are on average.
    pub fn repeated(model: &'static str, number: usize) -> Pair {
        let parameters = vec![
            ("tag", ParameterChoice::StringParam(REPEATED.to_owned())),
            ("attempt", ParameterChoice::Int64Param(1)),
            ("dry", ParameterChoice::BoolParam(false)),
        ];
        Pair { question: pair_of(model, number, 8, 2, 4), id: format!("abcd{REPEATED}"), parameters, order: Draw(0) }
    }

    /// The request of that number, whose id and tag take another number each time that it is sent.
    pub fn varied(model: &'static str, number: usize) -> Pair {
        let mut draw = Draw(number as u64);
        let (length, rows, columns) = (2 + draw.below(15), 1 + draw.below(4), 1 + draw.below(4));
        let mut question = pair_of(model, number, length as i64, rows as i64, columns as i64);
        draw.shuffle(&mut question.inputs);
        draw.shuffle(&mut question.outputs);
        let mut parameters = vec![
            ("attempt", ParameterChoice::Int64Param(draw.below(1_000_000) as i64)),
            ("dry", ParameterChoice::BoolParam(draw.below(2) == 0)),
            ("region", ParameterChoice::StringParam("north".chars().cycle().take(draw.below(12) as usize).collect())),
        ];
        draw.shuffle(&mut parameters);
        parameters.truncate(draw.below(4) as usize);
        parameters.push(("tag", ParameterChoice::StringParam(UNREPEATED.to_owned())));
        draw.shuffle(&mut parameters);
        let prefix: String = (0..draw.below(9)).map(|_| char::from(b'a' + draw.below(26) as u8)).collect();
        Pair { question, id: format!("{prefix}-{UNREPEATED}"), parameters, order: draw }
    }

    /// A framed ModelInferRequest.
    pub fn grpc_request(&self) -> Slice {
        let input = |tensor: &Named| InferInputTensor {
            name: tensor.name.to_owned(),
            datatype: tensor.datatype.to_owned(),
            shape: tensor.shape.clone(),
            ..InferInputTensor::default()
        };
        let output = |tensor: &Named| InferRequestedOutputTensor {
            name: tensor.name.to_owned(),
            ..InferRequestedOutputTensor::default()
        };
        let parameter = |(name, choice): &(&str, ParameterChoice)| {
            ((*name).to_owned(), InferParameter { parameter_choice: Some(choice.clone()) })
        };
        let request = ModelInferRequest {
            model_name: self.question.model.to_owned(),
            id: self.id.clone(),
            parameters: self.parameters.iter().map(parameter).collect(),
            inputs: self.question.inputs.iter().map(input).collect(),
            outputs: self.question.outputs.iter().map(output).collect(),
            raw_input_contents: self.question.inputs.iter().map(|input| input.data.clone().into()).collect(),
            ..ModelInferRequest::default()
        };
        let message = request.encode_to_vec();
        let length = (message.len() as u32).to_be_bytes();
        Slice::copy_of(&[&[0], &length[..], &message].concat())
    }

    /// Head and body, the tensors behind the JSON.
    pub fn http_request(&self) -> Slice {
        let json = self.json();
        let tail: Vec<u8> = self.question.inputs.iter().flat_map(|input| input.data.iter().copied()).collect();
        let length = json.len().to_string();
        let head = RequestHead {
            method: "POST",
            target: &format!("/v2/models/{}/infer", self.question.model),
            host: "127.0.0.1",
            headers: &[("Content-Type", "application/octet-stream"), (JSON_LENGTH, length.as_str())],
            body: RequestBody::Length(json.len() + tail.len()),
        };
        let mut request = Vec::new();
        head.encode(&mut request);
        request.extend_from_slice(json.as_bytes());
        request.extend_from_slice(&tail);
        Slice::copy_of(&request)
    }

    /// No text here needs an escape.
    pub fn json(&self) -> String {
        let mut draw = self.order.clone();
        let quoted = |text: &str| format!("\"{text}\"");
        let list = |objects: Vec<String>| format!("[{}]", objects.join(","));
        let mut inputs = Vec::new();
        for input in &self.question.inputs {
            let size = format!("{{\"binary_data_size\":{}}}", input.data.len());
            inputs.push(draw.object(vec![
                ("name", quoted(input.name)),
                ("datatype", quoted(input.datatype)),
                ("shape", list(input.shape.iter().map(i64::to_string).collect())),
                ("parameters", size),
            ]));
        }
        let mut outputs = Vec::new();
        for output in &self.question.outputs {
            let binary = "{\"binary_data\":true}".to_owned();
            outputs.push(draw.object(vec![("name", quoted(output.name)), ("parameters", binary)]));
        }
        let parameter = |(name, choice): &(&str, ParameterChoice)| match choice {
            ParameterChoice::BoolParam(flag) => format!("\"{name}\":{flag}"),
            ParameterChoice::Int64Param(number) => format!("\"{name}\":{number}"),
            ParameterChoice::Uint64Param(number) => format!("\"{name}\":{number}"),
            ParameterChoice::DoubleParam(number) => format!("\"{name}\":{number:?}"),
            ParameterChoice::StringParam(text) => format!("\"{name}\":\"{text}\""),
        };
        let parameters: Vec<String> = self.parameters.iter().map(parameter).collect();
        draw.object(vec![
            ("id", quoted(&self.id)),
            ("parameters", format!("{{{}}}", parameters.join(","))),
            ("inputs", list(inputs)),
            ("outputs", list(outputs)),
        ])
    }

    /// A framed ModelInferResponse that must carry the id and the outputs.
    pub fn check_unary(&self, frame: &[u8]) -> Result<(), String> {
        self.question.check_unary(frame)?;
        self.check_id(frame)
    }

    /// The value of [`JSON_LENGTH`], a line break, and the body of an HTTP answer.
    pub fn check_http(&self, noted: &[u8]) -> Result<(), String> {
        self.question.check_http(noted)?;
        self.check_id(noted)
    }

    /// The number at its end may be another.
    fn check_id(&self, answer: &[u8]) -> Result<(), String> {
        let id = self.id.trim_end_matches('0').as_bytes();
        match answer.windows(id.len()).any(|window| window == id) {
            true => Ok(()),
            false => Err(format!("the answer lacks the id {}", self.id)),
        }
    }
}
