//! Requests of one vector of INT32, which says whose it is, over HTTP and over gRPC; and whether an answer is theirs.

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use super::Shared;
use nereid_test_support::http::{self, Answer};
use nereid_test_support::random::Random;

/// A request, and what its answer must say.
#[derive(Clone, Debug)]
pub struct Vector {
    pub model: &'static str,
    pub id: String,
    pub values: Vec<i32>,
    /// The generation that was confirmed before it was sent.
    confirmed: u64,
}

/// A part of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub sequence: u64,
    pub is_start: bool,
    pub is_end: bool,
}

impl Vector {
    /// Mostly short; sometimes so long that the server has to find memory for it.
    pub fn new(shared: &Shared, model: &'static str, random: &mut Random) -> Vector {
        let len = match random.below(100) {
            0 => 20_000 + random.below(40_000),
            1..5 => 1_000 + random.below(3_000),
            _ => 1 + random.below(32),
        };
        Vector::of_len(shared, model, random, len)
    }

    pub fn of_len(shared: &Shared, model: &'static str, random: &mut Random, len: usize) -> Vector {
        let values = (0..len).map(|_| random.next() as i32).collect();
        Vector { model, id: format!("{model}-{:x}", random.next()), values, confirmed: shared.generations.confirmed() }
    }

    fn shape(&self) -> Vec<i64> {
        let len = self.values.len() as i64;
        if matches!(self.model, "batched" | "slow") { vec![1, len] } else { vec![len] }
    }

