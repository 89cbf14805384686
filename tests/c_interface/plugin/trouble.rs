//! Faults of a C++ backend, and their permitted effects on the server (contract/c_api.md section 5, "Backend life cycle
//! and rules"; trouble.cc says how it is told to misbehave).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each, usual};

/// A directory for `--backend-directory` with trouble.cc in it. None, after a visible skip, without a C++ compiler.
fn directory() -> Option<PathBuf> {
    backend::compiled("trouble.cc")
}

fn start(variant: Variant, directory: &Path) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity_of("trouble", "t", 0, &[Pair::new("INT32", "-1")], "");
    let flag = format!("--backend-directory={}", directory.display());
    let server = Server::start(variant, repository.path(), &[&flag, "--exit-timeout-secs=60"]);
    (repository, server)
}

fn body(what: &str) -> String {
    format!(
        r#"{{"parameters":{{"do":"{what}"}},"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}}]}}"#
    )
}

fn ask(peer: &mut Peer, what: &str) -> Answer {
    peer.post("/v2/models/t/infer", &[], body(what).as_bytes())
}

fn expect(answer: &Answer, status: u16, text: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert!(answer.text().contains(text), "expected {text:?} in {}", answer.text());
}

fn statistics(peer: &mut Peer) -> Value {
    peer.get("/v2/models/t/stats").json()["model_stats"][0].clone()
}

#[test]
fn an_exception_in_execute_is_an_error_of_its_requests() {
    let Some(directory) = directory() else { return };
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &directory);
        let mut peer = Peer::connect(server.http);
        for _ in 0..3 {
            expect(&ask(&mut peer, "throw"), 500, "the backend threw an exception: thrown in Execute");
            expect(&ask(&mut peer, "throw_odd"), 500, "an exception that is no std::exception");
            // The answer was out before the exception: it counts.
            expect(&ask(&mut peer, "throw_late"), 200, "OUTPUT0");
            expect(&ask(&mut peer, "fail_late"), 200, "OUTPUT0");
            expect(&ask(&mut peer, ""), 200, "OUTPUT0");
        }
        assert_eq!(statistics(&mut peer)["inference_stats"]["fail"]["count"], 6, "two of each round threw");
        // stop() demands a clean end, although every instance's end throws as well.
        let log = server.stop();
        assert!(log.contains("even the end is an exception"), "{log}");
        assert!(log.contains("returned an error after it released 1 requests"), "{log}");
    });
}

#[test]
fn requests_end_whatever_the_order_of_answer_and_release() {
    let Some(directory) = directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let mut peer = Peer::connect(server.http);
    expect(&ask(&mut peer, "silent"), 500, "the model ended the request without a final response");
    expect(&ask(&mut peer, "first"), 200, "OUTPUT0");
    expect(&ask(&mut peer, "twice"), 200, "OUTPUT0");
    expect(&ask(&mut peer, "unfinished"), 500, "expected a single response, got 2");
    expect(&ask(&mut peer, ""), 200, "OUTPUT0");
    server.stop();
}

#[test]
fn answers_may_come_from_another_thread_after_execute_returned() {
    let Some(directory) = directory() else { return };
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &directory);
        let address = server.http;
        let clients: Vec<_> =
            (0..3).map(|_| std::thread::spawn(move || ask(&mut Peer::connect(address), "hold"))).collect();
        let mut peer = Peer::connect(address);
        // A request may arrive after a flush; then the next one answers it. Without answers this goes on for ever.
        while clients.iter().any(|client| !client.is_finished()) {
            expect(&ask(&mut peer, "flush"), 200, "OUTPUT0");
        }
        for client in clients {
            let answer = client.join().expect("a client");
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["parameters"]["thread"], json!(1));
        }
        server.stop();
    });
}

#[test]
fn a_forgotten_request_does_not_outlive_its_client() {
    let Some(directory) = directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let mut left = Peer::connect(server.http);
    left.send(&request("POST", "/v2/models/t/infer", &[], body("forget").as_bytes()));
    let mut peer = Peer::connect(server.http);
    expect(&ask(&mut peer, ""), 200, "OUTPUT0");
    drop(left);
    // stop() demands exit code 0: a request without a client holds nothing up.
    server.stop();
}

#[test]
fn null_handles_unknown_flags_and_late_calls_are_refused() {
    let Some(directory) = directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let mut peer = Peer::connect(server.http);
    for what in ["null", "flags", "late_config"] {
        let answer = ask(&mut peer, what);
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        assert_eq!(answer.json()["parameters"]["wrong"], json!(0), "{what}: calls that should have been refused");
    }
    server.stop();
}

#[test]
fn inputs_are_aligned_for_any_element_type() {
    let Some(directory) = directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let mut peer = Peer::connect(server.http);
    let aligned = |answer: &Answer| {
        let alignment = answer.json()["parameters"]["alignment"].as_u64().unwrap_or_default();
        assert!(alignment >= 64, "an input at a multiple of {alignment} only: {}", answer.text());
    };
    aligned(&ask(&mut peer, ""));
    // Binary tensors behind heads of every length: small ones and one that is received in pieces.
    for (count, padding) in (0..8).map(|n| (3, n)).chain([(300_000, 1), (5000, 3)]) {
        let head = format!(
            r#"{{"id":"{}","inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[{count}],"parameters":{{"binary_data_size":{}}}}}]}}"#,
            "x".repeat(padding),
            count * 4
        );
        let tail = vec![7; count * 4];
        let message = nereid_test_support::http::infer_with_tail("/v2/models/t/infer", &head, &tail);
        let answer = peer.send(&message).answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        aligned(&answer);
    }
    server.stop();
}

