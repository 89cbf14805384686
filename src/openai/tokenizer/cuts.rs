//! Where a text may be cut so that the tokens of its pieces are the tokens of the text.
//!
//! `tokenizers` first searches a text for the added tokens that are not normalised, from the left, the longest one
//! where several begin. What lies between them is normalised, split and encoded by itself. The search after a match
//! knows nothing of what came before, hence the end of a match is such a place, under three conditions that
//! [`Cuts::of`] checks: the token does not take the blanks after it; no token asks for the letters beside it; and no
//! step asks whether it works on the start of the text. Nor may a model draw lots.
//!
//! Tokens that are normalised are searched in a second step, in what the first step left over and as it is normalised.
//! Where nothing is normalised (DeepSeek's tokenizer marks turns so), the same holds for them, since no match of the
//! first step overlaps one of the second.
//!
//! Cutting also bounds what the search for blanks before a token costs: `tokenizers` searches them from the start.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;
use tokenizers::AddedToken;
use tokenizers::models::ModelWrapper;

/// A cut closer to the one before it saves less than the piece costs.
const PIECE_BYTES_MIN: usize = 64;

pub(super) struct Cuts {
    first: Search,
    /// None: text is normalised, or a token has blanks at its ends, which one of the first step may have taken.
    second: Option<Search>,
}

/// One step of the search for added tokens.
struct Search {
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
        let (second, first): (Vec<_>, Vec<_>) =
            added.values().filter(|token| !token.content.is_empty()).partition(|token| token.normalized);
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).ok()?;
        let is_second_exact = changes_nothing(&normalizer)
            && second.iter().all(|token| token.content.trim().len() == token.content.len());
        Some(Cuts { first: Search::of(&first)?, second: if is_second_exact { Search::of(&second) } else { None } })
    }

    /// None of them is empty.
    pub(super) fn pieces<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut pieces = Pieces { text, start: 0, pieces: Vec::new() };
        let mut between = 0;
        for (start, end, is_cut) in self.first.matches(text) {
            self.cut_between(&mut pieces, between, start);
            if is_cut {
                pieces.cut(end);
            }
            between = end;
        }
        self.cut_between(&mut pieces, between, text.len());
        pieces.pieces.extend(text.get(pieces.start..).filter(|rest| !rest.is_empty()));
        pieces.pieces
    }

    /// The second step, in what lies between two matches of the first.
    fn cut_between(&self, pieces: &mut Pieces<'_>, start: usize, end: usize) {
        let (Some(second), Some(between)) = (&self.second, pieces.text.get(start..end)) else { return };
        for (_, end, is_cut) in second.matches(between) {
            if is_cut {
                pieces.cut(start.saturating_add(end));
            }
        }
    }
}

impl Search {
    fn of(tokens: &[&AddedToken]) -> Option<Search> {
        let contents = tokens.iter().map(|token| &token.content);
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents).ok()?;
        Some(Search { tokens: automaton, is_cut: tokens.iter().map(|token| !token.rstrip).collect() })
    }

    /// Where each token starts and ends, and whether its end is a cut.
    fn matches(&self, text: &str) -> impl Iterator<Item = (usize, usize, bool)> {
        self.tokens.find_iter(text).map(|found| {
            let is_cut = self.is_cut.get(found.pattern().as_usize()).copied().unwrap_or_default();
            (found.start(), found.end(), is_cut)
        })
    }
}

struct Pieces<'a> {
    text: &'a str,
    start: usize,
    pieces: Vec<&'a str>,
}

impl Pieces<'_> {
    fn cut(&mut self, end: usize) {
        if end.saturating_sub(self.start) >= PIECE_BYTES_MIN {
            self.pieces.extend(self.text.get(self.start..end));
            self.start = end;
        }
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

/// There is no normalizer, or a sequence of none.
fn changes_nothing(normalizer: &Value) -> bool {
    let steps = normalizer.get("normalizers").and_then(Value::as_array);
    normalizer.is_null() || steps.is_some_and(|steps| steps.is_empty())
}
