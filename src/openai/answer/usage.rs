//! Counts of tokens, as models report them and answers show them (contract/openai.md section 3.4).

use super::outputs::Arrived;
use super::text::put_number;
use crate::plan::Plan;

/// What the responses so far have reported.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub prompt: Option<u64>,
    pub completion: Option<u64>,
}

impl Counts {
    /// Of one request's stream: the prompt counts once, what was written adds up.
    pub fn add(&mut self, arrived: &Arrived) {
        self.prompt = self.prompt.or(arrived.prompt_tokens);
        self.add_completion(arrived.completion_tokens);
    }

    /// Of one of several requests, each with its own prompt.
    pub fn add_request(&mut self, arrived: &Arrived) {
        if let Some(more) = arrived.prompt_tokens {
            self.prompt = Some(self.prompt.unwrap_or(0).saturating_add(more));
        }
        self.add_completion(arrived.completion_tokens);
    }

    fn add_completion(&mut self, more: Option<u64>) {
        if let Some(more) = more {
            self.completion = Some(self.completion.unwrap_or(0).saturating_add(more));
        }
    }

    /// Of a text: null unless both counts are known.
    pub fn put_usage(&self, out: &mut Vec<u8>) {
        let Some((prompt, completion)) = self.prompt.zip(self.completion) else {
            return out.extend_from_slice(b"null");
        };
        out.extend_from_slice(b"{\"prompt_tokens\":");
        put_number(out, prompt);
        out.extend_from_slice(b",\"total_tokens\":");
        put_number(out, prompt.saturating_add(completion));
        out.extend_from_slice(b",\"completion_tokens\":");
        put_number(out, completion);
        out.push(b'}');
    }

    /// Of embeddings and scores: nothing is written, and so the prompt is the whole.
    pub fn put_prompt_usage(&self, out: &mut Vec<u8>) {
        let Some(prompt) = self.prompt else { return out.extend_from_slice(b"null") };
        out.extend_from_slice(b"{\"prompt_tokens\":");
        put_number(out, prompt);
        out.extend_from_slice(b",\"total_tokens\":");
        put_number(out, prompt);
        out.push(b'}');
    }

    /// As the Responses API names them.
    pub fn put_response_usage(&self, out: &mut Vec<u8>) {
        let Some((prompt, completion)) = self.prompt.zip(self.completion) else {
            return out.extend_from_slice(b"null");
        };
        out.extend_from_slice(b"{\"input_tokens\":");
        put_number(out, prompt);
        out.extend_from_slice(
            b",\"input_tokens_details\":{\"cached_tokens\":0,\"cache_write_tokens\":0},\"output_tokens\":",
        );
        put_number(out, completion);
        out.extend_from_slice(b",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":");
        put_number(out, prompt.saturating_add(completion));
        out.push(b'}');
    }

    /// The same, with the prompt as the server counted it where the model did not.
    pub fn with_prompt_of(self, plan: &Plan) -> Counts {
        Counts { prompt: self.prompt.or(plan.prompt_tokens), ..self }
    }

    /// Both counts are known.
    pub fn is_whole(&self) -> bool {
        self.prompt.is_some() && self.completion.is_some()
    }
}
