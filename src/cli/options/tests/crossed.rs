//! Tests of flags that affect each other, and of the environment (contract/cli.md sections 2 to 4).

use super::*;

fn parse_in(words: &[&str], variables: &[(&str, &str)]) -> Result<ServeOptions, OptionsError> {
    ServeOptions::parse(&arguments(words), |variable| {
        variables.iter().find(|(name, _)| *name == variable).map(|(_, value)| value.into())
    })
}

fn warnings(words: &[&str]) -> Vec<String> {
    let mut warnings = Vec::new();
    let line = CommandLine::parse(&arguments(words), |_| None, |warning| warnings.push(warning.to_owned()));
    assert!(line.is_ok(), "{words:?}: {line:?}");
    warnings
}

#[test]
fn models_at_the_start_need_the_explicit_mode() {
    let text = "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.";
    for words in [&["--load-model=a"][..], &["--load-model=a", "--model-control-mode=poll"], &["--load-model="]] {
        let error = parse(words).unwrap_err();
        assert_eq!(error.report(), format!("{}\n{text}\n", usage()), "{words:?}");
    }
    let words = ["--load-model=b", "--model-control-mode=explicit", "--load-model=a", "--load-model=b"];
    assert_eq!(parse(&words).unwrap().startup_models, ["a", "b"], "sorted, each once");
}

#[test]
fn a_server_needs_a_repository_and_a_lonely_wildcard() {
    let check = |words: &[&str]| parse(words).unwrap().check().map_err(|status| status.message.to_string());
    assert_eq!(check(&[]).unwrap_err(), "--model-repository must be specified");
    assert_eq!(check(&["--model-store=/m"]), Ok(()));
    let explicit = ["--model-store=/m", "--model-control-mode=explicit", "--load-model=*", "--load-model=a"];
    assert_eq!(
        check(&explicit).unwrap_err(),
        "Wildcard model name '*' must be the ONLY startup model if specified at all."
    );
    assert_eq!(check(&explicit[..3]), Ok(()));
}

#[test]
fn periods_count_in_poll_mode_only() {
    assert_eq!(parse(&["--repository-poll-secs=3"]), with(|_| {}));
    let explicit = parse(&["--repository-poll-secs=3", "--model-control-mode=explicit"]);
    assert_eq!(explicit.unwrap().model_control, ModelControl::Explicit);
}

#[test]
fn strict_configuration_is_the_reverse_of_completing() {
    let deprecated =
        "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.";
    let overriding = "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of \
                      '--disable-auto-complete-config'!";
    let cases: [(&[&str], bool, &[&str]); 5] = [
        (&["--strict-model-config=true"], false, &[deprecated]),
        (&["--strict-model-config=false"], true, &[deprecated]),
        (&["--disable-auto-complete-config"], false, &[]),
        (&["--disable-auto-complete-config", "--strict-model-config=off"], false, &[deprecated, overriding]),
        (&["--strict-model-config=1", "--disable-auto-complete-config"], false, &[deprecated]),
    ];
    for (words, completes, texts) in cases {
        assert_eq!(parse(words).unwrap().auto_complete_config, completes, "{words:?}");
        assert_eq!(warnings(words), texts, "{words:?}");
    }
}

#[test]
fn a_cache_is_described_in_one_way() {
    let words = ["--response-cache-byte-size=10", "--cache-config=local,size=1"];
    let text = "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide \
                one or the other.";
    assert_eq!(parse(&words).unwrap_err().report(), format!("{}\n{text}\n", usage()));
    let mut warnings = Vec::new();
    let words = arguments(&["--response-cache-byte-size=10x"]);
    let line = CommandLine::parse(&words, |_| None, |warning| warnings.push(warning.to_owned()));
    assert_eq!(line.unwrap().options.cache_settings[0].value, "10");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("Warning: '--response-cache-byte-size' has been deprecated! "));
    assert!(warnings[0].ends_with("args would be: '--cache-config=local,size=10'"));
}

