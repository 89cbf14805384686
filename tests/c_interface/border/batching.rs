//! Libraries that decide which requests form a batch (contract/c_api.md section 5, "Batch strategy library").

use std::thread;

use serde_json::Value;

use crate::border::compiler;
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// Longer than any test: what leaves earlier leaves because the batch was closed.
const PATIENT: &str = "dynamic_batching { max_queue_delay_microseconds: 3600000000 }";

fn named(path: &str) -> String {
    format!("parameters {{ key: \"TRITON_BATCH_STRATEGY_PATH\" value {{ string_value: \"{path}\" }} }}")
}

fn limited(bytes: u32) -> String {
    format!("parameters {{ key: \"MAX_BYTES\" value {{ string_value: \"{bytes}\" }} }}")
}

/// Puts strategy.cc where the repository says. False, after a visible skip, without a compiler.
fn strategy(repository: &Repository, path: &str, more: &[&str]) -> bool {
    let source = compiler::root().join("tests/backends/strategy.cc");
    compiler::library(&source, &repository.path().join(path), more)
}

fn model(repository: &Repository, name: &str, more: &str) {
    repository.identity_of("identity", name, 8, &[Pair::new("INT64", "-1")], more);
}

fn infer(peer: &mut Peer, model: &str, elements: usize) -> Answer {
    let data = vec!["1"; elements].join(",");
    let body =
        format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT64","shape":[1,{elements}],"data":[{data}]}}]}}"#);
    peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes())
}

/// How often batches of each size were executed.
fn batches(peer: &mut Peer, model: &str) -> Vec<(u64, u64)> {
    let stats = peer.get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0]["batch_stats"].clone();
    let pair = |row: &Value| Some((row["batch_size"].as_u64()?, row["compute_infer"]["count"].as_u64()?));
    stats.as_array().into_iter().flatten().filter_map(pair).collect()
}

#[test]
fn a_library_closes_batches_by_volume() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        model(&repository, "m", &format!("{PATIENT} {} {}", named("volume.so"), limited(16)));
        if !strategy(&repository, "m/volume.so", &[]) {
            return;
        }
        let environment = [("NEREID_CHECK_HANDLES", "1")];
        let server = Server::start_in(variant, repository.path(), &[], "/v2/health/ready", &environment);
        let address = server.http;
        // Eight bytes each: two fill a batch, which the next one closes. The fifth waits for the end.
        let clients: Vec<_> =
            (0..5).map(|_| thread::spawn(move || infer(&mut Peer::connect(address), "m", 1))).collect();
        let mut peer = Peer::connect(address);
        server.wait_until("two batches are full", || batches(&mut peer, "m") == [(2, 2)]);
        // Too large for any batch: it is one by itself, after what waits before it.
        let large = infer(&mut peer, "m", 9);
        assert_eq!(large.status, 200, "{}", large.text());
        for client in clients {
            assert_eq!(client.join().expect("a client").status, 200);
        }
        assert_eq!(batches(&mut peer, "m"), [(1, 2), (2, 2)]);
        let log = server.stop();
        let count = |what: &str| log.matches(what).count();
        let library = repository.path().join("m/volume.so");
        let loading = format!("Loading custom batching strategy library {} for model m", library.display());
        assert_eq!(count(&loading), 1, "{log}");
        assert_eq!(count("strategy.cc: batcher of m begins with 16"), 1, "{log}");
        assert_eq!(count("strategy.cc: batcher ends"), 1, "{log}");
        assert_eq!(count("strategy.cc: batch begins"), 4, "{log}");
        assert_eq!(count("strategy.cc: batch ends"), 4, "{log}");
        assert_eq!(count("strategy.cc: in\n"), 5, "asked once about each: {log}");
        assert_eq!(count("strategy.cc: out\n"), 3, "two that closed a batch, and the large one: {log}");
        assert!(!log.contains("strategy.cc: unexpected"), "{log}");
        assert!(log.contains("at the server's end all handles were given back"), "{log}");
    });
}

#[test]
fn a_library_that_never_includes_anything_does_not_stop_the_model() {
    let repository = Repository::new();
    model(&repository, "m", &format!("{PATIENT} {}", named("none.so")));
    if !strategy(&repository, "m/none.so", &["-DREFUSES"]) {
        return;
    }
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for _ in 0..3 {
        assert_eq!(infer(&mut peer, "m", 1).status, 200);
    }
    assert_eq!(batches(&mut peer, "m"), [(1, 3)]);
    server.stop();
}

