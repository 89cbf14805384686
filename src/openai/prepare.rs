//! From a request to the inputs of its model: the checks in the order of contract/openai.md section 1.3.

use std::sync::Arc;

use crate::error::{Compat, Refusal};
use crate::form::{Form, ModelFacts};
use crate::plan::Prepared;
use crate::reasoning::ReasoningParserKind;
use crate::request::Request;
use crate::template::{RenderBounds, Templates};
use crate::tokenizer::Tokenizer;
use crate::tools::ToolParserKind;

/// What flags say.
pub struct Settings {
    pub compat: Compat,
    pub extensions: bool,
    /// `--backend`.
    pub form: Option<Form>,
    /// `--lora-separator`.
    pub lora_separator: Option<String>,
    pub default_max_tokens: i64,
    pub tool_parser: Option<ToolParserKind>,
    pub tool_parse_bytes_max: usize,
    pub reasoning_parser: Option<ReasoningParserKind>,
    /// Prompts are counted where the model reports no counts.
    pub counts_tokens: bool,
    pub render: RenderBounds,
    /// Of all models that have none of their own.
    pub language: Option<Arc<Language>>,
}

/// A tokenizer with its templates.
pub struct Language {
    /// None: the folder has only templates.
    pub tokenizer: Option<Tokenizer>,
    pub templates: Templates,
}

/// A model that may be asked.
#[derive(Clone)]
pub struct Model {
    pub name: String,
    pub facts: Arc<ModelFacts>,
    /// Its own, before that of the settings.
    pub language: Option<Arc<Language>>,
}

/// What `prepare` makes of a request.
pub enum Outcome {
    /// For a model.
    Request(Box<Prepared>),
    /// Answered without a model: tokens, texts. The body of the answer, JSON.
    Answered(String),
}

/// `id` and `created`: of the answer. `find`: the model of a name, if it is ready.
pub fn prepare(
    _request: Request,
    _id: String,
    _created: u64,
    _settings: &Settings,
    _find: &dyn Fn(&str) -> Option<Model>,
) -> Result<Outcome, Refusal> {
    unimplemented!()
}
