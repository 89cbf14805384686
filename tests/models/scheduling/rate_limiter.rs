//! Resources that instances share (contract/schedulers.md section 6).

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

use crate::python_backend::models as python_models;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

const ON: &str = "--rate-limit=execution_count";
const BODY: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;

/// Executes until its directory has a file of that name.
const KEEPER: &str = r#"
import os
import time

import triton_python_backend_utils as pb_utils

GO_ON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "go-on")


class TritonPythonModel:
    def execute(self, requests):
        print("keeper: executes", flush=True)
        while not os.path.exists(GO_ON):
            time.sleep(0.002)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one.inputs()[0].as_numpy())]) for one in requests]
"#;

/// An identity that takes `delay_ms`, with a group of `instances` that need `count` of R.
fn limited(name: &str, delay_ms: u32, instances: u32, count: u32, priority: u32) -> String {
    limited_of("identity", name, delay_ms, instances, count, priority)
}

fn limited_of(backend: &str, name: &str, delay_ms: u32, instances: u32, count: u32, priority: u32) -> String {
    let config = identity_config(backend, name, 0, &[Pair::new("INT32", "-1")], "");
    let group = format!(
        "instance_group {{ kind: KIND_CPU count: {instances} rate_limiter {{ priority: {priority} resources {{ name: \
         \"R\" count: {count} }} }} }}\nparameters {{ key: \"execute_delay_ms\" value {{ string_value: \
         \"{delay_ms}\" }} }}\n"
    );
    let plain = "instance_group [ { kind: KIND_CPU count: 1 } ]\n";
    assert!(config.contains(plain));
    config.replace(plain, &group)
}

fn infer(model: &str) -> Vec<u8> {
    request("POST", &format!("/v2/models/{model}/infer"), &[], BODY.as_bytes())
}

/// Sends `count` requests at once, on connections of their own.
fn send(server: &Server, model: &str, count: usize) -> Vec<Peer> {
    let peer = |_| {
        let mut peer = Peer::connect(server.http);
        peer.send(&infer(model));
        peer
    };
    (0..count).map(peer).collect()
}

fn answers(peers: Vec<Peer>) {
    for mut peer in peers {
        let answer = peer.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

fn stats(server: &Server, model: &str) -> Value {
    Peer::connect(server.http).get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn compute_ns(server: &Server, model: &str) -> u64 {
    number(&stats(server, model)["inference_stats"]["compute_infer"]["ns"])
}

/// Executions that never overlap cannot take longer in sum than the clock says. With the limiter off the two models
/// would execute at the same time.
#[test]
fn models_on_one_resource_take_turns() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("a", &limited("a", 20, 2, 1, 0)).model("b", &limited("b", 20, 2, 1, 0));
        let server = Server::start(variant, repository.path(), &[ON]);
        let started = Instant::now();
        let (of_a, of_b) = (send(&server, "a", 10), send(&server, "b", 10));
        answers(of_a);
        answers(of_b);
        let elapsed_ns = started.elapsed().as_nanos() as u64;
        let executed_ns = compute_ns(&server, "a") + compute_ns(&server, "b");
        assert!(executed_ns >= 20 * 20_000_000, "{executed_ns} ns for 20 executions of 20 ms");
        assert!(executed_ns <= elapsed_ns, "{executed_ns} ns of execution in {elapsed_ns} ns");
        server.stop();
    });
}

