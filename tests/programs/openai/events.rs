//! Server-sent events as OpenAI's streams have them, and bytes whose varying parts are replaced.

use serde_json::Value;

/// The documents of `data:` lines; the last event must be `[DONE]`.
pub fn events_of(text: &str) -> Vec<Value> {
    let (events, end) = raw_events(text);
    assert!(end, "the stream has no [DONE] at its end: {text:?}");
    events
}

/// The same, and whether `[DONE]` is the last. Comments (keep-alive) are passed over.
pub fn raw_events(text: &str) -> (Vec<Value>, bool) {
    let mut events = Vec::new();
    let mut is_done = false;
    assert!(text.is_empty() || text.ends_with("\n\n"), "the last event is cut: {text:?}");
    for event in text.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':')) {
        assert!(!is_done, "an event after [DONE]: {text:?}");
        let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("not an event: {event:?} of {text:?}"));
        match data {
            "[DONE]" => is_done = true,
            data => events.push(serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data:?}"))),
        }
    }
    (events, is_done)
}

/// The contents of a chat's chunks.
pub fn contents(events: &[Value]) -> Vec<String> {
    let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    deltas.map(str::to_owned).collect()
}

/// The texts of a completion's chunks.
pub fn texts(events: &[Value]) -> Vec<String> {
    events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).map(str::to_owned).collect()
}

/// The finish reasons that are not null, in order.
pub fn reasons(events: &[Value]) -> Vec<String> {
    let reasons = events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str());
    reasons.map(str::to_owned).collect()
}

/// Replaces identifiers by `ID` behind their prefix, and the time by `TIME`. They must have their forms, and must be
/// the same throughout the text.
pub fn neutral(text: &str, prefix: &str) -> String {
    let marked = format!("\"id\":\"{prefix}");
    let found = text.find(&marked).unwrap_or_else(|| panic!("no {marked} in {text:?}"));
    let from = found + marked.len();
    let length = text[from..].find('"').expect("the end of a text");
    let id = &text[from..from + length];
    let is_uuid = id.len() == 36 && id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    assert!(is_uuid, "{prefix}{id} does not end with a UUID");
    let text = text.replace(id, "ID");
    let marked = "\"created\":";
    let from = text.find(marked).expect("when it was created") + marked.len();
    let created: String = text[from..].chars().take_while(char::is_ascii_digit).collect();
    let seconds: u64 = created.parse().expect("seconds");
    assert!(seconds > 1_700_000_000, "created at {seconds}");
    text.replace(&format!("{marked}{created}"), &format!("{marked}TIME"))
}

#[test]
fn what_is_no_stream_is_not_taken_for_one() {
    let whole = "data: {\"a\":1}\n\n: wait\n\ndata: [DONE]\n\n";
    assert_eq!(events_of(whole), [serde_json::json!({"a": 1})]);
    for cut in ["data: {\"a\":1}\n\n", "data: {\"a\":1}\n\ndata: [DONE]", "data: [DONE]\n\ndata: {}\n\n", "data: {\n\n"]
    {
        assert!(std::panic::catch_unwind(|| events_of(cut)).is_err(), "{cut:?}");
    }
}
