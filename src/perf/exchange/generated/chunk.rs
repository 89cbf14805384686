//! The JSON of answers: the chunks of a stream, whole answers, and errors in all the forms that servers give them.
//!
//! Of texts only one thing is of interest: that there is one. They are not kept.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::events::Event;
use crate::generation::Usage;

/// Letters of an error that is no JSON.
const TEXT_MAX: usize = 1000;

/// What one event brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Choices that went on with some text, a call of a tool, or the like.
    pub texts: u64,
    /// A choice said why it stopped.
    pub is_last: bool,
    pub usage: Option<Usage>,
}

#[derive(serde::Deserialize)]
struct RawChunk {
    choices: Option<Vec<RawChoice>>,
    usage: Option<RawUsage>,
    error: Option<Value>,
    message: Option<Value>,
}

#[derive(serde::Deserialize)]
struct RawChoice {
    delta: Option<RawDelta>,
    text: Option<Content>,
    finish_reason: Option<Content>,
}

#[derive(serde::Deserialize)]
struct RawDelta {
    content: Option<Content>,
    reasoning_content: Option<Content>,
    reasoning: Option<Content>,
    refusal: Option<Content>,
    tool_calls: Option<Content>,
    function_call: Option<Content>,
}

#[derive(serde::Deserialize)]
struct RawUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

impl From<RawUsage> for Usage {
    fn from(raw: RawUsage) -> Usage {
        Usage { input: raw.prompt_tokens, output: raw.completion_tokens }
    }
}

impl RawDelta {
    fn has_text(&self) -> bool {
        let parts = [
            &self.content,
            &self.reasoning_content,
            &self.reasoning,
            &self.refusal,
            &self.tool_calls,
            &self.function_call,
        ];
        parts.into_iter().any(has_content)
    }
}

fn has_content(content: &Option<Content>) -> bool {
    content.as_ref().is_some_and(|content| content.0)
}

/// Whether a text, a list or an object has something in it.
struct Content(bool);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list or an object")
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content(!text.is_empty()))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content(false))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut has_some = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            has_some = true;
        }
        Ok(Content(has_some))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Content, A::Error> {
        let mut has_some = false;
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            has_some = true;
        }
        Ok(Content(has_some))
    }
}

pub fn read_chunk(event: &Event<'_>) -> Result<Chunk, String> {
    let failed = |text: String| Err(format!("an error in the stream: {text}"));
    let raw = match serde_json::from_slice::<RawChunk>(event.data) {
        Ok(raw) => raw,
        Err(_) if event.name == b"error" => return failed(text_of(event.data)),
        Err(error) => return Err(format!("a chunk without good JSON: {error}")),
    };
    if let Some(error) = raw.error.as_ref().filter(|error| !error.is_null()) {
        return failed(message_of(error));
    }
    if event.name == b"error" || (raw.choices.is_none() && raw.usage.is_none()) {
        return match raw.message {
            Some(message) => failed(message_of(&message)),
            None if event.name == b"error" => failed(text_of(event.data)),
            None => Err("a chunk without 'choices'".to_owned()),
        };
    }
    let choices = raw.choices.unwrap_or_default();
    let has_text =
        |choice: &&RawChoice| has_content(&choice.text) || choice.delta.as_ref().is_some_and(RawDelta::has_text);
    Ok(Chunk {
        texts: choices.iter().filter(has_text).count() as u64,
        is_last: choices.iter().any(|choice| has_content(&choice.finish_reason)),
        usage: raw.usage.map(Usage::from),
    })
}

/// The usage of an answer that came as a whole.
pub fn read_whole(body: &[u8]) -> Result<Usage, String> {
    #[derive(serde::Deserialize)]
    struct Whole {
        choices: Option<Vec<IgnoredAny>>,
        usage: Option<RawUsage>,
        error: Option<Value>,
    }
    let whole: Whole = serde_json::from_slice(body).map_err(|error| format!("an answer without good JSON: {error}"))?;
    if let Some(error) = whole.error.filter(|error| !error.is_null()) {
        return Err(format!("an error as the answer: {}", message_of(&error)));
    }
    match whole.choices.is_none_or(|choices| choices.is_empty()) {
        true => Err("an answer without 'choices'".to_owned()),
        false => Ok(whole.usage.map_or(Usage::default(), Usage::from)),
    }
}

/// The text of an answer that is no success.
pub fn refusal(status: u16, body: &[u8]) -> String {
    let value = serde_json::from_slice::<Value>(body).ok();
    let found = value.as_ref().and_then(|value| ["error", "detail", "message"].iter().find_map(|name| value.get(name)));
    let text = found.map_or_else(|| text_of(body), message_of);
    if text.is_empty() { format!("HTTP status {status}") } else { format!("HTTP status {status}: {text}") }
}

