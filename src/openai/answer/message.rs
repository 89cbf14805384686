//! From the bytes of a model's texts to parts of an assistant's message: characters are put together across responses,
//! reasoning is parted from content, and calls of tools are read.

use std::ops::Range;

use super::outputs::{Arrived, RUN_BYTES_MAX};
use crate::plan::{Plan, ToolPlan};
use crate::reasoning::{Part, ReasoningParser};
use crate::request::Operation;
use crate::text_assembly::TextAssembly;
use crate::tools::{Delta, IdSource, ToolParser};

/// The text is longer than calls of tools may be looked for in (`--max-tool-call-parse-bytes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverLimit;

pub(super) struct Message {
    assembly: TextAssembly,
    /// What it has made of the last bytes.
    text: String,
    reasoning: Option<ReasoningParser>,
    tools: Option<ToolParser>,
    parts: Vec<Part>,
    /// How many more characters calls may be looked for in.
    characters_left: Option<usize>,
    /// How much of `text` has been read, where a response has the whole text so far.
    read: usize,
    is_cumulative: bool,
    has_calls: bool,
}

impl Message {
    pub fn new(plan: &Plan) -> Message {
        let has_parts = plan.operation != Operation::Completions;
        let (tools, limit) = match plan.tools {
            ToolPlan::Auto { parser, bytes_max, is_vllm } if has_parts => {
                (Some(ToolParser::new(parser, is_vllm, IdSource::random())), plan.stream.then_some(bytes_max))
            }
            _ => (None, None),
        };
        let is_forced = matches!(plan.tools, ToolPlan::Forced { .. });
        Message {
            assembly: TextAssembly::new(plan.outputs.is_cumulative),
            text: String::new(),
            reasoning: plan.reasoning.filter(|_| has_parts && !is_forced).map(ReasoningParser::new),
            tools,
            parts: Vec::new(),
            characters_left: limit,
            read: 0,
            is_cumulative: plan.outputs.is_cumulative,
            has_calls: false,
        }
    }

    /// All text is content: no parser has to see it.
    pub fn is_plain(&self) -> bool {
        self.reasoning.is_none() && self.tools.is_none()
    }

    pub fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// A response has arrived, whose text is read next.
    pub fn begin(&mut self, arrived: &mut Arrived) {
        if self.is_cumulative {
            self.text.clear();
            self.read = 0;
            self.assembly.push(&arrived.whole_text(), &mut self.text);
        }
    }

    /// Makes the next text from a run of bytes. Where it lies in `text`, and whether it is the rest of its response.
    fn advance(&mut self, arrived: &mut Arrived) -> (Range<usize>, bool) {
        if self.is_cumulative {
            let from = self.read;
            self.read = self.text.floor_char_boundary(from.saturating_add(RUN_BYTES_MAX));
            return (from..self.read, self.read == self.text.len());
        }
        self.text.clear();
        let Some((run, is_rest)) = arrived.next_run() else { return (0..0, true) };
        self.assembly.push(run, &mut self.text);
        (0..self.text.len(), is_rest)
    }

    /// The next text of a response that no parser has to see, and whether it is the rest.
    pub fn plain(&mut self, arrived: &mut Arrived) -> (&str, bool) {
        let (range, is_rest) = self.advance(arrived);
        (self.text.get(range).unwrap_or_default(), is_rest)
    }

    /// What is left of such text at its end.
    pub fn plain_end(&mut self) -> &str {
        self.text.clear();
        self.assembly.finish(&mut self.text);
        &self.text
    }

    /// Gives the next text of a response to the parsers. True: it was the rest.
    pub fn push(&mut self, arrived: &mut Arrived, deltas: &mut Vec<Delta>) -> Result<bool, OverLimit> {
        let (range, is_rest) = self.advance(arrived);
        let text = self.text.get(range).unwrap_or_default();
        if let Some(left) = &mut self.characters_left {
            *left = left.checked_sub(text.chars().count()).ok_or(OverLimit)?;
        }
        let before = deltas.len();
        match &mut self.reasoning {
            None => content(&mut self.tools, text, deltas),
            Some(reasoning) => {
                reasoning.push(text, &mut self.parts);
                self.parts.drain(..).for_each(|part| take(&mut self.tools, part, deltas));
            }
        }
        self.note_calls(before, deltas);
        Ok(is_rest)
    }

    /// No text follows.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) {
        let before = deltas.len();
        self.text.clear();
        self.assembly.finish(&mut self.text);
        match &mut self.reasoning {
            None => content(&mut self.tools, &self.text, deltas),
            Some(reasoning) => {
                reasoning.push(&self.text, &mut self.parts);
                reasoning.finish(&mut self.parts);
                self.parts.drain(..).for_each(|part| take(&mut self.tools, part, deltas));
            }
        }
        if let Some(tools) = &mut self.tools {
            self.has_calls |= tools.finish(deltas);
        }
        self.note_calls(before, deltas);
    }

    fn note_calls(&mut self, before: usize, deltas: &[Delta]) {
        let new = deltas.get(before..).unwrap_or_default();
        self.has_calls |= new.iter().any(|delta| matches!(delta, Delta::CallStarted { .. }));
    }
}

fn take(tools: &mut Option<ToolParser>, part: Part, deltas: &mut Vec<Delta>) {
    match part {
        Part::Reasoning(text) if text.is_empty() => {}
        Part::Reasoning(text) => deltas.push(Delta::Reasoning(text)),
        Part::Content(text) => content(tools, &text, deltas),
    }
}

fn content(tools: &mut Option<ToolParser>, text: &str, deltas: &mut Vec<Delta>) {
    match tools {
        Some(tools) => tools.push(text, deltas),
        None if text.is_empty() => {}
        None => deltas.push(Delta::Content(text.to_string())),
    }
}
