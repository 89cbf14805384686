//! From the bytes of a model's texts to parts of an assistant's message: characters are put together across responses,
//! reasoning is parted from content, and calls of tools are read.

use super::assembly::Assembly;
use super::outputs::Arrived;
use crate::plan::{Plan, ToolPlan};
use crate::reasoning::{Part, ReasoningParser};
use crate::tools::{Delta, ToolParser};

/// The text is longer than calls of tools may be looked for in (`--max-tool-call-parse-bytes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverLimit;

pub(super) struct Message {
    assembly: Assembly,
    reasoning: Option<ReasoningParser>,
    tools: Option<ToolParser>,
    parts: Vec<Part>,
    /// How many more characters calls may be looked for in.
    characters_left: Option<usize>,
    /// Bytes that earlier responses had, where each has the whole text.
    repeated: usize,
    is_cumulative: bool,
    has_calls: bool,
}

impl Message {
    pub fn new(plan: &Plan) -> Message {
        let (tools, limit) = match plan.tools {
            ToolPlan::Auto { parser, bytes_max, is_vllm } => {
                (Some(ToolParser::new(parser, is_vllm)), plan.stream.then_some(bytes_max))
            }
            ToolPlan::None | ToolPlan::Forced { .. } => (None, None),
        };
        let is_forced = matches!(plan.tools, ToolPlan::Forced { .. });
        Message {
            assembly: Assembly::default(),
            reasoning: plan.reasoning.filter(|_| !is_forced).map(ReasoningParser::new),
            tools,
            parts: Vec::new(),
            characters_left: limit,
            repeated: 0,
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

    /// Passes over what earlier responses had.
    pub fn begin(&mut self, arrived: &mut Arrived) {
        if self.is_cumulative {
            let whole = arrived.text_left();
            arrived.skip(self.repeated);
            self.repeated = self.repeated.max(whole);
        }
    }

    /// Takes bytes of a text that no parser has to see, and returns their characters.
    pub fn plain<'a>(&'a mut self, bytes: &'a [u8]) -> &'a str {
        self.assembly.push(bytes)
    }

    /// What is left of it at its end.
    pub fn plain_end(&mut self) -> &str {
        self.assembly.finish()
    }

    pub fn push(&mut self, bytes: &[u8], deltas: &mut Vec<Delta>) -> Result<(), OverLimit> {
        let text = self.assembly.push(bytes);
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
        Ok(())
    }

    /// No text follows.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) {
        let before = deltas.len();
        let rest = self.assembly.finish();
        match &mut self.reasoning {
            None => content(&mut self.tools, rest, deltas),
            Some(reasoning) => {
                reasoning.push(rest, &mut self.parts);
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