    pub fn bytes(&self) -> Bytes {
        self.values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// The bytes of a request over HTTP: the numbers as JSON or, if so chosen, behind it.
    pub fn over_http(&self, is_binary: bool, part: Option<Part>) -> Vec<u8> {
        let mut input = json!({ "name": "INPUT0", "datatype": "INT32", "shape": self.shape() });
        let mut body = json!({ "id": self.id });
        if let Some(Part { sequence, is_start, is_end }) = part {
            body["parameters"] = json!({
                "sequence_id": sequence, "sequence_start": is_start, "sequence_end": is_end
            });
        }
        let path = format!("/v2/models/{}/infer", self.model);
        if is_binary {
            input["parameters"] = json!({ "binary_data_size": 4 * self.values.len() });
            body["inputs"] = json!([input]);
            return http::infer_with_tail(&path, &body.to_string(), &self.bytes());
        }
        input["data"] = json!(self.values);
        body["inputs"] = json!([input]);
        http::request("POST", &path, &[], body.to_string().as_bytes())
    }

    pub fn message(&self, part: Option<Part>) -> ModelInferRequest {
        let mut message = ModelInferRequest {
            model_name: self.model.into(),
            id: self.id.clone(),
            inputs: vec![InferInputTensor {
                name: "INPUT0".into(),
                datatype: "INT32".into(),
                shape: self.shape(),
                ..Default::default()
            }],
            raw_input_contents: vec![self.bytes()],
            ..Default::default()
        };
        let mut set = |name: &str, choice| {
            message.parameters.insert(name.into(), InferParameter { parameter_choice: Some(choice) });
        };
        if let Some(Part { sequence, is_start, is_end }) = part {
            set("sequence_id", ParameterChoice::Int64Param(sequence as i64));
            set("sequence_start", ParameterChoice::BoolParam(is_start));
            set("sequence_end", ParameterChoice::BoolParam(is_end));
        }
        if self.model == "burst" {
            set("triton_enable_empty_final_response", ParameterChoice::BoolParam(true));
        }
        message
    }

    /// Whether an answer over HTTP is this request's, with `expected` as its numbers.
    pub fn check_http(&self, shared: &Shared, answer: &Answer, expected: &[i32]) -> Result<(), String> {
        let length = answer.header("inference-header-content-length").map(str::to_owned);
        let head = length.map_or(Ok(answer.body.len()), |length| length.parse()).map_err(|_| "a length".to_owned())?;
        let (head, tail) = answer.body.split_at_checked(head).ok_or("the JSON is longer than the body")?;
        let body: Value = serde_json::from_slice(head).map_err(|error| format!("{error}: {:?}", answer.text()))?;
        let is = |what: &str, is: &Value, shall: Value| match *is == shall {
            true => Ok(()),
            false => Err(format!("{what} of {} is {is}, not {shall}", self.id)),
        };
        is("model_name", &body["model_name"], json!(self.model))?;
        is("model_version", &body["model_version"], json!("1"))?;
        is("id", &body["id"], json!(self.id))?;
        let mut rest = tail;
        let mut generation = None;
        for output in body["outputs"].as_array().into_iter().flatten() {
            let values = numbers_of(output, &mut rest)?;
            match output["name"].as_str() {
                Some("OUTPUT0") if values == expected => {
                    is("shape", &output["shape"], json!(self.shape()))?;
                }
                Some("OUTPUT0") => return Err(self.differs(&values, expected)),
                Some("GENERATION") => generation = values.first().copied(),
                other => return Err(format!("an output {other:?}")),
            }
        }
        self.check_generation(shared, generation)
    }

    pub fn check_message(&self, shared: &Shared, answer: &ModelInferResponse, expected: &[i32]) -> Result<(), String> {
        if (&*answer.model_name, &*answer.model_version, &*answer.id) != (self.model, "1", &*self.id) {
            let ModelInferResponse { model_name, model_version, id, .. } = answer;
            return Err(format!("{} gets the answer of {id:?} by {model_name:?} {model_version:?}", self.id));
        }
        let mut generation = None;
        let mut is_there = false;
        for (output, bytes) in answer.outputs.iter().zip(&answer.raw_output_contents) {
            let values: Vec<i32> = bytes.chunks_exact(4).map(number).collect();
            match &*output.name {
                "OUTPUT0" if values == expected => is_there = true,
                "OUTPUT0" => return Err(self.differs(&values, expected)),
                "GENERATION" => generation = values.first().copied(),
                other => return Err(format!("an output {other:?}")),
            }
        }
        if !is_there {
            return Err(format!("{} has no output", self.id));
        }
        self.check_generation(shared, generation)
    }

    fn differs(&self, values: &[i32], expected: &[i32]) -> String {
        let at = values.iter().zip(expected).position(|(is, shall)| is != shall);
        format!("{}: {} numbers for {}, the first difference at {at:?}", self.id, values.len(), expected.len())
    }

    /// Whose generation was confirmed before the request was sent, no older one answers; nor one that nobody wrote.
    fn check_generation(&self, shared: &Shared, generation: Option<i32>) -> Result<(), String> {
        let Some(generation) = generation else {
            return if self.model == "generation" { Err("no generation".to_owned()) } else { Ok(()) };
        };
        let (first, last) = (self.confirmed, shared.generations.begun());
        match u64::try_from(generation).is_ok_and(|generation| (first..=last).contains(&generation)) {
            true => Ok(()),
            false => Err(format!("generation {generation} answers {}, {first} to {last} may", self.id)),
        }
    }
}

fn number(four: &[u8]) -> i32 {
    i32::from_le_bytes([four[0], four[1], four[2], four[3]])
}

/// The numbers of an output, in its JSON or in the bytes behind it.
fn numbers_of(output: &Value, rest: &mut &[u8]) -> Result<Vec<i32>, String> {
    if let Some(size) = output["parameters"]["binary_data_size"].as_u64() {
        let (bytes, more) = rest.split_at_checked(size as usize).ok_or("less binary data than announced")?;
        *rest = more;
        return Ok(bytes.chunks_exact(4).map(number).collect());
    }
    let data = output["data"].as_array().ok_or("an output without data")?;
    let values = data.iter().map(|value| value.as_i64().and_then(|value| i32::try_from(value).ok()));
    values.collect::<Option<Vec<i32>>>().ok_or_else(|| "data that are no INT32".to_owned())
}
