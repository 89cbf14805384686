//! Answers, byte for byte. What they are written from is made here.

mod chat;
mod completions;
mod limits;
mod logprobs;
mod parts;
mod responses;
mod vectors;

use std::sync::Arc;

use nereid_memory::{Gather, Pool, Slice};
use nereid_request::{DataType, OutputTensor, Response, Status, Text};

use super::{Answer, Progress};
use crate::error::{Compat, Detail, Refusal};
use crate::plan::{OutputForm, Plan, ToolPlan};
use crate::request::Operation;

pub(super) fn plan(operation: Operation, compat: Compat, stream: bool) -> Plan {
    Plan {
        operation,
        compat,
        id: "cmpl-1".to_string(),
        created: 5,
        model: "m".to_string(),
        stream,
        include_usage: false,
        continuous_usage: false,
        max_tokens: None,
        logprobs: None,
        tools: ToolPlan::None,
        reasoning: None,
        outputs: OutputForm { is_cumulative: false, has_finish_reason: false },
        output_name: None,
        prompt_tokens: None,
        base64: false,
        responses: None,
        rerank: None,
    }
}

pub(super) fn output(name: &str, datatype: DataType, data: &[u8]) -> OutputTensor {
    let elements = if datatype == DataType::Bytes { 1 } else { data.len() / datatype.byte_size().max(1) };
    OutputTensor {
        name: Text::from(name),
        datatype,
        shape: [elements as i64].into_iter().collect(),
        data: [Slice::copy_of(data)].into_iter().collect(),
        index: 0,
        on_device: None,
    }
}

pub(super) fn string(name: &str, text: &[u8]) -> OutputTensor {
    let mut data = (text.len() as u32).to_le_bytes().to_vec();
    data.extend_from_slice(text);
    output(name, DataType::Bytes, &data)
}

pub(super) fn respond(outputs: impl IntoIterator<Item = OutputTensor>) -> Response {
    let mut response = Response::default();
    response.outputs.extend(outputs);
    response
}

pub(super) fn text(text: &str) -> Response {
    respond([string("text_output", text.as_bytes())])
}

pub(super) fn counted(text: &str, prompt: u32, completion: u32) -> Response {
    respond([
        string("text_output", text.as_bytes()),
        output("num_input_tokens", DataType::Uint32, &prompt.to_le_bytes()),
        output("num_output_tokens", DataType::Uint32, &completion.to_le_bytes()),
    ])
}

/// An answer, and what it has written.
pub(super) struct Bench {
    pub answer: Answer,
    pub out: Gather,
    pub pool: Pool,
    pub steps: usize,
}

impl Bench {
    pub fn new(plan: Plan) -> Bench {
        let answer = Answer::new(Arc::new(plan));
        Bench { answer, out: Gather::new(), pool: Pool::new(256 << 20), steps: 0 }
    }

    pub fn open(&mut self) -> String {
        self.answer.open(&self.pool, &mut self.out);
        self.taken()
    }

    /// One response, written whole.
    pub fn take(&mut self, response: Response, is_last: bool) -> Result<Progress, Refusal> {
        self.take_of(0, response, is_last)
    }

    pub fn take_of(&mut self, index: usize, response: Response, is_last: bool) -> Result<Progress, Refusal> {
        self.answer.begin(index, response, is_last)?;
        loop {
            self.steps += 1;
            match self.answer.step(&self.pool, &mut self.out)? {
                Progress::More => {}
                progress => return Ok(progress),
            }
        }
    }

    pub fn finish(&mut self) -> Result<String, Refusal> {
        while !self.answer.finish(&self.pool, &mut self.out)? {
            self.steps += 1;
        }
        Ok(self.taken())
    }

    pub fn fail(&mut self, status: &Status) -> String {
        self.answer.fail(status, &self.pool, &mut self.out);
        self.taken()
    }

    /// What has been written since the last call.
    pub fn taken(&mut self) -> String {
        let text = String::from_utf8(self.out.to_vec()).unwrap();
        self.out.clear();
        text
    }
}

/// The answer to responses of which the last one is FINAL.
pub(super) fn answer(plan: Plan, responses: impl IntoIterator<Item = Response>) -> Result<String, Refusal> {
    let mut bench = Bench::new(plan);
    let responses: Vec<Response> = responses.into_iter().collect();
    let last = responses.len().saturating_sub(1);
    bench.answer.open(&bench.pool, &mut bench.out);
    for (at, response) in responses.into_iter().enumerate() {
        if bench.take(response, at == last)? == Progress::Enough {
            break;
        }
    }
    bench.finish()
}

pub(super) fn refused(status: u16, message: &str) -> Refusal {
    Refusal { status, detail: Detail::Text(message.to_string()) }
}
