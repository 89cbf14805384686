//! The official Python backend, unmodified, as it comes in the package of the official server: `libtriton_python.so`
//! with its stub process. Our server must serve its models as the official one does.

use std::fs;
use std::path::PathBuf;

use nereid_wire::inference::InferParameter;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use serde_json::{Value, json};

use super::built::backends;
use super::servers::{Asked, everywhere_in};
use super::streams::{all_of, open, read, vectors};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::request;
use nereid_test_support::prepared::source;
use nereid_test_support::python_backend::{BACKEND, Installed, Regions, installed};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::usual;

const VECTOR: &str = r#"max_batch_size: 0
    input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }"#;
const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";

fn repository() -> Repository {
    let repository = Repository::new();
    let strings = r#"max_batch_size: 0
        input { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }
        output { name: "TURNED" data_type: TYPE_STRING dims: [ -1 ] }
        output { name: "WHO" data_type: TYPE_STRING dims: [ 3 ] }"#;
    let together = r#"max_batch_size: 8 parameters { key: "offset" value { string_value: "1000" } }
        dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 600000000 }"#;
    for (model, script, config) in [
        ("add_sub", "add_sub", String::new()),
        ("together", "add_sub", together.to_owned()),
        ("strings", "strings", strings.to_owned()),
        ("counting", "counting", format!("{VECTOR} {DECOUPLED}")),
        ("calls", "calls", VECTOR.to_owned()),
        ("patient", "patient", VECTOR.to_owned()),
        ("metered", "metered", VECTOR.to_owned()),
    ] {
        let script = source("tests/example_backends/models").join(format!("{script}.py"));
        let script = fs::read(&script).unwrap_or_else(|error| panic!("{script:?}: {error}"));
        repository.model(model, &format!("{BACKEND} {config}")).file(&format!("{model}/1/model.py"), script);
    }
    repository
}

