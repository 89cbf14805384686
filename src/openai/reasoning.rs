//! The part of a model's text that is its reasoning.

/// The formats that are known (`--reasoning-parser`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningParserKind {
    /// `<think>` ... `</think>`; the text may begin inside.
    DeepSeekR1,
    /// The same, but text without `<think>` is no reasoning.
    Qwen3,
}

/// Reads the text of one answer as it comes, in front of the parser of tool calls.
pub struct ReasoningParser {}

/// Parts of the text in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Content(String),
}

impl ReasoningParser {
    pub fn new(_kind: ReasoningParserKind) -> ReasoningParser {
        unimplemented!()
    }

    pub fn push(&mut self, _text: &str, _parts: &mut Vec<Part>) {
        unimplemented!()
    }

    pub fn finish(&mut self, _parts: &mut Vec<Part>) {
        unimplemented!()
    }
}
