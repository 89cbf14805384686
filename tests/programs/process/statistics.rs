//! Known requests and their counts in three places, which must agree with the requests and with each other
//! (contract/metrics.md sections 2 and 3).

use std::net::SocketAddr;

use nereid_wire::inference::{ModelStatisticsRequest, ModelStatisticsResponse, StatisticDuration};
use serde_json::{Value, json};

use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each, usual};

fn over_http(server: &Server, model: &str) -> Value {
    Peer::connect(server.http).get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
}

fn duration(value: Option<&StatisticDuration>) -> Value {
    let value = value.copied().unwrap_or_default();
    json!({"count": value.count, "ns": value.ns})
}

/// The gRPC answer in the words of the HTTP one.
fn over_grpc(server: &Server, model: &str) -> Value {
    let request = ModelStatisticsRequest { name: model.to_string(), version: String::new() };
    let mut peer = Grpc::connect(server.grpc);
    let answer: ModelStatisticsResponse = peer.call("ModelStatistics", &request).expect("statistics");
    let of = &answer.model_stats[0];
    let stats = of.inference_stats.unwrap_or_default();
    let batches = of.batch_stats.iter().map(|batch| {
        json!({
            "batch_size": batch.batch_size,
            "compute_input": duration(batch.compute_input.as_ref()),
            "compute_infer": duration(batch.compute_infer.as_ref()),
            "compute_output": duration(batch.compute_output.as_ref()),
        })
    });
    json!({
        "name": of.name, "version": of.version, "last_inference": of.last_inference,
        "inference_count": of.inference_count, "execution_count": of.execution_count,
        "inference_stats": {
            "success": duration(stats.success.as_ref()), "fail": duration(stats.fail.as_ref()),
            "queue": duration(stats.queue.as_ref()), "compute_input": duration(stats.compute_input.as_ref()),
            "compute_infer": duration(stats.compute_infer.as_ref()),
            "compute_output": duration(stats.compute_output.as_ref()),
            "cache_hit": duration(stats.cache_hit.as_ref()), "cache_miss": duration(stats.cache_miss.as_ref()),
        },
        "batch_stats": batches.collect::<Vec<_>>(),
    })
}

/// A sample of the metrics page, by family and label.
fn metric(address: SocketAddr, model: &str, family: &str, label: &str) -> u64 {
    let page = Peer::connect(address).get("/metrics").text();
    let start = format!("{family}{{");
    let own = format!("model=\"{model}\"");
    let line = page.lines().find(|line| line.starts_with(&start) && line.contains(&own) && line.contains(label));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {family} of {model} with {label:?} in:\n{page}"))
}

/// Holds the three against each other; returns the statistics.
fn agree(server: &Server, model: &str) -> Value {
    let mut http = over_http(server, model);
    let grpc = over_grpc(server, model);
    for absent in ["response_stats", "memory_usage"] {
        http.as_object_mut().expect("an object").remove(absent);
    }
    assert_eq!(http, grpc, "HTTP (left) and gRPC (right)");
    let stats = &http["inference_stats"];
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number in {http}: {value}"));
    let of_model = |family: &str| metric(server.metrics, model, family, "");
    let success = number(&stats["success"]["count"]);
    assert_eq!(of_model("nv_inference_request_success"), success);
    assert_eq!(of_model("nv_inference_count"), number(&http["inference_count"]));
    assert_eq!(of_model("nv_inference_exec_count"), number(&http["execution_count"]));
    let mut parts_ns = 0;
    for (part, family) in [
        ("success", "nv_inference_request_duration_us"),
        ("queue", "nv_inference_queue_duration_us"),
        ("compute_input", "nv_inference_compute_input_duration_us"),
        ("compute_infer", "nv_inference_compute_infer_duration_us"),
        ("compute_output", "nv_inference_compute_output_duration_us"),
    ] {
        assert_eq!(number(&stats[part]["count"]), success, "{part}: {http}");
        let ns = number(&stats[part]["ns"]);
        let us = of_model(family);
        // Every event is cut to whole microseconds before it is added.
        assert!(us <= ns / 1000 && us + success >= ns / 1000, "{family} {us} and {ns} ns");
        parts_ns += if part == "success" { 0 } else { ns };
    }
    assert!(parts_ns <= number(&stats["success"]["ns"]), "the parts overlap: {http}");
    let failures = ["REJECTED", "CANCELED", "BACKEND", "OTHER"]
        .map(|reason| metric(server.metrics, model, "nv_inference_request_failure", &format!("reason=\"{reason}\"")));
    assert_eq!(failures.iter().sum::<u64>(), number(&stats["fail"]["count"]));
    let batches: Vec<&Value> = http["batch_stats"].as_array().into_iter().flatten().collect();
    for part in ["compute_input", "compute_infer", "compute_output"] {
        let sum = |what: &str| batches.iter().map(|batch| number(&batch[part][what])).sum::<u64>();
        assert_eq!(sum("count"), number(&http["execution_count"]), "{part}: {http}");
        // Each request is a batch of its own here, so the times of batches and requests are the same.
        assert_eq!(sum("ns"), number(&stats[part]["ns"]), "{part}: {http}");
    }
    http
}

fn rows(batches: &Value) -> Vec<(u64, u64)> {
    let of = |batch: &Value| Some((batch["batch_size"].as_u64()?, batch["compute_infer"]["count"].as_u64()?));
    batches.as_array().into_iter().flatten().filter_map(of).collect()
}

