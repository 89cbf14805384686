//! The object of an answer: what came out, and what the request had said.

use super::super::document::Document;
use super::super::text::{put_json, put_number, put_string};
use super::super::usage::Counts;
use super::items::Item;
use crate::json::Json;
use crate::plan::Plan;
use crate::request::Responses;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    InProgress,
    Completed,
    /// For that reason.
    Incomplete(&'static str),
    Failed,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::InProgress => "in_progress",
            State::Completed => "completed",
            State::Incomplete(_) => "incomplete",
            State::Failed => "failed",
        }
    }
}

/// Writes the object. `error`: the message of one.
pub(super) fn put(
    plan: &Plan,
    state: State,
    error: Option<&str>,
    items: &[Item],
    counts: Counts,
    document: &mut Document,
) {
    let request = plan.responses.as_deref();
    put_head(plan, state, error, request, document.json());
    document.put(",\"output\":[");
    for (index, item) in items.iter().enumerate() {
        document.put(if index > 0 { "," } else { "" });
        item.put(document);
    }
    document.put("]");
    let json = document.json();
    if let Some(request) = request {
        put_settings(request, json);
    }
    json.extend_from_slice(b",\"usage\":");
    counts.put_response_usage(json);
    json.extend_from_slice(b",\"user\":");
    put_text_or_null(json, request.and_then(|request| request.chat.sampling.user.as_deref()));
    json.extend_from_slice(b",\"metadata\":");
    put_json_or(json, request.and_then(|request| request.metadata.as_ref()), "{}");
    json.push(b'}');
}

fn put_head(plan: &Plan, state: State, error: Option<&str>, request: Option<&Responses>, json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"id\":");
    put_string(json, &plan.id);
    json.extend_from_slice(b",\"object\":\"response\",\"created_at\":");
    put_number(json, plan.created);
    json.extend_from_slice(b",\"status\":");
    put_string(json, state.name());
    json.extend_from_slice(b",\"error\":");
    match error {
        None => json.extend_from_slice(b"null"),
        Some(message) => {
            json.extend_from_slice(b"{\"code\":\"server_error\",\"message\":");
            put_string(json, message);
            json.push(b'}');
        }
    }
    json.extend_from_slice(b",\"incomplete_details\":");
    match state {
        State::Incomplete(reason) => {
            json.extend_from_slice(b"{\"reason\":");
            put_string(json, reason);
            json.push(b'}');
        }
        _ => json.extend_from_slice(b"null"),
    }
    json.extend_from_slice(b",\"instructions\":");
    put_text_or_null(json, request.and_then(|request| request.instructions.as_deref()));
    json.extend_from_slice(b",\"max_output_tokens\":");
    match request.and_then(|request| request.max_output_tokens) {
        Some(most) => put_number(json, u64::try_from(most).unwrap_or(0)),
        None => json.extend_from_slice(b"null"),
    }
    json.extend_from_slice(b",\"model\":");
    put_string(json, &plan.model);
}

/// What the request had said, or what holds where it had said nothing.
fn put_settings(request: &Responses, json: &mut Vec<u8>) {
    let sampling = &request.chat.sampling;
    json.extend_from_slice(b",\"parallel_tool_calls\":");
    put_bool(json, request.parallel_tool_calls);
    json.extend_from_slice(b",\"previous_response_id\":");
    put_text_or_null(json, request.previous_response_id.as_deref());
    json.extend_from_slice(b",\"reasoning\":{\"effort\":");
    put_text_or_null(json, request.chat.reasoning_effort.as_deref());
    json.extend_from_slice(b",\"summary\":null},\"store\":");
    put_bool(json, request.store);
    json.extend_from_slice(b",\"temperature\":");
    put_json_or(json, sampling.temperature.map(Json::Float).as_ref(), "null");
    json.extend_from_slice(b",\"text\":");
    put_json_or(json, request.text.as_ref(), "{\"format\":{\"type\":\"text\"}}");
    json.extend_from_slice(b",\"tool_choice\":");
    put_json(json, &request.tool_choice);
    json.extend_from_slice(b",\"tools\":");
    put_json(json, &request.tools);
    json.extend_from_slice(b",\"top_p\":");
    put_json_or(json, sampling.top_p.map(Json::Float).as_ref(), "null");
    json.extend_from_slice(b",\"truncation\":\"disabled\"");
}

fn put_bool(json: &mut Vec<u8>, value: bool) {
    json.extend_from_slice(if value { b"true" } else { b"false" });
}

fn put_text_or_null(json: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => put_string(json, text),
        None => json.extend_from_slice(b"null"),
    }
}

fn put_json_or(json: &mut Vec<u8>, value: Option<&Json>, otherwise: &str) {
    match value {
        Some(value) => put_json(json, value),
        None => json.extend_from_slice(otherwise.as_bytes()),
    }
}
