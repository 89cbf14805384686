//! Chats, and what of the Responses API is one.

use super::checks::{check_chat, check_target, tool_plan};
use super::render::Dialogue;
use super::{Context, Failure, Target};
use crate::error::Refusal;
use crate::form::{Generation, Guide, compact_text};
use crate::json::Json;
use crate::plan::{Prepared, ToolPlan};
use crate::request::{Chat, Operation, ResponseFormat, Responses};

pub(super) fn prepare_responses(context: &Context<'_>, responses: &Responses) -> Result<Prepared, Failure> {
    if let Some(previous) = &responses.previous_response_id {
        return Err(Refusal::client(format!(
            "`previous_response_id` is '{previous}', but this server stores no responses; send the conversation as \
             `input`"
        ))
        .into());
    }
    prepare(context, &responses.chat, Operation::Responses)
}

pub(super) fn prepare(context: &Context<'_>, chat: &Chat, operation: Operation) -> Result<Prepared, Failure> {
    let settings = context.settings;
    let target = context.target(&chat.model)?;
    let Some(language) = context.language(&target.model) else {
        return Err(Refusal::server("Unknown tokenizer").into());
    };
    check_target(context, &target, &chat.model)?;
    check_chat(context, &target, chat)?;
    let tools = tool_plan(context, &target, chat);
    let guide = guide(context, &target, chat, &tools)?;
    let arguments = template_arguments(chat);
    let dialogue = Dialogue {
        messages: &chat.messages,
        tools: chat.tools.as_deref(),
        add_generation_prompt: true,
        arguments: &arguments,
    };
    let prompt = context.render(language, &dialogue)?;
    let facts = &target.model.facts;
    let mut plan = context.plan(operation, &chat.model, facts);
    context.set_sampling(&mut plan, &chat.sampling);
    // The template has written the special tokens.
    let max_tokens = chat.sampling.max_completion_tokens.or(chat.sampling.max_tokens);
    plan.prompt_tokens = context.count_prompt(&target.model, &prompt, false, max_tokens)?;
    plan.logprobs = chat.logprobs.then(|| chat.top_logprobs.unwrap_or(0).try_into().unwrap_or_default());
    // The text of a forced call is held to a schema, which has no place for reasoning.
    plan.reasoning = settings.reasoning_parser.filter(|_| !matches!(tools, ToolPlan::Forced { .. }));
    plan.tools = tools;
    let generation = Generation {
        prompt: &prompt,
        sampling: &chat.sampling,
        is_chat: true,
        max_tokens: max_tokens.unwrap_or(settings.default_max_tokens),
        logprobs: chat.logprobs.then(|| chat.top_logprobs.unwrap_or(1)),
        echo: None,
        guide: guide.as_ref(),
        lora: target.lora.as_deref(),
    };
    context.generation(&target, &generation, plan)
}

/// Variables of the template that the request sets.
fn template_arguments(chat: &Chat) -> Vec<(String, Json)> {
    let mut arguments = chat.template_arguments.clone();
    let effort = chat.reasoning_effort.as_ref();
    if let Some(effort) = effort.filter(|_| arguments.iter().all(|(name, _)| name != "reasoning_effort")) {
        arguments.push(("reasoning_effort".to_owned(), Json::Text(effort.clone())));
    }
    arguments
}

/// What the text is held to: the parameters of a forced tool, or the format that is asked for.
fn guide(context: &Context<'_>, target: &Target, chat: &Chat, tools: &ToolPlan) -> Result<Option<Guide>, Refusal> {
    if let ToolPlan::Forced { name } = tools {
        let tool = chat.tools.iter().flatten().find(|tool| tool.name == *name);
        let parameters = tool.and_then(|tool| tool.parameters.as_ref());
        let schema = parameters.map_or_else(|| "{\"type\":\"object\"}".to_owned(), compact_text);
        return Ok(Some(Guide::Schema(schema)));
    }
    if !context.is_openai() {
        return Ok(None);
    }
    match &chat.response_format {
        None | Some(ResponseFormat::Text) => Ok(None),
        Some(ResponseFormat::JsonObject | ResponseFormat::JsonSchema { schema: None, .. }) => {
            Ok(Some(Guide::JsonObject))
        }
        Some(ResponseFormat::JsonSchema { name, schema: Some(schema) }) => {
            if !target.model.facts.can_guide(context.settings.form) {
                let model = &target.model.name;
                return Err(Refusal::client(format!(
                    "`response_format` has the schema '{name}', but model '{model}' cannot hold its text to one: it \
                     declares no input for guided decoding; use the type 'text' or 'json_object'"
                )));
            }
            Ok(Some(Guide::Schema(compact_text(schema))))
        }
    }
}
