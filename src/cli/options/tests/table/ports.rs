//! Flags of the gRPC port and of those for the clouds.

use super::*;

pub const ROWS: &[Row] = &[
    Row {
        flag: "allow-grpc",
        beside: "",
        good: &[("false", |o| o.grpc.allowed = false), ("true", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row { flag: "grpc-address", beside: "", good: &[("h", |o| o.grpc.address = "h".into())], bad: &[] },
    Row {
        flag: "grpc-port",
        beside: "",
        good: &[("9", |o| o.grpc.port = 9), ("-1", |o| o.grpc.port = -1)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "reuse-grpc-port",
        beside: "",
        good: &[("on", |o| o.grpc.reuse_port = true), ("false", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "grpc-header-forward-pattern",
        beside: "",
        good: &[
            ("", |_| {}),
            ("x-.*", |o| o.grpc_header_forward_pattern = "x-.*".into()),
            ("(?-i)^Trace", |o| o.grpc_header_forward_pattern = "(?-i)^Trace".into()),
        ],
        bad: &[
            ("(unclosed", "invalid pattern for --grpc-header-forward-pattern: unclosed group"),
            (
                "(?=a)",
                "invalid pattern for --grpc-header-forward-pattern: look-around, including look-ahead and look-behind, \
                 is not supported",
            ),
        ],
    },
    Row {
        flag: "grpc-infer-thread-count",
        beside: "",
        good: &[("2", |_| {}), ("128", |_| {})],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
            ("1", "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."),
            ("129", "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."),
            ("-2", "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."),
        ],
    },
    Row {
        flag: "grpc-infer-cq-count",
        beside: "",
        good: &[("0", |_| {}), ("128", |_| {})],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("129", "invalid argument for --grpc_infer_cq_count. Must be in the range 0 to 128."),
            ("-1", "invalid argument for --grpc_infer_cq_count. Must be in the range 0 to 128."),
        ],
    },
    Row {
        flag: "grpc-infer-allocation-pool-size",
        beside: "",
        good: &[("8", |_| {}), ("100", |_| {})],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "grpc-max-response-pool-size",
        beside: "",
        good: &[("2147483647", |_| {}), ("1", |o| o.grpc_max_response_pool_size = 1)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
            ("0", "Error: --grpc-max-response-pool-size must be greater than 0."),
            ("-1", "Error: --grpc-max-response-pool-size must be greater than 0."),
        ],
    },
    Row {
        flag: "grpc-use-ssl",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.grpc_tls.allowed = true)],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "grpc-use-ssl-mutual",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.grpc_tls.credentials.mutual = true)],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "grpc-server-cert",
        beside: "",
        good: &[("", |_| {}), ("/x.pem", |o| o.grpc_tls.credentials.certificate = "/x.pem".into())],
        bad: &[],
    },
    Row {
        flag: "grpc-server-key",
        beside: "",
        good: &[("", |_| {}), ("/x.pem", |o| o.grpc_tls.credentials.key = "/x.pem".into())],
        bad: &[],
    },
    Row {
        flag: "grpc-root-cert",
        beside: "",
        good: &[("", |_| {}), ("/x.pem", |o| o.grpc_tls.credentials.roots = "/x.pem".into())],
        bad: &[],
    },
    Row {
        flag: "grpc-infer-response-compression-level",
        beside: "",
        good: &[
            ("none", |_| {}),
            ("NONE", |_| {}),
            ("low", |o| o.grpc_response_compression = Some(Level::Low)),
            ("Medium", |o| o.grpc_response_compression = Some(Level::Medium)),
            ("HIGH", |o| o.grpc_response_compression = Some(Level::High)),
        ],
        bad: &[
            ("max", "invalid argument for --grpc_infer_response_compression_level"),
            ("", "invalid argument for --grpc_infer_response_compression_level"),
        ],
    },
    Row {
        flag: "grpc-keepalive-time",
        beside: "",
        good: &[
            ("7200000", |_| {}),
            ("1000", |o| o.grpc_keepalive.time_ms = 1000),
            ("-1", |o| o.grpc_keepalive.time_ms = -1),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "grpc-keepalive-timeout",
        beside: "",
        good: &[
            ("20000", |_| {}),
            ("1000", |o| o.grpc_keepalive.timeout_ms = 1000),
            ("-1", |o| o.grpc_keepalive.timeout_ms = -1),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "grpc-keepalive-permit-without-calls",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.grpc_keepalive.without_calls = true)],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "grpc-http2-max-pings-without-data",
        beside: "",
        good: &[
            ("2", |_| {}),
            ("1000", |o| o.grpc_keepalive.pings_without_data_max = 1000),
            ("-1", |o| o.grpc_keepalive.pings_without_data_max = -1),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "grpc-http2-min-recv-ping-interval-without-data",
        beside: "",
        good: &[
            ("300000", |_| {}),
            ("1000", |o| o.grpc_keepalive.ping_interval_min_ms = 1000),
            ("-1", |o| o.grpc_keepalive.ping_interval_min_ms = -1),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "grpc-http2-max-ping-strikes",
        beside: "",
        good: &[
            ("2", |_| {}),
            ("1000", |o| o.grpc_keepalive.ping_strikes_max = 1000),
            ("-1", |o| o.grpc_keepalive.ping_strikes_max = -1),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "grpc-max-connection-age",
        beside: "",
        good: &[
            ("0", |_| {}),
            ("1000", |o| o.grpc_keepalive.age_max_ms = 1000),
            ("-1", |o| o.grpc_keepalive.age_max_ms = -1),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "grpc-max-connection-age-grace",
        beside: "",
        good: &[
            ("0", |_| {}),
            ("1000", |o| o.grpc_keepalive.age_grace_ms = 1000),
            ("-1", |o| o.grpc_keepalive.age_grace_ms = -1),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "grpc-restricted-protocol",
        beside: "",
        good: &[
            ("health:k=v", |o| o.grpc_restricted = restrictions(&["health"], "k", "v")),
            (
                "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging:k=v=w",
                |o| {
                    o.grpc_restricted = restrictions(&GROUPS, "k", "v=w");
                },
            ),
        ],
        bad: &[
            ("health", "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. Got health"),
            (
                "health:k",
                "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. Got \
                 health:k",
            ),
            (
                "health:=v",
                "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. Got health:=v",
            ),
            (
                "health:k=",
                "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. Got health:k=",
            ),
            (":k=v", "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. Got :k=v"),
            ("k=v", "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. Got k=v"),
            ("heath:k=v", "unknown restricted protocol 'heath' "),
            ("health,:k=v", "unknown restricted protocol '' "),
            ("trace,trace:k=v", "restricted protocol 'trace' can not be specified in multiple config groups"),
        ],
    },
    Row {
        flag: "allow-sagemaker",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.sagemaker.allowed = true)],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "sagemaker-port",
        beside: "",
        good: &[("9000", |o| o.sagemaker.port = 9000)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "sagemaker-safe-port-range",
        beside: "",
        good: &[("9000-9100", |_| {})],
        bad: &[
            (
                "9000",
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires \
                 format <first>-<second>. Found: 9000",
            ),
            ("-1-5", "Invalid option value. Got "),
            ("1-x", "Invalid option value. Got x"),
        ],
    },
    Row {
        flag: "sagemaker-thread-count",
        beside: "",
        good: &[("2", |_| {})],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "allow-vertex-ai",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.vertex.allowed = true)],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "vertex-ai-port",
        beside: "",
        good: &[("9000", |o| o.vertex.port = 9000)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "vertex-ai-thread-count",
        beside: "",
        good: &[("2", |_| {})],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "vertex-ai-default-model",
        beside: "",
        good: &[("m", |o| o.vertex_default_model = "m".into()), ("", |_| {})],
        bad: &[],
    },
];
