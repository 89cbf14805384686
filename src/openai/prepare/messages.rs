//! Messages and tools as values for a template (contract/openai.md section 1.4).

use super::parse_json;
use crate::error::Refusal;
use crate::json::Json;
use crate::request::{Content, Message, Part, Tool, ToolCall};

/// How content is given to the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentStyle {
    /// As the request has it, as upstream does.
    Unchanged,
    /// Texts: parts are joined by line feeds.
    Texts,
    /// Parts: a text is one of them.
    Parts,
}

pub(super) fn messages(messages: &[Message], style: ContentStyle) -> Result<Vec<Json>, Refusal> {
    messages.iter().enumerate().map(|(index, message)| convert(index, message, style)).collect()
}

fn convert(index: usize, message: &Message, style: ContentStyle) -> Result<Json, Refusal> {
    Ok(match message {
        // Few templates know a developer, and the others would drop the message or fail. To those that know it, it is
        // another word for the system.
        Message::System { content } | Message::Developer { content } => {
            object([("role", text("system")), ("content", text_content(content, style))])
        }
        Message::User { content, name } => {
            let mut members = vec![("role", text("user")), ("content", user_content(content, style)?)];
            members.extend(name.as_deref().map(|name| ("name", text(name))));
            object(members)
        }
        Message::Assistant { content, tool_calls } => {
            let content = content.as_deref().map_or(Json::Null, |content| text_content(content, style));
            let mut members = vec![("role", text("assistant")), ("content", content)];
            if !tool_calls.is_empty() {
                let calls = tool_calls.iter().enumerate().map(|(place, call)| tool_call(index, place, call));
                members.push(("tool_calls", Json::List(calls.collect::<Result<_, _>>()?)));
            }
            object(members)
        }
        Message::Tool { content, tool_call_id } => object([
            ("role", text("tool")),
            ("content", text_content(content, style)),
            ("tool_call_id", text(tool_call_id)),
        ]),
        Message::Function { content } => {
            object([("role", text("function")), ("content", text_content(content, style))])
        }
    })
}

fn text_content(content: &str, style: ContentStyle) -> Json {
    match style {
        ContentStyle::Parts => Json::List(vec![part(content)]),
        ContentStyle::Unchanged | ContentStyle::Texts => text(content),
    }
}

fn user_content(content: &Content, style: ContentStyle) -> Result<Json, Refusal> {
    let parts = match content {
        Content::Text(content) => return Ok(text_content(content, style)),
        Content::Parts(parts) => parts,
    };
    let texts = parts.iter().map(|part| match part {
        Part::Text(text) => Ok(text.as_str()),
        Part::ImageUrl { .. } => Err(Refusal::client("only text message is supported, but got image_url")),
    });
    let texts = texts.collect::<Result<Vec<&str>, Refusal>>()?;
    Ok(match style {
        ContentStyle::Texts => text(&texts.join("\n")),
        ContentStyle::Unchanged | ContentStyle::Parts => Json::List(texts.into_iter().map(part).collect()),
    })
}

/// Templates want arguments as an object.
fn tool_call(index: usize, place: usize, call: &ToolCall) -> Result<Json, Refusal> {
    let arguments = if call.arguments.is_empty() {
        // Clients say so that there are none.
        Json::Object(Vec::new())
    } else {
        parse_json(call.arguments.as_bytes()).map_err(|error| {
            let member = format!("messages[{index}].tool_calls[{place}].function.arguments");
            Refusal::client(format!("`{member}` must be the text of a JSON object: {error}"))
        })?
    };
    let function = object([("name", text(&call.name)), ("arguments", arguments)]);
    Ok(object([("id", text(&call.id)), ("type", text(&call.kind)), ("function", function)]))
}

/// With every member of the schema, null where the request has none.
pub(super) fn tools(tools: &[Tool]) -> Vec<Json> {
    let tools = tools.iter().map(|tool| {
        let function = object([
            ("description", tool.description.as_deref().map_or(Json::Null, text)),
            ("name", text(&tool.name)),
            ("parameters", tool.parameters.clone().unwrap_or(Json::Null)),
        ]);
        object([("type", text(&tool.kind)), ("function", function)])
    });
    tools.collect()
}

fn part(content: &str) -> Json {
    object([("type", text("text")), ("text", text(content))])
}

fn text(text: &str) -> Json {
    Json::Text(text.to_owned())
}

fn object<'a>(members: impl IntoIterator<Item = (&'a str, Json)>) -> Json {
    Json::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
