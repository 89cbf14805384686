//! The rows of the repository index: models, versions, their states and the reasons.

use serde_json::Value;

use super::figures::{MODELS_MAX, TEXT_BYTES_MAX, cut};

/// One row. State and version are empty for a model that was never loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelState {
    pub name: String,
    pub version: String,
    /// `READY`, `UNAVAILABLE`, `LOADING`, `UNLOADING`.
    pub state: String,
    pub reason: String,
}

/// What a state means for somebody who wants to use the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    Ready,
    /// It is being loaded or unloaded.
    Changing,
    /// On purpose: never loaded, or unloaded.
    Unloaded,
    /// It failed.
    Unavailable,
}

impl ModelState {
    pub fn availability(&self) -> Availability {
        match (self.state.as_str(), self.reason.as_str()) {
            ("READY", _) => Availability::Ready,
            ("LOADING" | "UNLOADING", _) => Availability::Changing,
            ("", _) | ("UNAVAILABLE", "unloaded") => Availability::Unloaded,
            _ => Availability::Unavailable,
        }
    }

    /// In one word.
    pub fn word(&self) -> &str {
        match self.availability() {
            Availability::Ready => "READY",
            Availability::Unloaded => "unloaded",
            Availability::Unavailable => "FAILED",
            Availability::Changing => &self.state,
        }
    }
}

/// The rows of an answer; what is no row is left out.
pub fn rows(answer: &Value) -> Vec<ModelState> {
    let rows = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |row: &Value, name: &str| cut(row[name].as_str().unwrap_or_default(), TEXT_BYTES_MAX).to_owned();
    let state = |row: &Value| ModelState {
        name: text(row, "name"),
        version: text(row, "version"),
        state: text(row, "state"),
        reason: text(row, "reason"),
    };
    rows.iter().map(state).filter(|row| !row.name.is_empty()).take(MODELS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_read_whatever_the_answer_is() {
        let answer = json!([
            {"name": "a", "version": "1", "state": "READY"},
            {"name": "b", "version": "2", "state": "UNAVAILABLE", "reason": "no file"},
            {"name": "c", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
            {"name": "d"}, {"version": "1"}, 7,
            {"name": "e", "version": 1, "state": "LOADING", "reason": "x".repeat(TEXT_BYTES_MAX + 1)},
        ]);
        let found = rows(&answer);
        let words: Vec<_> = found.iter().map(|row| (row.name.as_str(), row.word())).collect();
        assert_eq!(words, [("a", "READY"), ("b", "FAILED"), ("c", "unloaded"), ("d", "unloaded"), ("e", "LOADING")]);
        assert_eq!((found[4].version.as_str(), found[4].reason.len()), ("", TEXT_BYTES_MAX));
        assert!(rows(&Value::Null).is_empty() && rows(&json!({"a": 1})).is_empty());
    }
}
