//! The chunks of streams of chat and of completions (contract/openai.md section 1.5): bytes that do not change from one
//! to the next are made once, so that a chunk costs little more than its text.

use super::finish::Finish;
use super::text::{put_number, put_string};
use super::usage::Counts;
use crate::error::Compat;
use crate::json::escape_into;
use crate::plan::{Plan, ToolPlan};
use crate::request::Operation;
use crate::tools::Delta;

/// What a chunk says beside its text.
#[derive(Clone, Copy, Default)]
pub(super) struct Facts<'a> {
    pub finish: Option<Finish>,
    /// JSON.
    pub logprobs: Option<&'a str>,
    pub usage: Option<Counts>,
}

impl Facts<'_> {
    pub fn are_none(&self) -> bool {
        self.finish.is_none() && self.logprobs.is_none() && self.usage.is_none()
    }
}

pub(super) struct ChunkForm {
    /// Up to what is inside of the first choice.
    before: Vec<u8>,
    /// From behind it to the value of `usage`.
    after: Vec<u8>,
    /// Around a text in a delta; of completions nothing.
    text: (Vec<u8>, &'static str),
    /// In front of the first text, where it differs: a forced call is named there.
    first_text: Option<Vec<u8>>,
    /// A chunk of a text with no facts, up to the text and behind it.
    plain: (Vec<u8>, Vec<u8>),
    pub is_chat: bool,
    has_nulls: bool,
}

impl ChunkForm {
    pub fn new(plan: &Plan) -> ChunkForm {
        let is_chat = plan.operation == Operation::Chat;
        let has_nulls = plan.compat == Compat::Triton;
        let mut before = b"data: {\"id\":".to_vec();
        put_string(&mut before, &plan.id);
        before.extend_from_slice(b",\"choices\":[");
        let mut after = b"],\"created\":".to_vec();
        put_number(&mut after, plan.created);
        after.extend_from_slice(b",\"model\":");
        put_string(&mut after, &plan.model);
        after.extend_from_slice(b",\"system_fingerprint\":null,\"object\":");
        put_string(&mut after, if is_chat { "chat.completion.chunk" } else { "text_completion" });
        after.extend_from_slice(b",\"usage\":");
        let (first_text, text) = match &plan.tools {
            ToolPlan::Forced { name } if is_chat => {
                (Some(forced_beginning(&plan.id, name)), (forced_rest().to_vec(), "\"}}]}"))
            }
            ToolPlan::None if is_chat && has_nulls => {
                (None, (b"{\"content\":\"".to_vec(), "\",\"function_call\":null,\"role\":null}"))
            }
            _ if is_chat => (None, (b"{\"content\":\"".to_vec(), "\"}")),
            _ => (None, (Vec::new(), "")),
        };
        let mut form =
            ChunkForm { before, after, text, first_text, plain: (Vec::new(), Vec::new()), is_chat, has_nulls };
        let first_text = form.first_text.take();
        let (mut begin, mut end) = (Vec::new(), Vec::new());
        form.begin_text(&mut begin, Facts::default());
        form.end_text(&mut end, Facts::default());
        form.plain = (begin, end);
        form.first_text = first_text;
        form
    }

    /// The bytes around the text of a chunk without facts; `None`: the next chunk is a different one.
    pub fn plain(&self) -> Option<(&[u8], &[u8])> {
        self.first_text.is_none().then_some((&self.plain.0, &self.plain.1))
    }

    /// A chunk up to its text.
    pub fn begin_text(&mut self, out: &mut Vec<u8>, facts: Facts<'_>) {
        out.extend_from_slice(&self.before);
        if self.is_chat {
            out.extend_from_slice(b"{\"delta\":");
            match self.first_text.take() {
                Some(first) => out.extend_from_slice(&first),
                None => out.extend_from_slice(&self.text.0),
            }
            return;
        }
        out.extend_from_slice(b"{\"finish_reason\":");
        out.extend_from_slice(facts.finish.map_or("null", Finish::json).as_bytes());
        out.extend_from_slice(b",\"index\":0,\"logprobs\":");
        out.extend_from_slice(facts.logprobs.unwrap_or("null").as_bytes());
        out.extend_from_slice(b",\"text\":\"");
    }

