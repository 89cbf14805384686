//! Flags of servers of OpenAI's interface: routes, prompts, answers, goals.

use super::Flag;
use nereid_perf::openai::{Interface, TOKENS_MAX};

const PROMPTS_MAX: usize = 1 << 24;

pub static FLAGS: &[Flag] = &[
    Flag::set(
        "endpoint-type",
        "chat|completions",
        "The kind of requests. Default: that of --endpoint, else chat.",
        |g, v| {
            g.openai.interface = Some(v.one_of(&[("chat", Interface::Chat), ("completions", Interface::Completions)])?);
            Ok(())
        },
    )
    .own(),
    Flag::set(
        "endpoint",
        "path",
        "The path of requests. Default: v1/chat/completions or v1/completions, without v1 where the URL has a path.",
        |g, v| {
            g.openai.endpoint = Some(v.endpoint()?);
            Ok(())
        },
    ),
    Flag::set(
        "api-key",
        "key",
        "Sent as Authorization: Bearer. Default: OPENAI_API_KEY of the environment, which other users cannot read.",
        |g, v| {
            g.openai.key = Some(v.key()?);
            Ok(())
        },
    )
    .own(),
    Flag::set(
        "prompt-tokens",
        "mean[:deviation]",
        "Length of prompts by chance, in words of about one token, normally distributed. Default: 550.",
        |g, v| {
            g.openai.prompt = Some(v.length()?);
            Ok(())
        },
    )
    .own(),
    Flag::set("num-prompts", "count", "Different prompts, which are sent in turn. Default: 1000.", |g, v| {
        g.openai.prompts = Some(v.number(1..=PROMPTS_MAX)?);
        Ok(())
    })
    .own(),
    Flag::set(
        "shared-prefix-tokens",
        "count",
        "Words in front of every prompt, the same for all: what a cache of prefixes can save. Default: 0.",
        |g, v| {
            g.openai.shared_prefix = Some(v.number(0..=TOKENS_MAX)?);
            Ok(())
        },
    )
    .own(),
    Flag::set(
        "input-file",
        "path",
        "Prompts: a JSON object a line with messages, or a text as text_input, prompt or text.",
        |g, v| {
            g.openai.file = Some(v.path()?);
            Ok(())
        },
    )
    .own(),
    Flag::set(
        "output-tokens",
        "mean[:deviation]",
        "max_tokens of requests, normally distributed. Default: the server decides.",
        |g, v| {
            g.openai.output = Some(v.length()?);
            Ok(())
        },
    )
    .own(),
    Flag::switch(
        "exact-output-tokens",
        "Also min_tokens and ignore_eos, so that every answer has the length of --output-tokens; where the server \
         knows them.",
        |g| g.openai.is_output_exact = true,
    )
    .own(),
    Flag::set(
        "extra-inputs",
        "name:value",
        "A member of every request, like temperature:0, or a JSON object with several; may be given several times.",
        |g, v| {
            g.openai.extra.extend(v.extra_inputs()?);
            Ok(())
        },
    )
    .own(),
    Flag::switch(
        "no-usage",
        "Do not ask streams for their usage (stream_options); chunks count as tokens then.",
        |g| g.openai.has_no_usage = true,
    )
    .own(),
    Flag::set(
        "goodput",
        "goals",
        "What a good answer takes at most, in ms, like ttft:50,itl:10,latency:2000; good ones a second are reported.",
        |g, v| {
            g.openai.goals = v.goals()?;
            Ok(())
        },
    )
    .own(),
];