/// Runs `test` against both servers with `models` loaded.
fn both(models: &[&str], test: impl Fn(&Asked<'_>)) {
    let Some(installed) = installed() else { return };
    let (repository, regions) = (repository(), Regions::new());
    let (flags, environment) = (flags(&installed, &regions, models), environment(&installed));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    everywhere_in(&environment, repository.path(), &flags, "/v2/health/ready", test);
}

fn flags(installed: &Installed, regions: &Regions, models: &[&str]) -> Vec<String> {
    let mut flags = vec![
        format!("--backend-directory={}", installed.backends.display()),
        regions.flag(),
        "--model-control-mode=explicit".to_owned(),
    ];
    flags.extend(models.iter().map(|model| format!("--load-model={model}")));
    flags
}

fn environment(installed: &Installed) -> Vec<(&str, &str)> {
    installed.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn pair(left: [i32; 2], right: [i32; 2]) -> Value {
    json!({ "inputs": [
        { "name": "A", "datatype": "INT32", "shape": [1, 2], "data": left },
        { "name": "B", "datatype": "INT32", "shape": [1, 2], "data": right } ] })
}

fn vector(values: &[i32]) -> Value {
    json!({ "inputs": [{ "name": "IN", "datatype": "INT32", "shape": [values.len()], "data": values }] })
}

fn with(mut body: Value, parameters: Value) -> Value {
    body["parameters"] = parameters;
    body
}

#[test]
fn python_models_complete_themselves_answer_and_fail() {
    both(&["add_sub", "together"], |asked| {
        let config = asked.peer().get("/v2/models/add_sub/config").json();
        assert_eq!((&config["max_batch_size"], &config["output"][0]["name"]), (&json!(8), &json!("SUM")), "{config}");
        let sums = json!({ "SUM": [[1, 2], [11, 22]], "DIFFERENCE": [[1, 2], [-9, -18]], "TOGETHER": [[1, 1], [1]] });
        assert_eq!(asked.infer("add_sub", &pair([1, 2], [10, 20])), sums);
        let failed = asked.infer("add_sub", &with(pair([1, 2], [3, 4]), json!({ "fail": "not \"this\" one" })));
        assert_eq!(failed[1], "not \"this\" one");
        let raised = asked.infer("add_sub", &with(pair([1, 2], [3, 4]), json!({ "raise": "out of order" })));
        let text = raised[1].as_str().unwrap_or_default();
        assert!(text.contains("ValueError: out of order"), "{raised}");
        assert_eq!(asked.infer("add_sub", &pair([1, 2], [10, 20])), sums, "it serves on");
        // The backend takes an error that a model made for a success, and an exception for a failure.
        asked.wait_for_counts("add_sub", |counts| counts[..2] == [3, 1]);

        // Three requests are one execution.
        let mut peers = Vec::new();
        for number in 0..3 {
            let mut peer = asked.peer();
            let body = pair([number, number], [1, 1]).to_string();
            peer.send(&request("POST", "/v2/models/together/infer", &[], body.as_bytes()));
            peers.push(peer);
        }
        for (number, peer) in peers.iter_mut().enumerate() {
            let answer = peer.answer();
            let outputs = &answer.json()["outputs"];
            let output = |name: &str| {
                let found = outputs.as_array().into_iter().flatten().find(|output| output["name"] == name);
                found.map(|output| output["data"].clone()).unwrap_or_default()
            };
            let sum = number as i32 + 1001;
            assert_eq!((output("SUM"), output("TOGETHER")), (json!([sum, sum]), json!([3])), "{}", answer.text());
        }
        asked.wait_for_counts("together", |counts| counts == [3, 0, 3, 1]);
    });
}

#[test]
fn python_models_read_texts_ids_and_parameters() {
    both(&["strings"], |asked| {
        let texts = json!([{ "name": "TEXT", "datatype": "BYTES", "shape": [3], "data": ["", "abc", "ßü"] }]);
        let body = json!({ "id": "n° 7", "parameters": { "sequence_id": 12, "word": "w", "number": -3, "flag": true },
                           "inputs": texts });
        let answer = asked.infer("strings", &body);
        assert_eq!(answer["TURNED"], json!([[3], ["", "cba", "üß"]]), "{answer}");
        let who = &answer["WHO"][1];
        assert_eq!((&who[0], &who[1]), (&json!("n° 7"), &json!("12")), "{answer}");
        let parameters: Value = serde_json::from_str(who[2].as_str().unwrap_or_default()).expect("JSON");
        assert_eq!(parameters, json!({ "word": "w", "number": -3, "flag": true }));
    });
}

#[test]
fn python_models_answer_often() {
    both(&["counting"], |asked| {
        let expected: Vec<Value> = (0..5).map(|index| json!([index])).chain([json!("end")]).collect();
        assert_eq!(all_of(asked, &vectors("counting", "c", &[("IN", "INT32", &[5])])), expected);
        assert_eq!(all_of(asked, &vectors("counting", "c", &[("IN", "INT32", &[0])])), [json!("end")]);
        // Who leaves is noticed.
        let mut grpc = Grpc::connect(asked.server.grpc);
        let mut exchange = open(&mut grpc);
        grpc.send(&mut exchange, &vectors("counting", "c", &[("IN", "INT32", &[100_000_000])]));
        assert_eq!(read(&grpc.next(&mut exchange).expect("a response")), json!([0]));
        grpc.cancel(exchange);
        asked.server.wait_for_log("counting saw the cancellation");
    });
}

#[test]
fn python_models_call_others() {
    both(&["add_sub", "counting", "calls"], |asked| {
        assert_eq!(asked.infer("calls", &vector(&[3, -4])), json!({ "OUT": [[2], [6, -8]] }));
        let counted = asked.infer("calls", &with(vector(&[5, 0]), json!({ "model": "counting" })));
        assert_eq!(counted, json!({ "OUT": [[2], [10, 0]] }));
        let refused = asked.infer("calls", &with(vector(&[3, 4]), json!({ "model": "nobody" })));
        let text = refused[1].as_str().unwrap_or_default();
        assert!(text.ends_with("Model 'nobody' is not ready."), "{refused}");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for round in 0..10 {
                        let value = 100 * thread + round;
                        let answer = asked.infer("calls", &vector(&[value, 1]));
                        assert_eq!(answer, json!({ "OUT": [[2], [2 * value, 2]] }));
                    }
                });
            }
        });
    });
}

#[test]
fn a_python_model_sees_that_its_client_left() {
    both(&["patient"], |asked| {
        let mut grpc = Grpc::connect(asked.server.grpc);
        let mut exchange = open(&mut grpc);
        grpc.send(&mut exchange, &vectors("patient", "p", &[("IN", "INT32", &[1])]));
        grpc.flush();
        asked.server.wait_for_log("patient waits");
        grpc.cancel(exchange);
        asked.server.wait_for_log("patient saw the cancellation");
        asked.statistics_until("patient", |found| {
            let inference = &found["inference_stats"];
            inference["fail"]["count"].as_u64().zip(inference["success"]["count"].as_u64()) == Some((0, 1))
        });
    });
}

