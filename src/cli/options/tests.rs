//! Every flag, every error text, every pair of ports.

use super::*;

fn arguments(words: &[&str]) -> Arguments {
    Arguments { program: "nereid".into(), words: words.iter().map(OsString::from).collect() }
}

fn parse(words: &[&str]) -> Result<ServeOptions, OptionsError> {
    ServeOptions::parse(&arguments(words), |_| None)
}

fn with(change: impl FnOnce(&mut ServeOptions)) -> Result<ServeOptions, OptionsError> {
    let mut options = ServeOptions::default();
    change(&mut options);
    Ok(options)
}

fn bad(flag: &str, inner: &str) -> String {
    format!("Bad option: \"--{flag}\".\n{inner}")
}

/// cli.md section 2, in its order.
const TRITON: &str = "\
    help id exit-timeout-secs \
    log-verbose log-info log-warning log-error log-format log-file \
    model-repository model-store exit-on-error disable-auto-complete-config strict-readiness model-control-mode \
    repository-poll-secs load-model model-config-name model-load-thread-count model-load-retry-count \
    model-namespacing enable-peer-access model-load-gpu-limit \
    allow-http http-address http-port reuse-http-port http-header-forward-pattern http-thread-count \
    http-max-input-size http-restricted-api \
    allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern grpc-infer-thread-count \
    grpc-infer-allocation-pool-size grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert \
    grpc-server-key grpc-root-cert grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout \
    grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data \
    grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age \
    grpc-max-connection-age-grace grpc-restricted-protocol \
    allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count allow-vertex-ai vertex-ai-port \
    vertex-ai-thread-count vertex-ai-default-model \
    allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config \
    trace-config \
    backend-directory backend-config repoagent-directory cache-directory cache-config \
    rate-limit rate-limit-resource pinned-memory-pool-byte-size cuda-memory-pool-byte-size \
    cuda-virtual-address-size min-supported-compute-capability buffer-manager-thread-count host-policy \
    allow-client-shm \
    strict-model-config response-cache-byte-size trace-file trace-level trace-rate trace-count trace-log-frequency";

/// A flag with a value, and what it must change.
type Case = (&'static str, &'static str, fn(&mut ServeOptions));

const VALUES: &[Case] = &[
    ("id", "me", |o| o.server_id = "me".into()),
    ("exit-timeout-secs", "7", |o| o.exit_timeout_secs = 7),
    ("log-verbose", "3", |o| o.log.verbose_level = 3),
    ("log-verbose", "2147483647", |o| o.log.verbose_level = 2_147_483_647),
    ("log-verbose", "true", |o| o.log.verbose_level = 1),
    ("log-verbose", "-1", |_| {}),
    ("log-info", "false", |o| o.log.info = false),
    ("log-warning", "off", |o| o.log.warning = false),
    ("log-error", "0", |o| o.log.error = false),
    ("log-format", "ISO8601", |o| o.log.format = crate::observe::log::LogFormat::Iso8601),
    ("log-format", "default", |_| {}),
    ("log-file", "/tmp/x", |o| o.log.file = Some("/tmp/x".into())),
    ("log-file", "", |_| {}),
    ("model-repository", "/m", |o| o.model_repositories = vec!["/m".into()]),
    ("model-store", "/m", |o| o.model_repositories = vec!["/m".into()]),
    ("exit-on-error", "FALSE", |o| o.exit_on_error = false),
    ("strict-readiness", "false", |o| o.strict_readiness = false),
    ("model-control-mode", "none", |_| {}),
    ("model-control-mode", "NONE", |_| {}),
    ("allow-http", "false", |o| o.http.allowed = false),
    ("http-address", "::1", |o| (o.http.address, o.metrics.address) = ("::1".into(), "::1".into())),
    ("http-port", "8080", |o| o.http.port = 8080),
    ("http-port", "8080x", |o| o.http.port = 8080),
    ("http-port", "70000", |o| o.http.port = 70_000),
    ("reuse-http-port", "true", |o| o.http.reuse_port = true),
    ("http-max-input-size", "5000000000", |o| o.http_max_input_size = 5_000_000_000),
    ("allow-grpc", "false", |o| o.grpc.allowed = false),
    ("grpc-address", "h", |o| o.grpc.address = "h".into()),
    ("grpc-port", "-1", |o| o.grpc.port = -1),
    ("reuse-grpc-port", "on", |o| o.grpc.reuse_port = true),
    ("allow-metrics", "false", |o| (o.metrics.allowed, o.allow_cpu_metrics) = (false, false)),
    ("allow-cpu-metrics", "false", |o| o.allow_cpu_metrics = false),
    ("metrics-address", "m", |o| o.metrics.address = "m".into()),
    ("metrics-port", "9", |o| o.metrics.port = 9),
    ("metrics-interval-ms", "1.5", |o| o.metrics_interval_ms = 1),
    ("backend-directory", "/b", |o| o.backend_directory = "/b".into()),
    ("backend-config", "python,a=b", |o| {
        o.backend_settings =
            vec![BackendSetting { backend: Some("python".into()), key: "a".into(), value: "b".into() }];
    }),
    ("io-cores", "4", |o| o.io_cores = Some(IoCores::Count(4))),
    ("io-engine", "auto", |_| {}),
    ("io-engine", "IO_uring", |o| o.io_engine = IoEngine::IoUring),
    ("io-engine", "epoll", |o| o.io_engine = IoEngine::Epoll),
];

