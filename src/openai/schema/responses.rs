//! The schema of the Responses API, as far as it is a chat (contract/openai.md section 5). Unknown members are passed
//! over: they are many, and most ask for what only OpenAI's service has.

mod items;

use super::errors::Errors;
use super::fields::{self, Fields};
use super::scalars::{COUNT, boolean, integer, text};
use super::{chat, extensions, sampling};
use crate::json::Json;
use crate::request::{Chat, Message, ResponseFormat, Responses, Sampling, Tool, ToolChoice};

pub fn read(body: &Json, errors: &mut Errors) -> Option<Responses> {
    let fields = &mut Fields::tracked(body, errors)?;
    let model = fields.required("model", errors, text);
    let input = fields.required("input", errors, items::input);
    let instructions = fields.optional("instructions", errors, text);
    let count = |value: &Json, errors: &mut Errors| integer(value, COUNT, errors);
    let max_output_tokens = fields.optional("max_output_tokens", errors, count);
    let metadata = fields.optional("metadata", errors, fields::any_object);
    let parallel_tool_calls = fields.optional("parallel_tool_calls", errors, boolean).unwrap_or(true);
    let previous_response_id = fields.optional("previous_response_id", errors, text);
    let reasoning_effort = fields
        .optional("reasoning", errors, |value, errors| Fields::of(value, errors)?.optional("effort", errors, text));
    let store = fields.optional("store", errors, boolean).unwrap_or(true);
    let stream = fields.optional("stream", errors, boolean).unwrap_or(false);
    let mut shared = Sampling {
        max_completion_tokens: max_output_tokens,
        frequency_penalty: Some(0.0),
        presence_penalty: Some(0.0),
        stream,
        n: 1,
        ..Sampling::default()
    };
    sampling::randomness(&mut shared, 1.0, fields, errors);
    let text_options = fields.optional("text", errors, |value, errors| {
        let format = Fields::of(value, errors)?.optional("format", errors, format);
        Some((value.clone(), format))
    });
    let (text_options, response_format) = text_options.unzip();
    let tool_choice = fields.optional("tool_choice", errors, tool_choice);
    let tools = fields.optional("tools", errors, |value, errors| fields::list(value, errors, tool));
    shared.user = fields.optional("user", errors, text);
    extensions::known(&mut shared, fields, errors);
    let mut messages = Vec::new();
    messages.extend(instructions.clone().map(|content| Message::System { content }));
    messages.extend(input?);
    let given = |name: &str| body.get(name).filter(|value| !value.is_null()).cloned();
    Some(Responses {
        chat: Chat {
            model: model?,
            messages,
            sampling: shared,
            logprobs: false,
            top_logprobs: None,
            tools,
            tool_choice,
            response_format: response_format.flatten(),
            template_arguments: Vec::new(),
            reasoning_effort,
        },
        instructions,
        metadata,
        max_output_tokens,
        tools: given("tools").unwrap_or_else(|| Json::List(Vec::new())),
        tool_choice: given("tool_choice").unwrap_or_else(|| Json::from("auto")),
        text: text_options,
        parallel_tool_calls,
        store,
        previous_response_id,
    })
}

/// Other than that of chats, it has the schema's members among its own.
fn format(value: &Json, errors: &mut Errors) -> Option<ResponseFormat> {
    let mut fields = Fields::of(value, errors)?;
    let kinds = ["text", "json_object", "json_schema"];
    match fields.required("type", errors, |value, errors| fields::one_of(value, &kinds, errors))? {
        0 => Some(ResponseFormat::Text),
        1 => Some(ResponseFormat::JsonObject),
        _ => chat::json_schema(value, errors),
    }
}

/// Other than that of chats, it has the function's members among its own.
fn tool(value: &Json, errors: &mut Errors) -> Option<Tool> {
    is_function(value, errors)?;
    chat::function(value, errors)
}

fn is_function(value: &Json, errors: &mut Errors) -> Option<usize> {
    let mut fields = Fields::of(value, errors)?;
    fields.required("type", errors, |value, errors| fields::one_of(value, &["function"], errors))
}

fn tool_choice(value: &Json, errors: &mut Errors) -> Option<ToolChoice> {
    if let Json::Object(_) = value {
        is_function(value, errors)?;
        return Fields::of(value, errors)?.required("name", errors, text).map(ToolChoice::Named);
    }
    Some(match fields::one_of(value, &["none", "auto", "required"], errors)? {
        0 => ToolChoice::None,
        1 => ToolChoice::Auto,
        _ => ToolChoice::Required,
    })
}
