//! Writes the logarithms of tokens' probabilities that a model reports (contract/openai.md section 1.7).
//!
//! A model's output is a JSON list with an object for each token; its members are the token that was chosen and its
//! alternatives. The list is read one object at a time, and the answer's JSON written as it is read: what is held is in
//! proportion to the output.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{Formatter, Write};

use memchr::memmem;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

use crate::error::Compat;
use crate::python_json::{Escapes, push_float, push_string};

#[cfg(test)]
mod tests;

/// Why a model's output could not be written. Nothing of it has been.
#[derive(Debug, thiserror::Error)]
pub enum LogprobsError {
    #[error(
        "the model's output 'logprobs' is not a JSON list of objects with 'logprob', 'rank' and 'decoded_token' ({0}); \
         the answer has no logprobs"
    )]
    Malformed(#[from] serde_json::Error),
    /// `--openai-compat=triton`, not streaming: the answer is 500 `Internal Server Error` as text/plain.
    #[error("the model's output 'logprobs' has a number that is not finite, which JSON cannot have")]
    NonFinite,
}

/// How the answer wants it.
#[derive(Debug, Clone, Copy)]
pub struct LogprobsForm {
    pub compat: Compat,
    pub stream: bool,
    /// As many alternatives to each token; Triton gives all that the model reports. For chat only.
    pub alternatives: u32,
}

/// Writes the member `logprobs` of a choice of chat. False: nothing was written, and the member is null.
pub fn write_chat(output: &[u8], form: LogprobsForm, out: &mut String) -> Result<bool, LogprobsError> {
    let start = out.len();
    out.push_str("{\"content\":[");
    let is_empty = for_each_token(output, form, |mut entries| {
        let Some(chosen) = entries.first() else { return Ok(()) };
        out.push('{');
        push_entry(out, chosen, form)?;
        out.push_str(",\"top_logprobs\":[");
        if form.compat == Compat::OpenAi {
            entries.sort_by_key(Entry::rank);
            entries.truncate(form.alternatives.try_into().unwrap_or(usize::MAX));
        }
        for (place, entry) in entries.iter().enumerate() {
            out.push_str(if place == 0 { "{" } else { ",{" });
            push_entry(out, entry, form)?;
            out.push('}');
        }
        out.push_str("]},");
        Ok(())
    });
    end(is_empty, start, out, |out| {
        out.pop();
        out.push_str("]}");
    })
}

/// Writes the member `logprobs` of a choice of completions. `first_offset`: the characters of the stream's text before
/// this response. False: nothing was written, and the member is null.
pub fn write_completions(
    output: &[u8],
    form: LogprobsForm,
    first_offset: u64,
    out: &mut String,
) -> Result<bool, LogprobsError> {
    let start = out.len();
    let (mut logprobs, mut tokens, mut top) = (String::new(), String::new(), String::new());
    let mut offset = first_offset;
    out.push_str("{\"text_offset\":[");
    let is_empty = for_each_token(output, form, |entries| {
        let Some(chosen) = entries.first() else { return Ok(()) };
        // Writing to a String does not fail.
        let _ = write!(out, "{offset},");
        offset = offset.saturating_add(chosen.token().chars().count().try_into().unwrap_or(u64::MAX));
        push_logprob(&mut logprobs, chosen.logprob, form)?;
        logprobs.push(',');
        push_string(&mut tokens, chosen.token(), Escapes::Kept);
        tokens.push(',');
        push_alternatives(&mut top, &entries, form)?;
        top.push(',');
        Ok(())
    });
    end(is_empty, start, out, |out| {
        out.pop();
        for (name, list) in [("token_logprobs", &logprobs), ("tokens", &tokens), ("top_logprobs", &top)] {
            let _ = write!(out, "],\"{name}\":[{}", list.strip_suffix(',').unwrap_or(list));
        }
        out.push_str("]}");
    })
}

/// Ends the JSON, or takes back what was written.
fn end(
    is_empty: Result<bool, LogprobsError>,
    start: usize,
    out: &mut String,
    finish: impl FnOnce(&mut String),
) -> Result<bool, LogprobsError> {
    if let Ok(false) = is_empty {
        finish(out);
        return Ok(true);
    }
    out.truncate(start);
    is_empty.map(|_| false)
}

/// The members of an object with different tokens: as in a dict of Python, a token that comes again has its place and
/// the last value.
fn push_alternatives(out: &mut String, entries: &[Entry], form: LogprobsForm) -> Result<(), NonFinite> {
    let mut places = HashMap::with_capacity(entries.len());
    let mut members: Vec<(&str, Option<f64>)> = Vec::with_capacity(entries.len());
    for entry in entries {
        let place = *places.entry(entry.token()).or_insert(members.len());
        match members.get_mut(place) {
            Some(member) => member.1 = entry.logprob,
            None => members.push((entry.token(), entry.logprob)),
        }
    }
    out.push('{');
    for (place, (token, logprob)) in members.into_iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        push_string(out, token, Escapes::Kept);
        out.push(':');
        push_logprob(out, logprob, form)?;
    }
    out.push('}');
    Ok(())
}

