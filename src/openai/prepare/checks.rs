//! The checks of requests for texts, in upstream's order and with its texts (contract/openai.md sections 1.3 and 1.6).

use super::{Context, Target};
use crate::error::Refusal;
use crate::form::Form;
use crate::plan::ToolPlan;
use crate::request::{Chat, Completions, Prompt, Sampling, ToolChoice};

/// What is checked of every request for a text before its members.
pub(super) fn check_target(context: &Context<'_>, target: &Target, name: &str) -> Result<(), Refusal> {
    let facts = &target.model.facts;
    if facts.backend().is_empty() {
        return Err(Refusal::server("Unknown backend"));
    }
    if context.is_openai() && !facts.is_generative() {
        return Err(Refusal::client(format!(
            "Model '{}' does not generate text: it has no input 'text_input' and output 'text_output', and its \
             configuration names no others by 'openai_prompt_input' and 'openai_output'",
            target.model.name
        )));
    }
    let Some(lora) = &target.lora else { return Ok(()) };
    // Of names that nobody can check, vLLM itself knows whether they are adapters. TensorRT-LLM's models have no input
    // for a name: the model without an adapter would answer.
    let is_dropped = !facts.loras().names().iter().any(|known| known == lora)
        && context.is_openai()
        && facts.form(context.settings.form) != Form::Vllm;
    if !facts.loras().allows(lora) || is_dropped {
        return Err(Refusal::client(format!("Unknown LoRA: {lora}; for model: {name}")));
    }
    Ok(())
}

pub(super) fn check_chat(context: &Context<'_>, target: &Target, chat: &Chat) -> Result<(), Refusal> {
    check_n(&chat.sampling)?;
    if chat.sampling.has_logit_bias {
        return Err(Refusal::client("logit bias is not currently supported"));
    }
    let wants_alternatives = chat.top_logprobs.is_some_and(|count| count != 0);
    if chat.logprobs || wants_alternatives {
        check_logprobs(context, target)?;
    }
    if wants_alternatives && !chat.logprobs {
        return Err(Refusal::client("`top_logprobs` can only be used when `logprobs` is True"));
    }
    check_tools(context, chat)?;
    check_stream_options(&chat.sampling)
}

pub(super) fn check_completions<'a>(
    context: &Context<'_>,
    target: &Target,
    completions: &'a Completions,
) -> Result<&'a str, Refusal> {
    if completions.has_suffix {
        return Err(Refusal::client("suffix is not currently supported"));
    }
    let prompt = match &completions.prompt {
        Prompt::Text(text) if !text.is_empty() => text,
        Prompt::Text(_) | Prompt::List { is_empty: true } => {
            return Err(Refusal::client("prompt must be non-empty"));
        }
        Prompt::List { is_empty: false } => {
            return Err(Refusal::client("only single string input is supported"));
        }
    };
    let is_vllm = target.model.facts.backend() == "vllm";
    if is_vllm && completions.best_of.is_some() {
        let text = "best_of is no longer supported in vLLM backend, removed from vLLM V1 engine";
        return Err(Refusal::client(text));
    }
    check_n(&completions.sampling)?;
    if let Some(best_of) = completions.best_of.flatten().filter(|&best_of| best_of > 1) {
        let text = format!("Received best_of={best_of}, but only single choice (best_of=1) is currently supported");
        return Err(Refusal::client(text));
    }
    if completions.sampling.has_logit_bias {
        return Err(Refusal::client("logit bias is not supported"));
    }
    if completions.logprobs.is_some_and(|count| count > 0) {
        check_logprobs(context, target)?;
    }
    check_stream_options(&completions.sampling)?;
    // vLLM's backend would refuse it once the stream has begun.
    let is_stream = completions.sampling.stream;
    if context.is_openai() && is_vllm && is_stream && completions.echo == Some(true) {
        return Err(Refusal::client("`echo` cannot be used with `stream` on the vLLM backend; leave one of them out"));
    }
    Ok(prompt)
}

fn check_n(sampling: &Sampling) -> Result<(), Refusal> {
    let n = sampling.n;
    if n > 1 {
        let text = format!("Received n={n}, but only single choice (n=1) is currently supported");
        return Err(Refusal::client(text));
    }
    Ok(())
}

/// Upstream goes by the name of the backend; other models that follow its convention have log probabilities too.
fn check_logprobs(context: &Context<'_>, target: &Target) -> Result<(), Refusal> {
    let facts = &target.model.facts;
    if facts.backend() == "vllm" || (context.is_openai() && facts.reports_logprobs(context.settings.form)) {
        return Ok(());
    }
    Err(Refusal::client("logprobs are currently available only for the vLLM backend"))
}

fn check_stream_options(sampling: &Sampling) -> Result<(), Refusal> {
    if sampling.stream_options.is_some() && !sampling.stream {
        return Err(Refusal::client("`stream_options` can only be used when `stream` is True"));
    }
    Ok(())
}

fn check_tools(context: &Context<'_>, chat: &Chat) -> Result<(), Refusal> {
    let tools = chat.tools.as_deref().unwrap_or_default();
    let has_parser = context.settings.tool_parser.is_some();
    let text = match &chat.tool_choice {
        Some(ToolChoice::Required) if tools.is_empty() => {
            "\"required\" tool choice requires CreateChatCompletionRequest.tools to be provided".to_owned()
        }
        Some(ToolChoice::Named(_)) if tools.is_empty() => {
            "Named tool choice requires CreateChatCompletionRequest.tools to be provided".to_owned()
        }
        Some(ToolChoice::Named(name)) if tools.iter().all(|tool| tool.name != *name) => {
            format!("Tool '{name}' has not been passed in `tools`.")
        }
        Some(ToolChoice::Auto) if !has_parser => {
            "\"auto\" tool choice requires --tool-call-parser to be set".to_owned()
        }
        None if !tools.is_empty() && !has_parser => {
            "having tools in the request requires --tool-call-parser to be set".to_owned()
        }
        _ => return Ok(()),
    };
    Err(Refusal::client(text))
}

/// What becomes of tools in the answer, once they are checked.
pub(super) fn tool_plan(context: &Context<'_>, target: &Target, chat: &Chat) -> ToolPlan {
    let tools = chat.tools.as_deref().unwrap_or_default();
    let Some(first) = tools.first() else { return ToolPlan::None };
    match (&chat.tool_choice, context.settings.tool_parser) {
        (Some(ToolChoice::Required), _) => ToolPlan::Forced { name: first.name.clone() },
        (Some(ToolChoice::Named(name)), _) => ToolPlan::Forced { name: name.clone() },
        (Some(ToolChoice::Auto) | None, Some(parser)) => ToolPlan::Auto {
            parser,
            bytes_max: context.settings.tool_parse_bytes_max,
            is_vllm: target.model.facts.backend() == "vllm",
        },
        _ => ToolPlan::None,
    }
}
