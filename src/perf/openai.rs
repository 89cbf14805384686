//! What is asked of a server of OpenAI's interface: which route, prompts of which kind, answers of which length.
//!
//! Plain data, and the bodies that are made of it before the first request is sent. The same seed makes the same
//! bodies, so that two servers can be compared.

mod prompts;
mod vocabulary;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::plan::Template;
use super::schedule::Random;
use nereid_memory::Slice;
use prompts::Prompt;

/// Tokens of one prompt or answer.
pub const TOKENS_MAX: usize = 1 << 24;
/// All bodies together.
const BODIES_BYTES_MAX: usize = 4 << 30;
/// Keeps lengths apart from words, so that other lengths do not change the words.
const LENGTHS_SEED: u64 = 0x6C65_6E67_7468_7321;

#[derive(Debug, Clone, PartialEq)]
pub struct OpenAi {
    pub interface: Interface,
    /// From the root of the server on: `/v1/chat/completions`.
    pub path: String,
    /// Answers come as events.
    pub streaming: bool,
    /// A stream is asked for its usage (`stream_options`).
    pub asks_usage: bool,
    pub prompts: Prompts,
    /// `max_tokens`; None leaves it to the server.
    pub output: Option<Length>,
    /// Also asks for no fewer tokens (`min_tokens`, `ignore_eos`), which vLLM and others understand.
    pub is_output_exact: bool,
    /// Members of each body; they replace those that it would have.
    pub extra: Map<String, Value>,
    pub goals: Goals,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interface {
    #[default]
    Chat,
    Completions,
}

impl Interface {
    /// Of the route, behind the version.
    pub fn route(self) -> &'static str {
        match self {
            Interface::Chat => "chat/completions",
            Interface::Completions => "completions",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    pub source: PromptSource,
    /// Words with which every prompt begins.
    pub shared_prefix: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptSource {
    /// `count` prompts of words, each of which is about one token.
    Synthetic { length: Length, count: usize },
    /// A JSON object a line, with `messages`, or a text as `text_input`, `prompt` or `text`.
    File(PathBuf),
}

/// Tokens, normally distributed; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length {
    pub mean: usize,
    pub deviation: usize,
}

impl Length {
    fn draw(&self, random: &mut Random) -> usize {
        if self.deviation == 0 {
            return self.mean.clamp(1, TOKENS_MAX);
        }
        // Box and Muller's.
        let radius = (-2.0 * random.open_unit().ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * random.open_unit()).cos();
        (self.mean as f64 + self.deviation as f64 * normal).round().clamp(1.0, TOKENS_MAX as f64) as usize
    }
}

/// What a good answer takes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Goals {
    pub first_token: Option<Duration>,
    /// The mean of an answer: its time per output token.
    pub between_tokens: Option<Duration>,
    pub latency: Option<Duration>,
}

impl Goals {
    pub fn is_empty(&self) -> bool {
        *self == Goals::default()
    }
}

/// Why there are no requests.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}, line {line}: {reason}", path.display())]
    Line { path: PathBuf, line: usize, reason: String },
    #[error("{}: it has no prompts", .0.display())]
    Empty(PathBuf),
    #[error("all prompts together have more than 4 GiB: ask for fewer or shorter ones")]
    TooMuch,
}

impl OpenAi {
    /// A request for each prompt.
    pub fn templates(&self, model: &str, seed: u64) -> Result<Vec<Template>, PromptError> {
        let mut lengths = Random::new(seed ^ LENGTHS_SEED);
        let mut templates = Vec::new();
        let mut bytes = 0usize;
        self.prompts.each(self.interface, seed, |prompt| {
            let tokens = self.output.map(|output| output.draw(&mut lengths));
            let body = self.body(model, prompt, tokens);
            bytes = bytes.saturating_add(body.len());
            if bytes > BODIES_BYTES_MAX {
                return Err(PromptError::TooMuch);
            }
            templates.push(Template { body: Some(Slice::copy_of(body.as_bytes())), ..Template::default() });
            Ok(())
        })?;
        Ok(templates)
    }

    fn body(&self, model: &str, prompt: Prompt, output: Option<usize>) -> String {
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(model));
        match (prompt, self.interface) {
            (Prompt::Messages(messages), _) => body.insert("messages".to_owned(), messages),
            (Prompt::Text(text), Interface::Chat) => {
                body.insert("messages".to_owned(), json!([{"role": "user", "content": text}]))
            }
            (Prompt::Text(text), Interface::Completions) => body.insert("prompt".to_owned(), json!(text)),
        };
        body.insert("stream".to_owned(), json!(self.streaming));
        if self.streaming && self.asks_usage {
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        if let Some(tokens) = output {
            body.insert("max_tokens".to_owned(), json!(tokens));
            if self.is_output_exact {
                body.insert("min_tokens".to_owned(), json!(tokens));
                body.insert("ignore_eos".to_owned(), json!(true));
            }
        }
        body.extend(self.extra.iter().map(|(name, value)| (name.clone(), value.clone())));
        Value::Object(body).to_string()
    }
}

#[cfg(test)]
pub(super) mod tests;
