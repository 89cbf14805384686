//! What is unloaded to make room, and what is not.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use nereid_test_support::python::Python;

fn evictions(server: &Server, reason: &str) -> f64 {
    metric(server, &format!("nereid_model_evictions_total{{reason=\"{reason}\"}}"))
}

fn resident(peer: &mut Peer) -> Vec<String> {
    let rows = index(peer).into_iter().filter(|(_, state, _)| state == "READY");
    rows.map(|(name, ..)| name).collect()
}

#[test]
fn the_model_whose_last_request_is_longest_ago_makes_room() {
    let repository = Repository::new();
    ["a", "b", "c", "d", "kept"].into_iter().for_each(|name| add_identity(&repository, name));
    let server = start(&repository, &["--model-count-max=3", "--model-pin=kept"]);
    let mut peer = Peer::connect(server.http);
    ["kept", "a", "b"].into_iter().for_each(|name| must_infer(&mut peer, name, 1));
    // Of models that have been loaded for less than five seconds and longer ones, the latter go first.
    std::thread::sleep(std::time::Duration::from_secs(6));
    must_infer(&mut peer, "a", 2);
    must_infer(&mut peer, "c", 3);
    assert_eq!(resident(&mut peer), ["a", "c", "kept"]);
    assert_eq!(state(&mut peer, "b"), ("UNAVAILABLE".to_owned(), "unloaded".to_owned()));
    assert_eq!(peer.get("/v2/models/b/ready").status, 400);
    assert_eq!(peer.get("/v2/health/ready").status, 200, "the server is ready all the same");
    must_infer(&mut peer, "b", 4);
    must_infer(&mut peer, "d", 5);
    assert_eq!(resident(&mut peer), ["b", "d", "kept"]);
    assert_eq!(evictions(&server, "count"), 3.0);
    assert_eq!(metric(&server, "nereid_model_reloads_total"), 1.0, "b was unloaded a moment before");
    server.wait_for_log("raise --model-count-max");
    assert_eq!(metric(&server, "nereid_models_resident"), 3.0);
    server.stop();
}

#[test]
fn an_idle_model_is_unloaded_until_its_next_request() {
    let repository = Repository::new();
    ["idle", "kept"].into_iter().for_each(|name| add_identity(&repository, name));
    let server = start(&repository, &["--model-idle-secs=1", "--model-pin=kept"]);
    let mut peer = Peer::connect(server.http);
    ["idle", "kept"].into_iter().for_each(|name| must_infer(&mut peer, name, 1));
    server.wait_for_log("model 'idle' is unloaded until a request comes for it: idle");
    server.wait_until("it is gone", || state(&mut peer, "idle").1 == "unloaded");
    assert_eq!(resident(&mut peer), ["kept"]);
    assert_eq!(evictions(&server, "idle"), 1.0);
    must_infer(&mut peer, "idle", 2);
    server.stop();
}

