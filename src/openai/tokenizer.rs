//! Tokenizers of Hugging Face models, with a cache of the parts that prompts share.
//!
//! A text is cut after special tokens (`tokenizer/cuts.rs` says where that is exact), each piece is encoded by itself,
//! and its tokens are kept. A conversation that goes on, or that begins with the same long system message as others,
//! is therefore encoded from its first new message on. A text without special tokens is one piece.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;
use tokenizers::{Encoding, Token};

use cache::Cache;
use cuts::Cuts;

mod cache;
mod cuts;
#[cfg(test)]
mod tests;

/// The largest files of models have 35 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
const CONFIG_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TokenizerError(pub String);

/// A tokenizer that threads share.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    model_max_length: Option<u64>,
    /// None: pieces would not be encoded as the whole is, or nothing may be kept.
    pieces: Option<Pieces>,
}

/// How a text is encoded in pieces.
struct Pieces {
    cuts: Cuts,
    cache: Cache,
    /// What stands around the tokens of a text with special tokens.
    before: Vec<u32>,
    after: Vec<u32>,
}

#[derive(Deserialize, Default)]
struct Config {
    model_max_length: Option<serde_json::Value>,
}

impl Tokenizer {
    /// That of a folder with `tokenizer.json`. `cache_bytes_max`: what the cache may take; 0 is no cache.
    pub fn load(folder: &Path, cache_bytes_max: usize) -> Result<Tokenizer, TokenizerError> {
        let path = folder.join("tokenizer.json");
        let bytes = read(&path, TOKENIZER_BYTES_MAX)?
            .ok_or_else(|| TokenizerError(format!("there is no {}: name a folder that has one", path.display())))?;
        let failed = |error: tokenizers::Error| TokenizerError(format!("{} cannot be used: {error}", path.display()));
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(failed)?;
        // Those of training, which transformers does not apply to prompts either.
        inner.with_truncation(None).map_err(failed)?.with_padding(None);
        let path = folder.join("tokenizer_config.json");
        let config = match read(&path, CONFIG_BYTES_MAX)? {
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| TokenizerError(format!("{} cannot be understood: {error}", path.display())))?,
            None => Config::default(),
        };
        let pieces = if cache_bytes_max == 0 { None } else { Pieces::of(&inner, cache_bytes_max) };
        Ok(Tokenizer { inner, model_max_length: length_of(&config), pieces })
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let Some(pieces) = &self.pieces else { return encode(&self.inner, text, add_special_tokens) };
        let tokens = pieces.encode(&self.inner, text)?;
        if !add_special_tokens || (pieces.before.is_empty() && pieces.after.is_empty()) {
            return Ok(tokens);
        }
        Ok([pieces.before.as_slice(), &tokens, &pieces.after].concat())
    }

    pub fn decode(&self, tokens: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        self.inner.decode(tokens, skip_special_tokens).map_err(|error| TokenizerError(error.to_string()))
    }

    /// The text of a token as the vocabulary has it.
    pub fn token_text(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// The longest input of the model, where the configuration states it.
    pub fn model_max_length(&self) -> Option<u64> {
        self.model_max_length
    }
}

impl Pieces {
    fn of(tokenizer: &tokenizers::Tokenizer, cache_bytes_max: usize) -> Option<Pieces> {
        let cuts = Cuts::of(tokenizer)?;
        let (before, after) = surroundings(tokenizer)?;
        Some(Pieces { cuts, cache: Cache::new(cache_bytes_max), before, after })
    }

    /// Without what stands around.
    fn encode(&self, tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let pieces = self.cuts.pieces(text);
        let hashes: Vec<u64> = pieces.iter().map(|piece| self.cache.hash(piece)).collect();
        let mut found = self.cache.get(&hashes);
        let mut tokens = Vec::new();
        let mut new = Vec::new();
        for ((piece, hash), known) in pieces.into_iter().zip(hashes).zip(&mut found) {
            match known.take().filter(|entry| *entry.text == *piece) {
                Some(entry) => tokens.extend_from_slice(&entry.tokens),
                None => {
                    let encoded = encode(tokenizer, piece, false)?;
                    tokens.extend_from_slice(&encoded);
                    new.push((hash, Arc::new(cache::Entry { text: piece.into(), tokens: encoded.into() })));
                }
            }
        }
        self.cache.insert(&new);
        Ok(tokens)
    }
}

fn encode(tokenizer: &tokenizers::Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
    let encoding = tokenizer.encode_fast(text, add_special).map_err(|error| TokenizerError(error.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

/// The tokens before and after those of a text. None: the tokenizer does not only add some.
fn surroundings(tokenizer: &tokenizers::Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    /// Stands for the tokens of the text; no vocabulary is that large.
    const PLACE: u32 = u32::MAX;
    let encoding = Encoding::from_tokens(vec![Token::new(PLACE, String::new(), (0, 0))], 0);
    let processed = |add_special| tokenizer.post_process(encoding.clone(), None, add_special).ok();
    if processed(false)?.get_ids() != [PLACE] {
        return None;
    }
    let with_special = processed(true)?;
    let mut parts = with_special.get_ids().split(|token| *token == PLACE);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(before), Some(after), None) => Some((before.to_vec(), after.to_vec())),
        _ => None,
    }
}

/// Tokenizers without a length have a number that no text reaches.
fn length_of(config: &Config) -> Option<u64> {
    const LENGTH_MAX: u64 = 1 << 40;
    let number = config.model_max_length.as_ref()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float saturates")]
    let length = number.as_u64().or_else(|| number.as_f64().map(|length| length as u64))?;
    (1..=LENGTH_MAX).contains(&length).then_some(length)
}

/// None: there is no such file.
fn read(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, TokenizerError> {
    let failed = |error: std::io::Error| TokenizerError(format!("{} cannot be read: {error}", path.display()));
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    match u64::try_from(bytes.len()) {
        Ok(length) if length <= bytes_max => Ok(Some(bytes)),
        _ => Err(TokenizerError(format!("{} has more than {bytes_max} bytes", path.display()))),
    }
}