/// More of the resource lets more execute at a time: a limit of two, and four models that need one each.
#[test]
fn a_limit_says_how_many_at_a_time() {
    let repository = Repository::new();
    for name in ["a", "b", "c", "d"] {
        repository.model(name, &limited(name, 20, 1, 1, 0));
    }
    let flags = [ON, "--rate-limit-resource=R:2", "--log-verbose=1"];
    let server = Server::start(usual(), repository.path(), &flags);
    let started = Instant::now();
    let peers: Vec<Vec<Peer>> = ["a", "b", "c", "d"].into_iter().map(|name| send(&server, name, 6)).collect();
    peers.into_iter().for_each(answers);
    let elapsed_ns = started.elapsed().as_nanos() as u64;
    let executed_ns: u64 = ["a", "b", "c", "d"].into_iter().map(|name| compute_ns(&server, name)).sum();
    assert!(executed_ns <= 2 * elapsed_ns, "{executed_ns} ns of execution in {elapsed_ns} ns");
    let log = server.stop();
    let resources = r"Max Resource Map===>\n\tDevice: 0\n\t\tResource: R\t Count: 2\n";
    assert!(log.contains(resources), "{log}");
    assert!(log.contains("EXEC_COUNT") && log.contains(r#"{"name":"R", "count":2 "device":-1}"#), "{log}");
}

/// Priority 5 against 1 and 1: as long as all have requests, it executes once where each of the others does five times,
/// as the server's own traces tell.
#[test]
fn a_high_priority_number_comes_late() {
    let Some(order) = executed_in_order(&[("late", 5), ("a", 1), ("b", 1)], 6) else { return };
    // Each once, and then the two until they have executed five times each.
    let first = &order[..11];
    let count = |model: &str| first.iter().filter(|known| *known == model).count();
    assert_eq!((count("late"), count("a"), count("b")), (1, 5, 5), "{order:?}");
    assert_eq!(order.last().map(String::as_str), Some("late"));
}

#[test]
fn priorities_last() {
    let Some(order) = executed_in_order(&[("often", 1), ("seldom", 2)], 12) else { return };
    // Both together until the one with more turns has no more requests.
    let first = &order[..18];
    let often = first.iter().filter(|known| *known == "often").count();
    assert_eq!(often, 12, "{order:?}");
}

/// The models of `count` executions each that all wait for one resource at the same time, in the order in which they
/// executed; `None`, after a visible skip, where there is no interpreter for the model that keeps the resource until
/// they do.
fn executed_in_order(models: &[(&str, u32)], count: usize) -> Option<Vec<String>> {
    let repository = Repository::new();
    repository.model("keeper", &limited_of("python", "keeper", 0, 1, 1, 1)).file("keeper/1/model.py", KEEPER);
    for (name, priority) in models {
        repository.model(name, &limited(name, 1, 1, 1, *priority));
    }
    let file = repository.path().join("trace.json");
    let to_file = format!("--trace-config=triton,file={}", file.display());
    let traced = [ON, "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", &to_file];
    let server = python_models::serve(usual(), &repository, &traced)?;
    let kept = send(&server, "keeper", 1);
    // Connections are not read in the order in which they were made: the others come when it has the resource.
    server.wait_for_log("keeper: executes");
    let peers: Vec<Vec<Peer>> = models.iter().map(|(model, _)| send(&server, model, count)).collect();
    server.wait_until("all are in line", || models.iter().all(|(model, _)| pending(&server, model) == count as u64));
    repository.file("keeper/1/go-on", "");
    answers(kept);
    peers.into_iter().for_each(answers);
    server.stop();
    let order = by_compute_start(&std::fs::read_to_string(&file).expect("a file of traces"));
    assert_eq!(order[0], "keeper", "{order:?}");
    Some(order[1..].to_vec())
}

/// The models of the traces in a file, by the time at which they began to compute.
fn by_compute_start(text: &str) -> Vec<String> {
    let entries: Vec<Value> = serde_json::from_str(text).expect("traces");
    let mut names = BTreeMap::new();
    let mut starts = BTreeMap::new();
    for entry in &entries {
        let id = number(&entry["id"]);
        if let Some(name) = entry["model_name"].as_str() {
            names.insert(id, name.to_owned());
        }
        for stamp in entry["timestamps"].as_array().into_iter().flatten() {
            if stamp["name"] == "COMPUTE_START" {
                starts.insert(number(&stamp["ns"]), id);
            }
        }
    }
    starts.values().map(|id| names[id].clone()).collect()
}

/// What is given for other devices is not there for instances without a GPU, which count on device 0.
#[test]
fn a_resource_of_another_device_is_none_for_instances_on_the_host() {
    let repository = Repository::new();
    repository.model("a", &limited("a", 0, 1, 4, 0));
    let other = limited("other", 0, 1, 4, 0).replace("name: \"R\"", "name: \"S\"");
    repository.model("other", &other);
    let flags = [ON, "--rate-limit-resource=R:10:10", "--model-control-mode=explicit"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    for (model, resource) in [("a", "R"), ("other", "S")] {
        let refused = load(&server, model).expect_err("nothing of it is there");
        let text = format!(
            "Resource count for \"{resource}\" is limited to 0 which will prevent scheduling of one or more model \
             instances, the minimum required count is 4"
        );
        assert!(refused.contains(&text), "{refused}");
    }
    server.stop();
    let flags = [ON, "--rate-limit-resource=R:10:10", "--rate-limit-resource=R:4:0", "--model-control-mode=explicit"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    assert_eq!(load(&server, "a"), Ok(()));
    answers(send(&server, "a", 1));
    server.stop();
}

fn pending(server: &Server, model: &str) -> u64 {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let start = format!("nv_inference_pending_request_count{{model=\"{model}\"");
    let line = page.lines().find(|line| line.starts_with(&start));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {start} in:\n{page}"))
}

fn load(server: &Server, model: &str) -> Result<(), String> {
    let answer = Peer::connect(server.http).post(&format!("/v2/repository/models/{model}/load"), &[], b"{}");
    if answer.status == 200 { Ok(()) } else { Err(answer.error()) }
}

fn unload(server: &Server, model: &str) {
    let answer = Peer::connect(server.http).post(&format!("/v2/repository/models/{model}/unload"), &[], b"{}");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// contract/model_config.md section 6, row "rate limiter": before any instance is made; an update leaves the old
/// instances.
#[test]
fn a_demand_above_the_limit_fails_the_load() {
    let repository = Repository::new();
    repository.model("greedy", &limited("greedy", 0, 1, 3, 0)).model("modest", &limited("modest", 0, 1, 2, 0));
    let global = limited("global", 0, 1, 1, 0).replace("name: \"R\"", "name: \"R\" global: true");
    repository.model("global", &global);
    let flags = [ON, "--rate-limit-resource=R:2", "--model-control-mode=explicit"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    let text = "Resource count for \"R\" is limited to 2 which will prevent scheduling of one or more model instances, \
                the minimum required count is 3";
    let failed = |model: &str, text: &str| {
        Err(format!("load failed for model '{model}': version 1 is at UNAVAILABLE state: Invalid argument: {text};\n"))
    };
    assert_eq!(load(&server, "greedy"), failed("greedy", text));
    assert!(!server.log().contains("instance greedy_0"), "{}", server.log());
    assert_eq!(load(&server, "modest"), Ok(()));
    let both = "Resource \"R\" is present as both global and device-specific resource in the model configuration.";
    assert_eq!(load(&server, "global"), failed("global", both));
    // In place.
    repository.file("modest/config.pbtxt", limited("modest", 0, 1, 3, 0));
    let update = load(&server, "modest").expect_err("more than there is");
    assert!(update.contains(text), "{update}");
    answers(send(&server, "modest", 2));
    repository.file("modest/config.pbtxt", limited("modest", 0, 3, 1, 0));
    assert_eq!(load(&server, "modest"), Ok(()));
    answers(send(&server, "modest", 8));
    // What is gone is in nobody's way.
    unload(&server, "modest");
    server.wait_for_log("successfully unloaded 'modest' version 1");
    assert_eq!(load(&server, "global"), Ok(()));
    answers(send(&server, "global", 2));
    server.stop();
}

#[test]
fn a_model_that_goes_gives_back_what_it_has() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("a", &limited("a", 200, 1, 1, 0)).model("b", &limited("b", 0, 1, 1, 0));
        let flags = [ON, "--model-control-mode=explicit", "--load-model=a", "--load-model=b"];
        let server = Server::start(variant, repository.path(), &flags);
        let of_a = send(&server, "a", 2);
        let of_b = send(&server, "b", 2);
        unload(&server, "a");
        answers(of_b);
        // Each had its execution, or came when the model was on its way out.
        for mut peer in of_a {
            let answer = peer.answer();
            let text = answer.text();
            let came_late = text.contains("is not ready") || text.contains("has no available versions");
            assert!(answer.status == 200 || came_late, "{text}");
        }
        server.wait_for_log("successfully unloaded 'a' version 1");
        answers(send(&server, "b", 2));
        server.stop();
    });
}

#[test]
fn without_the_flag_nobody_counts() {
    let repository = Repository::new();
    repository.model("greedy", &limited("greedy", 0, 2, 3, 0));
    let server = Server::start(usual(), repository.path(), &["--rate-limit-resource=R:1"]);
    answers(send(&server, "greedy", 4));
    server.stop();
}
