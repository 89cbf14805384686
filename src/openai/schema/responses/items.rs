//! The input of the Responses API: items, which become the messages of a chat.

use super::super::errors::Errors;
use super::super::fields::{self, Fields};
use super::super::scalars::text;
use crate::json::Json;
use crate::request::{Content, Message, Part, ToolCall};

const KINDS: [&str; 4] = ["message", "function_call", "function_call_output", "reasoning"];
const ROLES: [&str; 4] = ["user", "assistant", "system", "developer"];
const PARTS: [&str; 5] = ["input_text", "output_text", "text", "refusal", "input_image"];

enum Item {
    Message(Message),
    Call(ToolCall),
    /// Of an earlier answer: models are not shown it again.
    Reasoning,
}

/// A string, which is what the user says, or items.
pub fn input(value: &Json, errors: &mut Errors) -> Option<Vec<Message>> {
    match value {
        Json::Text(content) => {
            return Some(vec![Message::User { content: Content::Text(content.clone()), name: None }]);
        }
        Json::List(items) if items.is_empty() => {
            fields::too_short("List", value, errors);
            return None;
        }
        Json::List(_) => {}
        _ => {
            errors.add("string_type", "Input should be a valid string", value);
            errors.add("list_type", "Input should be a valid list", value);
            return None;
        }
    }
    let mut messages = Vec::new();
    for item in fields::list(value, errors, item)? {
        match item {
            Item::Message(message) => messages.push(message),
            Item::Call(call) => add_call(call, &mut messages),
            Item::Reasoning => {}
        }
    }
    Some(messages)
}

/// Calls are items of their own here, and part of the assistant's message in a chat.
fn add_call(call: ToolCall, messages: &mut Vec<Message>) {
    match messages.last_mut() {
        Some(Message::Assistant { tool_calls, .. }) => tool_calls.push(call),
        _ => messages.push(Message::Assistant { content: None, tool_calls: vec![call] }),
    }
}

fn item(value: &Json, errors: &mut Errors) -> Option<Item> {
    let mut fields = Fields::of(value, errors)?;
    let kind = fields.defaulted("type", 0, errors, |value, errors| fields::one_of(value, &KINDS, errors));
    match kind {
        Some(0) => message(&mut fields, errors).map(Item::Message),
        Some(1) => {
            let id = fields.required("call_id", errors, text);
            let name = fields.required("name", errors, text);
            let arguments = fields.required("arguments", errors, text);
            let kind = "function".to_owned();
            Some(Item::Call(ToolCall { id: id?, kind, name: name?, arguments: arguments? }))
        }
        Some(2) => {
            let tool_call_id = fields.required("call_id", errors, text);
            let content = fields.required("output", errors, joined);
            Some(Item::Message(Message::Tool { content: content?, tool_call_id: tool_call_id? }))
        }
        Some(_) => Some(Item::Reasoning),
        // Null, which no kind is; what else is wrong has been told.
        None => fields.required("type", errors, |value, errors| {
            if value.is_null() {
                fields::one_of(value, &KINDS, errors);
            }
            None
        }),
    }
}

fn message(fields: &mut Fields<'_>, errors: &mut Errors) -> Option<Message> {
    let role = fields.required("role", errors, |value, errors| fields::one_of(value, &ROLES, errors))?;
    Some(match role {
        0 => Message::User { content: fields.required("content", errors, content)?, name: None },
        1 => {
            let content = fields.required("content", errors, joined)?;
            Message::Assistant { content: Some(content), tool_calls: Vec::new() }
        }
        2 => Message::System { content: fields.required("content", errors, joined)? },
        _ => Message::Developer { content: fields.required("content", errors, joined)? },
    })
}

fn content(value: &Json, errors: &mut Errors) -> Option<Content> {
    match value {
        Json::List(_) => fields::list(value, errors, part).map(Content::Parts),
        value => text(value, errors).map(Content::Text),
    }
}

/// A string, or parts that are all text, joined.
fn joined(value: &Json, errors: &mut Errors) -> Option<String> {
    let Json::List(_) = value else { return text(value, errors) };
    let texts = fields::list(value, errors, |value, errors| match part(value, errors)? {
        Part::Text(text) => Some(text),
        Part::ImageUrl { .. } => {
            errors.add("string_type", "Input should be text: only users may send images", value);
            None
        }
    });
    texts.map(|texts| texts.join("\n"))
}

fn part(value: &Json, errors: &mut Errors) -> Option<Part> {
    let mut fields = Fields::of(value, errors)?;
    let kind = fields.required("type", errors, |value, errors| fields::one_of(value, &PARTS, errors))?;
    match PARTS.get(kind).copied() {
        Some("input_image") => fields.required("image_url", errors, text).map(|url| Part::ImageUrl { url }),
        Some("refusal") => fields.required("refusal", errors, text).map(Part::Text),
        _ => fields.required("text", errors, text).map(Part::Text),
    }
}
