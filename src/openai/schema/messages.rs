//! Messages of a chat (contract/openai.md section 1.4): a union of one model per role. A message that fits none is
//! told what is wrong with it as each of them.

use super::Rules;
use super::errors::{Errors, Step};
use super::fields::{self, Fields};
use super::scalars::text;
use crate::json::Json;
use crate::request::{Content, Message, Part, ToolCall};

#[derive(Clone, Copy)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
    Function,
    Developer,
}

/// Those of Triton's front end, in the order of its entries.
const ROLES: [Role; 5] = [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Function];

impl Role {
    fn of(message: &Json, rules: &Rules) -> Option<Role> {
        Some(match message.get("role")?.as_str()? {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            "function" => Role::Function,
            "developer" if rules.extensions => Role::Developer,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::Function => "function",
            Role::Developer => "developer",
        }
    }

    /// The name of its model in `loc`.
    fn tag(self) -> &'static str {
        match self {
            Role::System => "ChatCompletionRequestSystemMessage",
            Role::User => "ChatCompletionRequestUserMessage",
            Role::Assistant => "ChatCompletionRequestAssistantMessage",
            Role::Tool => "ChatCompletionRequestToolMessage",
            Role::Function => "ChatCompletionRequestFunctionMessage",
            Role::Developer => "ChatCompletionRequestDeveloperMessage",
        }
    }

    fn check(self, fields: &mut Fields<'_>, errors: &mut Errors) {
        fields.required("role", errors, |value, errors| fields::one_of(value, &[self.name()], errors));
    }

    fn read(self, message: &Json, rules: &Rules, errors: &mut Errors) -> Option<Message> {
        let fields = &mut Fields::of(message, errors)?;
        let plain = |value: &Json, errors: &mut Errors| text_of(value, rules, errors);
        match self {
            Role::System | Role::Developer => {
                let content = fields.required("content", errors, plain);
                self.check(fields, errors);
                fields.optional("name", errors, text);
                let content = content?;
                let is_system = matches!(self, Role::System);
                Some(if is_system { Message::System { content } } else { Message::Developer { content } })
            }
            Role::User => {
                let content = fields.required("content", errors, content);
                self.check(fields, errors);
                let name = fields.optional("name", errors, text);
                Some(Message::User { content: content?, name })
            }
            Role::Assistant => {
                let content = fields.optional("content", errors, plain);
                self.check(fields, errors);
                fields.optional("name", errors, text);
                let calls = |value, errors: &mut Errors| fields::list(value, errors, tool_call);
                let tool_calls = fields.optional("tool_calls", errors, calls).unwrap_or_default();
                fields.optional("function_call", errors, function_call);
                Some(Message::Assistant { content, tool_calls })
            }
            Role::Tool => {
                self.check(fields, errors);
                let content = fields.required("content", errors, plain);
                let tool_call_id = fields.required("tool_call_id", errors, text);
                Some(Message::Tool { content: content?, tool_call_id: tool_call_id? })
            }
            Role::Function => {
                self.check(fields, errors);
                let content = fields.required("content", errors, text);
                fields.required("name", errors, text)?;
                Some(Message::Function { content: content? })
            }
        }
    }
}

pub fn messages(value: &Json, rules: &Rules, errors: &mut Errors) -> Option<Vec<Message>> {
    let messages = fields::list(value, errors, |value, errors| message(value, rules, errors))?;
    if messages.is_empty() {
        fields::too_short("List", value, errors);
        return None;
    }
    Some(messages)
}

fn message(value: &Json, rules: &Rules, errors: &mut Errors) -> Option<Message> {
    let before = errors.mark();
    let role = Role::of(value, rules);
    if let Some(role) = role {
        let message = errors.within(Step::Name(role.tag()), |errors| role.read(value, rules, errors));
        if errors.is_as(before) {
            return message;
        }
        errors.forget(before);
    }
    let developer = role.filter(|role| matches!(role, Role::Developer));
    for role in ROLES.into_iter().chain(developer) {
        errors.within(Step::Name(role.tag()), |errors| role.read(value, rules, errors));
    }
    None
}

/// A string. With extensions also a list of parts that are all text, which are joined as vLLM does.
fn text_of(value: &Json, rules: &Rules, errors: &mut Errors) -> Option<String> {
    if let Json::List(parts) = value
        && rules.extensions
    {
        let texts: Option<Vec<&str>> = parts.iter().map(text_part).collect();
        if let Some(texts) = texts {
            return Some(texts.join("\n"));
        }
    }
    text(value, errors)
}

