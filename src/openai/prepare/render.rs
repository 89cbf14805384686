//! The prompt of a conversation, by the chat template.

use super::messages::{self, ContentStyle};
use super::{Context, Failure, Language};
use crate::error::Refusal;
use crate::json::Json;
use crate::request::{Message, Tool};
use crate::template::{Conversation, RenderError};

/// What a prompt is made of.
pub(super) struct Dialogue<'a> {
    pub(super) messages: &'a [Message],
    pub(super) tools: Option<&'a [Tool]>,
    pub(super) add_generation_prompt: bool,
    pub(super) arguments: &'a [(String, Json)],
}

impl Context<'_> {
    pub(super) fn render(&self, language: &Language, dialogue: &Dialogue<'_>) -> Result<String, Failure> {
        let has_tools = dialogue.tools.is_some_and(|tools| !tools.is_empty());
        let style = match language.templates.wants_parts(has_tools) {
            _ if !self.is_openai() => ContentStyle::Unchanged,
            true => ContentStyle::Parts,
            false => ContentStyle::Texts,
        };
        let messages = messages::messages(dialogue.messages, style)?;
        let tools = dialogue.tools.map(messages::tools);
        let conversation = Conversation {
            messages: &messages,
            tools: tools.as_deref(),
            add_generation_prompt: dialogue.add_generation_prompt,
            arguments: dialogue.arguments,
        };
        language.templates.render(&conversation, self.bounds()).map_err(|error| self.failure(error))
    }

    fn failure(&self, error: RenderError) -> Failure {
        let advice = match &error {
            RenderError::NoTemplate(_) | RenderError::Failed(_) => return Refusal::server(error.to_string()).into(),
            _ if self.inline.is_some() => return Failure::Deferred,
            RenderError::TooManySteps(_) | RenderError::TooSlow(_) => "send fewer or shorter messages and tools",
            RenderError::TooLong(_) => "send shorter messages and tools",
        };
        let text = format!("{error}; {advice}");
        if self.is_openai() { Refusal::client(text).into() } else { Refusal::server(text).into() }
    }
}
