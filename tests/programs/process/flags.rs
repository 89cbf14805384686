//! Flags, ports and what is printed about them.

use std::net::TcpListener;

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{OTHER_SERVER, Server, free_port, run_to_end};
use nereid_test_support::variant::{self, each, usual};

/// Under Triton's name (`front` has those under ours).
#[test]
fn help_goes_to_stderr_and_exits_1() {
    if std::env::var_os(OTHER_SERVER).is_none() {
        return;
    }
    let (status, out, err) = run_to_end(&["--help"]);
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.starts_with("Usage: tritonserver [options]\n"), "stderr: {err}");
    for flag in ["--model-repository", "--http-port", "--grpc-port", "--metrics-port", "--io-cores", "--io-engine"] {
        assert!(err.contains(flag), "{flag} is missing in the usage text");
    }
    assert_eq!(out, "");
}

#[test]
fn bad_flags_are_named() {
    for (flags, texts) in [
        (&["--http-port=http"][..], &["Bad option: \"--http-port\".\nInvalid option value. Got http"][..]),
        (
            &["--http-port=99999999999"],
            &["Bad option: \"--http-port\".\nProvided option value is out of bound. Got 99999999999"],
        ),
        (&["--allow-http=perhaps"], &["Bad option: \"--allow-http\".\ninvalid value for bool option: perhaps"]),
        (&["surplus"], &["Unexpected argument: surplus"]),
        (&["--no-such-flag"], &["unrecognized option '--no-such-flag'\n"]),
        (&["--http-p"], &["--http-p"]), // needs a value
        (&["--http-"], &["--http-"]),   // ambiguous
        (
            &["--grpc-infer-thread-count=1"],
            &["invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."],
        ),
        (&["--http-max-input-size=0"], &["Error: --http-max-input-size must be greater than 0."]),
        (&["--backend-config=onnxruntime"], &["Bad option: \"--backend-config\"."]),
        (&["--model-control-mode=sometimes"], &["invalid argument for --model-control-mode"]),
        (
            &["--load-model=x"],
            &["Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."],
        ),
        (
            &["--model-control-mode=explicit", "--load-model=*", "--load-model=x"],
            &["error: creating server: Invalid argument - Wildcard model name '*' must be the ONLY startup model"],
        ),
        (
            &["--model-load-gpu-limit=0:1.5"],
            &["Failed to build Triton option:\nerror: setting model load GPU limit: Invalid argument - expects limit"],
        ),
        (&["--model-load-gpu-limit=0:-0.4"], &["expects limit fraction to be in range [0.0, 1.0], got -0.400000"]),
        (
            &["--host-policy=p,colour=red"],
            &[
                "Failed to build Triton option:\nerror: setting host policy: Unsupported - Unsupported host policy setting \
                 'colour' is specified, supported settings are 'numa-node', 'cpu-cores'",
            ],
        ),
        (
            &["--grpc-infer-cq-count=129"],
            &[
                "Bad option: \"--grpc-infer-cq-count\".\ninvalid argument for --grpc_infer_cq_count. Must be in the range \
                 0 to 128.",
            ],
        ),
        (
            &["--cuda-memory-pool-byte-size=64"],
            &["Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format"],
        ),
        (
            &["--repoagent-directory="],
            &["error: creating server: Invalid argument - --repoagent-directory can not be empty"],
        ),
        (
            &["--cache-config=local,size=1000000", "--cache-directory="],
            &["error: creating server: Invalid argument - cache directory can not be empty"],
        ),
        (&["--io-engine=steam"], &["invalid argument for --io-engine"]),
        (&["--io-cores=none"], &["--io-cores", "none"]),
        (&["--io-cores=0"], &["--io-cores"]),
    ] {
        let mut arguments = vec!["--model-repository=/nonexistent"];
        arguments.extend(flags);
        let (status, _, err) = run_to_end(&arguments);
        assert_eq!(status.code(), Some(1), "{flags:?}: {err}");
        for text in texts {
            assert!(err.contains(text), "{flags:?}: expected {text:?} in:\n{err}");
        }
    }
}

/// A line with the name that was meant, and one that names the help: the usage text would hide them.
#[test]
fn mistyped_words_are_answered_in_two_lines() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    for (words, text) in [
        (&["quikstart"][..], "Unexpected argument: quikstart; did you mean 'quickstart'?"),
        (
            &["--modle-repository=/x"],
            "unrecognized option '--modle-repository=/x'; did you mean '--model-repository'?\n",
        ),
        (&["serve", "--http-prot=1"], "unrecognized option '--http-prot=1'; did you mean '--http-port'?\n"),
        (&["quickstart", "--grcp-port=1"], "unrecognized option '--grcp-port=1'; did you mean '--grpc-port'?\n"),
    ] {
        let (status, out, err) = run_to_end(words);
        assert_eq!((status.code(), out.as_str()), (Some(1), ""), "{words:?}: {err}");
        assert!(err.contains(text) && err.lines().count() == 2, "{words:?}: expected {text:?} in:\n{err}");
    }
}

