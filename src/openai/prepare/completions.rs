//! Completions, and the steps that they share with chats.

use super::checks::{check_completions, check_target};
use super::{Context, Failure, Model, Target};
use crate::error::{Detail, Refusal};
use crate::form::Generation;
use crate::plan::{Plan, Prepared};
use crate::request::{Completions, Operation, Sampling};

pub(super) fn prepare(context: &Context<'_>, completions: &Completions) -> Result<Prepared, Failure> {
    let target = context.target(&completions.model)?;
    check_target(context, &target, &completions.model)?;
    let prompt = check_completions(context, &target, completions)?;
    let mut plan = context.plan(Operation::Completions, &completions.model, &target.model.facts);
    context.set_sampling(&mut plan, &completions.sampling);
    let max_tokens = completions.sampling.max_tokens;
    plan.prompt_tokens = context.count_prompt(&target.model, prompt, true, max_tokens)?;
    let logprobs = completions.logprobs.filter(|&count| count > 0);
    plan.logprobs = logprobs.and_then(|count| count.try_into().ok());
    let generation = Generation {
        prompt,
        sampling: &completions.sampling,
        is_chat: false,
        max_tokens: max_tokens.unwrap_or(context.settings.default_max_tokens),
        logprobs,
        echo: completions.echo,
        guide: None,
        lora: target.lora.as_deref(),
    };
    context.generation(&target, &generation, plan)
}

impl Context<'_> {
    pub(super) fn set_sampling(&self, plan: &mut Plan, sampling: &Sampling) {
        let options = sampling.stream_options.unwrap_or_default();
        plan.stream = sampling.stream;
        plan.include_usage = options.include_usage;
        plan.continuous_usage = options.continuous_usage_stats;
    }

    /// The request for the model.
    pub(super) fn generation(
        &self,
        target: &Target,
        generation: &Generation<'_>,
        mut plan: Plan,
    ) -> Result<Prepared, Failure> {
        let (settings, facts) = (self.settings, &target.model.facts);
        let form = facts.form(settings.form);
        let lora_sent = target.lora.clone().filter(|lora| facts.needs_weights(lora, form));
        // Files must not be waited for.
        if lora_sent.is_some() && self.inline.is_some() {
            return Err(Failure::Deferred);
        }
        plan.max_tokens = u64::try_from(generation.max_tokens).ok();
        let inputs = facts.inputs(generation, settings.form, settings.compat)?;
        let priority = generation.sampling.priority;
        Ok(Prepared { model: target.model.name.clone(), requests: vec![inputs], lora_sent, priority, plan })
    }

    /// The tokens of a prompt, for the plan. Refuses what the model has no room for.
    pub(super) fn count_prompt(
        &self,
        model: &Model,
        prompt: &str,
        add_special_tokens: bool,
        max_tokens: Option<i64>,
    ) -> Result<Option<u64>, Failure> {
        let Some(count) = self.count(model, &[prompt], add_special_tokens)? else { return Ok(None) };
        let tokenizer = self.language(model).and_then(|language| language.tokenizer.as_ref());
        let room = tokenizer.and_then(|tokenizer| tokenizer.model_max_length());
        if let Some(room) = room.filter(|_| self.is_openai()) {
            check_room(count, max_tokens, room)?;
        }
        Ok(Some(count).filter(|_| !model.facts.reports_prompt_tokens()))
    }
}

/// `max_tokens`: as the request has it; without it the text may be shorter than the server's default.
fn check_room(count: u64, max_tokens: Option<i64>, room: u64) -> Result<(), Refusal> {
    let wanted = max_tokens.and_then(|wanted| u64::try_from(wanted).ok()).unwrap_or(0);
    let total = count.saturating_add(wanted);
    if total <= room {
        return Ok(());
    }
    let got = if count > room {
        format!("your prompt has {count} tokens. Please reduce its length.")
    } else {
        format!(
            "you requested {total} tokens ({count} in the prompt, {wanted} in the completion). Please reduce the \
             length of the prompt or of the completion."
        )
    };
    let message = format!("This model's maximum context length is {room} tokens. However, {got}");
    let (kind, code) = ("invalid_request_error", "context_length_exceeded");
    Err(Refusal { status: 400, detail: Detail::Error { message, kind, code } })
}
