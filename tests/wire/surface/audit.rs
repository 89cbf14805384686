//! The audit log (docs/access.md): one line for every call that changes the server, or that was not allowed to.

use serde_json::Value;

use nereid_test_support::grpc::{Grpc, Status, code, frame, frame_bytes};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end};
use nereid_test_support::variant::{self, each, usual};
use nereid_wire::inference as wire;

const SERVICE: &str = "/inference.GRPCInferenceService/";

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The members of a line that a test can foresee, in a form that is easy to compare.
fn brief(line: &Value) -> String {
    let text = |name: &str| line.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
    ["protocol", "call", "action", "subject", "key", "outcome", "status"].map(text).join("|")
}

#[test]
fn changes_and_refusals_are_recorded_and_nothing_else() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let (keys, audit) = (repository.path().join("keys"), repository.path().join("audit"));
        std::fs::write(&keys, "alice model-repository:admin=secret-1\nbob model-repository:admin=secret-2\n")
            .expect("keys");
        let flags = [
            format!("--audit-log={}", audit.display()),
            format!("--http-restricted-api-file={}", keys.display()),
            format!("--grpc-restricted-protocol-file={}", keys.display()),
            "--grpc-restricted-protocol=trace:tracer=secret-3".to_owned(),
            "--model-control-mode=explicit".to_owned(),
            "--load-model=plain".to_owned(),
            "--allow-client-shm=true".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start(variant, repository.path(), &flags);
        let mut peer = Peer::connect(server.http);
        let mut post = |path: &str, headers: &[(&str, &str)], body: &str| {
            peer.send(&request("POST", path, headers, body.as_bytes())).answer().status
        };
        assert_eq!(post("/v2/repository/models/plain/load", &[("admin", "secret-1")], ""), 200);
        assert_eq!(post("/v2/repository/models/absent/load", &[("admin", "secret-2")], ""), 500);
        assert_eq!(post("/v2/repository/models/plain/unload", &[("admin", "wrong")], ""), 403);
        assert_eq!(post("/v2/repository/index", &[("admin", "secret-1")], ""), 200);
        assert_eq!(post("/v2/logging?token=secret-4", &[], r#"{"log_verbose_level":0}"#), 200);
        assert_eq!(post("/v2/trace/setting", &[], r#"{"trace_rate":"7"}"#), 200);
        assert_eq!(post("/v2/models/plain/trace/setting", &[], "{"), 500);
        let body = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
        assert_eq!(post("/v2/models/plain/infer", &[], body), 200);
        let region = r#"{"key":"/nereid-absent","offset":0,"byte_size":1}"#;
        assert_eq!(post("/v2/systemsharedmemory/region/r/register", &[], region), 500);
        assert_eq!(post("/v2/systemsharedmemory/unregister", &[], ""), 200);
        assert_eq!(peer.get("/v2/logging").status, 200);
        let from = peer.local().to_string();

        let mut grpc = Grpc::connect(server.grpc);
        let key = [("triton-grpc-protocol-admin", "secret-2")];
        let unload = wire::RepositoryModelUnloadRequest { model_name: "plain".to_owned(), ..Default::default() };
        let mut call = |rpc: &str, headers: &[(&str, &str)], message| -> Status {
            grpc.exchange(&format!("{SERVICE}{rpc}"), headers, &[message]).status
        };
        assert_eq!(call("RepositoryModelUnload", &[], frame(&unload)).code, code::UNAVAILABLE);
        assert_eq!(call("RepositoryModelUnload", &key, frame(&unload)).code, code::OK);
        let load = wire::RepositoryModelLoadRequest { model_name: "absent".to_owned(), ..Default::default() };
        assert_ne!(call("RepositoryModelLoad", &key, frame(&load)).code, code::OK);
        assert_eq!(call("LogSettings", &[], frame_bytes(0, b"")).code, code::OK);
        assert_eq!(call("TraceSetting", &[], frame_bytes(0, b"")).code, code::UNAVAILABLE);
        let region = wire::SystemSharedMemoryUnregisterRequest { name: "r".to_owned() };
        assert_eq!(call("SystemSharedMemoryUnregister", &[], frame(&region)).code, code::OK);
        assert_eq!(call("ServerLive", &[], frame_bytes(0, b"")).code, code::OK);

        let page = Peer::connect(server.metrics).get("/metrics").text();
        assert!(page.contains("nereid_audit_records_dropped 0"), "{page}");
        server.stop();
        let text = std::fs::read_to_string(&audit).expect("the audit log");
        let lines = lines(&text);
        let expected = [
            "http|POST /v2/repository/models/plain/load|load|plain|alice|done|200",
            "http|POST /v2/repository/models/absent/load|load|absent|bob|failed|500",
            "http|POST /v2/repository/models/plain/unload|unload|plain|-|refused|403",
            "http|POST /v2/logging|log-settings|-|-|done|200",
            "http|POST /v2/trace/setting|trace-settings|-|-|done|200",
            "http|POST /v2/models/plain/trace/setting|trace-settings|plain|-|failed|500",
            "http|POST /v2/systemsharedmemory/region/r/register|register-system-memory|r|-|failed|500",
            "http|POST /v2/systemsharedmemory/unregister|unregister-system-memory|-|-|done|200",
            "grpc|RepositoryModelUnload|unload|-|-|refused|UNAVAILABLE",
            "grpc|RepositoryModelUnload|unload|plain|bob|done|OK",
            "grpc|RepositoryModelLoad|load|absent|bob|failed|INTERNAL",
            "grpc|LogSettings|log-settings|-|-|done|OK",
            "grpc|TraceSetting|trace-settings|-|-|refused|UNAVAILABLE",
            "grpc|SystemSharedMemoryUnregister|unregister-system-memory|r|-|done|OK",
        ];
        assert_eq!(lines.iter().map(brief).collect::<Vec<_>>(), expected, "{text}");
        for line in &lines {
            let at = line["time"].as_str().expect("a time");
            assert!(at.len() == 24 && at.starts_with("20") && at.ends_with('Z'), "{line}");
            assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
        }
        assert!(lines.iter().filter(|line| line["protocol"] == "http").all(|line| line["peer"] == from), "{text}");
        assert!(!text.contains("secret"), "the audit log tells a key:\n{text}");
    });
}

/// The port of SageMaker registers directories and loads from them.
#[test]
fn registrations_of_sagemaker_are_recorded() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let (audit, port) = (repository.path().join("audit"), free_port());
    let flags = [
        format!("--audit-log={}", audit.display()),
        "--allow-sagemaker=true".to_owned(),
        format!("--sagemaker-port={port}"),
        "--http-restricted-api=model-repository:admin=secret".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start(usual(), repository.path(), &flags);
    let mut peer = Peer::connect(([127, 0, 0, 1], port).into());
    let body = r#"{"model_name":"h1","url":"/opt/ml/models/absent/model"}"#;
    let mut ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        peer.send(&request(method, path, headers, body.as_bytes())).answer().status
    };
    assert!(ask("POST", "/models", &[("admin", "secret")]) >= 400);
    assert_eq!(ask("POST", "/models", &[]), 403);
    assert_eq!(ask("DELETE", "/models/h1", &[("admin", "secret")]), 404);
    server.stop();
    let text = std::fs::read_to_string(&audit).expect("the audit log");
    let briefs: Vec<String> = lines(&text).iter().map(brief).collect();
    let [load, refused, unload] = &briefs[..] else { panic!("{text}") };
    assert!(load.starts_with("sagemaker|POST /models|register-and-load|h1 /opt/ml/models/absent/model|admin|failed|"));
    assert_eq!(refused, "sagemaker|POST /models|register-and-load|h1 /opt/ml/models/absent/model|-|refused|403");
    assert_eq!(unload, "sagemaker|DELETE /models/h1|unload|h1|admin|failed|404");
}

/// A client that writes control characters into a name writes no line of its own, and long names are cut.
#[test]
fn no_client_forges_a_line() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let flags = ["--audit-log=-", "--model-control-mode=explicit", "--load-model=plain"];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut grpc = Grpc::connect(server.grpc);
    let forged = "x\"}\n{\"time\":\"forged\r\n";
    for name in [forged.to_owned(), "n".repeat(5000)] {
        let load = wire::RepositoryModelLoadRequest { model_name: name, ..Default::default() };
        let status = grpc.exchange(&format!("{SERVICE}RepositoryModelLoad"), &[], &[frame(&load)]).status;
        assert_ne!(status.code, code::OK);
    }
    let log = server.stop();
    let records: Vec<&str> = log.lines().filter(|line| line.starts_with("{\"time\"")).collect();
    assert_eq!(records.len(), 2, "{log}");
    let subject = |line: &str| lines(line)[0]["subject"].as_str().expect("a subject").to_owned();
    assert_eq!((subject(records[0]).as_str(), subject(records[1]).len()), (forged, 512));
    let [http, grpc] =
        [("http", free_port()), ("grpc", free_port())].map(|(name, port)| format!("--{name}-port={port}"));
    let words = ["--model-repository=/nowhere", "--allow-metrics=false", "--audit-log=/nowhere/audit", &http, &grpc];
    let (status, _, error) = run_to_end(&words);
    assert_eq!(status.code(), Some(1));
    assert!(error.contains("--audit-log: failed to open audit log '/nowhere/audit': No such file"), "{error}");
}