fn body(shape: &str, datatype: &str, inputs: &[&str], count: usize) -> String {
    let data = vec!["1"; count].join(",");
    let inputs: Vec<String> = inputs
        .iter()
        .map(|name| format!(r#"{{"name":"{name}","datatype":"{datatype}","shape":{shape},"data":[{data}]}}"#))
        .collect();
    format!("{{\"inputs\":[{}]}}", inputs.join(","))
}

#[test]
fn requests_of_the_identity_are_counted_alike_everywhere() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("batching", 8, &[Pair::new("INT32", "-1")]);
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let fresh = agree(&server, "batching");
        assert_eq!((&fresh["last_inference"], &fresh["batch_stats"]), (&json!(0), &json!([])), "{fresh}");
        let mut peer = Peer::connect(server.http);
        for (rows, times) in [(1, 3), (4, 2), (8, 1)] {
            let body = body(&format!("[{rows},2]"), "INT32", &["INPUT0"], rows * 2);
            for _ in 0..times {
                assert_eq!(peer.post("/v2/models/batching/infer", &[], body.as_bytes()).status, 200);
            }
        }
        // What is refused at the door enters no counter.
        let refused = body("[9,1]", "INT32", &["INPUT0"], 9);
        assert_eq!(peer.post("/v2/models/batching/infer", &[], refused.as_bytes()).status, 400);
        let known = agree(&server, "batching");
        assert_eq!((&known["inference_count"], &known["execution_count"]), (&json!(19), &json!(6)), "{known}");
        assert_eq!(known["inference_stats"]["fail"], json!({"count": 0, "ns": 0}), "{known}");
        assert_eq!(rows(&known["batch_stats"]), [(1, 3), (4, 2), (8, 1)], "{known}");
        assert!(known["last_inference"].as_u64().is_some_and(|ms| ms > 1_700_000_000_000), "{known}");
        // A model that does not batch: the identity reports the size 0 (contract/backends.md section 1).
        let one = body("[5]", "INT32", &["INPUT0"], 5);
        assert_eq!(peer.post("/v2/models/plain/infer", &[], one.as_bytes()).status, 200);
        let plain = agree(&server, "plain");
        assert_eq!((&plain["inference_count"], &plain["execution_count"]), (&json!(1), &json!(1)), "{plain}");
        assert_eq!(rows(&plain["batch_stats"]), [(0, 1)], "{plain}");
        server.stop();
    });
}

#[test]
fn requests_of_an_onnx_model_are_counted_alike_everywhere() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.example("simple");
    let server = Server::start(usual(), repository.path(), &[&python.onnxruntime_flag()]);
    let config = Peer::connect(server.http).get("/v2/models/simple").json();
    let inputs: Vec<&str> =
        config["inputs"].as_array().into_iter().flatten().filter_map(|i| i["name"].as_str()).collect();
    let datatype = config["inputs"][0]["datatype"].as_str().unwrap_or_default();
    let width = config["inputs"][0]["shape"][1].as_u64().unwrap_or_default() as usize;
    let mut peer = Peer::connect(server.http);
    for (rows, times) in [(1, 2), (3, 4)] {
        let body = body(&format!("[{rows},{width}]"), datatype, &inputs, rows * width);
        for _ in 0..times {
            let answer = peer.post("/v2/models/simple/infer", &[], body.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    let known = agree(&server, "simple");
    assert_eq!((&known["inference_count"], &known["execution_count"]), (&json!(14), &json!(6)), "{known}");
    assert_eq!(rows(&known["batch_stats"]), [(1, 2), (3, 4)], "{known}");
    server.stop();
}

#[test]
fn clients_that_leave_are_counted_as_cancelled_and_pending_returns_to_nothing() {
    each(&variant::ALL, |variant| {
        // On a busy machine an execution may be over before the others wait, or before the server has seen that they
        // leave: then each takes longer.
        let in_time = [2_000, 10_000, 60_000].into_iter().any(|delay_ms| clients_leave(variant, delay_ms));
        assert!(in_time, "clients leave, and nothing is cancelled");
    });
}

/// False: the executions were over before their clients had left.
fn clients_leave(variant: Variant, delay_ms: u32) -> bool {
    let repository = Repository::new();
    let delay = format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}");
    repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], &delay);
    let server = Server::start(variant, repository.path(), &[]);
    let body = body("[1]", "INT32", &["INPUT0"], 1);
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer::connect(server.http)).collect();
    for peer in &mut peers {
        peer.send(&request("POST", "/v2/models/slow/infer", &[], body.as_bytes()));
    }
    let pending = || metric(server.metrics, "slow", "nv_inference_pending_request_count", "");
    let ended = |stats: &Value| {
        let count = |part: &str| stats["inference_stats"][part]["count"].as_u64().unwrap_or_default();
        (count("success"), count("fail"))
    };
    // One executes, two wait.
    server.wait_until("two wait", || pending() >= 2 || ended(&over_http(&server, "slow")).0 > 0);
    // The first one stays: whichever of the three executes, one succeeds, and of the two that leave one waits.
    drop(peers.split_off(1));
    let (mut succeeded, mut failed) = (0, 0);
    server.wait_until("all three have ended", || {
        (succeeded, failed) = ended(&over_http(&server, "slow"));
        succeeded + failed == 3
    });
    if failed == 0 {
        return false;
    }
    assert!(succeeded >= 1, "{succeeded} executed, {failed} cancelled");
    let cancelled = metric(server.metrics, "slow", "nv_inference_request_failure", "reason=\"CANCELED\"");
    assert_eq!(cancelled, failed);
    assert_eq!(pending(), 0);
    let known = agree(&server, "slow");
    assert_eq!(known["execution_count"], succeeded, "what was cancelled in the queue is not executed: {known}");
    server.stop();
    true
}
