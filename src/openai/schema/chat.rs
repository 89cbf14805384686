//! The schema of chats, `CreateChatCompletionRequest` (contract/openai.md section 1.3).

use super::Rules;
use super::errors::{Errors, Step};
use super::fields::{self, Fields};
use super::scalars::{between, boolean, integer, text};
use super::{extensions, messages, sampling};
use crate::json::Json;
use crate::request::{Chat, ResponseFormat, Sampling, Tool, ToolChoice};

const FUNCTIONS_MAX: usize = 128;

pub fn read(body: &Json, rules: &Rules, errors: &mut Errors) -> Option<Chat> {
    let fields = &mut Fields::tracked(body, errors)?;
    let mut shared = Sampling::default();
    let messages = fields.required("messages", errors, |value, errors| messages::messages(value, rules, errors));
    let known = sampling::MODELS_OF_CHAT;
    let model = fields.required("model", errors, |value, errors| sampling::model(value, known, errors));
    sampling::frequency(&mut shared, fields, errors);
    let logprobs = fields.optional("logprobs", errors, boolean).unwrap_or(false);
    let top = |value: &Json, errors: &mut Errors| integer(value, between(0, 20), errors);
    let top_logprobs = fields.optional("top_logprobs", errors, top);
    sampling::max_completion_tokens(&mut shared, fields, errors);
    sampling::counts(&mut shared, fields, errors);
    let format = |value: &Json, errors: &mut Errors| response_format(value, rules, errors);
    let response_format = fields.optional("response_format", errors, format);
    sampling::stream(&mut shared, rules, fields, errors);
    sampling::randomness(&mut shared, 0.7, fields, errors);
    let tools = fields.optional("tools", errors, tools);
    let tool_choice = fields.optional("tool_choice", errors, tool_choice);
    shared.user = fields.optional("user", errors, text);
    fields.optional("function_call", errors, function_call);
    fields.optional("functions", errors, functions);
    let (mut template_arguments, mut reasoning_effort) = (Vec::new(), None);
    if rules.extensions {
        let arguments = fields.optional("chat_template_kwargs", errors, fields::any_object);
        if let Some(Json::Object(arguments)) = arguments {
            template_arguments = arguments;
        }
        reasoning_effort = fields.optional("reasoning_effort", errors, text);
    }
    extensions::others(&mut shared, rules, fields, errors);
    Some(Chat {
        model: model?,
        messages: messages?,
        sampling: shared,
        logprobs,
        top_logprobs,
        tools,
        tool_choice,
        response_format,
        template_arguments,
        reasoning_effort,
    })
}

fn response_format(value: &Json, rules: &Rules, errors: &mut Errors) -> Option<ResponseFormat> {
    let mut fields = Fields::of(value, errors)?;
    let kinds: &[&str] =
        if rules.extensions { &["text", "json_object", "json_schema"] } else { &["text", "json_object"] };
    let kind = fields.defaulted("type", 0, errors, |value, errors| fields::one_of(value, kinds, errors));
    Some(match kind.unwrap_or(0) {
        0 => ResponseFormat::Text,
        1 => ResponseFormat::JsonObject,
        _ => fields.required("json_schema", errors, json_schema)?,
    })
}

/// An object with the name of a schema and the schema.
pub fn json_schema(value: &Json, errors: &mut Errors) -> Option<ResponseFormat> {
    let mut fields = Fields::of(value, errors)?;
    let name = fields.required("name", errors, text);
    let schema = fields.optional("schema", errors, fields::any_object);
    Some(ResponseFormat::JsonSchema { name: name?, schema })
}

pub fn tools(value: &Json, errors: &mut Errors) -> Option<Vec<Tool>> {
    fields::list(value, errors, |value, errors| {
        let mut fields = Fields::of(value, errors)?;
        let kind = fields.required("type", errors, text);
        let function = fields.required("function", errors, function);
        Some(Tool { kind: kind?, ..function? })
    })
}

/// What a tool says of its function.
pub fn function(value: &Json, errors: &mut Errors) -> Option<Tool> {
    let mut fields = Fields::of(value, errors)?;
    let description = fields.optional("description", errors, text);
    let name = fields.required("name", errors, text);
    let parameters = fields.optional("parameters", errors, fields::any_object);
    Some(Tool { kind: "function".to_owned(), name: name?, description, parameters })
}

fn tool_choice(value: &Json, errors: &mut Errors) -> Option<ToolChoice> {
    let words = ["none", "auto", "required"];
    let word = value.as_str().and_then(|text| words.iter().position(|word| *word == text));
    match word {
        Some(0) => return Some(ToolChoice::None),
        Some(1) => return Some(ToolChoice::Auto),
        Some(_) => return Some(ToolChoice::Required),
        None => {}
    }
    let before = errors.mark();
    errors.within(Step::Name("enum[ChatCompletionToolChoiceOption1]"), |errors| {
        errors.add_choice("enum", &words, value);
    });
    let tag = Step::Name("ChatCompletionNamedToolChoice");
    let between = errors.mark();
    let name = errors.within(tag, |errors| {
        let mut fields = Fields::of(value, errors)?;
        fields.required("type", errors, text);
        fields.required("function", errors, named)
    });
    if errors.is_as(between) {
        errors.forget(before);
    }
    name.map(ToolChoice::Named)
}

fn named(value: &Json, errors: &mut Errors) -> Option<String> {
    Fields::of(value, errors)?.required("name", errors, text)
}

/// Checked, and of no effect.
fn function_call(value: &Json, errors: &mut Errors) -> Option<()> {
    let words = ["none", "auto"];
    if value.as_str().is_some_and(|text| words.contains(&text)) {
        return Some(());
    }
    let before = errors.mark();
    errors.within(Step::Name("enum[FunctionCall3]"), |errors| errors.add_choice("enum", &words, value));
    let between = errors.mark();
    errors.within(Step::Name("ChatCompletionFunctionCallOption"), |errors| named(value, errors));
    if errors.is_as(between) {
        errors.forget(before);
    }
    Some(())
}

/// Checked, and of no effect.
fn functions(value: &Json, errors: &mut Errors) -> Option<()> {
    if let Json::List(items) = value
        && items.len() > FUNCTIONS_MAX
    {
        fields::too_long(FUNCTIONS_MAX, items.len(), value, errors);
        return None;
    }
    let functions = fields::list(value, errors, function)?;
    if functions.is_empty() {
        fields::too_short("List", value, errors);
    }
    Some(())
}