#[test]
fn a_caller_hands_the_cancellation_of_its_client_on() {
    let (Some(installed), Some(examples)) = (installed(), backends()) else { return };
    let (repository, regions) = (repository(), Regions::new());
    // A library that lies with its model.
    let library = fs::read(examples.join("caller/libtriton_caller.so")).expect("the example");
    repository.model("caller", &format!("backend: \"caller\" {VECTOR}")).file("caller/libtriton_caller.so", library);
    let flags = flags(&installed, &regions, &["patient", "caller"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    everywhere_in(&environment(&installed), repository.path(), &flags, "/v2/health/ready", |asked| {
        let mut grpc = Grpc::connect(asked.server.grpc);
        let mut exchange = open(&mut grpc);
        let mut request = vectors("caller", "c", &[("IN", "INT32", &[1])]);
        let target = InferParameter { parameter_choice: Some(ParameterChoice::StringParam("patient".to_owned())) };
        request.parameters.insert("model".to_owned(), target);
        grpc.send(&mut exchange, &request);
        grpc.flush();
        asked.server.wait_for_log("patient waits");
        grpc.cancel(exchange);
        asked.server.wait_for_log("patient saw the cancellation");
        asked.statistics_until("caller", |found| found["inference_stats"]["fail"]["count"] == 1);
    });
}

#[test]
fn python_models_keep_metrics() {
    both(&["metered"], |asked| {
        for value in [4, 9, 2] {
            assert_eq!(asked.infer("metered", &vector(&[value])), json!({ "OUT": [[1], [value]] }));
        }
        let page = nereid_test_support::http::Peer::connect(asked.server.metrics).get("/metrics").text();
        let line = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(line("python_model_answers{").ends_with(" 3"), "{page}");
        assert!(line("python_model_largest{model=\"metered\"}").ends_with(" 9"), "{page}");
    });
}

/// The processes that run the stub of this test binary's copy.
fn stubs(installed: &Installed) -> Vec<String> {
    let place = installed.backends.display().to_string();
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let lines = processes.filter_map(|process| {
        let line = fs::read(process.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(&place) && line.contains("triton_python_backend_stub")).collect()
}

#[test]
fn python_models_are_reloaded_and_nothing_is_left_of_them() {
    let Some(installed) = installed() else { return };
    let (repository, regions) = (repository(), Regions::new());
    let flags = flags(&installed, &regions, &["add_sub", "counting"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment(&installed));
    let asked = Asked { server: &server, is_ours: true };
    assert_eq!(regions.present().len(), 2, "a region for each instance");
    for round in 0..3 {
        let answer = asked.peer().post("/v2/repository/models/add_sub/load", &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(asked.infer("add_sub", &pair([round, 2], [10, 20]))["SUM"], json!([[1, 2], [round + 10, 22]]));
    }
    let mine = regions.0.clone();
    let wait_for_stubs = |count: usize| {
        let started = std::time::Instant::now();
        loop {
            let found: Vec<_> = stubs(&installed).into_iter().filter(|line| line.contains(&mine)).collect();
            if found.len() == count {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{found:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    // What was replaced goes a little later.
    wait_for_stubs(2);
    let log = server.stop();
    assert!(log.contains("add_sub is finalized"), "{log}");
    wait_for_stubs(0);
    assert_eq!(regions.present(), Vec::<PathBuf>::new());
}

/// What a backend library exports itself.
const EXPORTED: [&str; 9] = [
    "TRITONBACKEND_Initialize",
    "TRITONBACKEND_Finalize",
    "TRITONBACKEND_ModelInitialize",
    "TRITONBACKEND_ModelFinalize",
    "TRITONBACKEND_ModelInstanceInitialize",
    "TRITONBACKEND_ModelInstanceFinalize",
    "TRITONBACKEND_ModelInstanceExecute",
    "TRITONBACKEND_ModelInstanceReady",
    "TRITONBACKEND_GetBackendAttribute",
];

#[test]
fn the_backend_finds_its_server_in_our_binary_alone() {
    let Some(installed) = installed() else { return };
    let (repository, regions) = (repository(), Regions::new());
    let flags = flags(&installed, &regions, &["add_sub"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let told = repository.path().with_extension("bindings");
    let mut environment = environment(&installed);
    let told_text = told.display().to_string();
    environment.extend([("LD_DEBUG", "bindings"), ("LD_DEBUG_OUTPUT", told_text.as_str())]);
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("the maps of the server");
    let loaded: Vec<&str> = maps.lines().filter(|line| line.contains("libtritonserver")).collect();
    assert!(!loaded.is_empty() && loaded.iter().all(|line| line.contains("memfd:")), "{loaded:#?}");
    assert!(maps.contains("libtriton_python.so"), "{maps}");
    let path = PathBuf::from(format!("{told_text}.{}", server.pid()));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    server.stop();
    let mut bound = 0;
    for line in text.lines().filter(|line| line.contains("symbol `TRITON")) {
        let (_, what) = line.split_once("binding file ").unwrap_or_default();
        let (from, rest) = what.split_once(" [0] to ").unwrap_or_default();
        let (to, rest) = rest.split_once(" [0]").unwrap_or_default();
        let symbol = rest.split_once('`').and_then(|(_, rest)| rest.split_once('\'')).unwrap_or_default().0;
        // What the server looks up in the library.
        if EXPORTED.contains(&symbol) || !from.ends_with("libtriton_python.so") {
            continue;
        }
        assert!(to.ends_with("/nereid"), "{line}");
        bound += 1;
    }
    assert!(bound > 50, "{bound} functions of the server are bound");
    for entry in fs::read_dir(told.parent().expect("a directory")).expect("the directory").flatten() {
        if entry.file_name().to_string_lossy().starts_with(&*told.file_name().expect("a name").to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