#[test]
fn old_flags_of_traces_warn_and_give_way() {
    let deprecated = |flag: &str, by: &str| {
        format!(
            "Warning: '--{flag}' has been deprecated and will be removed in future releases. Please use \
             '--trace-config {by} instead."
        )
    };
    let words = ["--trace-file=x", "--trace-level=off", "--trace-rate=5", "--trace-count=3", "--trace-log-frequency=2"];
    let mut expected = vec![
        deprecated("trace-file", "triton,file=<filepath>"),
        deprecated("trace-level", "level=<OFF|TIMESTAMPS|TENSORS>"),
        deprecated("trace-rate", "rate=<rate value>"),
        deprecated("trace-count", "count=<count value>"),
        deprecated("trace-log-frequency", "triton,log-frequency=<log frequency value>"),
    ];
    assert_eq!(warnings(&words), expected);
    let new = [
        "--trace-config=rate=7",
        "--trace-config=count=1",
        "--trace-config=level=off",
        "--trace-config=triton,file=y",
        "--trace-config=triton,log-frequency=1",
    ];
    for (flag, what) in [
        ("rate", "rate value"),
        ("count", "count"),
        ("level", "level"),
        ("file", "file"),
        ("log-frequency", "log-frequency"),
    ] {
        expected.push(format!(
            "Warning: Overriding deprecated '--trace-{flag}' in favor of provided {what} in --trace-config!"
        ));
    }
    assert_eq!(warnings(&[&words[..], &new].concat()), expected);
    let ignored = |flag: &str| {
        format!("Warning: '--trace-{flag}' is deprecated and will be ignored with opentelemetry tracing mode.")
    };
    expected.truncate(5);
    expected.extend([ignored("file"), ignored("log-frequency")]);
    assert_eq!(warnings(&[&words[..], &["--trace-config=mode=opentelemetry"]].concat()), expected);
}

#[test]
fn levels_of_traces_add_up_and_only_the_old_off_ends_them() {
    let is_traced = |words: &[&str]| !parse(words).unwrap().traces.levels.is_off();
    let (off, old_off) = ("--trace-config=level=OFF", "--trace-level=off");
    let (stamps, old_tensors) = ("--trace-config=level=TIMESTAMPS", "--trace-level=tensors");
    assert!(is_traced(&[stamps]));
    assert!(is_traced(&[stamps, off]) && is_traced(&[off, stamps]));
    assert!(is_traced(&[old_tensors, off]));
    assert!(!is_traced(&[stamps, old_off]) && !is_traced(&[old_off, old_tensors]));
    assert!(!is_traced(&[off]) && !is_traced(&[]));
}

