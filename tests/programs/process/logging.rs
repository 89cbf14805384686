//! The log of a whole server: its formats, its file, and its settings changed while the server runs
//! (contract/cli.md section 5, contract/http.md section 3, contract/grpc.md section 6).

use nereid_wire::inference::log_settings_request::SettingValue;
use nereid_wire::inference::log_settings_request::setting_value::ParameterChoice;
use nereid_wire::inference::log_settings_response::setting_value::ParameterChoice as Shown;
use nereid_wire::inference::{LogSettingsRequest, LogSettingsResponse};
use serde_json::{Value, json};

use nereid_test_support::grpc::{Grpc, code};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end};
use nereid_test_support::variant::{self, each, usual};

fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

fn defaults() -> Value {
    json!({
        "log_file": "", "log_info": true, "log_warning": true, "log_error": true, "log_verbose_level": 0,
        "log_format": "default",
    })
}

/// The lines that tell of requests for `path`.
fn requests_for(log: &str, path: &str) -> usize {
    log.lines().filter(|line| line.contains(&format!("HTTP request: 0 {path}"))).count()
}

#[test]
fn settings_change_over_http_while_the_server_runs() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[]);
        let mut peer = Peer::connect(server.http);
        let shown = peer.get("/v2/logging");
        assert_eq!((shown.status, shown.header("content-type")), (200, Some("application/json")));
        assert_eq!(shown.json(), defaults());
        let order: Vec<_> = shown.text().split('"').skip(1).step_by(2).map(str::to_owned).collect();
        assert_eq!(
            order.iter().filter(|word| word.starts_with("log_")).collect::<Vec<_>>(),
            ["log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"]
        );

        // Off, on, off again: each change holds for the very next request, on whichever shard it arrives.
        for (level, path) in [(0, "/v2/health/live"), (1, "/v2/models/plain"), (0, "/v2/models/plain/config")] {
            let mut expected = defaults();
            expected["log_verbose_level"] = level.into();
            let body = format!("{{\"log_verbose_level\":{level}}}");
            let answer = peer.post("/v2/logging", &[], body.as_bytes());
            assert_eq!((answer.status, answer.json()), (200, expected), "level {level}");
            for _ in 0..4 {
                assert_eq!(Peer::connect(server.http).get(path).status, 200);
            }
        }
        let answer = peer.post("/v2/logging", &[], b"{\"log_format\":\"ISO8601\",\"log_warning\":false}").json();
        assert_eq!((&answer["log_format"], &answer["log_warning"]), (&json!("ISO8601"), &json!(false)));
        let log = server.stop();
        assert_eq!(requests_for(&log, "/v2/health/live"), 0, "{log}");
        assert_eq!(requests_for(&log, "/v2/models/plain\""), 4, "{log}");
        assert_eq!(requests_for(&log, "/v2/models/plain/config"), 0, "{log}");
        let last = log.lines().rfind(|line| line.contains("All models are stopped")).unwrap_or_default();
        assert!(last.split(' ').next().is_some_and(|moment| moment.ends_with('Z')), "{last:?}");
    });
}