/// OpenAI's errors are objects with a message; other servers have the message alone.
fn message_of(error: &Value) -> String {
    let message = error.get("message").unwrap_or(error);
    message.as_str().map_or_else(|| text_of(message.to_string().as_bytes()), |text| text_of(text.as_bytes()))
}

fn text_of(bytes: &[u8]) -> String {
    let shown = bytes.get(..TEXT_MAX).unwrap_or(bytes);
    String::from_utf8_lossy(shown).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &str) -> Result<Chunk, String> {
        read_chunk(&Event { name: b"", data: data.as_bytes() })
    }

    #[test]
    fn chunks_of_every_kind() {
        for (data, texts, is_last) in [
            (r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#, 0, false),
            (r#"{"choices":[{"delta":{"content":"a\u00e4"}}],"usage":null}"#, 1, false),
            (r#"{"choices":[{"delta":{"reasoning_content":"a","content":null}}]}"#, 1, false),
            (r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}"#, 1, false),
            (r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#, 0, false),
            (r#"{"choices":[{"text":"a"},{"text":"b"},{"text":""}]}"#, 2, false),
            (r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"error":null}"#, 0, true),
            (r#"{"choices":[{"text":"a","finish_reason":"length","logprobs":{"x":[[[]]]}}],"more":[{}]}"#, 1, true),
        ] {
            assert_eq!(read(data), Ok(Chunk { texts, is_last, usage: None }), "{data}");
        }
        let usage = Some(Usage { input: Some(3), output: Some(9) });
        let data = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9,"total_tokens":12}}"#;
        assert_eq!(read(data), Ok(Chunk { usage, ..Chunk::default() }));
        assert_eq!(read(r#"{"usage":{}}"#).unwrap().usage, Some(Usage::default()));
    }

    #[test]
    fn errors_of_every_kind() {
        for (name, data, text) in [
            ("", r#"{"error":{"message":"no room","type":"x"}}"#, "an error in the stream: no room"),
            ("", r#"{"error":"no room"}"#, "an error in the stream: no room"),
            ("", r#"{"error":{"code":5}}"#, r#"an error in the stream: {"code":5}"#),
            ("", r#"{"object":"error","message":"no room"}"#, "an error in the stream: no room"),
            ("error", r#"{"message":"no room"}"#, "an error in the stream: no room"),
            ("error", "no room", "an error in the stream: no room"),
            ("error", r#"{"a":1}"#, r#"an error in the stream: {"a":1}"#),
            ("", "{}", "a chunk without 'choices'"),
            ("", "nonsense", "a chunk without good JSON"),
            ("", r#"{"choices":[{"delta":{"content":7}}]}"#, "a chunk without good JSON"),
            ("", r#"{"choices":{}}"#, "a chunk without good JSON"),
            ("", r#"{"choices":[],"usage":{"completion_tokens":-1}}"#, "a chunk without good JSON"),
        ] {
            let error = read_chunk(&Event { name: name.as_bytes(), data: data.as_bytes() }).expect_err(data);
            assert!(error.starts_with(text), "{data}: {error}");
        }
        let deep = format!(r#"{{"error":{}"#, "[".repeat(100_000));
        assert!(read(&deep).is_err());
        let deep = format!(r#"{{"choices":[{{"text":{}"#, "[".repeat(100_000));
        assert!(read(&deep).is_err());
    }

    #[test]
    fn whole_answers() {
        let usage = Usage { input: Some(3), output: Some(9) };
        let good = r#"{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":9}}"#;
        assert_eq!(read_whole(good.as_bytes()), Ok(usage));
        assert_eq!(read_whole(br#"{"choices":[{}],"usage":null}"#), Ok(Usage::default()));
        for (body, text) in [
            ("", "an answer without good JSON"),
            ("data: {}", "an answer without good JSON"),
            ("{}", "an answer without 'choices'"),
            (r#"{"choices":[]}"#, "an answer without 'choices'"),
            (r#"{"error":{"message":"no room"}}"#, "an error as the answer: no room"),
        ] {
            let error = read_whole(body.as_bytes()).expect_err(body);
            assert!(error.starts_with(text), "{body}: {error}");
        }
    }

    #[test]
    fn refusals_are_told_in_the_words_of_the_server() {
        for (body, text) in [
            (r#"{"error":{"message":"no room"},"detail":"x"}"#, "HTTP status 503: no room"),
            (r#"{"error":"no room"}"#, "HTTP status 503: no room"),
            (r#"{"detail":"no room"}"#, "HTTP status 503: no room"),
            (r#"{"object":"error","message":"no room"}"#, "HTTP status 503: no room"),
            (r#"{"detail":[{"loc":["body"]}]}"#, r#"HTTP status 503: [{"loc":["body"]}]"#),
            (" no room\n", "HTTP status 503: no room"),
            ("", "HTTP status 503"),
        ] {
            assert_eq!(refusal(503, body.as_bytes()), text, "{body}");
        }
    }
}
