//! Flags of OpenAI's interface: those of Triton's front end under their names (contract/openai.md section 2), and more.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::{Flag, Group};
use crate::cli::given::Given;
use crate::cli::values::{Value, ValueError};
use crate::server::options::openai::{
    Compat, Form, OpenAiOptions, RateLimit, ReasoningParserKind, RestrictedGroups, Secret, ToolParserKind,
};

pub const GROUP: &str = "OpenAI";
const OPENAI: Group = Group(GROUP);
/// Threads beyond which no host has cores.
const THREADS_MAX: u32 = 256;
/// A day.
const KEEP_ALIVE_SECS_MAX: u32 = 86_400;

pub static FLAGS: &[Flag] = &[
    OPENAI.set(
        "allow-openai",
        "boolean",
        "Whether to serve OpenAI's interface. Default: true if --openai-port is given or a model is marked, else \
         false.",
        |g, v| {
            g.allow_openai = Some(v.boolean()?);
            Ok(())
        },
    ),
    OPENAI.set("openai-port", "integer", "Port of OpenAI's interface. Default: 9000.", |g, v| {
        options(g).listen.port = v.int()?;
        g.has_openai_port = true;
        Ok(())
    }),
    OPENAI.set("openai-address", "string", "Address of OpenAI's interface. Default: 0.0.0.0.", |g, v| {
        options(g).listen.address = v.text();
        Ok(())
    }),
    OPENAI.set(
        "openai-on-http",
        "boolean",
        "Whether the HTTP port serves OpenAI's interface too. Default: false.",
        |g, v| v.boolean().map(|given| options(g).on_http_port = given),
    ),
    OPENAI.set(
        "openai-compat",
        "openai|triton",
        "Whose answers are given where both differ: those that OpenAI's clients expect, or those of Triton's front \
         end. Default: openai.",
        |g, v| {
            let forms = [("openai", Compat::OpenAi), ("triton", Compat::Triton)];
            one_of(v, &forms).map(|given| options(g).compat = given)
        },
    ),
    OPENAI.set(
        "backend",
        "vllm|tensorrtllm",
        "Tensors with which models of OpenAI's interface are asked. Default: those of each model's own backend.",
        |g, v| {
            let forms = [("vllm", Form::Vllm), ("tensorrtllm", Form::TensorRtLlm)];
            one_of(v, &forms).map(|given| options(g).form = Some(given))
        },
    ),
    OPENAI.set(
        "tokenizer",
        "path",
        "Folder of the tokenizer whose chat template makes prompts of conversations. Default: that of each model.",
        |g, v| {
            options(g).language.tokenizer = file(v);
            Ok(())
        },
    ),
    OPENAI.set(
        "chat-template",
        "path",
        "File with a chat template for all models. Default: the tokenizer's.",
        |g, v| {
            options(g).language.chat_template = file(v);
            Ok(())
        },
    ),
    OPENAI.set(
        "tokenizer-cache-byte-size",
        "integer",
        "Bytes of text and tokens that each tokenizer keeps of the beginnings of prompts. Default: 67108864.",
        |g, v| {
            options(g).language.cache_bytes_max = usize::try_from(v.bytes()?).unwrap_or(usize::MAX);
            Ok(())
        },
    ),
    OPENAI.set(
        "tool-call-parser",
        "string",
        "How tool calls are written in the text of models: llama3, mistral, hermes, pythonic. Default: no calls are \
         read.",
        |g, v| {
            let kinds = [
                ("llama3", ToolParserKind::Llama3),
                ("mistral", ToolParserKind::Mistral),
                ("hermes", ToolParserKind::Hermes),
                ("pythonic", ToolParserKind::Pythonic),
            ];
            let kind = one_of(v, &kinds).map_err(|_| ValueError::UnknownToolParser(v.text()))?;
            options(g).tools.parser = Some(kind);
            Ok(())
        },
    ),
    OPENAI.set(
        "max-tool-call-parse-bytes",
        "integer",
        "Characters of a streamed answer in which tool calls are looked for, beyond which it ends. Default: 131072.",
        |g, v| {
            options(g).tools.parse_bytes_max = usize::try_from(v.bytes()?).unwrap_or(usize::MAX);
            Ok(())
        },
    ),
    OPENAI.set(
        "reasoning-parser",
        "deepseek_r1|qwen3",
        "How reasoning is marked in the text of models. Default: all text is content.",
        |g, v| {
            let kinds = [("deepseek_r1", ReasoningParserKind::DeepSeekR1), ("qwen3", ReasoningParserKind::Qwen3)];
            one_of(v, &kinds).map(|given| options(g).tools.reasoning_parser = Some(given))
        },
    ),
    OPENAI.set(
        "lora-separator",
        "string",
        "What stands between the names of a model and of its LoRA adapter. Default: adapters cannot be named.",
        |g, v| {
            options(g).lora_separator = v.text();
            Ok(())
        },
    ),
    OPENAI.set(
        "default-max-tokens",
        "integer",
        "Tokens of an answer where a request states no number. Default: 16.",
        |g, v| v.positive().map(|given| options(g).default_max_tokens = given.into()),
    ),
    OPENAI.set(
        "openai-count-tokens",
        "boolean",
        "Whether the tokens of a prompt are counted where its model does not report them. Default: false.",
        |g, v| v.boolean().map(|given| options(g).counts_tokens = given),
    ),
    OPENAI.set(
        "openai-thread-count",
        "integer",
        "Threads that read long requests, render templates and split texts into tokens. Default: 2.",
        |g, v| in_range(v, 1..=THREADS_MAX).map(|given| options(g).threads = given),
    ),
    OPENAI.set(
        "openai-keep-alive",
        "seconds",
        "After how long a silence a comment is sent on a stream; 0: never. Default: 15.",
        |g, v| in_range(v, 0..=KEEP_ALIVE_SECS_MAX).map(|given| options(g).keep_alive_secs = given.into()),
    ),
    OPENAI.set(
        "openai-restricted-api",
        "<string>:<string>=<string>",
        "Groups of routes (inference, model-repository, metrics, health) that need a header with a value.",
        |g, v| {
            let [groups, header, value] = v.named_setting(':', "<apis>:<header>=<value>")?;
            let groups = groups.split(',').map(|group| group.trim().to_owned()).collect();
            options(g).access.restricted.push(RestrictedGroups { groups, header, value });
            Ok(())
        },
    ),
    OPENAI.set(
        "openai-api-key",
        "string",
        "A key that clients send as 'Authorization: Bearer KEY'; may be given several times. Default: none is needed.",
        |g, v| {
            options(g).access.keys.push(Secret(v.text()));
            Ok(())
        },
    ),
    OPENAI.set(
        "openai-api-key-file",
        "path",
        "A file of such keys, one in each line, with a rate behind it or not: KEY, KEY RATE or KEY RATE:BURST.",
        |g, v| {
            options(g).access.key_file = file(v);
            Ok(())
        },
    ),
    OPENAI.set(
        "openai-rate-limit",
        "rate[:burst]",
        "Requests in a second of each key, or of all together where there are none, and how many at once. Default: \
         any.",
        |g, v| {
            let limit = RateLimit::read(&v.text()).ok_or_else(|| v.unknown_word())?;
            options(g).access.rate_limit = Some(limit);
            Ok(())
        },
    ),
];

fn options(given: &mut Given) -> &mut OpenAiOptions {
    &mut given.options.openai
}

fn file(value: Value<'_>) -> Option<PathBuf> {
    Some(value.path()).filter(|path| !path.as_os_str().is_empty())
}

/// The value behind a word.
fn one_of<T: Copy>(value: Value<'_>, words: &[(&str, T)]) -> Result<T, ValueError> {
    let given = value.lower_case();
    words.iter().find(|(word, _)| *word == given).map(|(_, found)| *found).ok_or_else(|| value.unknown_word())
}

fn in_range(value: Value<'_>, range: RangeInclusive<u32>) -> Result<u32, ValueError> {
    let number = value.natural()?;
    if range.contains(&number) { Ok(number) } else { Err(ValueError::OutOfBound(value.text())) }
}
