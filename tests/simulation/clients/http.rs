//! Clients over HTTP/1.1: pipelined requests on a connection that is kept, tensors as JSON or as bytes, chunked bodies.

use std::collections::VecDeque;

use nereid_protocol::http1::{RequestBody, RequestHead, ResponseParser, ResponseSink, put_chunk, put_last_chunk};
use serde_json::{Value, json};

use super::{Draft, Plan, Sequence};
use crate::ledger::{self, Answer, SEQUENCE};
use crate::models::KINDS;

#[derive(Default)]
pub struct Http {
    parser: ResponseParser,
    partial: Partial,
    /// Requests without an answer, oldest first, and whether each belongs to a sequence.
    pub waiting: VecDeque<(u32, bool)>,
    sequence: Option<Sequence>,
    pub sent: u32,
    /// The server ends the connection behind an answer.
    pub closes: bool,
}

/// The response that is being received.
#[derive(Default)]
struct Partial {
    status: u16,
    json_bytes: Option<usize>,
    body: Vec<u8>,
}

struct Receiving<'a> {
    partial: &'a mut Partial,
    waiting: &'a mut VecDeque<(u32, bool)>,
    lost_sequence: bool,
    closes: bool,
}

impl ResponseSink for Receiving<'_> {
    fn head(&mut self, status: u16, headers: &[(&str, &[u8])]) {
        self.partial.status = status;
        self.partial.body.clear();
        let of_name = |name: &str| headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        let length = of_name("Inference-Header-Content-Length");
        self.partial.json_bytes = length.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok());
    }

    fn body(&mut self, bytes: &[u8]) {
        self.partial.body.extend_from_slice(bytes);
    }

    fn done(&mut self, keep_alive: bool) {
        self.closes |= !keep_alive;
        let Some((number, in_sequence)) = self.waiting.pop_front() else {
            return ledger::with(|ledger| ledger.violate("an answer came that belongs to no request".to_owned()));
        };
        let Partial { status, json_bytes, body } = &*self.partial;
        let text = &body[..json_bytes.unwrap_or(body.len()).min(body.len())];
        let document: Value = match serde_json::from_slice(text) {
            Ok(document) => document,
            Err(error) => {
                let text = String::from_utf8_lossy(text).into_owned();
                let text = format!("request {number} gets {status} and no JSON ({error}): {text}");
                return ledger::with(|ledger| ledger.violate(text));
            }
        };
        if *status != 200 {
            self.lost_sequence |= in_sequence;
            let text = document["error"].as_str().unwrap_or_default();
            let code = status.to_string();
            return ledger::with(|ledger| ledger.answered(number, &Answer::Failure { code: &code, text }));
        }
        let output = &document["outputs"][0];
        let values: Vec<i32> = match output["parameters"]["binary_data_size"].as_u64() {
            Some(_) => body[text.len()..]
                .chunks_exact(4)
                .map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect(),
            None => output["data"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|value| value.as_i64().unwrap_or(0) as i32)
                .collect(),
        };
        let text_of = |name: &str| document[name].as_str().unwrap_or_default();
        let answer = Answer::Success {
            model: text_of("model_name"),
            version: text_of("model_version"),
            id: text_of("id"),
            values: &values,
        };
        ledger::with(|ledger| ledger.answered(number, &answer));
    }
}

impl Http {
    /// Sends another request.
    pub fn send(&mut self, plan: &mut Plan<'_>, out: &mut Vec<u8>) {
        let in_sequence = self.waiting.iter().any(|(_, in_sequence)| *in_sequence);
        let draft = plan.draft(&mut self.sequence, !in_sequence);
        self.sent += 1;
        self.parser.sent(false);
        self.waiting.push_back((draft.number, draft.model == SEQUENCE));
        let is_binary = plan.random.once_in(2);
        let wants_binary = plan.random.once_in(2);
        let (header, tensor) = body(&draft, is_binary, wants_binary);
        let header_len = header.len().to_string();
        let mut body = header;
        body.extend_from_slice(&tensor);
        let target = format!("/v2/models/{}/infer", KINDS[draft.model].name);
        let fields = [("Inference-Header-Content-Length", &*header_len)];
        let is_chunked = plan.random.once_in(6);
        let head = RequestHead {
            method: "POST",
            target: &target,
            host: "simulated",
            headers: if is_binary { &fields } else { &[] },
            body: if is_chunked { RequestBody::Chunked } else { RequestBody::Length(body.len()) },
        };
        head.encode(out);
        if !is_chunked {
            return out.extend_from_slice(&body);
        }
        let mut rest = &body[..];
        while !rest.is_empty() {
            let n = (1 + plan.random.below(rest.len() as u64) as usize).max(rest.len() / 50);
            put_chunk(out, &rest[..n]);
            rest = &rest[n..];
        }
        put_last_chunk(out);
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        let Http { parser, partial, waiting, .. } = self;
        let mut receiving = Receiving { partial, waiting, lost_sequence: false, closes: false };
        let outcome = parser.receive(bytes, &mut receiving);
        let (lost_sequence, closes) = (receiving.lost_sequence, receiving.closes);
        if lost_sequence {
            self.sequence = None;
        }
        self.closes |= closes;
        if let Err(error) = outcome {
            ledger::with(|ledger| ledger.violate(format!("a response cannot be read: {error}")));
        }
    }
}

/// The JSON of a request, and the bytes behind it.
fn body(draft: &Draft, is_binary: bool, wants_binary: bool) -> (Vec<u8>, Vec<u8>) {
    let values = draft.values();
    let shape = if draft.is_batching() { vec![1, draft.elements] } else { vec![draft.elements] };
    let mut input = json!({ "name": "INPUT0", "shape": shape, "datatype": "INT32" });
    let mut tensor = Vec::new();
    if is_binary {
        tensor = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        input["parameters"] = json!({ "binary_data_size": tensor.len() });
    } else {
        input["data"] = json!(values);
    }
    let mut parameters = json!({});
    if let Some(step) = draft.sequence {
        parameters["sequence_id"] = json!(step.id);
        parameters["sequence_start"] = json!(step.begins);
        parameters["sequence_end"] = json!(step.ends);
    }
    if draft.priority > 0 {
        parameters["priority"] = json!(draft.priority);
    }
    if draft.timeout_us > 0 {
        parameters["timeout"] = json!(draft.timeout_us);
    }
    let mut request = json!({ "id": format!("r{}", draft.number), "inputs": [input] });
    if parameters.as_object().is_some_and(|parameters| !parameters.is_empty()) {
        request["parameters"] = parameters;
    }
    if wants_binary {
        request["outputs"] = json!([{ "name": "OUTPUT0", "parameters": { "binary_data": true } }]);
    }
    (request.to_string().into_bytes(), tensor)
}