#[test]
fn the_table_holds_every_flag_of_triton_once() {
    let names: Vec<_> = FLAGS.iter().filter(|flag| !flag.is_own()).map(|flag| flag.name).collect();
    assert_eq!(names, TRITON.split_ascii_whitespace().collect::<Vec<_>>());
    assert_eq!(names.len(), 91);
}

#[test]
fn every_honoured_flag_sets_its_option_in_both_forms() {
    for (flag, value, change) in VALUES {
        let name = format!("--{flag}");
        assert_eq!(parse(&[&format!("{name}={value}")]), with(change), "{name}={value}");
        assert_eq!(parse(&[&name, value]), with(change), "{name} {value}");
    }
    assert_eq!(parse(&["--disable-auto-complete-config"]), with(|o| o.auto_complete_config = false));
    assert_eq!(parse(&[]), with(|_| {}));
    for flag in FLAGS.iter().filter(|flag| matches!(flag.action, Action::Set(_)) && flag.takes_value()) {
        assert!(VALUES.iter().any(|(name, ..)| *name == flag.name), "--{} has a case", flag.name);
    }
}

#[test]
fn every_unbuilt_flag_is_refused_by_name() {
    let unbuilt: Vec<_> = FLAGS.iter().filter(|flag| matches!(flag.action, Action::Unbuilt)).collect();
    assert_eq!(unbuilt.len() + VALUES.iter().map(|case| case.0).collect::<std::collections::HashSet<_>>().len(), 91);
    for flag in unbuilt {
        let error = parse(&[&format!("--{}=1", flag.name)]).unwrap_err();
        let text = format!("--{} is not supported by this version of Nereid", flag.name);
        assert_eq!(error.to_string(), text);
        assert_eq!(error.report(), format!("{}\n{text}\n", usage()));
    }
}

#[test]
fn every_boolean_and_integer_refuses_others() {
    for flag in FLAGS.iter().filter(|flag| matches!(flag.action, Action::Set(_))) {
        let error = |value: &str| parse(&[&format!("--{}={value}", flag.name)]).unwrap_err().to_string();
        match flag.value {
            Some("boolean") => {
                assert_eq!(error("maybe"), bad(flag.name, "invalid value for bool option: maybe"));
                assert_eq!(error(""), bad(flag.name, "invalid value for bool option: "));
            }
            Some("integer") => {
                assert_eq!(error("x1"), bad(flag.name, "Invalid option value. Got x1"));
                let large = "99999999999999999999";
                let text = format!("Provided option value is out of bound. Got {large}");
                assert_eq!(error(large), bad(flag.name, &text));
            }
            _ => {}
        }
    }
}