#[test]
fn settings_of_traces_are_named_in_their_errors() {
    let number = "Invalid option value. Got x";
    let mode = "invalid value for trace mode option: x. Available options are \"triton\" and \"opentelemetry\"";
    let cases: [(&[&str], &str, &str); 6] = [
        (&["rate=x"], "trace-config rate", number),
        (&["count=x"], "trace-config count", number),
        (&["level=X"], "trace-config level", "invalid value for trace level option: x"),
        (&["mode=X"], "trace-config mode", mode),
        (&["triton,log-frequency=x"], "trace-config triton,log-frequency", number),
        (
            &["mode=opentelemetry", "opentelemetry,bsp_max_queue_size=x"],
            "trace-config opentelemetry,bsp_max_queue_size",
            number,
        ),
    ];
    for (settings, flag, inner) in cases {
        let words: Vec<_> = settings.iter().map(|setting| format!("--trace-config={setting}")).collect();
        let error = parse(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_err();
        assert_eq!(error.report(), format!("{}\n{}\n", usage(), bad(flag, inner)), "{settings:?}");
    }
}

#[test]
fn the_span_processors_numbers_come_from_the_environment() {
    let open = ["--trace-config=mode=opentelemetry"];
    for variable in ["OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] {
        let error = parse_in(&open, &[(variable, "x")]).unwrap_err();
        assert_eq!(error.to_string(), format!("Bad option: \"{variable}\".\nInvalid option value. Got x"));
        let of_environment = parse_in(&open, &[(variable, "5")]).unwrap().traces;
        let setting = variable.to_lowercase().replacen("otel_", "", 1);
        assert!(of_environment.echoed.contains(&(setting.clone(), "5".to_owned())), "{of_environment:?}");
        let processor = of_environment.processor;
        let [queue, delay, batch] = [processor.queue_max as u64, processor.delay_ms, processor.batch_max as u64];
        let changed: Vec<u64> = [queue, delay, batch].into_iter().filter(|number| *number == 5).collect();
        assert_eq!(changed, [5], "{processor:?}");
        let both = [open[0].to_owned(), format!("--trace-config=opentelemetry,{setting}=6")];
        let both: Vec<&str> = both.iter().map(String::as_str).collect();
        let given = parse_in(&both, &[(variable, "5")]).unwrap().traces;
        assert!(given.echoed.contains(&(setting, "6".to_owned())), "the command line wins: {given:?}");
        assert_eq!(parse_in(&[], &[(variable, "x")]), with(|_| {}), "of no meaning in the other mode");
    }
}

#[test]
fn the_environment_fills_what_flags_leave_open() {
    let uri = parse_in(&[], &[("AIP_STORAGE_URI", "/models")]).unwrap();
    assert_eq!(uri.model_repositories, [PathBuf::from("/models")]);
    let given = parse_in(&["--model-repository=/mine"], &[("AIP_STORAGE_URI", "/models")]).unwrap();
    assert_eq!(given.model_repositories, [PathBuf::from("/mine")]);
    assert_eq!(parse_in(&[], &[("AIP_STORAGE_URI", "")]), with(|_| {}));
    assert!(!parse_in(&[], &[("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0")]).unwrap().escape_log_messages);
    for on in ["", "1", "false"] {
        assert!(parse_in(&[], &[("TRITON_SERVER_ESCAPE_LOG_MESSAGES", on)]).unwrap().escape_log_messages);
    }
}

#[test]
fn vertex_ai_changes_the_defaults() {
    let prediction = ("AIP_MODE", "PREDICTION");
    let on = parse_in(&[], &[prediction, ("AIP_HTTP_PORT", "9000")]).unwrap();
    assert!(on.vertex.allowed && !on.http.allowed && !on.grpc.allowed && on.metrics.allowed);
    assert_eq!(on.vertex.port, 9000);
    assert_eq!(parse_in(&["--vertex-ai-port=9001"], &[("AIP_HTTP_PORT", "9000")]).unwrap().vertex.port, 9001);
    assert_eq!(parse_in(&[], &[("AIP_HTTP_PORT", "")]).unwrap().vertex.port, 8080);
    let off = parse_in(&["--allow-vertex-ai=false", "--allow-grpc=true"], &[prediction]).unwrap();
    assert!(!off.http.allowed && off.grpc.allowed && off.metrics.allowed);
    assert_eq!(parse_in(&[], &[("AIP_MODE", "TRAINING")]), with(|_| {}));
    let error = parse_in(&[], &[("AIP_HTTP_PORT", "x")]).unwrap_err();
    assert_eq!(error.report(), format!("{}\nInvalid option value. Got x\n", usage()));
    let collision = parse_in(&["--allow-vertex-ai=1"], &[("AIP_HTTP_PORT", "8000")]).unwrap_err();
    assert_eq!(collision, OptionsError::Collision("HTTP", "Vertex AI", "0.0.0.0".into(), 8000));
}

#[test]
fn the_environment_steers_the_clouds() {
    let clouds = |environment: &[(&str, &str)]| parse_in(&[], environment).unwrap().clouds;
    assert_eq!(clouds(&[]), Clouds::default());
    let given = [
        ("SAGEMAKER_TRITON_PING_MODE", "live"),
        ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "m"),
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", "nonsense"),
        ("AIP_HEALTH_ROUTE", "/h"),
        ("AIP_PREDICT_ROUTE", "/p"),
    ];
    let [ping_mode, default_model, inference_type, health_route, predict_route] =
        given.map(|(_, value)| value.to_owned());
    let expected = Clouds { ping_mode, default_model, inference_type, health_route, predict_route };
    assert_eq!(clouds(&given), expected, "checked where the ports are made");
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
                        let text = (same_port && same_address && off.is_none()).then(|| {
                            format!(
                                "The server cannot listen to {first} requests and {second} requests at the same \
                                 address and port 10.0.0.1:9000"
                            )
                        });
                        assert_eq!(parse(&words).err().map(|error| error.to_string()), text, "{words:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_clouds_ports_collide_and_keep_others_in_range() {
    let sagemaker = "--allow-sagemaker=true";
    let collision = parse(&[sagemaker, "--http-port=8080"]).unwrap_err();
    assert_eq!(collision, OptionsError::Collision("HTTP", "SageMaker", "0.0.0.0".into(), 8080));
    assert!(parse(&["--http-port=8080"]).is_ok(), "a service that is off is exempt");
    let both = parse(&[sagemaker, "--allow-vertex-ai=true"]).unwrap_err();
    assert_eq!(both, OptionsError::Collision("SageMaker", "Vertex AI", "0.0.0.0".into(), 8080));
    let range = "--sagemaker-safe-port-range=8001-8100";
    let error = parse(&[sagemaker, range]).unwrap_err();
    let text = "The server cannot listen to HTTP requests at port 8000, allowed port range is [8001, 8100]";
    assert_eq!(error.report(), format!("{}\n{text}\n", usage()));
    let elsewhere = ["--http-address=10.0.0.1", "--metrics-address=0.0.0.0", sagemaker, range];
    assert!(parse(&elsewhere).unwrap().sagemaker.allowed, "another address is free");
    assert!(parse(&[range]).is_ok());
}

#[test]
fn metrics_take_the_address_of_http_before_ports_are_compared() {
    let error = parse(&["--http-address=a", "--metrics-port=8000"]).unwrap_err();
    assert_eq!(error, OptionsError::Collision("HTTP", "metrics", "a".into(), 8000));
    assert!(parse(&["--http-address=a", "--metrics-address=b", "--metrics-port=8000"]).is_ok());
    let all = parse(&["--http-port=1", "--grpc-port=1", "--metrics-port=1"]).unwrap_err();
    assert_eq!(all, OptionsError::Collision("HTTP", "GRPC", "0.0.0.0".into(), 1), "the first pair is named");
    assert!(parse(&["--http-port=0", "--grpc-port=0", "--metrics-port=0"]).is_ok(), "each gets a free one");
}

#[test]
fn groups_are_restricted_once_over_all_uses_of_a_flag() {
    let words = ["--http-restricted-api=health:a=b", "--http-restricted-api=trace,health:c=d"];
    let text = "restricted api 'health' can not be specified in multiple config groups";
    assert_eq!(parse(&words).unwrap_err().to_string(), bad("http-restricted-api", text));
    let words = ["--http-restricted-api=health:a=b", "--grpc-restricted-protocol=health:c=d"];
    let options = parse(&words).unwrap();
    assert_eq!(options.http_restricted, restrictions(&["health"], "a", "b"));
    assert_eq!(options.grpc_restricted, restrictions(&["health"], "c", "d"), "the two do not meet");
}

#[test]
fn a_supervisor_gets_time_to_see_that_the_server_leaves() {
    let delay = |words: &[&str], variables: &[(&str, &str)]| {
        let environment =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        ServeOptions::parse(&arguments(words), environment).unwrap().drain_delay.as_secs_f64()
    };
    assert_eq!(delay(&[], &[]), 0.0);
    for name in ["NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST"] {
        assert_eq!(delay(&[], &[(name, "x")]), 5.0, "{name}");
        assert_eq!(delay(&[], &[(name, "")]), 0.0, "{name}");
        assert_eq!(delay(&["--drain-delay=0"], &[(name, "x")]), 0.0, "{name}");
        assert_eq!(delay(&["--drain-delay=1.5"], &[(name, "x")]), 1.5, "{name}");
    }
}