    /// The rest of a chunk behind its text.
    pub fn end_text(&self, out: &mut Vec<u8>, facts: Facts<'_>) {
        if self.is_chat {
            out.extend_from_slice(self.text.1.as_bytes());
            self.end_delta(out, facts);
        } else {
            out.extend_from_slice(b"\"}");
            self.end(out, facts);
        }
    }

    /// The chunk of a delta that a parser found; of chat.
    pub fn put_delta(&self, out: &mut Vec<u8>, delta: &Delta, facts: Facts<'_>) {
        out.extend_from_slice(&self.before);
        out.extend_from_slice(b"{\"delta\":");
        put_delta(out, delta);
        self.end_delta(out, facts);
    }

    /// The chunk that opens a stream of chat.
    pub fn put_role(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before);
        let nulls = if self.has_nulls { "\"function_call\":null," } else { "" };
        out.extend_from_slice(b"{\"delta\":{\"content\":\"\",");
        out.extend_from_slice(nulls.as_bytes());
        out.extend_from_slice(b"\"role\":\"assistant\"}");
        self.end_delta(out, Facts::default());
    }

    /// The chunk of the usage, which has no choices.
    pub fn put_usage(&self, out: &mut Vec<u8>, usage: Counts) {
        out.extend_from_slice(&self.before);
        self.end(out, Facts { usage: Some(usage), ..Facts::default() });
    }

    fn end_delta(&self, out: &mut Vec<u8>, facts: Facts<'_>) {
        out.extend_from_slice(b",\"logprobs\":");
        out.extend_from_slice(facts.logprobs.unwrap_or("null").as_bytes());
        out.extend_from_slice(b",\"finish_reason\":");
        out.extend_from_slice(facts.finish.map_or("null", Finish::json).as_bytes());
        out.extend_from_slice(b",\"index\":0}");
        self.end(out, facts);
    }

    fn end(&self, out: &mut Vec<u8>, facts: Facts<'_>) {
        out.extend_from_slice(&self.after);
        match facts.usage {
            Some(counts) => counts.put_usage(out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b"}\n\n");
    }
}

/// The delta that names a forced call, up to its arguments.
fn forced_beginning(id: &str, name: &str) -> Vec<u8> {
    let mut json = b"{\"tool_calls\":[{\"index\":0,\"id\":".to_vec();
    put_string(&mut json, id);
    json.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
    put_string(&mut json, name);
    json.extend_from_slice(b",\"arguments\":\"");
    json
}

fn forced_rest() -> &'static [u8] {
    b"{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\""
}

fn put_delta(out: &mut Vec<u8>, delta: &Delta) {
    match delta {
        Delta::Content(text) => {
            out.extend_from_slice(b"{\"content\":");
            put_string(out, text);
        }
        Delta::Reasoning(text) => {
            out.extend_from_slice(b"{\"reasoning_content\":");
            put_string(out, text);
        }
        Delta::CallStarted { index, id, name } => {
            out.extend_from_slice(b"{\"tool_calls\":[{\"index\":");
            put_number(out, *index as u64);
            out.extend_from_slice(b",\"id\":");
            put_string(out, id);
            out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
            put_string(out, name);
            out.extend_from_slice(b"}}]");
        }
        Delta::Arguments { index, fragment } => {
            out.extend_from_slice(b"{\"tool_calls\":[{\"index\":");
            put_number(out, *index as u64);
            out.extend_from_slice(b",\"function\":{\"arguments\":\"");
            escape_into(fragment, out);
            out.extend_from_slice(b"\"}}]");
        }
    }
    out.push(b'}');
}
