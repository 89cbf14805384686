//! From a request to the inputs of its model: the checks in the order of contract/openai.md section 1.3.
//!
//! `prepare` runs on a thread that may take its time. A caller whose thread may not gives bounds of its own: what
//! exceeds them, or needs a file, comes back as [`Outcome::Deferred`], to be prepared elsewhere from the start. Checks
//! are cheap, so that little is done twice.

use std::sync::Arc;

use crate::error::{Compat, Refusal};
use crate::form::{Form, ModelFacts};
use crate::json::{Bounds, Json, ParseError};
use crate::plan::{Plan, Prepared, ToolPlan};
use crate::reasoning::ReasoningParserKind;
use crate::request::{Operation, Request};
use crate::template::{RenderBounds, Templates};
use crate::tokenizer::Tokenizer;
use crate::tools::ToolParserKind;

mod chat;
mod checks;
mod completions;
mod messages;
mod render;
#[cfg(test)]
mod tests;
mod tokens;
mod vectors;

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

/// Bytes that are split into tokens on a thread that may not be held up.
const TOKENIZED_AT_ONCE_BYTES_MAX: usize = 4 << 10;

/// What `prepare` makes of a request.
pub enum Outcome {
    /// For a model.
    Request(Box<Prepared>),
    /// Answered without a model: tokens, texts. The body of the answer, JSON.
    Answered(String),
    /// The request as it was: it takes more than the bounds of this call allow.
    Deferred(Request),
}

/// Why there is nothing for a model.
enum Failure {
    Refused(Refusal),
    Deferred,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

/// What the preparation of every request goes by.
#[derive(Clone, Copy)]
struct Context<'a> {
    settings: &'a Settings,
    /// The bounds of a thread that may not be held up.
    inline: Option<&'a RenderBounds>,
    find: &'a dyn Fn(&str) -> Option<Model>,
}

/// The model of a request, and the adapter.
struct Target {
    model: Model,
    lora: Option<String>,
}

/// `id` and `created`: of the answer. `inline`: the bounds where the thread may not be held up; otherwise those of the
/// settings hold. `find`: the model of a name, if it is ready.
pub fn prepare(
    request: Request,
    id: String,
    created: u64,
    settings: &Settings,
    inline: Option<&RenderBounds>,
    find: &dyn Fn(&str) -> Option<Model>,
) -> Result<Outcome, Refusal> {
    let context = Context { settings, inline, find };
    let prepared = match &request {
        Request::Chat(chat) => chat::prepare(&context, chat, Operation::Chat),
        Request::Responses(responses) => chat::prepare_responses(&context, responses),
        Request::Completions(completions) => completions::prepare(&context, completions),
        Request::Embeddings(embeddings) => vectors::prepare_embeddings(&context, embeddings),
        Request::Rerank(rerank) => vectors::prepare_rerank(&context, rerank),
        Request::Score(score) => vectors::prepare_score(&context, score),
        Request::Tokenize(_) | Request::Detokenize(_) => {
            let answered = match &request {
                Request::Tokenize(tokenize) => tokens::tokenize(&context, tokenize),
                Request::Detokenize(detokenize) => tokens::detokenize(&context, detokenize),
                _ => Err(Failure::Deferred),
            };
            return match answered {
                Ok(body) => Ok(Outcome::Answered(body)),
                Err(Failure::Refused(refusal)) => Err(refusal),
                Err(Failure::Deferred) => Ok(Outcome::Deferred(request)),
            };
        }
    };
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(Failure::Refused(refusal)) => return Err(refusal),
        Err(Failure::Deferred) => return Ok(Outcome::Deferred(request)),
    };
    (prepared.plan.id, prepared.plan.created) = (id, created);
    match request {
        Request::Responses(mut responses) => {
            // The answer repeats members of the request, but not the conversation.
            responses.chat.messages = Vec::new();
            prepared.plan.responses = Some(Arc::from(responses));
        }
        Request::Rerank(rerank) => prepared.plan.rerank = Some(Arc::from(rerank)),
        _ => {}
    }
    Ok(Outcome::Request(Box::new(prepared)))
}

