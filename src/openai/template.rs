//! Chat templates of Hugging Face models, rendered as Python's Jinja2 does (contract/openai.md section 6).
//!
//! Templates come with models and see what peers send, so that each rendering is bounded. Steps are minijinja's fuel,
//! which also pays for each byte that a template holds; bytes are counted where they are written; time is checked where
//! bytes are written and where a variable of the conversation is read. These bounds hold whatever a peer sends.
//!
//! They do not hold for what the author of a template can do: minijinja prints for `~` and filters of text, compares
//! and drops nested values by recursion and pays for their outermost level alone. So a namespace that holds itself,
//! values nested a hundred thousand times, and lists of lists that are repeated by `*` end a rendering late or the
//! process. A template is as trusted as the model that it comes with.
//!
//! Known differences from Jinja2: `%` does not format strings; floats that `~` turns into text below 1e-4 and from 1e16
//! on have no exponent; in `d.items` the member wins over the method of that name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use thiserror::Error;

use crate::json::Json;
use bounds::{BoundedOutput, Clock};

mod bounds;
mod environment;
mod folder;
mod form;
mod generation;
mod join;
mod methods;
mod python_json;
mod python_text;
#[cfg(test)]
mod tests;
mod variables;

/// How a folder names the template that is used unless another one fits better.
const DEFAULT: &str = "default";
/// The one that is used where tools are given.
const TOOL_USE: &str = "tool_use";

/// transformers' text.
const NO_TEMPLATE: &str = "Cannot use chat template functions because tokenizer.chat_template is not set and no \
    template argument was passed! For information about writing templates and setting the tokenizer.chat_template \
    attribute, please see the documentation at https://huggingface.co/docs/transformers/main/en/chat_templating";

/// How much a rendering may take.
#[derive(Debug, Clone, Copy)]
pub struct RenderBounds {
    /// Instructions of the template's program. 64 bytes that the template writes or holds count as one more.
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

/// The forms of a message's content that a template writes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentForm {
    Text,
    Parts,
    /// Each message may have either.
    Both,
}

/// The templates of a tokenizer, compiled. Threads share them.
#[derive(Debug)]
pub struct Templates {
    environment: Environment<'static>,
    /// The templates by name, with the form of content of each. A single template is `default`.
    forms: BTreeMap<String, ContentForm>,
    /// A mapping.
    special_tokens: Value,
}

impl Templates {
    /// Those of a folder with `tokenizer_config.json`. `replacement`: the text of a template that replaces them.
    pub fn load(folder: &Path, replacement: Option<&str>) -> Result<Templates, LoadError> {
        let found = folder::read(folder)?;
        let sources = match replacement {
            Some(text) => vec![(DEFAULT.to_owned(), text.to_owned())],
            None => found.templates,
        };
        let mut environment = environment::make();
        let mut names = Vec::with_capacity(sources.len());
        for (name, source) in sources {
            let source = generation::without_tags(&generation::with_newlines(&source));
            environment.add_template_owned(name.clone(), source).map_err(|error| {
                LoadError(format!("the chat template '{name}' of {} cannot be used: {error}", folder.display()))
            })?;
            names.push(name);
        }
        let mut templates = Templates { environment, forms: BTreeMap::new(), special_tokens: found.special_tokens };
        for name in names {
            let form = form::detect(&templates, &name);
            templates.forms.insert(name, form);
        }
        Ok(templates)
    }

    /// Content of messages may be a list of parts; otherwise it must be a string.
    pub fn wants_parts(&self, has_tools: bool) -> bool {
        self.content_form(has_tools) != ContentForm::Text
    }

    /// The form of content that the template for such a conversation writes out.
    pub fn content_form(&self, has_tools: bool) -> ContentForm {
        let form = self.name(has_tools).ok().and_then(|name| self.forms.get(name));
        form.copied().unwrap_or(ContentForm::Text)
    }

    pub fn render(&self, conversation: &Conversation<'_>, bounds: &RenderBounds) -> Result<String, RenderError> {
        let name = self.name(conversation.tools.is_some())?;
        self.render_named(name, conversation, bounds)
    }

    fn render_named(&self, name: &str, of: &Conversation<'_>, bounds: &RenderBounds) -> Result<String, RenderError> {
        // The fuel is a setting of the environment. A copy shares all that is large.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(bounds.steps_max));
        let clock = Arc::new(Clock::start(bounds.time_max));
        let mut output = BoundedOutput::new(bounds.bytes_max, Arc::clone(&clock));
        let variables = variables::of(of, self.special_tokens.clone(), Arc::clone(&clock));
        let template = environment.get_template(name);
        let rendered = template.and_then(|template| template.render_captured_to(variables, &mut output).map(drop));
        match rendered {
            Ok(()) => {
                let text = String::from_utf8(output.into_bytes());
                text.map_err(|_| RenderError::Failed("the chat template wrote a part of a character".into()))
            }
            Err(_) if clock.is_over() => Err(RenderError::TooSlow(bounds.time_max.as_millis())),
            Err(_) if output.is_full() => Err(RenderError::TooLong(bounds.bytes_max)),
            Err(error) => Err(explain(&error, bounds)),
        }
    }

    /// As `get_chat_template` of transformers chooses.
    fn name(&self, has_tools: bool) -> Result<&str, RenderError> {
        if has_tools && self.forms.contains_key(TOOL_USE) {
            return Ok(TOOL_USE);
        }
        if self.forms.contains_key(DEFAULT) {
            return Ok(DEFAULT);
        }
        if self.forms.is_empty() {
            return Err(RenderError::NoTemplate(NO_TEMPLATE.into()));
        }
        let names: Vec<_> = self.forms.keys().map(|name| format!("'{name}'")).collect();
        Err(RenderError::NoTemplate(format!(
            "This model has multiple chat templates with no default specified! Please either pass a chat template or \
             the name of the template you wish to use to the `chat_template` argument. Available template names are \
             [{}].",
            names.join(", ")
        )))
    }
}

/// A macro's error is the source of the error of its call.
fn explain(error: &Error, bounds: &RenderBounds) -> RenderError {
    let mut innermost = error;
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(raised) = cause.downcast_ref::<environment::Raised>() {
            return RenderError::Failed(raised.0.clone());
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            innermost = error;
        }
        next = cause.source();
    }
    match innermost.kind() {
        ErrorKind::OutOfFuel => RenderError::TooManySteps(bounds.steps_max),
        _ => RenderError::Failed(format!("the chat template failed: {innermost}")),
    }
}
