//! Tool calls in the text of models (contract/openai.md section 1.6).

/// The formats that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolParserKind {
    Llama3,
    Mistral,
    Hermes,
}

/// A part of an assistant's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    Content(String),
    Reasoning(String),
    CallStarted {
        index: usize,
        id: String,
        name: String,
    },
    /// A fragment of the JSON text of the arguments; a call's fragments make one JSON object.
    Arguments {
        index: usize,
        fragment: String,
    },
}

/// Reads the text of one answer as it comes.
pub struct ToolParser {}

impl ToolParser {
    pub fn new(_kind: ToolParserKind, _is_vllm: bool) -> ToolParser {
        unimplemented!()
    }

    /// Takes more text in; what is certain by it goes to `deltas`.
    pub fn push(&mut self, _text: &str, _deltas: &mut Vec<Delta>) {
        unimplemented!()
    }

    /// No text follows. True if there was a call.
    pub fn finish(&mut self, _deltas: &mut Vec<Delta>) -> bool {
        unimplemented!()
    }
}