/// The id of an answer. Upstream has one prefix for all.
pub fn id_of(operation: Operation, compat: Compat, uuid: u128) -> String {
    let prefix = match (compat, operation) {
        (Compat::Triton, _) => "cmpl-",
        (Compat::OpenAi, Operation::Chat) => "chatcmpl-",
        (Compat::OpenAi, Operation::Responses) => "resp_",
        (Compat::OpenAi, Operation::Embeddings) => "embd-",
        (Compat::OpenAi, Operation::Rerank) => "rerank-",
        (Compat::OpenAi, Operation::Score) => "score-",
        (Compat::OpenAi, Operation::Completions | Operation::Tokenize | Operation::Detokenize) => "cmpl-",
    };
    let digits = format!("{uuid:032x}");
    let mut text = prefix.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if [8, 12, 16, 20].contains(&index) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

impl Context<'_> {
    fn is_openai(&self) -> bool {
        self.settings.compat == Compat::OpenAi
    }

    fn bounds(&self) -> &RenderBounds {
        self.inline.unwrap_or(&self.settings.render)
    }

    /// The model that a request names, and the adapter behind the separator.
    fn target(&self, name: &str) -> Result<Target, Refusal> {
        let separator = self.settings.lora_separator.as_deref().filter(|separator| !separator.is_empty());
        let parts = separator.and_then(|separator| {
            let mut parts = name.split(separator);
            let parts = (parts.next()?, parts.next()?, parts.next());
            parts.2.is_none().then_some((parts.0, parts.1))
        });
        let (model, lora) = parts.map_or((name, None), |(model, lora)| (model, Some(lora)));
        let model = (self.find)(model).ok_or_else(|| Refusal::unknown_model(name))?;
        Ok(Target { model, lora: lora.map(str::to_owned) })
    }

    /// The tokenizer and templates for a model.
    fn language<'b>(&'b self, model: &'b Model) -> Option<&'b Language> {
        model.language.as_deref().or(self.settings.language.as_deref())
    }

    /// A plan for which id and time are still to be set.
    fn plan(&self, operation: Operation, name: &str, facts: &ModelFacts) -> Plan {
        Plan {
            operation,
            compat: self.settings.compat,
            id: String::new(),
            created: 0,
            model: name.to_owned(),
            stream: false,
            include_usage: false,
            continuous_usage: false,
            max_tokens: None,
            logprobs: None,
            tools: ToolPlan::None,
            reasoning: None,
            outputs: facts.output_form(self.settings.form, self.settings.compat),
            output_name: facts.output_name().map(Arc::from),
            prompt_tokens: None,
            base64: false,
            responses: None,
            rerank: None,
        }
    }

    /// How many tokens texts have, if they are to be counted.
    fn count<T: AsRef<str>>(
        &self,
        model: &Model,
        texts: &[T],
        add_special_tokens: bool,
    ) -> Result<Option<u64>, Failure> {
        let tokenizer = self.language(model).and_then(|language| language.tokenizer.as_ref());
        let Some(tokenizer) = tokenizer.filter(|_| self.settings.counts_tokens) else { return Ok(None) };
        self.admit(texts)?;
        let mut count = 0u64;
        for text in texts {
            let tokens = tokenizer
                .encode(text.as_ref(), add_special_tokens)
                .map_err(|error| Refusal::server(format!("the prompt cannot be tokenized: {error}")))?;
            count = count.saturating_add(u64::try_from(tokens.len()).unwrap_or(u64::MAX));
        }
        Ok(Some(count))
    }

    /// Defers what has more text than this thread may tokenize.
    fn admit<T: AsRef<str>>(&self, texts: &[T]) -> Result<(), Failure> {
        let Some(bounds) = self.inline else { return Ok(()) };
        let size = texts.iter().fold(0usize, |size, text| size.saturating_add(text.as_ref().len()));
        let bytes_max = bounds.bytes_max.min(TOKENIZED_AT_ONCE_BYTES_MAX);
        if size > bytes_max { Err(Failure::Deferred) } else { Ok(()) }
    }
}

/// Reads a JSON text.
pub(crate) fn parse_json(text: &[u8]) -> Result<Json, ParseError> {
    Json::parse(text, &Bounds::default())
}