#[test]
fn wrong_settings_are_refused_over_http() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let no_file = "log file location can not be updated through network protocol";
    for (body, status, text) in [
        ("", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ("{\"log_info\":1}", 500, "attempt to access JSON non-boolean as boolean"),
        ("{\"log_warning\":\"false\"}", 500, "attempt to access JSON non-boolean as boolean"),
        ("{\"log_verbose_level\":-1}", 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("{\"log_format\":5}", 500, "attempt to access JSON non-string as string"),
        ("{\"log_format\":\"iso8601\"}", 503, "invalid argument for --log_format, got: iso8601"),
        ("{\"log_file\":\"/tmp/other\",\"log_info\":false}", 501, no_file),
        ("{\"log_file\":\"\"}", 501, no_file),
    ] {
        let answer = peer.post("/v2/logging", &[], body.as_bytes());
        assert_eq!((answer.status, answer.error().as_str()), (status, text), "{body}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{body}");
        assert_eq!(peer.get("/v2/logging").json(), defaults(), "{body} changed something");
    }
    let put = peer.send(&nereid_test_support::http::request("PUT", "/v2/logging", &[], b"{}")).answer();
    assert_eq!((put.status, put.error().as_str()), (405, "Method Not Allowed"));
    assert_eq!(peer.get("/v2/logging/").status, 404);
    // Those before the wrong one stick.
    let answer = peer.post("/v2/logging", &[], b"{\"log_format\":\"x\",\"log_error\":false}");
    assert_eq!(answer.status, 503);
    assert_eq!(peer.get("/v2/logging").json()["log_error"], json!(false));
    server.stop();
}

#[test]
fn settings_change_over_grpc_and_are_one_with_those_of_http() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut call = |settings: &[(&str, Option<ParameterChoice>)]| {
        let settings = settings.iter().cloned();
        let settings = settings.map(|(key, choice)| (key.to_owned(), SettingValue { parameter_choice: choice }));
        grpc.call::<LogSettingsResponse>("LogSettings", &LogSettingsRequest { settings: settings.collect() })
    };
    let text = |text: &str| Some(ParameterChoice::StringParam(text.to_owned()));
    let shown = call(&[]).expect("the settings").settings;
    let choice = |key: &str| shown.get(key).and_then(|value| value.parameter_choice.clone());
    assert_eq!(shown.len(), 6);
    assert_eq!(choice("log_file"), Some(Shown::StringParam(String::new())));
    assert_eq!(choice("log_info"), Some(Shown::BoolParam(true)));
    assert_eq!(choice("log_verbose_level"), Some(Shown::Uint32Param(0)));
    assert_eq!(choice("log_format"), Some(Shown::StringParam("default".to_owned())));

    let (info, level) = (Some(ParameterChoice::BoolParam(false)), Some(ParameterChoice::Uint32Param(i32::MAX as u32)));
    call(&[("log_info", info), ("log_verbose_level", level), ("log_format", text("ISO8601"))]).expect("a change");
    let seen = Peer::connect(server.http).get("/v2/logging").json();
    assert_eq!((&seen["log_info"], &seen["log_verbose_level"]), (&json!(false), &json!(2_147_483_647)));
    assert_eq!(seen["log_format"], "ISO8601");

    let no_file = "log file location can not be updated through network protocol";
    for (key, given, status, expected) in [
        ("log_info", text("true"), code::INVALID_ARGUMENT, "expect boolean for 'log_info'"),
        ("log_error", None, code::INVALID_ARGUMENT, "expect boolean for 'log_error'"),
        ("log_verbose_level", text("1"), code::INVALID_ARGUMENT, "expect int32 for 'log_verbose_level'"),
        ("log_format", None, code::INVALID_ARGUMENT, "expect string for 'log_format'"),
        ("log_format", text("x"), code::INVALID_ARGUMENT, "invalid argument for log_format, got: x"),
        ("log_file", text("x"), code::UNIMPLEMENTED, no_file),
        ("log_file", None, code::UNIMPLEMENTED, no_file),
    ] {
        let error = call(&[(key, given)]).expect_err(key);
        assert_eq!((error.code, error.message.as_str()), (status, expected), "{key}");
    }
    assert_eq!(Peer::connect(server.http).get("/v2/logging").json(), seen);
    server.stop();
}