#[test]
fn errors_of_values_have_their_texts() {
    let out_of_bound = |value: &str| format!("Provided option value is out of bound. Got {value}");
    let size = "Error: --http-max-input-size must be greater than 0.".to_owned();
    let format =
        |value: &str| format!("--backend-config option format is '<backend name>,<setting>=<value>'. Got {value}");
    let unbuilt = |mode: &str| format!("--model-control-mode={mode} is not supported by this version of Nereid");
    let cases = [
        ("log-format", "iso8601", "invalid argument for --log-format".to_owned()),
        ("log-verbose", "on", "Invalid option value. Got on".to_owned()),
        ("model-control-mode", "always", "invalid argument for --model-control-mode".to_owned()),
        ("model-control-mode", "Poll", unbuilt("poll")),
        ("model-control-mode", "explicit", unbuilt("explicit")),
        ("http-port", "2147483648", out_of_bound("2147483648")),
        ("http-max-input-size", "0", size.clone()),
        ("http-max-input-size", "-5", size),
        ("exit-timeout-secs", "-1", out_of_bound("-1")),
        ("metrics-interval-ms", "-1", out_of_bound("-1")),
        ("backend-config", "python", format("python")),
        ("backend-config", ",a=b", format(",a=b")),
        ("io-cores", "0", out_of_bound("0")),
        ("io-cores", "1025", out_of_bound("1025")),
        ("io-engine", "kqueue", "invalid argument for --io-engine".to_owned()),
    ];
    for (flag, value, inner) in cases {
        let error = parse(&[&format!("--{flag}={value}")]).unwrap_err();
        assert_eq!(error.to_string(), bad(flag, &inner));
        assert_eq!(error.report(), format!("{}\n{}\n", usage(), bad(flag, &inner)));
    }
}

#[test]
fn errors_name_the_whole_flag_also_when_it_was_abbreviated() {
    assert_eq!(parse(&["--log-inf=x"]).unwrap_err().to_string(), bad("log-info", "invalid value for bool option: x"));
    let error = parse(&["--trace-c=x"]).unwrap_err();
    assert!(matches!(error, OptionsError::Getopt(_)), "trace-config or trace-count");
    assert_eq!(parse(&["--trace-co=x"]).unwrap_err(), error_of("--trace-co=x", &["trace-config", "trace-count"]));
    assert_eq!(parse(&["--trace-con=x"]).unwrap_err(), OptionsError::Unbuilt("trace-config"));
}

fn error_of(given: &str, possibilities: &[&str]) -> OptionsError {
    let names: String = possibilities.iter().map(|name| format!(" '--{name}'")).collect();
    OptionsError::Getopt(format!("nereid: option '{given}' is ambiguous; possibilities:{names}"))
}

#[test]
fn words_are_refused_after_all_flags_were_read() {
    assert_eq!(parse(&["a", "--id=x", "b"]).unwrap_err().to_string(), "Unexpected argument: a");
    assert_eq!(parse(&["--", "--id=x"]).unwrap_err().to_string(), "Unexpected argument: --id=x");
    assert_eq!(
        parse(&["--disable-auto-complete-config", "true"]).unwrap_err().to_string(),
        "Unexpected argument: true"
    );
    let error = parse(&["a", "--log-info=b"]).unwrap_err();
    assert_eq!(error.to_string(), bad("log-info", "invalid value for bool option: b"));
    assert_eq!(parse(&["a"]).unwrap_err().report(), format!("{}\nUnexpected argument: a\n", usage()));
}

#[test]
fn reports_put_getopts_line_before_the_usage_and_the_others_after_it() {
    assert!(usage().starts_with("Usage: tritonserver [options]\n"));
    assert_eq!(parse(&["--help"]).unwrap_err().report(), usage());
    assert_eq!(parse(&["--he", "--nonsense"]).unwrap_err(), OptionsError::Help, "the first one counts");
    let report = parse(&["--nonsense"]).unwrap_err().report();
    assert_eq!(report, format!("nereid: unrecognized option '--nonsense'\n{}", usage()));
    for flag in FLAGS {
        assert!(usage().lines().any(|line| line.trim_start().split(' ').next() == Some(&format!("--{}", flag.name))));
    }
}

#[test]
fn repeated_flags_add_up_or_the_last_one_stands() {
    let repositories = ["--model-repository=/a", "--model-store", "/b", "--model-repo=/c"];
    assert_eq!(parse(&repositories).unwrap().model_repositories, ["/a", "/b", "/c"].map(PathBuf::from));
    assert_eq!(parse(&["--id=a", "--id=b"]).unwrap().server_id, "b");
    let settings =
        ["--backend-config=onnx,t=1", "--backend-config=t=2", "--backend-config=py,x=y", "--backend-config=onnx,t=3"];
    let options = parse(&settings).unwrap();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(options.settings_of("onnx"), [pair("t", "2"), pair("t", "1"), pair("t", "3")]);
    assert_eq!(options.settings_of("py"), [pair("t", "2"), pair("x", "y")]);
    assert_eq!(options.settings_of("other"), [pair("t", "2")]);
}

