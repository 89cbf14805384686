//! Whole answers of chat and of completions (contract/openai.md section 1.5).
//!
//! As Triton's front end does, `Compat::Triton` takes one response, perhaps with an empty one behind it. Otherwise all
//! responses of a model that streams whatever it is asked for make one text.

use std::sync::Arc;

use nereid_memory::{Gather, Pool};

use super::Progress;
use super::document::Document;
use super::finish::Finish;
use super::held::Held;
use super::message::Message;
use super::outputs::Arrived;
use super::text::{put_number, put_string};
use super::token_logprobs::TokenLogprobs;
use super::usage::Counts;
use crate::error::{Compat, Refusal};
use crate::plan::{Plan, ToolPlan};
use crate::request::Operation;
use crate::tools::Delta;

struct Call {
    id: String,
    name: String,
    arguments: String,
}

pub(super) struct Unary {
    message: Message,
    deltas: Vec<Delta>,
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    responses: usize,
    arrived: Option<Arrived>,
    logprobs: TokenLogprobs,
    reported: Option<Finish>,
    counts: Counts,
    held: Held,
    document: Option<Document>,
}

impl Unary {
    pub fn new(plan: &Plan) -> Unary {
        Unary {
            message: Message::new(plan),
            deltas: Vec::new(),
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            responses: 0,
            arrived: None,
            logprobs: TokenLogprobs::new(plan),
            reported: None,
            counts: Counts::default(),
            held: Held::default(),
            document: None,
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// True if the outputs of the next response count.
    pub fn wants_outputs(&self, plan: &Plan) -> bool {
        plan.compat == Compat::OpenAi || self.responses == 0
    }

    pub fn begin(&mut self, plan: &Plan, arrived: Option<Arrived>, is_last: bool) -> Result<(), Refusal> {
        self.responses = self.responses.saturating_add(1);
        if is_last {
            check_count(plan, self.responses)?;
        }
        let Some(mut arrived) = arrived else { return Ok(()) };
        self.counts.add(&arrived);
        self.reported = arrived.finish.or(self.reported);
        self.logprobs.collect(&arrived);
        self.message.begin(&mut arrived);
        self.arrived = Some(arrived);
        Ok(())
    }

    pub fn end_without_response(&mut self, plan: &Plan) -> Result<(), Refusal> {
        match self.responses {
            0 => Err(unexpected_count(0)),
            // The end counts as a response of its own.
            responses => check_count(plan, responses.saturating_add(1)),
        }
    }

    pub fn step(&mut self, pool: &Pool) -> Result<Progress, Refusal> {
        let Some(mut arrived) = self.arrived.take() else { return Ok(Progress::Done) };
        let is_rest = match self.message.is_plain() {
            true => {
                let (text, is_rest) = self.message.plain(&mut arrived);
                self.content.push_str(text);
                is_rest
            }
            // Only streams have a limit.
            false => self.message.push(&mut arrived, &mut self.deltas).unwrap_or(true),
        };
        self.fold();
        self.held.set(self.bytes(), pool)?;
        if is_rest {
            return Ok(Progress::Done);
        }
        self.arrived = Some(arrived);
        Ok(Progress::More)
    }

    /// Bytes that have been collected.
    fn bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.arguments.len().saturating_add(size_of::<Call>()));
        self.content.len().saturating_add(self.reasoning.len()).saturating_add(calls.sum())
    }

