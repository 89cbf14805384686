//! Models that call models (contract/python_backend.md section 4): requests and responses of calls, hundreds in flight
//! from one model, decoupled calls, chains, sequences, and clean-up after a death.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::models;
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{Server, signal};
use nereid_test_support::variant::usual;

/// Has the model do `what`; its answer as it came.
fn ask(peer: &mut Peer, model: &str, what: &str, with: &Value) -> Answer {
    let body = json!({"inputs": [
        {"name": "WHAT", "datatype": "BYTES", "shape": [1], "data": [what]},
        {"name": "WITH", "datatype": "BYTES", "shape": [1], "data": [with.to_string()]},
    ]});
    peer.post(&format!("/v2/models/{model}/infer"), &[], body.to_string().as_bytes())
}

/// What the model answers; it must not fail.
pub fn answered(peer: &mut Peer, what: &str, with: &Value) -> Value {
    let answer = ask(peer, "caller", what, with);
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    let text = answer.json()["outputs"][0]["data"][0].as_str().map(str::to_owned);
    serde_json::from_str(&text.expect("a text")).expect("JSON")
}

/// A server with the calling model and these others.
fn serve(others: &[&str], flags: &[&str]) -> Option<(Repository, Server)> {
    let repository = models::repository(others);
    models::add(&repository, "caller", "caller");
    let server = models::serve(usual(), &repository, flags)?;
    Some((repository, server))
}

/// What workers do on CPUs that reorder memory accesses, where all tests of this module pass through the fence.
#[test]
fn workers_with_memory_fences_call_models_and_pass_large_tensors() {
    let flags = ["--backend-config=python,memory-fences=true", "--log-verbose=1"];
    let Some((_repository, server)) = serve(&["echo"], &flags) else { return };
    let mut peer = Peer::connect(server.http);
    for round in 0..200 {
        let names = json!([["OUT"], ["FACTS"], ["FACTS", "OUT"], ["OUT"]]);
        assert_eq!(answered(&mut peer, "pruned", &json!({})), names);
        assert_eq!(answered(&mut peer, "passed_on", &json!({"size": 1000 * round})), true);
    }
    server.wait_for_log("memory-fences=true");
}

