//! The statistics extension: every field, over both protocols (contract/metrics.md section 3).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use nereid_wire::inference::{ModelStatistics, ModelStatisticsRequest, ModelStatisticsResponse, StatisticDuration};
use serde_json::{Value, json};

use super::metrics::{Page, ask, body, ensemble, one, wait_for};
use nereid_test_support::backend;
use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::{self, each, usual};

const CACHE: &str = "--cache-config=local,size=1048576";

fn duration(value: Option<&StatisticDuration>) -> Value {
    value.map_or(Value::Null, |value| json!({"count": value.count, "ns": value.ns}))
}

/// A model of the gRPC answer in the words of the HTTP one.
fn in_words(of: &ModelStatistics) -> Value {
    let stats = of.inference_stats.as_ref().expect("inference_stats");
    let batches = of.batch_stats.iter().map(|batch| {
        json!({
            "batch_size": batch.batch_size,
            "compute_input": duration(batch.compute_input.as_ref()),
            "compute_infer": duration(batch.compute_infer.as_ref()),
            "compute_output": duration(batch.compute_output.as_ref()),
        })
    });
    let responses = of.response_stats.iter().map(|(index, response)| {
        let tallies = json!({
            "compute_infer": duration(response.compute_infer.as_ref()),
            "compute_output": duration(response.compute_output.as_ref()),
            "success": duration(response.success.as_ref()), "fail": duration(response.fail.as_ref()),
            "empty_response": duration(response.empty_response.as_ref()),
            "cancel": duration(response.cancel.as_ref()),
        });
        (index.clone(), tallies)
    });
    let memory =
        of.memory_usage.iter().map(|one| json!({"type": one.r#type, "id": one.id, "byte_size": one.byte_size}));
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
        "response_stats": responses.collect::<BTreeMap<_, _>>(),
        "batch_stats": batches.collect::<Vec<_>>(),
        "memory_usage": memory.collect::<Vec<_>>(),
    })
}

/// What both protocols say, which is the same in every field. Nothing is in flight meanwhile.
fn both(server: &Server, model: &str, version: &str) -> Vec<Value> {
    let path = match (model, version) {
        ("", _) => "/v2/models/stats".to_owned(),
        (model, "") => format!("/v2/models/{model}/stats"),
        (model, version) => format!("/v2/models/{model}/versions/{version}/stats"),
    };
    let http = Peer::connect(server.http).get(&path).json();
    let request = ModelStatisticsRequest { name: model.to_owned(), version: version.to_owned() };
    let answer: ModelStatisticsResponse =
        Grpc::connect(server.grpc).call("ModelStatistics", &request).expect("statistics");
    let grpc = json!({ "model_stats": answer.model_stats.iter().map(in_words).collect::<Vec<_>>() });
    assert_eq!(http, grpc, "HTTP (left) and gRPC (right)");
    http["model_stats"].as_array().expect("an array").clone()
}

fn stats(server: &Server, model: &str) -> Value {
    both(server, model, "").remove(0)
}

fn wait_until(server: &Server, model: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let found =
            Peer::connect(server.http).get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone();
        if holds(&found) {
            return stats(server, model);
        }
        assert!(started.elapsed() < PATIENCE, "{what}: {found}");
        std::thread::yield_now();
    }
}

fn counts(stats: &Value, fields: &[&str]) -> Vec<u64> {
    let count = |field: &&str| stats["inference_stats"][field]["count"].as_u64().expect("a count");
    fields.iter().map(count).collect()
}

fn ns(stats: &Value, field: &str) -> u64 {
    stats["inference_stats"][field]["ns"].as_u64().expect("nanoseconds")
}

const ALL: [&str; 8] =
    ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"];

/// The backend of tests/backends/memory.c. None, after a visible skip, without a C compiler.
fn memory_backend() -> Option<PathBuf> {
    backend::compiled("memory.c")
}