    fn fold(&mut self) {
        for delta in self.deltas.drain(..) {
            match delta {
                Delta::Content(text) => self.content.push_str(&text),
                Delta::Reasoning(text) => self.reasoning.push_str(&text),
                Delta::CallStarted { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
                Delta::Arguments { index, fragment } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&fragment);
                    }
                }
            }
        }
    }

    /// Writes a bounded part of the answer. True when it is whole.
    pub fn finish(&mut self, plan: &Plan, pool: &Pool, out: &mut Gather) -> Result<bool, Refusal> {
        if self.document.is_none() {
            match self.message.is_plain() {
                true => self.content.push_str(self.message.plain_end()),
                false => self.message.finish(&mut self.deltas),
            }
            self.fold();
            self.document = Some(self.make(plan)?);
        }
        Ok(self.document.as_mut().is_none_or(|document| document.write(pool, out)))
    }

    fn make(&mut self, plan: &Plan) -> Result<Document, Refusal> {
        let mut document = Document::default();
        let is_chat = plan.operation == Operation::Chat;
        let finish = Finish::of(plan, self.reported, self.counts.completion, self.message.has_calls());
        let json = document.json();
        json.extend_from_slice(b"{\"id\":");
        put_string(json, &plan.id);
        json.extend_from_slice(b",\"choices\":[{\"finish_reason\":");
        json.extend_from_slice(finish.json().as_bytes());
        json.extend_from_slice(b",\"index\":0,");
        if is_chat {
            document.put("\"message\":");
            self.put_message(plan, &mut document);
            document.put(",");
        }
        document.put("\"logprobs\":");
        document.put(self.logprobs.of_all()?.as_deref().unwrap_or("null"));
        if !is_chat {
            document.put(",\"text\":");
            document.put_text(&Arc::new(std::mem::take(&mut self.content)));
        }
        let json = document.json();
        json.extend_from_slice(b"}],\"created\":");
        put_number(json, plan.created);
        json.extend_from_slice(b",\"model\":");
        put_string(json, &plan.model);
        json.extend_from_slice(b",\"system_fingerprint\":null,\"object\":");
        put_string(json, if is_chat { "chat.completion" } else { "text_completion" });
        json.extend_from_slice(b",\"usage\":");
        self.counts.with_prompt_of(plan).put_usage(json);
        json.push(b'}');
        Ok(document)
    }

    fn put_message(&mut self, plan: &Plan, document: &mut Document) {
        let has_nulls = plan.compat == Compat::Triton;
        if let ToolPlan::Forced { name } = &plan.tools {
            let arguments = std::mem::take(&mut self.content);
            self.calls.push(Call { id: plan.id.clone(), name: name.clone(), arguments });
        }
        document.put("{\"content\":");
        // OpenAI's answers have no content beside calls; Triton's an empty one.
        match self.content.is_empty() && !self.calls.is_empty() && !has_nulls {
            true => document.put("null"),
            false => document.put_text(&Arc::new(std::mem::take(&mut self.content))),
        }
        if !self.reasoning.is_empty() {
            document.put(",\"reasoning_content\":");
            document.put_text(&Arc::new(std::mem::take(&mut self.reasoning)));
        }
        match (self.calls.is_empty(), has_nulls) {
            (true, true) => document.put(",\"tool_calls\":null"),
            (true, false) => {}
            (false, _) => put_calls(std::mem::take(&mut self.calls), document),
        }
        document.put(",\"role\":\"assistant\"");
        document.put(if has_nulls { ",\"function_call\":null}" } else { "}" });
    }
}

fn put_calls(calls: Vec<Call>, document: &mut Document) {
    document.put(",\"tool_calls\":[");
    for (index, call) in calls.into_iter().enumerate() {
        document.put(if index > 0 { ",{\"id\":" } else { "{\"id\":" });
        put_string(document.json(), &call.id);
        document.put(",\"type\":\"function\",\"function\":{\"name\":");
        put_string(document.json(), &call.name);
        document.put(",\"arguments\":");
        document.put_text(&Arc::new(call.arguments));
        document.put("}}");
    }
    document.put("]");
}

fn check_count(plan: &Plan, responses: usize) -> Result<(), Refusal> {
    match plan.compat {
        Compat::Triton if responses > 2 => Err(unexpected_count(responses)),
        _ => Ok(()),
    }
}

fn unexpected_count(responses: usize) -> Refusal {
    Refusal::server(format!("Unexpected number of responses: {responses}, expected 1 or 2."))
}
