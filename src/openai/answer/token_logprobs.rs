//! Logprobs of chunks and of whole answers, where the request wants them (contract/openai.md section 1.7).

use super::outputs::Arrived;
use crate::error::Refusal;
use crate::logprobs::{LogprobsError, LogprobsForm, write_chat, write_completions};
use crate::plan::Plan;
use crate::request::Operation;

pub(super) struct TokenLogprobs {
    /// `None`: they are not wanted.
    form: Option<LogprobsForm>,
    is_chat: bool,
    /// Of the text before the next response.
    characters: u64,
    /// The lists of all responses as one.
    collected: Vec<u8>,
}

impl TokenLogprobs {
    pub fn new(plan: &Plan) -> TokenLogprobs {
        let form = |alternatives| LogprobsForm { compat: plan.compat, stream: plan.stream, alternatives };
        TokenLogprobs {
            form: plan.logprobs.map(form),
            is_chat: plan.operation == Operation::Chat,
            characters: 0,
            collected: Vec::new(),
        }
    }

    /// Those of a response, as JSON.
    pub fn of(&self, arrived: &Arrived) -> Result<Option<String>, Refusal> {
        if self.form.is_none() {
            return Ok(None);
        }
        arrived.logprobs().map_or(Ok(None), |output| self.write(&output))
    }

    /// Counts text of a chunk, which later chunks of completions have their offsets behind.
    pub fn pass(&mut self, text: &str) {
        if self.form.is_some() && !self.is_chat {
            let characters = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
            self.characters = self.characters.saturating_add(characters);
        }
    }

    /// Keeps those of one of several responses.
    pub fn collect(&mut self, arrived: &Arrived) {
        let Some(output) = self.form.and_then(|_| arrived.logprobs()) else { return };
        let output = output.trim_ascii();
        if output == b"null" || output == b"[]" {
            return;
        }
        if self.collected.is_empty() {
            return self.collected.extend_from_slice(output);
        }
        if let Some(items) = output.strip_prefix(b"[")
            && self.collected.last() == Some(&b']')
        {
            self.collected.pop();
            self.collected.push(b',');
            self.collected.extend_from_slice(items);
        }
    }

    /// Those of the whole answer, as JSON.
    pub fn of_all(&mut self) -> Result<Option<String>, Refusal> {
        if self.collected.is_empty() {
            return Ok(None);
        }
        let collected = std::mem::take(&mut self.collected);
        self.write(&collected)
    }

    fn write(&self, output: &[u8]) -> Result<Option<String>, Refusal> {
        let Some(form) = self.form else { return Ok(None) };
        let mut json = String::new();
        let written = match self.is_chat {
            true => write_chat(output, form, &mut json),
            false => write_completions(output, form, self.characters, &mut json),
        };
        match written {
            Ok(has_tokens) => Ok(has_tokens.then_some(json)),
            // The text is worth more than what is known of it.
            Err(LogprobsError::Malformed(_)) => Ok(None),
            Err(LogprobsError::NonFinite) => Err(Refusal::internal()),
        }
    }
}