#[test]
fn memory_is_what_backends_say_it_is() {
    let Some(directory) = memory_backend() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let config = support_config("two").replace("count: 1", "count: 2");
        repository.model("two", &config);
        repository.identity("plain", 0, &one());
        let backends = format!("--backend-directory={}", directory.display());
        let flags = [&*backends, "--model-control-mode=explicit", "--load-model=*"];
        let server = Server::start(variant, repository.path(), &flags);
        let usage = |cpu: u64, pinned: Option<u64>| {
            let mut list = vec![json!({"type": "CPU", "id": 0, "byte_size": cpu})];
            list.extend(pinned.map(|bytes| json!({"type": "CPU_PINNED", "id": 0, "byte_size": bytes})));
            list.push(json!({"type": "GPU", "id": 1, "byte_size": 64}));
            Value::Array(list)
        };
        let fresh = stats(&server, "two");
        assert_eq!(fresh["memory_usage"], usage(1000 + 2 * 100, Some(14)), "the model, and two instances");
        assert_eq!(stats(&server, "plain")["memory_usage"], json!([]));
        // An instance that executes says something else, and takes back what it said before.
        assert_eq!(ask(&server, "two", &body("[1]", &[1], "")), 500);
        let after = stats(&server, "two");
        assert_eq!(after["memory_usage"], usage(1000 + 100 + 5000, Some(7)));
        assert_eq!(counts(&after, &["success", "fail"]), [0, 1]);
        // One instance fewer: its memory goes with it, the model's stays.
        let one_instance = json!({"parameters": {"config": json!({
            "backend": "memory",
            "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
            "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        }).to_string()}});
        let mut peer = Peer::connect(server.http);
        let load = peer.post("/v2/repository/models/two/load", &[], one_instance.to_string().as_bytes());
        assert_eq!(load.status, 200, "{}", load.text());
        let fewer = wait_until(&server, "two", "one instance", |found| {
            found["memory_usage"] == usage(1000 + 100, Some(7)) || found["memory_usage"] == usage(1000 + 5000, None)
        });
        assert_eq!(
            fewer["memory_usage"].as_array().map(Vec::len),
            Some(if fewer["memory_usage"][0]["byte_size"] == 1100 { 3 } else { 2 })
        );
        server.stop();
    });
}

fn support_config(name: &str) -> String {
    nereid_test_support::repository::identity_config("memory", name, 0, &one(), "")
}

/// contract/metrics.md section 3: success, queue and the three phases go together; a hit is a success without an
/// inference.
#[test]
fn counts_follow_from_each_other() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("batching", 8, &one());
        repository.identity_of("identity", "cached", 0, &one(), "response_cache { enable: true }");
        repository.model("around", &ensemble("around", "cached", ""));
        let server = Server::start(variant, repository.path(), &[CACHE]);
        let fresh = stats(&server, "batching");
        assert_eq!(counts(&fresh, &ALL), [0; 8]);
        assert_eq!((&fresh["batch_stats"], &fresh["response_stats"]), (&json!([]), &json!({})));
        assert_eq!((&fresh["last_inference"], &fresh["memory_usage"]), (&json!(0), &json!([])));
        for (shape, numbers) in [("[3,1]", &[1, 2, 3][..]), ("[1,2]", &[4, 5]), ("[3,2]", &[1; 6])] {
            assert_eq!(ask(&server, "batching", &body(shape, numbers, "")), 200);
        }
        let found = stats(&server, "batching");
        assert_eq!((&found["inference_count"], &found["execution_count"]), (&json!(7), &json!(3)), "{found}");
        assert_eq!(counts(&found, &ALL), [3, 0, 3, 3, 3, 3, 0, 0]);
        let sizes: Vec<_> = found["batch_stats"].as_array().into_iter().flatten().collect();
        assert_eq!(sizes.len(), 2, "{found}");
        for (entry, size, count) in [(sizes[0], 1, 1), (sizes[1], 3, 2)] {
            assert_eq!((&entry["batch_size"], &entry["compute_infer"]["count"]), (&json!(size), &json!(count)));
        }
        assert!(found["last_inference"].as_u64().is_some_and(|ms| ms > 1_700_000_000_000), "{found}");
        let parts: u64 =
            ["queue", "compute_input", "compute_infer", "compute_output"].map(|part| ns(&found, part)).iter().sum();
        assert!(parts <= ns(&found, "success"), "the parts overlap: {found}");

        assert_eq!(ask(&server, "cached", &body("[1]", &[1], "")), 200);
        let missed = stats(&server, "cached");
        assert_eq!(counts(&missed, &ALL), [1, 0, 1, 1, 1, 1, 0, 1]);
        assert!(ns(&missed, "success") >= ns(&missed, "cache_miss"), "a miss is part of its request: {missed}");
        (0..2).for_each(|_| assert_eq!(ask(&server, "cached", &body("[1]", &[1], "")), 200));
        let hit = stats(&server, "cached");
        assert_eq!(counts(&hit, &ALL), [3, 0, 3, 1, 1, 1, 2, 1]);
        assert_eq!((&hit["inference_count"], &hit["execution_count"]), (&json!(1), &json!(1)));
        assert_eq!(hit["last_inference"], missed["last_inference"], "untouched by hits");
        assert_eq!(hit["batch_stats"], missed["batch_stats"]);
        assert_eq!(ns(&hit, "cache_miss"), ns(&missed, "cache_miss"));

        // The look into the cache of its step is the step's own.
        assert_eq!(ask(&server, "around", &body("[1]", &[1], "")), 200);
        let around = wait_until(&server, "around", "a success", |found| found["execution_count"] == 1);
        assert_eq!(counts(&around, &ALL), [1, 0, 1, 1, 1, 1, 0, 0]);
        assert_eq!((&around["inference_count"], &around["batch_stats"][0]["batch_size"]), (&json!(1), &json!(1)));
        assert_eq!(counts(&stats(&server, "cached"), &["success", "cache_hit"]), [4, 3]);
        server.stop();
    });
}