#[test]
fn the_environment_fills_what_flags_leave_open() {
    let variable =
        |name: &'static str, value: &'static str| move |asked: &str| (asked == name).then(|| OsString::from(value));
    let parse_in = |words: &[&str], name, value| ServeOptions::parse(&arguments(words), variable(name, value));
    let uri = parse_in(&[], "AIP_STORAGE_URI", "/models").unwrap();
    assert_eq!(uri.model_repositories, [PathBuf::from("/models")]);
    let given = parse_in(&["--model-repository=/mine"], "AIP_STORAGE_URI", "/models").unwrap();
    assert_eq!(given.model_repositories, [PathBuf::from("/mine")]);
    assert_eq!(parse_in(&[], "AIP_STORAGE_URI", ""), with(|_| {}));
    assert!(!parse_in(&[], "TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0").unwrap().escape_log_messages);
    for on in ["", "1", "false"] {
        assert!(parse_in(&[], "TRITON_SERVER_ESCAPE_LOG_MESSAGES", on).unwrap().escape_log_messages);
    }
    assert_eq!(parse_in(&[], "AIP_MODE", "PREDICTION").unwrap_err(), OptionsError::VertexAi);
    assert_eq!(parse_in(&[], "AIP_MODE", "TRAINING"), with(|_| {}));
}

#[test]
fn paths_need_not_be_utf8() {
    use std::os::unix::ffi::OsStringExt;
    let path = OsString::from_vec(b"/m\xff".to_vec());
    let mut joined = OsString::from("--model-repository=");
    joined.push(&path);
    let words = vec![joined, "--model-store".into(), path.clone()];
    let options = ServeOptions::parse(&Arguments { program: "n".into(), words }, |_| None).unwrap();
    assert_eq!(options.model_repositories, [PathBuf::from(&path), PathBuf::from(&path)]);
}

/// Every pair of services, on one port or two, at one address or two, each allowed or not.
#[test]
fn services_on_one_address_and_port_collide() {
    let services = [("HTTP", "http"), ("GRPC", "grpc"), ("metrics", "metrics")];
    for (index, (first, first_flag)) in services.into_iter().enumerate() {
        for (second, second_flag) in services.into_iter().skip(index + 1) {
            for same_port in [true, false] {
                for same_address in [true, false] {
                    for off in [None, Some(first_flag), Some(second_flag)] {
                        let mut words = vec![
                            format!("--{first_flag}-port=9000"),
                            format!("--{second_flag}-port={}", if same_port { 9000 } else { 9001 }),
                            format!("--{first_flag}-address=10.0.0.1"),
                            format!("--{second_flag}-address={}", if same_address { "10.0.0.1" } else { "10.0.0.2" }),
                        ];
                        words.extend(off.map(|flag| format!("--allow-{flag}=false")));
                        let words: Vec<_> = words.iter().map(String::as_str).collect();
                        let collides = same_port && same_address && off.is_none();
                        match parse(&words) {
                            Ok(_) => assert!(!collides, "{words:?}"),
                            Err(error) => {
                                assert!(collides, "{words:?}");
                                let text = format!(
                                    "The server cannot listen to {first} requests and {second} requests at the same \
                                     address and port 10.0.0.1:9000"
                                );
                                assert_eq!(error.to_string(), text);
                                assert_eq!(error.report(), text + "\n", "no usage text");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn metrics_take_the_address_of_http_before_ports_are_compared() {
    let error = parse(&["--http-address=a", "--metrics-port=8000"]).unwrap_err();
    assert_eq!(error, OptionsError::Collision("HTTP", "metrics", "a".into(), 8000));
    assert!(parse(&["--http-address=a", "--metrics-address=b", "--metrics-port=8000"]).is_ok());
    let all = parse(&["--http-port=1", "--grpc-port=1", "--metrics-port=1"]).unwrap_err();
    assert_eq!(all, OptionsError::Collision("HTTP", "GRPC", "0.0.0.0".into(), 1), "the first pair is named");
}