#[test]
fn a_library_that_throws_leaves_the_batcher_to_its_own_rules() {
    let repository = Repository::new();
    model(&repository, "m", &format!("dynamic_batching {{ }} {}", named("throws.so")));
    if !strategy(&repository, "m/throws.so", &["-DTHROWS"]) {
        return;
    }
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    for _ in 0..3 {
        assert_eq!(infer(&mut peer, "m", 1).status, 200);
    }
    let log = server.stop();
    for line in [
        "TRITONBACKEND_ModelBatchIncludeRequest of '",
        "TRITONBACKEND_ModelBatchFinalize of '",
        "which is told once: Internal: the batching library threw an exception: no opinion",
        "the batching library threw an exception: an exception that is no std::exception",
    ] {
        assert_eq!(log.matches(line).count(), 1, "{line}: {log}");
    }
}

#[test]
fn a_cancelled_request_begins_the_batch_anew() {
    let repository = Repository::new();
    model(&repository, "m", &format!("{PATIENT} {} {}", named("volume.so"), limited(24)));
    if !strategy(&repository, "m/volume.so", &[]) {
        return;
    }
    let server = Server::start(usual(), repository.path(), &[]);
    let address = server.http;
    let mut gone = Peer::connect(address);
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT64","shape":[1,2],"data":[1,2]}]}"#;
    gone.send(&nereid_test_support::http::request("POST", "/v2/models/m/infer", &[], body));
    server.wait_for_log("strategy.cc: in\n");
    drop(gone);
    let mut peer = Peer::connect(address);
    let cancelled = |peer: &mut Peer| {
        let page = peer.get("/v2/models/m/stats").json();
        page["model_stats"][0]["inference_stats"]["fail"]["count"].as_u64().unwrap_or_default()
    };
    server.wait_until("it is cancelled", || cancelled(&mut peer) > 0);
    // Without the sixteen bytes of the one that left, three of eight fit into a batch; a fourth closes it.
    let clients: Vec<_> = (0..4).map(|_| thread::spawn(move || infer(&mut Peer::connect(address), "m", 1))).collect();
    server.wait_until("three make a batch", || batches(&mut peer, "m") == [(3, 1)]);
    // The fourth goes when another shape comes behind it.
    assert_eq!(infer(&mut peer, "m", 9).status, 200);
    for client in clients {
        assert_eq!(client.join().expect("a client").status, 200);
    }
    let log = server.stop();
    assert!(log.matches("strategy.cc: batch begins").count() >= 3, "{log}");
    let count = |what: &str| log.matches(what).count();
    assert_eq!(count("strategy.cc: batch begins"), count("strategy.cc: batch ends"), "{log}");
}

#[test]
fn a_library_is_searched_beside_version_model_and_backend() {
    let repository = Repository::new();
    let backends = Repository::new();
    for name in ["by_version", "by_model", "by_backend", "by_nothing"] {
        let batching = if name == "by_nothing" { "" } else { "dynamic_batching { }" };
        model(&repository, name, &format!("{batching} {}", limited(100)));
    }
    let sequences = "sequence_batching { }";
    repository.identity_of("identity", "sequences", 8, &[Pair::new("INT64", "-1")], sequences);
    for path in ["by_version/1/batchstrategy.so", "by_model/batchstrategy.so", "sequences/batchstrategy.so"] {
        if !strategy(&repository, path, &[]) {
            return;
        }
    }
    strategy(&backends, "identity/batchstrategy.so", &[]);
    let flag = format!("--backend-directory={}", backends.path().display());
    let server = Server::start(usual(), repository.path(), &[&flag]);
    let log = server.stop();
    for name in ["by_version", "by_model", "by_backend"] {
        assert!(log.contains(&format!("strategy.cc: batcher of {name} begins with 100")), "{name}: {log}");
    }
    assert!(!log.contains("batcher of by_nothing"), "without a dynamic batcher nobody asks: {log}");
    assert!(!log.contains("batcher of sequences"), "{log}");
}

