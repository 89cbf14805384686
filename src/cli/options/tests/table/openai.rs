//! Flags of OpenAI's interface.

use super::*;
use crate::server::options::openai::{
    Compat, Form, RateLimit, ReasoningParserKind, RestrictedGroups, Secret, ToolParserKind,
};

const BOOLEAN: &[(&str, &str)] =
    &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")];

pub const ROWS: &[Row] = &[
    Row {
        flag: "allow-openai",
        beside: "",
        good: &[
            ("true", |o| {
                o.openai.listen.allowed = true;
                o.openai.is_on_by_models = false;
            }),
            ("false", |o| o.openai.is_on_by_models = false),
        ],
        bad: BOOLEAN,
    },
    Row {
        flag: "openai-port",
        beside: "",
        good: &[("9", |o| {
            o.openai.listen.port = 9;
            o.openai.listen.allowed = true;
        })],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row { flag: "openai-address", beside: "", good: &[("h", |o| o.openai.listen.address = "h".into())], bad: &[] },
    Row {
        flag: "openai-on-http",
        beside: "",
        good: &[("on", |o| o.openai.on_http_port = true), ("false", |_| {})],
        bad: BOOLEAN,
    },
    Row {
        flag: "openai-compat",
        beside: "",
        good: &[("triton", |o| o.openai.compat = Compat::Triton), ("openai", |_| {})],
        bad: &[("vllm", "invalid argument for --openai-compat")],
    },
    Row {
        flag: "backend",
        beside: "",
        good: &[
            ("vllm", |o| o.openai.form = Some(Form::Vllm)),
            ("tensorrtllm", |o| o.openai.form = Some(Form::TensorRtLlm)),
        ],
        bad: &[("python", "invalid argument for --backend")],
    },
    Row {
        flag: "tokenizer",
        beside: "",
        good: &[("/t", |o| o.openai.language.tokenizer = Some("/t".into())), ("", |_| {})],
        bad: &[],
    },
    Row {
        flag: "chat-template",
        beside: "",
        good: &[("/t", |o| o.openai.language.chat_template = Some("/t".into())), ("", |_| {})],
        bad: &[],
    },
    Row {
        flag: "tokenizer-cache-byte-size",
        beside: "",
        good: &[("0", |o| o.openai.language.cache_bytes_max = 0)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("x", "Invalid option value. Got x")],
    },
    Row {
        flag: "tool-call-parser",
        beside: "",
        good: &[
            ("llama3", |o| o.openai.tools.parser = Some(ToolParserKind::Llama3)),
            ("mistral", |o| o.openai.tools.parser = Some(ToolParserKind::Mistral)),
            ("hermes", |o| o.openai.tools.parser = Some(ToolParserKind::Hermes)),
            ("pythonic", |o| o.openai.tools.parser = Some(ToolParserKind::Pythonic)),
        ],
        bad: &[(
            "x",
            "tool parser: 'x' not found in tool_call_parsers; there are llama3, mistral, hermes and pythonic",
        )],
    },
    Row {
        flag: "max-tool-call-parse-bytes",
        beside: "",
        good: &[("512", |o| o.openai.tools.parse_bytes_max = 512)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("x", "Invalid option value. Got x")],
    },
    Row {
        flag: "reasoning-parser",
        beside: "",
        good: &[
            ("deepseek_r1", |o| o.openai.tools.reasoning_parser = Some(ReasoningParserKind::DeepSeekR1)),
            ("qwen3", |o| o.openai.tools.reasoning_parser = Some(ReasoningParserKind::Qwen3)),
        ],
        bad: &[("x", "invalid argument for --reasoning-parser")],
    },
    Row { flag: "lora-separator", beside: "", good: &[("_", |o| o.openai.lora_separator = "_".into())], bad: &[] },
    Row {
        flag: "default-max-tokens",
        beside: "",
        good: &[("7", |o| o.openai.default_max_tokens = 7)],
        bad: &[("0", "Error: --default-max-tokens must be greater than 0."), ("x", "Invalid option value. Got x")],
    },
    Row {
        flag: "openai-count-tokens",
        beside: "",
        good: &[("true", |o| o.openai.counts_tokens = true), ("false", |_| {})],
        bad: BOOLEAN,
    },
    Row {
        flag: "openai-thread-count",
        beside: "",
        good: &[("5", |o| o.openai.threads = 5)],
        bad: &[
            ("0", "Provided option value is out of bound. Got 0"),
            ("257", "Provided option value is out of bound. Got 257"),
            ("x", "Invalid option value. Got x"),
        ],
    },
    Row {
        flag: "openai-keep-alive",
        beside: "",
        good: &[("0", |o| o.openai.keep_alive_secs = 0), ("60", |o| o.openai.keep_alive_secs = 60)],
        bad: &[("86401", "Provided option value is out of bound. Got 86401"), ("x", "Invalid option value. Got x")],
    },
    Row {
        flag: "openai-restricted-api",
        beside: "",
        good: &[("inference, health:admin=hush", |o| {
            let groups = vec!["inference".to_owned(), "health".to_owned()];
            let restricted = RestrictedGroups { groups, header: "admin".to_owned(), value: "hush".to_owned() };
            o.openai.access.restricted = vec![restricted];
        })],
        bad: &[("a", "--openai-restricted-api option format is '<apis>:<header>=<value>'. Got a")],
    },
    Row {
        flag: "openai-api-key",
        beside: "",
        good: &[("k", |o| o.openai.access.keys = vec![Secret("k".to_owned())])],
        bad: &[],
    },
    Row {
        flag: "openai-api-key-file",
        beside: "",
        good: &[("/k", |o| o.openai.access.key_file = Some("/k".into())), ("", |_| {})],
        bad: &[],
    },
    Row {
        flag: "openai-rate-limit",
        beside: "",
        good: &[
            ("10", |o| o.openai.access.rate_limit = Some(RateLimit { rate: 10.0, burst: 10.0 })),
            ("0.5:20", |o| o.openai.access.rate_limit = Some(RateLimit { rate: 0.5, burst: 20.0 })),
        ],
        bad: &[
            ("0", "invalid argument for --openai-rate-limit"),
            ("1:0", "invalid argument for --openai-rate-limit"),
            ("x", "invalid argument for --openai-rate-limit"),
        ],
    },
];