#[test]
fn outputs_that_lie_about_their_size_are_errors() {
    let Some(directory) = directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let mut peer = Peer::connect(server.http);
    for what in ["short", "bare", "negative"] {
        expect(&ask(&mut peer, what), 500, "bytes, which do not fit its shape [");
    }
    expect(&ask(&mut peer, ""), 200, "OUTPUT0");
    server.stop();
}

#[test]
fn reported_times_are_the_statistics() {
    let Some(directory) = directory() else { return };
    let (_repository, server) = start(usual(), &directory);
    let mut peer = Peer::connect(server.http);
    expect(&ask(&mut peer, "times"), 200, "OUTPUT0");
    expect(&ask(&mut peer, "times"), 200, "OUTPUT0");
    let model = statistics(&mut peer);
    let stats = &model["inference_stats"];
    assert_eq!((&model["inference_count"], &model["execution_count"]), (&json!(2), &json!(2)), "{model}");
    for (part, ns) in [("compute_input", 4000), ("compute_infer", 8000), ("compute_output", 16000)] {
        assert_eq!(stats[part], json!({"count": 2, "ns": ns}), "{part}: {model}");
        assert_eq!(model["batch_stats"][0][part], json!({"count": 2, "ns": ns}), "{part}: {model}");
    }
    assert_eq!(model["batch_stats"][0]["batch_size"], 5, "{model}");
    assert_eq!(stats["queue"]["count"], 2, "{model}");
    server.stop();
}

#[test]
fn what_goes_wrong_while_loading_is_a_reason_in_the_index() {
    let Some(directory) = directory() else { return };
    let repository = Repository::new();
    let with = |word: &str| format!("parameters {{ key: \"load\" value {{ string_value: \"{word}\" }} }}");
    let pairs = [Pair::new("INT32", "-1")];
    repository.identity_of("trouble", "thrown", 0, &pairs, &with("throw"));
    repository.identity_of("trouble", "odd", 0, &pairs, &with("throw_odd"));
    repository.identity_of("trouble", "throw_instance", 0, &pairs, "");
    repository.identity_of("trouble", "decoupled", 0, &pairs, &with("decoupled_please"));
    repository.model("completed", &format!("backend: \"trouble\"\n{}", with("complete_please")));
    let flag = format!("--backend-directory={}", directory.display());
    let server = Server::start_with(usual(), repository.path(), &[&flag, "--exit-on-error=false"], "/v2/health/live");
    let mut peer = Peer::connect(server.http);
    let index = peer.post("/v2/repository/index", &[], b"").json();
    for (name, reason) in [
        ("thrown", "Internal: the backend threw an exception: no such luck: \"quoted\""),
        ("odd", "Internal: the backend threw an exception: an exception that is no std::exception"),
        ("throw_instance", "Internal: the backend threw an exception: no instance today"),
    ] {
        let row = index.as_array().into_iter().flatten().find(|row| row["name"] == name).cloned().unwrap_or_default();
        assert_eq!((&row["state"], &row["reason"]), (&json!("UNAVAILABLE"), &json!(reason)), "{name}: {index}");
    }
    let config = peer.get("/v2/models/decoupled/config").json();
    assert_eq!(config["model_transaction_policy"]["decoupled"], true, "a backend may decide on that: {config}");
    assert_eq!(peer.post("/v2/models/decoupled/infer", &[], body("").as_bytes()).status, 501);
    let config = peer.get("/v2/models/completed/config").json();
    assert_eq!(config["input"][0]["name"], "INPUT0", "the backend's completion is served: {config}");
    let answer = peer.post("/v2/models/completed/infer", &[], body("").as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.stop();
}

#[test]
fn the_versions_of_a_model_come_together_or_not_at_all() {
    let Some(directory) = directory() else { return };
    let repository = Repository::new();
    let all = "version_policy { all { } }";
    repository.identity_of("trouble", "parts", 0, &[Pair::new("INT32", "-1")], all).version("parts", "2");
    // The library lies in one version only.
    let library = std::fs::read(directory.join("trouble/libtriton_trouble.so")).expect("the library");
    repository.file("parts/1/libtriton_trouble.so", library);
    let server = Server::start_with(usual(), repository.path(), &["--exit-on-error=false"], "/v2/health/live");
    let mut peer = Peer::connect(server.http);
    let index = peer.post("/v2/repository/index", &[], b"").json();
    let reason = "Invalid argument: unable to find backend library for backend 'trouble', try specifying runtime on the \
                  model configuration.";
    let row =
        |version: &str, reason: &str| json!({"name":"parts","version":version,"state":"UNAVAILABLE","reason":reason});
    assert_eq!(index, json!([row("1", "unloaded"), row("2", reason)]));
    assert_ne!(peer.get("/v2/models/parts/versions/1/ready").status, 200);
    let log = server.stop();
    assert!(log.contains("failed to load 'parts' version 2: Invalid argument: "), "{log}");
}
