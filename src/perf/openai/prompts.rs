//! Prompts: words by chance of a fixed vocabulary, or the lines of a file.
//!
//! The words are common and short, so that the tokenizer of most models makes one token of each; how many it made, only
//! the server's usage tells.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use super::vocabulary::WORDS;
use super::{BODIES_BYTES_MAX, Interface, PromptError, PromptSource, Prompts};
use crate::schedule::Random;

/// Letters of a value that an error shows.
const SHOWN_MAX: usize = 60;
/// Keeps the shared words apart from those of single prompts.
const PREFIX_SEED: u64 = 0x7368_6172_6564_2E2E;
/// Keeps the words of a prompt apart from its length.
const WORDS_SEED: u64 = 0x776F_7264_732E_2E2E;

pub enum Prompt {
    Text(String),
    /// The messages of a chat.
    Messages(Value),
}

impl Prompts {
    /// Words of all prompts together, about; each has a letter and a blank at least.
    fn words_min(&self) -> usize {
        match &self.source {
            PromptSource::Synthetic { length, count } => {
                count.saturating_mul(self.shared_prefix.saturating_add(length.mean))
            }
            PromptSource::File(_) => self.shared_prefix,
        }
    }

    /// Hands on one prompt after the other.
    pub(super) fn each(
        &self,
        interface: Interface,
        seed: u64,
        mut take: impl FnMut(Prompt) -> Result<(), PromptError>,
    ) -> Result<(), PromptError> {
        if self.words_min() > BODIES_BYTES_MAX / 2 {
            return Err(PromptError::TooMuch);
        }
        let mut prefix = String::new();
        put_words(&mut prefix, self.shared_prefix, &mut Random::new(seed ^ PREFIX_SEED))?;
        match &self.source {
            PromptSource::Synthetic { length, count } => {
                let (mut lengths, mut random) = (Random::new(seed), Random::new(seed ^ WORDS_SEED));
                for _ in 0..*count {
                    let mut text = prefix.clone();
                    put_words(&mut text, length.draw(&mut lengths), &mut random)?;
                    take(Prompt::Text(text))?;
                }
                Ok(())
            }
            PromptSource::File(path) => read_lines(path, |line| {
                let prompt = read_prompt(line, interface)?;
                Ok(take(match prompt {
                    Prompt::Text(text) if prefix.is_empty() => Prompt::Text(text),
                    Prompt::Text(text) => Prompt::Text(format!("{prefix} {text}")),
                    Prompt::Messages(_) if !prefix.is_empty() => {
                        return Err("'messages' take no shared prefix: write it into them".to_owned());
                    }
                    messages => messages,
                }))
            }),
        }
    }
}

fn put_words(text: &mut String, count: usize, random: &mut Random) -> Result<(), PromptError> {
    for _ in 0..count {
        if !text.is_empty() {
            text.push(' ');
        }
        let at = (random.number() % WORDS.len() as u64) as usize;
        text.push_str(WORDS.get(at).copied().unwrap_or_default());
        if text.len() > BODIES_BYTES_MAX {
            return Err(PromptError::TooMuch);
        }
    }
    Ok(())
}

/// Calls for each line that has something in it. The outer error is the line's, the inner one is the caller's.
fn read_lines(
    path: &Path,
    mut take: impl FnMut(&[u8]) -> Result<Result<(), PromptError>, String>,
) -> Result<(), PromptError> {
    let failed = |source| PromptError::Read { path: path.to_owned(), source };
    // A pipe would make the run wait for its writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("it is not a file")));
    }
    let file = File::open(path).map_err(failed)?;
    let mut file = BufReader::new(file).take(BODIES_BYTES_MAX as u64);
    let (mut line, mut number, mut found) = (Vec::new(), 0, false);
    loop {
        line.clear();
        number += 1;
        if file.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        found = true;
        let outcome = take(line.trim_ascii());
        outcome.map_err(|reason| PromptError::Line { path: path.to_owned(), line: number, reason })??;
    }
    match (found, file.limit()) {
        (_, 0) => Err(PromptError::TooMuch),
        (false, _) => Err(PromptError::Empty(path.to_owned())),
        (true, _) => Ok(()),
    }
}

fn read_prompt(line: &[u8], interface: Interface) -> Result<Prompt, String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|error| format!("no good JSON: {error}"))?;
    let object = value.as_object_mut().ok_or("it is no JSON object")?;
    if let Some(messages) = object.remove("messages") {
        return match (messages.is_array(), interface) {
            (true, Interface::Chat) => Ok(Prompt::Messages(messages)),
            (true, Interface::Completions) => {
                Err("'messages' need the route of chats: --endpoint-type chat".to_owned())
            }
            (false, _) => Err(format!("'messages' is {}, not a list", shown(&messages))),
        };
    }
    for name in ["text_input", "prompt", "text"] {
        match object.remove(name) {
            None => {}
            Some(Value::String(text)) => return Ok(Prompt::Text(text)),
            Some(other) => return Err(format!("'{name}' is {}, not a text", shown(&other))),
        }
    }
    Err("it has neither 'messages' nor a text as 'text_input', 'prompt' or 'text'".to_owned())
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
