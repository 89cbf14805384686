//! Chat templates of Hugging Face models, rendered as Python's Jinja2 does (contract/openai.md section 6).

use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::json::Json;

/// How much a rendering may take.
#[derive(Debug, Clone, Copy)]
pub struct RenderBounds {
    /// Instructions of the template's program.
    pub steps_max: u64,
    pub bytes_max: usize,
    pub time_max: Duration,
}

/// What is rendered.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    pub messages: &'a [Json],
    pub tools: Option<&'a [Json]>,
    pub add_generation_prompt: bool,
    /// Further variables.
    pub arguments: &'a [(String, Json)],
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RenderError {
    /// With Python's text.
    #[error("{0}")]
    NoTemplate(String),
    /// The text of `raise_exception`, or of an error of the template.
    #[error("{0}")]
    Failed(String),
    #[error("the chat template did more than {0} steps")]
    TooManySteps(u64),
    #[error("the chat template wrote more than {0} bytes")]
    TooLong(usize),
    #[error("the chat template took longer than {0} ms")]
    TooSlow(u128),
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct LoadError(pub String);

/// The templates of a tokenizer, compiled.
pub struct Templates {}

impl Templates {
    /// Those of a folder with `tokenizer_config.json`. `replacement`: the text of a template that replaces them.
    pub fn load(_folder: &Path, _replacement: Option<&str>) -> Result<Templates, LoadError> {
        unimplemented!()
    }

    /// Content of messages is to be a list of parts, not a string.
    pub fn wants_parts(&self, _has_tools: bool) -> bool {
        unimplemented!()
    }

    pub fn render(&self, _conversation: &Conversation<'_>, _bounds: &RenderBounds) -> Result<String, RenderError> {
        unimplemented!()
    }
}
