//! Flags of the server, its log, the model repository and the HTTP port.

use super::*;

pub const ROWS: &[Row] = &[
    Row {
        flag: "id",
        beside: "",
        good: &[("me", |o| o.server_id = "me".into()), ("", |o| o.server_id = String::new())],
        bad: &[],
    },
    Row {
        flag: "exit-timeout-secs",
        beside: "",
        good: &[("7", |o| o.exit_timeout_secs = 7), ("-1", |o| o.exit_timeout_secs = 0)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "log-verbose",
        beside: "",
        good: &[
            ("3", |o| o.log.verbose_level = 3),
            ("2147483647", |o| o.log.verbose_level = 2_147_483_647),
            ("True", |o| o.log.verbose_level = 1),
            ("false", |_| {}),
            ("-1", |_| {}),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
            ("on", "Invalid option value. Got on"),
        ],
    },
    Row {
        flag: "log-info",
        beside: "",
        good: &[("false", |o| o.log.info = false), ("oFF", |o| o.log.info = false), ("1", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "log-warning",
        beside: "",
        good: &[("false", |o| o.log.warning = false), ("oFF", |o| o.log.warning = false), ("1", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "log-error",
        beside: "",
        good: &[("false", |o| o.log.error = false), ("oFF", |o| o.log.error = false), ("1", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "log-format",
        beside: "",
        good: &[
            ("ISO8601", |o| o.log.format = LogFormat::Iso8601),
            ("json", |o| o.log.format = LogFormat::Json),
            ("default", |_| {}),
        ],
        bad: &[("iso8601", "invalid argument for --log-format"), ("JSON", "invalid argument for --log-format")],
    },
    Row {
        flag: "log-file",
        beside: "",
        good: &[("/tmp/x", |o| o.log.file = Some("/tmp/x".into())), ("", |_| {})],
        bad: &[],
    },
    Row {
        flag: "model-repository",
        beside: "",
        good: &[
            ("/m", |o| o.model_repositories = vec!["/m".into()]),
            ("s3://b/m", |o| o.model_repositories = vec!["s3://b/m".into()]),
        ],
        bad: &[],
    },
    Row {
        flag: "model-store",
        beside: "",
        good: &[
            ("/m", |o| o.model_repositories = vec!["/m".into()]),
            ("s3://b/m", |o| o.model_repositories = vec!["s3://b/m".into()]),
        ],
        bad: &[],
    },
    Row {
        flag: "exit-on-error",
        beside: "",
        good: &[("FALSE", |o| o.exit_on_error = false), ("on", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "strict-readiness",
        beside: "",
        good: &[("false", |o| o.strict_readiness = false), ("true", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "model-control-mode",
        beside: "",
        good: &[
            ("none", |_| {}),
            ("NONE", |_| {}),
            ("Poll", |o| o.model_control = ModelControl::Poll { period_secs: 15 }),
            ("EXPLICIT", |o| o.model_control = ModelControl::Explicit),
        ],
        bad: &[
            ("always", "invalid argument for --model-control-mode"),
            ("", "invalid argument for --model-control-mode"),
        ],
    },
    Row {
        flag: "repository-poll-secs",
        beside: "--model-control-mode=poll",
        good: &[
            ("3", |o| o.model_control = ModelControl::Poll { period_secs: 3 }),
            ("0", |o| o.model_control = ModelControl::Poll { period_secs: 0 }),
            ("-4", |o| o.model_control = ModelControl::Poll { period_secs: 0 }),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "load-model",
        beside: "--model-control-mode=explicit",
        good: &[("m", |o| explicit(o, &["m"])), ("*", |o| explicit(o, &["*"]))],
        bad: &[],
    },
    Row {
        flag: "model-config-name",
        beside: "",
        good: &[("fast", |o| o.model_config_name = Some("fast".into()))],
        bad: &[("", "Error: empty argument for --model-config-name")],
    },
    Row {
        flag: "model-load-thread-count",
        beside: "",
        good: &[
            ("9", |o| o.model_load_thread_count = 9),
            ("0", |o| o.model_load_thread_count = 1),
            ("-1", |o| o.model_load_thread_count = 1),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "model-load-retry-count",
        beside: "",
        good: &[("2", |o| o.model_load_retry_count = 2), ("-1", |_| {})],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "model-namespacing",
        beside: "",
        good: &[("true", |o| o.model_namespacing = true), ("false", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "enable-peer-access",
        beside: "",
        good: &[("false", |o| o.enable_peer_access = false), ("true", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "model-load-gpu-limit",
        beside: "",
        good: &[
            ("0:0.5", |o| o.gpu_load_limits = [(0, 0.5)].into()),
            ("1:1", |o| o.gpu_load_limits = [(1, 1.0)].into()),
            ("0:0", |o| o.gpu_load_limits = [(0, 0.0)].into()),
        ],
        bad: &[
            (
                "0",
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires \
                 format <first>:<second>. Found: 0",
            ),
            ("x:1", "Invalid option value. Got x"),
            ("0:x", "Invalid option value. Got x"),
            ("0:1e999", "Provided option value is out of bound. Got 1e999"),
        ],
    },
    Row {
        flag: "allow-http",
        beside: "",
        good: &[("false", |o| o.http.allowed = false), ("true", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "http-address",
        beside: "",
        good: &[("::1", |o| (o.http.address, o.metrics.address) = ("::1".into(), "::1".into()))],
        bad: &[],
    },
    Row {
        flag: "http-port",
        beside: "",
        good: &[
            ("8080", |o| o.http.port = 8080),
            ("8080x", |o| o.http.port = 8080),
            ("70000", |o| o.http.port = 70_000),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "reuse-http-port",
        beside: "",
        good: &[("true", |o| o.http.reuse_port = true), ("0", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "http-header-forward-pattern",
        beside: "",
        good: &[("", |_| {}), ("X-.*", |o| o.http_header_forward_pattern = "X-.*".into())],
        bad: &[
            ("(unclosed", "invalid pattern for --http-header-forward-pattern: unclosed group"),
            ("*", "invalid pattern for --http-header-forward-pattern: repetition operator missing expression"),
        ],
    },
    Row {
        flag: "http-thread-count",
        beside: "",
        good: &[("8", |_| {}), ("64", |_| {})],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "http-max-input-size",
        beside: "",
        good: &[("5000000000", |o| o.http_max_input_size = 5_000_000_000), ("1", |o| o.http_max_input_size = 1)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("0", "Error: --http-max-input-size must be greater than 0."),
            ("-5", "Error: --http-max-input-size must be greater than 0."),
        ],
    },
    Row {
        flag: "http-restricted-api",
        beside: "",
        good: &[
            ("health:k=v", |o| o.http_restricted = restrictions(&["health"], "k", "v")),
            (
                "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging:k=v=w",
                |o| {
                    o.http_restricted = restrictions(&GROUPS, "k", "v=w");
                },
            ),
        ],
        bad: &[
            ("health", "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health"),
            ("health:k", "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:k"),
            ("health:=v", "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:=v"),
            ("health:k=", "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:k="),
            (":k=v", "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got :k=v"),
            ("k=v", "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got k=v"),
            ("heath:k=v", "unknown restricted api 'heath' "),
            ("health,:k=v", "unknown restricted api '' "),
            ("trace,trace:k=v", "restricted api 'trace' can not be specified in multiple config groups"),
        ],
    },
];
