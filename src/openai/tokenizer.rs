//! Tokenizers of Hugging Face models, with a cache of the prefixes that prompts share.

use std::path::Path;

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TokenizerError(pub String);

/// A tokenizer that threads share.
pub struct Tokenizer {}

impl Tokenizer {
    /// That of a folder with `tokenizer.json`.
    pub fn load(_folder: &Path, _cache_bytes_max: usize) -> Result<Tokenizer, TokenizerError> {
        unimplemented!()
    }

    pub fn encode(&self, _text: &str, _add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        unimplemented!()
    }

    pub fn decode(&self, _tokens: &[u32], _skip_special_tokens: bool) -> Result<String, TokenizerError> {
        unimplemented!()
    }

    /// The text of a token as the vocabulary has it.
    pub fn token_text(&self, _token: u32) -> Option<String> {
        unimplemented!()
    }

    /// The longest input of the model, where the configuration states it.
    pub fn model_max_length(&self) -> Option<u64> {
        unimplemented!()
    }
}