#[test]
fn help_and_version_have_their_usual_names() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    for (words, begins) in [
        (&["-h"][..], "Nereid, an inference server"),
        (&["-V"], "nereid "),
        (&["--version"], "nereid "),
        (&["quickstart", "--help"], "Usage: nereid quickstart "),
        (&["quickstart", "-h"], "Usage: nereid quickstart "),
        (&["runtime", "--help"], "Usage: nereid runtime "),
        (&["check", "--help"], "Usage: nereid check "),
        (&["explain", "--help"], "Usage: nereid explain "),
        (&["install", "-h"], "Usage: nereid install "),
        (&["perf", "--help"], "Usage: nereid perf "),
    ] {
        let (status, out, err) = run_to_end(words);
        assert_eq!((status.code(), err.as_str()), (Some(0), ""), "{words:?}");
        assert!(out.starts_with(begins), "{words:?}: {out}");
    }
}

/// What goes to stderr before the log begins, and what the server does all the same.
#[test]
fn deprecated_flags_warn_and_work() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let flags =
        ["--strict-model-config=false", "--disable-auto-complete-config", "--trace-rate=5", "--trace-config=rate=6"];
    let server = Server::start(usual(), repository.path(), &flags);
    let log = server.stop();
    let warnings: Vec<_> = log.lines().filter(|line| line.starts_with("Warning: ")).collect();
    assert_eq!(
        warnings,
        [
            "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.",
            "Warning: '--trace-rate' has been deprecated and will be removed in future releases. Please use \
             '--trace-config rate=<rate value> instead.",
            "Warning: Overriding deprecated '--trace-rate' in favor of provided rate value in --trace-config!",
            "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of \
             '--disable-auto-complete-config'!",
        ]
    );
    assert!(row(&log, "strict_model_config").is_some_and(|cells| cells[2] == "1"), "{log}");
}

/// A deployment's flags that mean nothing here, or ask for what is so anyway.
#[test]
fn flags_without_effect_do_not_stop_a_start() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let idle = [
        "--http-thread-count=16",
        "--grpc-infer-thread-count=8",
        "--pinned-memory-pool-byte-size=0",
        "--cuda-memory-pool-byte-size=0:1048576",
        "--min-supported-compute-capability=7.5",
        "--buffer-manager-thread-count=2",
        "--enable-peer-access=false",
        "--cuda-virtual-address-size=0:1048576",
        "--model-load-gpu-limit=0:0.5",
        "--strict-device-liveness=true",
    ];
    let as_it_is = [
        "--grpc-use-ssl=false",
        "--rate-limit=off",
        "--allow-vertex-ai=false",
        "--allow-sagemaker=0",
        "--grpc-keepalive-time=7200000",
        "--grpc-infer-response-compression-level=none",
        "--trace-config=level=OFF",
        "--metrics-config=counter_latencies=true",
    ];
    // Also where there is a GPU.
    let environment = [("TRITON_SERVER_CPU_ONLY", "1")];
    let flags = [&idle[..], &as_it_is].concat();
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
    let log = server.stop();
    for flag in idle {
        let name = flag.split('=').next().unwrap_or(flag);
        assert_eq!(log.matches(&format!("{name} has no effect: ")).count(), 1, "{name}:\n{log}");
    }
    assert_eq!(log.matches("has no effect: ").count(), idle.len(), "{log}");
    assert!(row(&log, "cuda_memory_pool_byte_size{0}").is_some_and(|cells| cells[2] == "1048576"), "{log}");
}

/// The cells of the table row that begins with `first`.
fn row(log: &str, first: &str) -> Option<Vec<String>> {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
    log.lines().filter(|line| line.starts_with("| ")).map(cells).find(|cells| cells[1] == first)
}

#[test]
fn flags_may_be_shortened_and_given_in_two_words() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let store = repository.path().display().to_string();
    // --model-sto is a prefix of the alias --model-store only; numbers end at the first other character.
    let server =
        Server::start(usual(), repository.path(), &["--model-sto", &store, "--id", "short", "--exit-timeout=20x"]);
    assert_eq!(Peer::connect(server.http).get("/v2").json()["name"], "short");
    server.stop();
}