#[test]
fn lines_of_json_hold_tables_and_messages() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &["--log-format=json", "--log-verbose=1"]);
    assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
    assert_eq!(Peer::connect(server.http).get("/v2/logging").json()["log_format"], "json");
    let pid = server.pid();
    let log = server.stop();
    let mut objects = 0;
    // The line about the signal is no log message.
    for line in log.lines().filter(|line| *line != "Signal (15) received.") {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(record["pid"], pid, "{line}");
        assert!(record["line"].is_u64() && record["file"].as_str().is_some_and(|file| file.ends_with(".rs")), "{line}");
        assert!(["info", "warning", "error"].contains(&record["level"].as_str().unwrap_or_default()), "{line}");
        assert!(record["time"].as_str().is_some_and(|time| time.len() == 27 && time.ends_with('Z')), "{line}");
        objects += usize::from(record["object"].as_str().is_some_and(|object| object.starts_with("+--")));
    }
    assert!(objects >= 4, "the four tables of the start:\n{log}");
    assert!(log.contains("\"message\":\"HTTP request: 0 /v2/health/live\""), "{log}");
}

#[test]
fn a_file_takes_the_whole_log_and_is_named_by_the_settings() {
    let repository = repository();
    let path = repository.path().join("plain/server.log");
    std::fs::write(&path, "before\n").expect("write the file");
    let flag = format!("--log-file={}", path.display());
    let server = Server::start(usual(), repository.path(), &[&flag, "--http-thread-count=3"]);
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.get("/v2/logging").json()["log_file"], path.display().to_string());
    let metrics = Peer::connect(server.metrics).get("/metrics").text();
    assert!(metrics.lines().any(|line| line == "nereid_log_messages_dropped 0"), "{metrics}");
    drop(peer);
    let printed = server.stop();
    assert_eq!(printed, "Signal (15) received.\n", "nothing else is printed");
    let log = std::fs::read_to_string(&path).expect("read the file");
    assert!(log.starts_with("before\n"), "{log}");
    for text in ["Started HTTPService at", "| Option ", "All models are stopped, unloading models"] {
        assert!(log.contains(text), "expected {text:?} in:\n{log}");
    }
    let noted = "--http-thread-count has no effect: the shards of --io-cores take all connections";
    assert_eq!(log.matches(noted).count(), 1, "{log}");
}

#[test]
fn a_file_that_cannot_be_written_ends_the_start() {
    let repository = repository();
    let store = format!("--model-repository={}", repository.path().display());
    let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
    for (file, text) in [
        ("/no/such/directory/log", "error: failed to open log file '/no/such/directory/log': "),
        ("/dev/full", "error: failed to write log file '/dev/full': No space left on device"),
    ] {
        let flag = format!("--log-file={file}");
        let mut flags = vec![store.as_str(), &flag];
        flags.extend(ports.iter().map(String::as_str));
        let (status, out, err) = run_to_end(&flags);
        assert_eq!(status.code(), Some(1), "{file}: {err}");
        assert!(err.contains(text), "{file}: expected {text:?} in:\n{err}");
        assert_eq!(out, "", "{file}");
    }
}

#[test]
fn verbose_messages_show_the_configurations_of_models() {
    let repository = repository();
    let shown = |flags: &[&str]| {
        let log = Server::start(usual(), repository.path(), flags).stop();
        let (_, after) = log.split_once("\"model configuration:\"\n")?;
        Some(after.lines().take_while(|line| !line.starts_with('I')).collect::<Vec<_>>().join("\n"))
    };
    let text = shown(&["--log-verbose=1"]).expect("the configuration is in the log");
    for line in ["name: \"plain\"", "backend: \"identity\"", "data_type: TYPE_INT32", "kind: KIND_CPU"] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    assert_eq!(shown(&[]), None);
}

#[test]
fn variables_that_are_for_tests_are_warned_of() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let environment = [("NEREID_CHECK_HANDLES", "1"), ("TRITONSERVER_DELAY_GRPC_RESPONSE", "1")];
    let server = Server::start_in(usual(), repository.path(), &[], "/v2/health/ready", &environment);
    let log = server.stop();
    for name in ["NEREID_CHECK_HANDLES", "TRITONSERVER_DELAY_GRPC_RESPONSE"] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&format!("{name} is set (1)"))).collect();
        assert!(lines.len() == 1 && lines[0].starts_with('W'), "{name}: {lines:?} in\n{log}");
    }
}