fn text_part(part: &Json) -> Option<&str> {
    let is_text = part.get("type")?.as_str()? == "text";
    part.get("text")?.as_str().filter(|_| is_text)
}

fn content(value: &Json, errors: &mut Errors) -> Option<Content> {
    if let Json::Text(text) = value {
        return Some(Content::Text(text.clone()));
    }
    let before = errors.mark();
    let parts = |errors: &mut Errors| {
        let tag = Step::Name("list[ChatCompletionRequestMessageContentPart]");
        errors.within(tag, |errors| fields::list(value, errors, part))
    };
    if let Some(parts) = parts(errors) {
        return Some(Content::Parts(parts));
    }
    // The entry of the string comes first.
    errors.forget(before);
    errors.within(Step::Name("str"), |errors| text(value, errors));
    parts(errors);
    None
}

fn part(value: &Json, errors: &mut Errors) -> Option<Part> {
    let before = errors.mark();
    let is_text = value.get("type").and_then(Json::as_str) == Some("text");
    let read = if is_text { part_of_text } else { part_of_image };
    let part = read(value, errors);
    if errors.is_as(before) {
        return part;
    }
    errors.forget(before);
    part_of_text(value, errors);
    part_of_image(value, errors);
    None
}

fn part_of_text(value: &Json, errors: &mut Errors) -> Option<Part> {
    errors.within(Step::Name("ChatCompletionRequestMessageContentPartText"), |errors| {
        let mut fields = Fields::of(value, errors)?;
        fields.required("type", errors, |value, errors| fields::one_of(value, &["text"], errors));
        fields.required("text", errors, text).map(Part::Text)
    })
}

fn part_of_image(value: &Json, errors: &mut Errors) -> Option<Part> {
    errors.within(Step::Name("ChatCompletionRequestMessageContentPartImage"), |errors| {
        let mut fields = Fields::of(value, errors)?;
        fields.required("type", errors, |value, errors| fields::one_of(value, &["image_url"], errors));
        fields.required("image_url", errors, |value, errors| {
            let mut fields = Fields::of(value, errors)?;
            let url = fields.required("url", errors, url);
            let details = ["auto", "low", "high"];
            fields.optional("detail", errors, |value, errors| fields::one_of(value, &details, errors));
            url.map(|url| Part::ImageUrl { url })
        })
    })
}

/// Only as far as to tell that it is no address: who fetches it reads it.
fn url(value: &Json, errors: &mut Errors) -> Option<String> {
    let Json::Text(text) = value else {
        errors.add("url_type", "URL input should be a string or URL", value);
        return None;
    };
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
    };
    let wrong = match text.trim().split_once(':') {
        _ if text.trim().is_empty() => "input is empty",
        Some((scheme, rest)) if is_scheme(scheme) => {
            let is_web = matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https");
            let host = rest.trim_start_matches(['/', '\\']);
            if !is_web || !(host.is_empty() || host.starts_with(['?', '#'])) {
                return Some(text.clone());
            }
            "empty host"
        }
        _ => "relative URL without a base",
    };
    let ctx = Json::Object(vec![("error".to_owned(), Json::from(wrong))]);
    errors.add_with("url_parsing", format!("Input should be a valid URL, {wrong}"), value, Some(ctx));
    None
}

fn tool_call(value: &Json, errors: &mut Errors) -> Option<ToolCall> {
    let mut fields = Fields::of(value, errors)?;
    let id = fields.required("id", errors, text);
    let kind = fields.required("type", errors, text);
    let function = fields.required("function", errors, |value, errors| {
        let mut fields = Fields::of(value, errors)?;
        let name = fields.required("name", errors, text);
        let arguments = fields.required("arguments", errors, text);
        Some((name?, arguments?))
    });
    let (name, arguments) = function?;
    Some(ToolCall { id: id?, kind: kind?, name, arguments })
}

/// Checked, and of no effect.
fn function_call(value: &Json, errors: &mut Errors) -> Option<()> {
    let mut fields = Fields::of(value, errors)?;
    fields.required("arguments", errors, text);
    fields.required("name", errors, text);
    Some(())
}