#[test]
fn no_repository_no_server() {
    let port = |name: &str| format!("--{name}-port={}", free_port());
    let ports = [port("http"), port("grpc"), port("metrics")];
    let mut arguments: Vec<&str> = ports.iter().map(String::as_str).collect();
    let (status, _, err) = run_to_end(&arguments);
    assert_eq!(status.code(), Some(1), "{err}");
    assert_eq!(err.matches("--model-repository must be specified").count(), 1, "{err}");
    arguments.push("--model-repository=/no/such/directory");
    let (status, _, err) = run_to_end(&arguments);
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("/no/such/directory"), "the path that cannot be read is not named:\n{err}");
}

#[test]
fn a_port_in_use_is_named_and_ends_the_start() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let store = format!("--model-repository={}", repository.path().display());
        let engine = format!("--io-engine={}", variant.io_engine);
        let cores = format!("--io-cores={}", variant.io_cores);
        for taken in ["http", "grpc", "metrics"] {
            let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = holder.local_addr().expect("its number").port();
            let mut flags: Vec<String> = vec![store.clone(), engine.clone(), cores.clone()];
            for name in ["http", "grpc", "metrics"] {
                flags.push(format!("--{name}-address=127.0.0.1"));
                flags.push(format!("--{name}-port={}", if name == taken { port } else { free_port() }));
            }
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let (status, out, err) = run_to_end(&flags);
            assert_eq!(status.code(), Some(1), "{taken}: {err}");
            let service = if taken == "metrics" { "Metrics".to_owned() } else { taken.to_uppercase() };
            let text =
                format!("failed to start {service} service: Unavailable - Socket '127.0.0.1:{port}' already in use ");
            let all = format!("{out}\n{err}");
            assert_eq!(all.matches(&text).count(), 1, "{taken}: expected {text:?} once in:\n{all}");
            let record = all.lines().find(|line| line.contains(&text)).unwrap_or_default();
            assert!(record.starts_with('E'), "an error of the log: {record}");
            assert!(!all.contains("loaded 'plain'"), "{taken}: models were loaded before the port was tried:\n{all}");
        }
    });
}

#[test]
fn services_may_not_share_a_port() {
    let port = free_port();
    let (status, _, err) = run_to_end(&[
        "--model-repository=/nonexistent",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        &format!("--http-port={port}"),
        &format!("--grpc-port={port}"),
    ]);
    assert_eq!(status.code(), Some(1), "{err}");
    let tail = format!("requests at the same address and port 127.0.0.1:{port}");
    assert!(err.contains("The server cannot listen to ") && err.contains(&tail), "expected …{tail:?} in:\n{err}");
}

#[test]
fn services_can_be_switched_off() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &["--allow-grpc=false", "--allow-metrics=OFF"]);
    assert!(std::net::TcpStream::connect(server.grpc).is_err(), "the gRPC port answers");
    assert!(std::net::TcpStream::connect(server.metrics).is_err(), "the metrics port answers");
    server.stop();
}

#[test]
fn the_log_says_what_was_started() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let server = Server::start(variant, repository.path(), &["--log-verbose=1"]);
        assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
        let ports = (server.http, server.grpc, server.metrics);
        let log = server.stop();
        for text in [
            format!("Started HTTPService at {}", ports.0),
            format!("Started GRPCInferenceService at {}", ports.1),
            format!("Started Metrics Service at {}", ports.2),
            "HTTP request: 0 /v2/health/live".to_string(),
            "Signal (15) received.".to_string(),
            variant.io_engine.to_string(),
        ] {
            assert!(log.contains(&text), "expected {text:?} in:\n{log}");
        }
        for title in ["| Repository Agent | Path |", "| Backend ", "| Model ", "| Option "] {
            assert!(log.lines().any(|line| line.starts_with(title)), "no table {title:?} in:\n{log}");
        }
        for (option, value) in [
            ("model_control_mode", "MODE_NONE"),
            ("strict_model_config", "0"),
            ("rate_limit", "OFF"),
            ("pinned_memory_pool_byte_size", "268435456"),
            ("min_supported_compute_capability", "0.0"),
            ("strict_readiness", "1"),
            ("cache_enabled", "0"),
        ] {
            assert!(row(&log, option).is_some_and(|cells| cells[2] == value), "{option}:\n{log}");
        }
        let model = row(&log, "plain").unwrap_or_else(|| panic!("no row for the model:\n{log}"));
        assert_eq!(&model[1..4], ["plain", "1", "READY"]);
        // Every record begins with severity, date, time, process and place.
        let record = log.lines().find(|line| line.contains("Started HTTPService")).unwrap_or_default();
        let head: Vec<&str> = record.split_whitespace().collect();
        assert!(
            head.len() > 4 && head[0].len() == 5 && head[0].starts_with('I') && head[3].ends_with(']'),
            "{record:?}"
        );
    });
}