/// Python and ONNX models under traffic over both protocols, with room for one of them.
#[test]
fn no_request_fails_while_models_take_turns() {
    let repository = Repository::new();
    add_python(&repository, "python_a", "");
    add_python(&repository, "python_b", "");
    repository.file("onnx/1/model.onnx", fixture("add_sub.onnx"));
    let Some(flag) = Python::get().map(|python| python.onnxruntime_flag()) else { return };
    let flags = ["--model-count-max=1", "--model-load-wait-secs=600", &flag];
    let Some(server) = start_python(&repository, &flags) else { return };
    let server = &server;
    let onnx = |peer: &mut Peer, value: i32| {
        let input =
            |name: &str, data: [i32; 4]| json!({"name": name, "datatype": "FP32", "shape": [1, 4], "data": data});
        let body = json!({"inputs": [input("INPUT0", [value; 4]), input("INPUT1", [1; 4])]});
        let answer = peer.post("/v2/models/onnx/infer", &[], body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let sum = answer.json()["outputs"][0]["data"][0].as_f64();
        assert_eq!(sum, Some(f64::from(value + 1)));
    };
    let rounds = 12;
    std::thread::scope(|scope| {
        for model in ["python_a", "python_b"] {
            scope.spawn(move || {
                let mut peer = Peer::connect(server.http);
                (0..rounds).for_each(|value| must_infer(&mut peer, model, value));
            });
            scope.spawn(move || {
                let mut grpc = Grpc::connect(server.grpc);
                (0..rounds).for_each(|value| assert_eq!(grpc_infer(&mut grpc, model, value), Ok(())));
            });
        }
        scope.spawn(move || {
            let mut peer = Peer::connect(server.http);
            (0..rounds).for_each(|value| onnx(&mut peer, value));
        });
    });
    let mut peer = Peer::connect(server.http);
    assert_eq!(resident(&mut peer).len(), 1);
    assert!(evictions(server, "count") >= 2.0);
    assert_eq!(metric(server, "nereid_model_load_waiting"), 0.0);
}

/// The processes of Python models count, and a model that is larger than the budget leaves the others alone.
#[test]
fn memory_is_measured_and_bounded() {
    const MIB: usize = 1 << 20;
    let repository = Repository::new();
    let holds = |mib: usize| format!("self.held = bytearray(os.urandom(1 << 20) * {mib})");
    ["a", "b"].into_iter().for_each(|name| add_python(&repository, name, &holds(200)));
    add_python(&repository, "huge", &holds(700));
    let budget = format!("--model-memory-byte-size={}", 400 * MIB);
    let Some(server) = start_python(&repository, &[&budget, "--model-load-wait-secs=600"]) else { return };
    let mut peer = Peer::connect(server.http);
    must_infer(&mut peer, "a", 1);
    let bytes = metric(&server, "nereid_model_memory_bytes{kind=\"host\",model=\"a\",version=\"1\"}");
    assert!(bytes >= (200 * MIB) as f64 && bytes < (380 * MIB) as f64, "{bytes}");
    // Two of them are too much together.
    must_infer(&mut peer, "b", 2);
    assert_eq!(resident(&mut peer), ["b"]);
    must_infer(&mut peer, "a", 3);
    assert_eq!(resident(&mut peer), ["a"]);
    assert_eq!(evictions(&server, "memory"), 2.0);
    let answer = infer(&mut peer, "huge", 4);
    assert_eq!((answer.status, answer.header("nereid-refused")), (503, Some("model_unavailable")));
    let text = answer.error();
    assert!(text.contains("--model-memory-byte-size allows 419430400; raise it"), "{text}");
    assert_eq!(resident(&mut peer), ["a"], "what serves goes on serving");
    must_infer(&mut peer, "a", 5);
    server.stop();
}

/// An ensemble and its models come and go together, and requests to it do not fail.
#[test]
fn an_ensemble_makes_room_before_its_parts() {
    let repository = Repository::new();
    ["first", "other", "more"].into_iter().for_each(|name| add_identity(&repository, name));
    let ensemble = r#"platform: "ensemble"
        input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
        output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
        ensemble_scheduling { step [ { model_name: "first" model_version: -1
            input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }"#;
    repository.model("pipeline", ensemble);
    let server = start(&repository, &["--model-count-max=2"]);
    let mut peer = Peer::connect(server.http);
    for round in 0..3 {
        must_infer(&mut peer, "pipeline", round);
        assert_eq!(resident(&mut peer), ["first", "pipeline"]);
        ["other", "more"].into_iter().for_each(|name| must_infer(&mut peer, name, round));
        assert_eq!(resident(&mut peer), ["more", "other"]);
    }
    let small = start(&repository, &["--model-count-max=1"]);
    let mut peer = Peer::connect(small.http);
    must_infer(&mut peer, "other", 1);
    let answer = infer(&mut peer, "pipeline", 1);
    assert_eq!(answer.status, 503);
    assert!(answer.error().contains("--model-count-max allows 1; raise it"), "{}", answer.error());
    must_infer(&mut peer, "other", 2);
    small.stop();
    server.stop();
}

/// Sequences keep their model: it goes when they have ended.
#[test]
fn a_model_with_an_open_sequence_stays() {
    let repository = Repository::new();
    let sequences = "sequence_batching { max_sequence_idle_microseconds: 600000000 }";
    repository.identity_of("identity", "sequence", 0, &[Pair::new("INT32", "-1")], sequences);
    ["other", "more"].into_iter().for_each(|name| add_identity(&repository, name));
    let server = start(&repository, &["--model-count-max=1", "--model-load-wait-secs=600"]);
    let mut peer = Peer::connect(server.http);
    let mut step = |start: bool, end: bool| {
        let body = json!({
            "parameters": {"sequence_id": 5, "sequence_start": start, "sequence_end": end},
            "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}],
        });
        let answer = peer.post("/v2/models/sequence/infer", &[], body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    step(true, false);
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            must_infer(&mut Peer::connect(server.http), "other", 1);
            is_answered.store(true, Ordering::SeqCst);
        });
        server.wait_until("the other one waits", || metric(&server, "nereid_model_load_waiting") == 1.0);
        step(false, false);
        assert!(!is_answered.load(Ordering::SeqCst), "the sequence still needs its model");
        step(false, true);
    });
    assert_eq!(resident(&mut Peer::connect(server.http)), ["other"]);
    server.stop();
}
