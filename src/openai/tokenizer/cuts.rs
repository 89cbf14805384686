//! Where a text may be cut so that the tokens of its pieces are the tokens of the text.
//!
//! `tokenizers` first searches a text for the added tokens that are not normalised, from the left, the longest one
//! where several begin. What lies between them is normalised, split and encoded by itself. The search after a match
//! knows nothing of what came before, hence the end of a match is such a place, under three conditions that
//! [`Cuts::of`] checks: the token does not take the blanks after it; no token asks for the letters beside it; and no
//! step asks whether it works on the start of the text. Nor may a model draw lots.
//!
//! Cutting also bounds what the search for blanks before a token costs: `tokenizers` searches them from the start.

use aho_corasick::{AhoCorasick, FindIter, MatchKind};
use serde_json::Value;
use tokenizers::models::ModelWrapper;

/// A cut closer to the one before it saves less than the piece costs.
const PIECE_BYTES_MIN: usize = 64;

pub(super) struct Cuts {
    tokens: AhoCorasick,
    /// Those that do not take the blanks after them, by the number of the pattern.
    is_cut: Vec<bool>,
}

impl Cuts {
    /// None: pieces could be encoded in another way than the text.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Cuts> {
        let draws_lots = match tokenizer.get_model() {
            ModelWrapper::BPE(model) => model.dropout.is_some(),
            ModelWrapper::Unigram(model) => model.alpha.is_some() || model.nbest_size.is_some(),
            ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
        };
        if draws_lots || tokenizer.get_encode_special_tokens() {
            return None;
        }
        let steps = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
        if asks_for_the_start(&steps) {
            return None;
        }
        let added = tokenizer.get_added_tokens_decoder();
        if added.values().any(|token| token.single_word) {
            return None;
        }
        let searched: Vec<_> = added.values().filter(|token| !token.normalized && !token.content.is_empty()).collect();
        let tokens = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(searched.iter().map(|token| &token.content))
            .ok()?;
        Some(Cuts { tokens, is_cut: searched.iter().map(|token| !token.rstrip).collect() })
    }

    /// None of them is empty.
    pub(super) fn pieces<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        SplitAtCuts { text, start: 0, matches: self.tokens.find_iter(text), is_cut: &self.is_cut }
    }
}

/// `Metaspace` can put a blank in front of the first word alone.
fn asks_for_the_start(steps: &Value) -> bool {
    match steps {
        Value::Object(members) => members.iter().any(|(name, value)| {
            (name == "prepend_scheme" && value.as_str() == Some("first")) || asks_for_the_start(value)
        }),
        Value::Array(items) => items.iter().any(asks_for_the_start),
        _ => false,
    }
}

struct SplitAtCuts<'a> {
    text: &'a str,
    start: usize,
    matches: FindIter<'a, 'a>,
    is_cut: &'a [bool],
}

impl<'a> Iterator for SplitAtCuts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let start = self.start;
        let is_far = |end: usize| end.saturating_sub(start) >= PIECE_BYTES_MIN;
        let is_cut = self.is_cut;
        let next =
            self.matches.find(|found| is_cut.get(found.pattern().as_usize()) == Some(&true) && is_far(found.end()));
        self.start = next.map_or(self.text.len(), |found| found.end());
        self.text.get(start..self.start).filter(|piece| !piece.is_empty())
    }
}