fn push_entry(out: &mut String, entry: &Entry, form: LogprobsForm) -> Result<(), NonFinite> {
    out.push_str("\"token\":");
    push_string(out, entry.token(), Escapes::Kept);
    out.push_str(",\"logprob\":");
    push_logprob(out, entry.logprob, form)?;
    out.push_str(",\"bytes\":[");
    for (place, byte) in entry.token().bytes().enumerate() {
        let _ = write!(out, "{}{byte}", if place == 0 { "" } else { "," });
    }
    out.push(']');
    Ok(())
}

/// A number that JSON does not have, where it is an error.
struct NonFinite;

fn push_logprob(out: &mut String, logprob: Option<f64>, form: LogprobsForm) -> Result<(), NonFinite> {
    match (logprob, form.compat) {
        (Some(value), _) => push_float(out, value),
        (None, Compat::OpenAi) => out.push_str("-9999.0"),
        (None, Compat::Triton) if form.stream => out.push_str("null"),
        (None, Compat::Triton) => return Err(NonFinite),
    }
    Ok(())
}

/// A token that a model could have chosen.
#[derive(Deserialize)]
struct Entry {
    /// `None`: it is not finite. It may not be missing.
    #[serde(deserialize_with = "Option::deserialize")]
    logprob: Option<f64>,
    rank: Option<i64>,
    decoded_token: Option<String>,
}

impl Entry {
    fn rank(&self) -> i64 {
        self.rank.unwrap_or(i64::MAX)
    }

    fn token(&self) -> &str {
        self.decoded_token.as_deref().unwrap_or_default()
    }
}

/// The members of an object, in their order.
struct Entries(Vec<Entry>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Entries;

            fn expecting(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object with tokens")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some((IgnoredAny, entry)) = members.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// Calls `write` for each token's entries, the chosen one first. True: there were none.
fn for_each_token(
    output: &[u8],
    form: LogprobsForm,
    write: impl FnMut(Vec<Entry>) -> Result<(), NonFinite>,
) -> Result<bool, LogprobsError> {
    struct Tokens<F> {
        compat: Compat,
        write: F,
        is_empty: bool,
        is_refused: bool,
    }
    impl<'de, F: FnMut(Vec<Entry>) -> Result<(), NonFinite>> Visitor<'de> for &mut Tokens<F> {
        type Value = ();

        fn expecting(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("a list of objects, or null")
        }

        fn visit_unit<E: de::Error>(self) -> Result<(), E> {
            Ok(())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<(), A::Error> {
            while let Some(token) = tokens.next_element::<Option<Entries>>()? {
                let Some(Entries(mut entries)) = token.filter(|entries| !entries.0.is_empty()) else { continue };
                if self.compat == Compat::Triton {
                    entries.sort_by_key(Entry::rank);
                }
                self.is_empty = false;
                if (self.write)(entries).is_err() {
                    self.is_refused = true;
                    return Err(A::Error::custom("a number is not finite"));
                }
            }
            Ok(())
        }
    }
    let mut tokens = Tokens { compat: form.compat, write, is_empty: true, is_refused: false };
    let output = without_literals(output);
    let mut reader = serde_json::Deserializer::from_slice(&output);
    let read = reader.deserialize_any(&mut tokens).and_then(|()| reader.end());
    match read {
        Err(_) if tokens.is_refused => Err(LogprobsError::NonFinite),
        read => Ok(read.map(|()| tokens.is_empty)?),
    }
}

/// Python writes numbers that are not finite as `NaN`, `Infinity` and `-Infinity`: makes null of them.
fn without_literals(json: &[u8]) -> Cow<'_, [u8]> {
    const LITERALS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    if LITERALS.iter().skip(1).all(|literal| memmem::find(json, literal).is_none()) {
        return Cow::Borrowed(json);
    }
    let mut out = Vec::with_capacity(json.len());
    let mut rest = json;
    let mut is_in_string = false;
    while let Some((byte, left)) = rest.split_first() {
        if !is_in_string && let Some(left) = LITERALS.iter().find_map(|literal| rest.strip_prefix(*literal)) {
            out.extend_from_slice(b"null");
            rest = left;
            continue;
        }
        out.push(*byte);
        rest = left;
        match (byte, left.split_first()) {
            (b'"', _) => is_in_string = !is_in_string,
            (b'\\', Some((escaped, left))) if is_in_string => {
                out.push(*escaped);
                rest = left;
            }
            _ => {}
        }
    }
    Cow::Owned(out)
}