/// Sums of an ensemble are those of its steps, also where a step reports them behind its answer.
#[test]
fn an_ensemble_has_the_times_of_its_steps() {
    let repository = Repository::new();
    let slow = "parameters { key: \"execute_delay_ms\" value { string_value: \"30\" } }";
    repository.identity_of("identity", "slow", 0, &one(), slow);
    repository.model("around", &ensemble("around", "slow", ""));
    let server = Server::start(usual(), repository.path(), &[]);
    assert_eq!(ask(&server, "around", &body("[1]", &[1], "")), 200);
    let step = stats(&server, "slow");
    let same = |found: &Value| {
        ["queue", "compute_input", "compute_infer", "compute_output"]
            .iter()
            .all(|part| ns(found, part) == ns(&step, part))
    };
    let around = wait_until(&server, "around", "the sums of the step", same);
    assert!(ns(&around, "success") >= ns(&step, "success") && ns(&step, "compute_infer") > 0, "{around} {step}");
    server.stop();
}

#[test]
fn failures_count_as_failures_and_as_executions() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    let repository = Repository::new();
    repository.identity_of("copycat", "failing", 8, &one(), "");
    let backends = format!("--backend-directory={}", directory.display());
    let server = Server::start(usual(), repository.path(), &[&backends]);
    assert_eq!(ask(&server, "failing", &body("[2,1]", &[1, 2], r#","parameters":{"fail":"told to"}"#)), 400);
    let found = wait_until(&server, "failing", "a failure", |found| found["execution_count"] == 1);
    assert_eq!(counts(&found, &ALL), [0, 1, 0, 0, 0, 0, 0, 0]);
    assert!(ns(&found, "fail") > 0 && ns(&found, "success") == 0, "{found}");
    assert_eq!((&found["inference_count"], &found["batch_stats"][0]["batch_size"]), (&json!(0), &json!(2)));
    assert!(found["last_inference"].as_u64().is_some_and(|ms| ms > 0));
    server.stop();
}

/// "What enters no counter at all": refused at the door, and what the server made itself.
#[test]
fn refusals_and_warm_up_are_not_counted() {
    let (repository, gate) = (Repository::new(), Gate::new());
    let queue = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }\n";
    let warm = "model_warmup [ { name: \"w\" batch_size: 1 count: 2 inputs { key: \"INPUT0\" value { data_type: \
                TYPE_INT32 dims: [ 1 ] zero_data: true } } } ]";
    repository.identity_of(gate::BACKEND, "warm", 1, &one(), &format!("{}{queue}{warm}", gate.of_executions()));
    let config = "sequence_batching { max_sequence_idle_microseconds: 60000000 }";
    repository.identity_of("identity", "sequence", 1, &one(), config);
    let Some(backends) = backend::directory_flag() else { return };
    // The warm-up is not held.
    gate.open();
    let server = Server::start(usual(), repository.path(), &[&backends]);
    gate.close();
    let nothing = |model: &str| {
        let found = stats(&server, model);
        assert_eq!(counts(&found, &ALL), [0; 8], "{found}");
        assert_eq!((&found["inference_count"], &found["execution_count"]), (&json!(0), &json!(0)), "{found}");
        assert_eq!((&found["last_inference"], &found["batch_stats"]), (&json!(0), &json!([])), "{found}");
    };
    nothing("warm");
    assert_eq!(ask(&server, "warm", &body("[2,1]", &[1, 2], "")), 400, "too many rows");
    assert_eq!(ask(&server, "sequence", &body("[1,1]", &[1], "")), 400, "no sequence");
    let parameters = r#","parameters":{"sequence_id":7}"#;
    assert_eq!(ask(&server, "sequence", &body("[1,1]", &[1], parameters)), 400, "a sequence that never began");
    nothing("warm");
    nothing("sequence");
    // A full queue.
    let send = || {
        let mut peer = Peer::connect(server.http);
        peer.send(&request("POST", "/v2/models/warm/infer", &[], body("[1,1]", &[1], "").as_bytes()));
        peer
    };
    let waiting = |page: &Page| page.value("nv_inference_pending_request_count", &[("model", "warm")]);
    let mut stay = vec![send()];
    gate.wait_until_held(&server, "warm");
    stay.push(send());
    wait_for(&server, "one that waits", |page| waiting(page) == 1.0);
    stay.push(send());
    wait_for(&server, "two that wait", |page| waiting(page) == 2.0);
    assert_eq!(ask(&server, "warm", &body("[1,1]", &[1], "")), 503);
    gate.open();
    stay.iter_mut().for_each(|peer| assert_eq!(peer.answer().status, 200));
    let found = wait_until(&server, "warm", "three successes", |found| counts(found, &["success"]) == [3]);
    assert_eq!(counts(&found, &["success", "fail"]), [3, 0], "{found}");
    server.stop();
}

#[test]
fn all_ready_versions_have_an_entry_each_in_order() {
    let repository = Repository::new();
    repository.identity_of("identity", "several", 0, &[Pair::new("INT32", "-1")], "version_policy { all { } }");
    repository.version("several", "10").version("several", "2");
    repository.identity("another", 0, &one()).identity("zz", 0, &one());
    let flags = ["--model-control-mode=explicit", "--load-model=several", "--load-model=another"];
    each(&variant::ALL, |variant| {
        let server = Server::start(variant, repository.path(), &flags);
        assert_eq!(ask(&server, "several/versions/2", &body("[1]", &[1], "")), 200);
        let entries = |found: Vec<Value>| -> Vec<(String, String, u64)> {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let entry = |one: &Value| {
                (text(&one["name"]), text(&one["version"]), one["execution_count"].as_u64().unwrap_or(99))
            };
            found.iter().map(entry).collect()
        };
        let entry = |name: &str, version: &str, executions: u64| (name.to_owned(), version.to_owned(), executions);
        let several = [entry("several", "1", 0), entry("several", "2", 1), entry("several", "10", 0)];
        assert_eq!(entries(both(&server, "several", "")), several);
        assert_eq!(entries(both(&server, "several", "2")), several[1..2]);
        let all: Vec<_> = [entry("another", "1", 0)].into_iter().chain(several).collect();
        assert_eq!(entries(both(&server, "", "")), all);
        let mut peer = Peer::connect(server.http);
        for (model, version, text) in [
            ("zz", "", "requested model 'zz' is not available"),
            ("nobody", "", "requested model 'nobody' is not available"),
            ("several", "7", "requested model version is not available for model 'several'"),
            ("nobody", "1", "requested model 'nobody' is not available"),
        ] {
            let path = match version {
                "" => format!("/v2/models/{model}/stats"),
                version => format!("/v2/models/{model}/versions/{version}/stats"),
            };
            let answer = peer.get(&path);
            assert_eq!((answer.status, answer.error().as_str()), (400, text), "{path}");
            let request = ModelStatisticsRequest { name: model.to_owned(), version: version.to_owned() };
            let answer: Result<ModelStatisticsResponse, _> =
                Grpc::connect(server.grpc).call("ModelStatistics", &request);
            let status = answer.expect_err("an error");
            assert_eq!((status.code, status.message.as_str()), (3, text), "{path}");
        }
        server.stop();
    });
}