#[test]
fn a_call_carries_all_that_a_request_may_say() {
    let Some((_repository, server)) = serve(&["echo"], &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let nothing = json!({});
    for version in [-1, 1] {
        let said = answered(&mut peer, "one", &json!({"version": version}));
        let facts = json!({
            "id": "abc", "correlation": "sequence", "flags": 3, "timeout": 7_000_000,
            "parameters": {"number": 5, "flag": true, "text": "t"}, "texts": ["one", "zwei", "três"],
        });
        let parameters = json!({"count": 3, "is_echo": true, "name": "echo"});
        assert_eq!(said, json!({"OUT": [1, 2, 3], "FACTS": facts, "parameters": parameters}));
    }
    let names = json!([["OUT"], ["FACTS"], ["FACTS", "OUT"], ["OUT"]]);
    assert_eq!(answered(&mut peer, "pruned", &nothing), names);
    let before = "TritonModelException: BLS is only supported during the 'execute' function.";
    assert_eq!(answered(&mut peer, "before_it_is_ready", &nothing), before);
    assert_eq!(answered(&mut peer, "passed_on", &json!({"size": 200_000})), true);
}

#[test]
fn what_goes_wrong_with_a_call_is_its_response() {
    let Some((_repository, server)) = serve(&["echo", "ailing", "several"], &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let error = |code: i32, text: &str| json!({"code": code, "text": text});
    let failed = |model: &str, text: &str| error(1, &format!("Model {model} - Error when running inference: {text}"));
    let said = answered(&mut peer, "failures", &json!({}));
    let raised = said[0]["text"].as_str().unwrap_or_default();
    assert!(raised.starts_with("Failed to process the request(s) for model 'ailing_0', message: ValueError: raised "));
    assert!(raised.contains("model.py(") && said[0]["code"] == 1, "{raised}");
    assert_eq!(said[1], error(2, "nowhere to be found"));
    assert_eq!(said[2], json!({}));
    assert_eq!(said[3], failed("nobody", "Failed for execute the inference request. Model 'nobody' is not ready."));
    assert_eq!(said[4], failed("echo", "Failed for execute the inference request. Model 'echo' is not ready."));
    assert_eq!(said[5], failed("echo", "unexpected inference output 'NONE' for model 'echo'"));
    let missing = "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 inputs for model \
                   'echo'. Got input(s) [], but missing required input(s) ['IN']. Please provide all required \
                   input(s).";
    assert_eq!(said[6], failed("echo", missing));
    assert_eq!(said[7], failed("echo", "[request id: <id_unknown>] input 'IN' already exists in request"));
    let datatype =
        "[request id: <id_unknown>] inference input 'IN' data-type is 'FP32', but model 'echo' expects 'INT32'";
    assert_eq!(said[8], failed("echo", datatype));
    let decoupled = "Model several is using the decoupled. The current BLS request call doesn't support models using \
                     the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or \
                     'async_exec' calls for decoupled models.'";
    assert_eq!(said[9], failed("several", decoupled));
    // Of an iterator it is the only response.
    let said = answered(&mut peer, "failures_of_iterators", &json!({}));
    assert_eq!(said[0], json!([error(2, "nowhere to be found")]));
    let unknown = failed("nobody", "Failed for execute the inference request. Model 'nobody' is not ready.");
    assert_eq!(said[1], json!([unknown]));
    assert_eq!(said[2], json!([{"OUT": [4]}]));
    // A callee that dies is an error to its caller, and nothing else happens to that one.
    let died = answered(&mut peer, "dying", &json!({}));
    assert!(
        died["text"].as_str().is_some_and(|text| text.contains("ailing_0") && text.contains("not healthy")),
        "{died}"
    );
    assert_eq!(answered(&mut peer, "in_a_row", &json!({"count": 2, "size": 1})), 1);
}

/// Triton's issue #7888: awaited calls of one model queue up behind each other. Here as many run as the called model
/// has instances, and the calling one waits for all of them at once.
#[test]
fn calls_that_are_awaited_together_run_together() {
    let Some((repository, server)) = serve(&["echo"], &[]) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!(answered(&mut peer, "gathered", &json!({"count": 300, "size": 10})), json!([300, true]));
    // Larger than what travels in messages.
    assert_eq!(answered(&mut peer, "gathered", &json!({"count": 100, "size": 20_000})), json!([100, true]));
    // Two executions that wait for each other: one after the other they would never end.
    let place = repository.path().with_extension("meeting");
    std::fs::create_dir_all(&place).expect("a directory");
    assert_eq!(answered(&mut peer, "together", &json!({"place": place})), json!([0, 1]));
    let _ = std::fs::remove_dir_all(&place);
}

/// Triton's issue #8882: calls from many threads corrupt memory that caller and callee share.
#[test]
fn calls_from_many_threads_neither_crash_nor_mix_up_what_they_carry() {
    let Some((_repository, server)) = serve(&["echo"], &[]) else { return };
    let mut peer = Peer::connect(server.http);
    for (threads, count, size) in [(32, 20, 4), (16, 20, 1000), (8, 15, 60_000)] {
        let with = json!({"threads": threads, "count": count, "size": size});
        assert_eq!(answered(&mut peer, "in_threads", &with), json!([]), "{with}");
    }
}

#[test]
fn an_execution_may_make_more_calls_than_its_memory_holds_answers() {
    let flags = ["--backend-config=python,shm-max-byte-size=50331648"];
    let Some((_repository, server)) = serve(&["echo", "several"], &flags) else { return };
    let mut peer = Peer::connect(server.http);
    // A megabyte each way, 100 times, through 48 MiB.
    let with = json!({"count": 100, "size": 250_000});
    assert_eq!(answered(&mut peer, "in_a_row", &with), 250_000 * (100 * 99 / 2));
    // Answers in messages of their own, and more of them.
    let with = json!({"threads": 4, "count": 2000, "size": 1000});
    assert_eq!(answered(&mut peer, "iterated_in_threads", &with), json!([]));
}

/// Triton's issue #8922: concurrent decoupled calls from one model fail with `RuntimeError: Invalid argument`.
#[test]
fn many_decoupled_calls_are_read_side_by_side() {
    let Some((_repository, server)) = serve(&["several"], &[]) else { return };
    let mut peer = Peer::connect(server.http);
    for (threads, count, size) in [(24, 20, 1), (12, 30, 50), (6, 25, 20_000)] {
        let with = json!({"threads": threads, "count": count, "size": size});
        assert_eq!(answered(&mut peer, "iterated_in_threads", &with), json!([]), "{with}");
    }
}

#[test]
fn decoupled_calls_are_iterated_cancelled_and_left() {
    let Some((_repository, server)) = serve(&["several"], &[]) else { return };
    let mut peer = Peer::connect(server.http);
    for count in [0, 1, 3, 40] {
        let mut all: Vec<Value> = (0..count).map(|at| json!([at])).collect();
        // The bare end is a response without outputs.
        all.push(json!([null]));
        assert_eq!(answered(&mut peer, "iterated", &json!({"count": count})), json!([all, true]));
    }
    assert_eq!(answered(&mut peer, "cancelled", &json!({})), json!([5, true]));
    assert_eq!(answered(&mut peer, "left", &json!({"count": 150})), 4);
}

#[test]
fn a_thread_that_is_left_behind_calls_after_its_execution() {
    let Some((_repository, server)) = serve(&["echo"], &[]) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!(answered(&mut peer, "later", &json!({})), 1);
    assert_eq!(answered(&mut peer, "what_came_later", &json!({})), json!([[{"OUT": [9]}]]));
}

#[test]
fn models_call_themselves_and_keep_sequences() {
    let repository = models::repository(&["accumulator"]);
    models::add(&repository, "caller", "caller");
    models::add(&repository, "caller", "mirror");
    let config = std::fs::read_to_string(repository.path().join("caller/config.pbtxt")).expect("a configuration");
    repository.file("mirror/config.pbtxt", config.replace("count: 1", "count: 4"));
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    // Four instances: three of them wait while the last one answers.
    assert_eq!(answered(&mut peer, "chain", &json!({"model": "mirror", "depth": 4})), 4);
    // Numbers and texts name sequences of their own.
    let with = json!({"names": [7, "7"], "steps": 4});
    assert_eq!(answered(&mut peer, "sequences", &with), json!({"7": [1, 1, 3, 3, 6, 6, 10, 10]}));
    let sums = answered(&mut peer, "sequences", &json!({"names": [11, 12], "steps": 5}));
    assert_eq!(sums, json!({"11": [1, 3, 6, 10, 15], "12": [1, 3, 6, 10, 15]}));
}

/// Triton's issue #8358: a model that holds what the one it calls needs waits for itself. Here it lends it.
#[test]
fn a_caller_lends_what_it_holds() {
    let repository = models::repository(&["caller", "echo"]);
    for (model, count) in [("caller", 1), ("echo", 2)] {
        let path = format!("{model}/config.pbtxt");
        let config = std::fs::read_to_string(repository.path().join(&path)).expect("a configuration");
        let group = format!("count: {count} kind: KIND_CPU");
        assert!(config.contains(&group), "{config}");
        let limited = format!("{group} rate_limiter {{ resources {{ name: \"R\" count: 1 }} }}");
        repository.file(&path, config.replace(&group, &limited));
    }
    let flags = ["--rate-limit=execution_count", "--rate-limit-resource=R:1"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!(answered(&mut peer, "in_a_row", &json!({"count": 5, "size": 1})), 10);
    assert_eq!(answered(&mut peer, "gathered", &json!({"count": 20, "size": 1})), json!([20, true]));
}

/// The times of one trace, by their names.
fn stamps(traces: &[Value], id: &Value) -> BTreeMap<String, u64> {
    let mine = traces.iter().filter(|entry| entry["id"] == *id);
    let stamps = mine.filter_map(|entry| entry["timestamps"].as_array()).flatten();
    let stamp = |stamp: &Value| Some((stamp["name"].as_str()?.to_owned(), stamp["ns"].as_u64()?));
    stamps.filter_map(stamp).collect()
}

/// A call with its request's trace is a child of it, and both have all the times of a model's execution.
#[test]
fn calls_are_children_in_traces() {
    let repository = models::repository(&["caller", "echo", "several"]);
    let file = repository.path().with_extension("traces.json");
    let setting = format!("--trace-config=triton,file={}", file.display());
    let flags = ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", &setting];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!(answered(&mut peer, "traced", &json!({})), json!([{"OUT": [1]}, {"OUT": [2]}]));
    let of_two = answered(&mut peer, "traced_to_the_end", &json!({}));
    assert_eq!(
        of_two.as_array().map(|of_two| of_two[..2].to_vec()),
        Some(vec![json!({"OUT": [0]}), json!({"OUT": [1]})])
    );
    server.stop();
    let text = std::fs::read_to_string(&file).expect("traces");
    let _ = std::fs::remove_file(&file);
    let traces: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let of = |model: &str| traces.iter().filter(|entry| entry["model_name"] == model).collect::<Vec<_>>();
    let (callers, echoes, severals) = (of("caller"), of("echo"), of("several"));
    let counts = (callers.len(), echoes.len(), severals.len());
    assert_eq!(counts, (2, 1, 1), "the second call had no trace: {text}");
    const ORDER: [&str; 7] = [
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
    ];
    for (caller, callee) in callers.iter().zip([echoes[0], severals[0]]) {
        assert_eq!(callee["parent_id"], caller["id"], "{text}");
        assert!(
            caller.get("parent_id").is_none_or(|parent| *parent == json!(0)),
            "a client's is nobody's child: {caller}"
        );
        let (above, below) = (stamps(&traces, &caller["id"]), stamps(&traces, &callee["id"]));
        for stamps in [&above, &below] {
            let times: Vec<u64> = ORDER.iter().filter_map(|name| stamps.get(*name).copied()).collect();
            assert!(times.len() == ORDER.len() && times[..6].is_sorted(), "{stamps:?}");
            assert!(times[0] <= times[6], "{stamps:?}");
        }
        // The call is made by the code that the caller's execution waits for.
        assert!(above["COMPUTE_INPUT_END"] <= below["REQUEST_START"], "{above:?} {below:?}");
        assert!(below["COMPUTE_INPUT_END"] <= above["COMPUTE_OUTPUT_START"], "{above:?} {below:?}");
    }
    // Who serves clients says when it read and wrote; of a call there is nothing to read.
    let of_wire = |id: &Value| stamps(&traces, id).keys().any(|name| name.starts_with("HTTP_"));
    assert!(of_wire(&callers[0]["id"]) && !of_wire(&echoes[0]["id"]), "{text}");
}

/// What a caller leaves behind when it is killed in the midst of its calls: nothing that keeps others.
#[test]
fn a_caller_that_dies_leaves_its_callees_free() {
    let Some((_repository, server)) = serve(&["several", "echo"], &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let workers = models::workers(&server, "caller");
    let [worker] = workers[..] else { panic!("one instance: {workers:?}") };
    let asked = std::thread::spawn({
        let http = server.http;
        move || ask(&mut Peer::connect(http), "caller", "iterated", &json!({"count": -1}))
    });
    // It is in the midst of an endless call once the callee has answered something.
    let executed = |peer: &mut Peer| {
        let answer = peer.get("/v2/models/several/stats").json();
        answer["model_stats"][0]["inference_count"].as_u64().unwrap_or_default()
    };
    server.wait_until("the callee has answered something", || executed(&mut peer) > 0);
    signal(worker, "KILL");
    let answer = asked.join().expect("an answer");
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(answer.error().contains("caller_0_0"), "{}", answer.error());
    // The endless call was cancelled: the callee's unload would wait for it otherwise.
    assert!(server.stop().contains("Waiting for in-flight requests"));
}