#[test]
fn libraries_that_cannot_be_used_refuse_their_model() {
    let repository = Repository::new();
    let outside = Repository::new();
    let batching = "dynamic_batching { }";
    if !strategy(&outside, "outside.so", &[]) {
        return;
    }
    strategy(&repository, "lacks/strategy.so", &["-DLACKS"]);
    let agent = compiler::root().join("tests/backends/agent.c");
    compiler::library(&agent, &repository.path().join("nothing/strategy.so"), &[]);
    model(&repository, "nothing", &format!("{batching} {}", named("strategy.so")));
    strategy(&repository, "fails/strategy.so", &["-DFAILS"]);
    strategy(&repository, "sequences/strategy.so", &[]);
    strategy(&repository, "link/real.so", &[]);
    std::os::unix::fs::symlink(outside.path().join("outside.so"), repository.path().join("link/strategy.so"))
        .expect("a link");
    repository.file("text/strategy.so", "this is no library");
    let absolute = outside.path().join("outside.so").display().to_string();
    let escapes = "Invalid argument: Batching library path escapes model repository.";
    let rows = [
        (
            "lacks",
            batching,
            "strategy.so",
            "/strategy.so does not define all required custom batching functions for model lacks",
        ),
        ("fails", batching, "strategy.so", "Unsupported: not with me"),
        ("text", batching, "strategy.so", "Invalid argument: unable to load batching library"),
        ("missing", batching, "none.so", "Not found: Batching library path not found: none.so"),
        ("absolute", batching, absolute.as_str(), escapes),
        ("climbs", batching, "../fails/strategy.so", escapes),
        ("far", batching, "../../nowhere/strategy.so", escapes),
        ("link", batching, "strategy.so", escapes),
        (
            "sequences",
            "sequence_batching { }",
            "strategy.so",
            "Invalid argument: TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default \
             batching strategy",
        ),
    ];
    for (name, batching, path, _) in rows {
        model(&repository, name, &format!("{batching} {}", named(path)));
    }
    let server = Server::start_with(usual(), repository.path(), &["--exit-on-error=false"], "/v2/health/live");
    let index = Peer::connect(server.http).post("/v2/repository/index", &[], b"").json();
    for (name, _, _, text) in rows {
        let row = index.as_array().into_iter().flatten().find(|row| row["name"] == name).cloned().unwrap_or_default();
        assert_eq!(row["state"], "UNAVAILABLE", "{name}: {index}");
        assert!(row["reason"].as_str().is_some_and(|reason| reason.contains(text)), "{name}: {}", row["reason"]);
    }
    // As in Triton, a library without any of the functions is none.
    assert_eq!(infer(&mut Peer::connect(server.http), "nothing", 1).status, 200);
    let log = server.stop();
    let said = "/strategy.so does not define TRITONBACKEND_ModelBatchFinalize";
    assert!(log.contains(said) && log.contains("model nothing is batched without it"), "{log}");
}

/// What a backend makes of a model is no fault of who wrote its file: the library is left out, and the model serves.
#[test]
fn a_model_that_becomes_one_of_sequences_does_without_its_library() {
    let Some(backends) = compiler::backend("sequencing.c", &[]) else { return };
    let repository = Repository::new();
    repository.identity_of("sequencing", "m", 8, &[Pair::new("INT64", "-1")], &named("volume.so"));
    strategy(&repository, "m/volume.so", &[]);
    let flag = format!("--backend-directory={}", backends.display());
    let server = Server::start(usual(), repository.path(), &[&flag]);
    let mut peer = Peer::connect(server.http);
    let config = peer.get("/v2/models/m/config").json();
    assert!(config["sequence_batching"].is_object(), "{config}");
    for (start, end) in [(true, false), (false, true)] {
        let body = format!(
            r#"{{"parameters":{{"sequence_id":7,"sequence_start":{start},"sequence_end":{end}}},
            "inputs":[{{"name":"INPUT0","datatype":"INT64","shape":[1,1],"data":[1]}}]}}"#
        );
        let answer = peer.post("/v2/models/m/infer", &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let log = server.stop();
    let line = "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy";
    assert_eq!(log.matches(line).count(), 1, "{log}");
    assert!(!log.contains("strategy.cc"), "nobody asks the library: {log}");
}
