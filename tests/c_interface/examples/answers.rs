//! The examples over HTTP: values, errors, statistics, sequences, calls of other models, reloads and refused loads.

use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::{InferParameter, ModelInferResponse};
use serde_json::{Value, json};

use super::built::{backends, models};
use super::servers::{Asked, everywhere, everywhere_in};
use super::streams::{all_of, vectors};
use nereid_test_support::grpc::{Grpc, Status, code};
use nereid_test_support::http::request;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

fn flag(directory: &std::path::Path) -> String {
    format!("--backend-directory={}", directory.display())
}

fn copied(rows: usize, first: i32) -> Value {
    let data: Vec<i32> = (first..).take(rows * 2).collect();
    json!({ "inputs": [{ "name": "INPUT0", "datatype": "INT32", "shape": [rows, 2], "data": data }] })
}

fn with(mut body: Value, parameters: Value) -> Value {
    body["parameters"] = parameters;
    body
}

/// A request of a sequence.
fn step(id: u64, value: i32, at: &str) -> Value {
    let input = json!([{ "name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value] }]);
    let (start, end) = (at.contains("start"), at.contains("end"));
    json!({ "parameters": { "sequence_id": id, "sequence_start": start, "sequence_end": end }, "inputs": input })
}

fn sum(value: i32) -> Value {
    json!({ "OUTPUT": [[1, 1], [value]] })
}

#[test]
fn an_identity_copies_what_is_asked_for() {
    let Some(directory) = backends() else { return };
    everywhere(models().path(), &[&flag(&directory)], |asked| {
        let both = json!({ "inputs": [
            { "name": "INPUT0", "datatype": "INT32", "shape": [2, 3], "data": [1, -2, 3, 4, 5, 6] },
            { "name": "INPUT1", "datatype": "BYTES", "shape": [2, 1], "data": ["", "Wörter"] } ] });
        let first = json!([[2, 3], [1, -2, 3, 4, 5, 6]]);
        let second = json!([[2, 1], ["", "Wörter"]]);
        assert_eq!(asked.infer("copies", &both), json!({ "OUTPUT0": first, "OUTPUT1": second }));
        let mut one = both.clone();
        one["outputs"] = json!([{ "name": "OUTPUT1" }]);
        assert_eq!(asked.infer("copies", &one), json!({ "OUTPUT1": second }));
        let mut empty = both;
        empty["inputs"][0]["shape"] = json!([2, 0]);
        empty["inputs"][0]["data"] = json!([]);
        empty["outputs"] = json!([{ "name": "OUTPUT0" }]);
        assert_eq!(asked.infer("copies", &empty), json!({ "OUTPUT0": [[2, 0], []] }));
        asked.wait_for_counts("copies", |counts| counts == [3, 0, 6, 3]);
        let batches = &asked.statistics("copies")["batch_stats"];
        assert_eq!((&batches[0]["batch_size"], &batches[0]["compute_infer"]["count"]), (&json!(2), &json!(3)));
    });
}

#[test]
fn requests_of_a_batch_are_answered_one_by_one() {
    let Some(directory) = backends() else { return };
    let repository = models();
    let config = r#"backend: "identity" runtime: "libtriton_identity.so" max_batch_size: 8
        input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 2 ] }
        output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 2 ] }
        output { name: "OUTPUT7" data_type: TYPE_INT32 dims: [ 2 ] }
        dynamic_batching { preferred_batch_size: [ 6 ] max_queue_delay_microseconds: 600000000 }"#;
    repository.model("together", config);
    everywhere(repository.path(), &[&flag(&directory)], |asked| {
        // Three requests of two items make the batch that is waited for. The second asks for what has no input.
        let mut peers = Vec::new();
        for number in 0..3 {
            let mut body = copied(2, 10 * number);
            body["outputs"] = json!([{ "name": if number == 1 { "OUTPUT7" } else { "OUTPUT0" } }]);
            let mut peer = asked.peer();
            peer.send(&request("POST", "/v2/models/together/infer", &[], body.to_string().as_bytes()));
            peers.push(peer);
        }
        let answers: Vec<_> = peers.iter_mut().map(|peer| peer.answer()).collect();
        for number in [0, 2] {
            let first = 10 * number as i32;
            let expected = json!([first, first + 1, first + 2, first + 3]);
            assert_eq!(answers[number].json()["outputs"][0]["data"], expected, "{}", answers[number].text());
        }
        let refused = (answers[1].status, answers[1].error());
        let expected = "[request id: <id_unknown>] unknown request input name INPUT7";
        assert!(refused.0 == 400 && expected.ends_with(&refused.1), "{refused:?}");
        // Of the batch count the items that had an answer.
        asked.wait_for_counts("together", |counts| counts == [2, 1, 4, 1]);
        let batches = &asked.statistics("together")["batch_stats"];
        assert_eq!((&batches[0]["batch_size"], &batches[0]["compute_infer"]["count"]), (&json!(4), &json!(1)));
    });
}

#[test]
fn sequences_are_summed_up() {
    let Some(directory) = backends() else { return };
    everywhere(models().path(), &[&flag(&directory)], |asked| {
        for model in ["sums", "sums_of_server"] {
            let mut total = [0, 0];
            // Two sequences take turns.
            for (turn, at) in ["start", "", "", "end"].into_iter().enumerate() {
                for (which, id) in [7u64, 1 << 40].into_iter().enumerate() {
                    let value = (turn as i32 + 1) * if which == 0 { 1 } else { -1000 };
                    total[which] += value;
                    assert_eq!(asked.infer(model, &step(id, value, at)), sum(total[which]), "{model} {id} {at}");
                }
            }
            // A sequence of one request, and the same number again: nothing is left of the one before.
            assert_eq!(asked.infer(model, &step(7, 5, "start end")), sum(5), "{model}");
            assert_eq!(asked.infer(model, &step(7, i32::MAX, "start")), sum(i32::MAX), "{model}");
            assert_eq!(asked.infer(model, &step(7, 1, "end")), sum(i32::MIN), "{model}");
            let refused = asked.infer(model, &step(9, 1, ""));
            let text = refused[1].as_str().unwrap_or_default();
            assert!(text.contains("inference request for sequence 9 to model"), "{model}: {refused}");
            asked.wait_for_counts(model, |[successes, _, items, _]| (successes, items) == (11, 11));
        }
    });
}

#[test]
fn a_caller_answers_what_the_other_model_answers() {
    let Some(directory) = backends() else { return };
    let repository = models();
    everywhere(repository.path(), &[&flag(&directory)], |asked| {
        let call = |model: Value| asked.infer("caller", &with(copied(2, 1), json!({ "model": model })));
        assert_eq!(call(json!("copied")), json!({ "OUTPUT0": [[2, 2], [1, 2, 3, 4]] }));
        let mut failures = 0;
        for (model, status, text) in [
            (json!("nobody"), 404, "Request for unknown model: 'nobody' is not found"),
            (json!(3), 400, "parameter 'model' is INT and must be STRING"),
            (json!("squares"), 400, "unexpected inference output 'OUTPUT0' for model 'squares'"),
        ] {
            let refused = call(model.clone());
            assert!(refused[1].as_str().is_some_and(|found| found.contains(text)), "{model}: {refused}");
            // The official server tells every error of a backend with 400 or 500 as it pleases; ours by its code.
            assert!(refused[0] == status || !asked.is_ours, "{model}: {refused}");
            failures += 1;
        }
        assert_eq!(asked.infer("caller", &copied(1, 1))[1], "the request has no parameter 'model'");
        // Rows beyond what the other model takes.
        let refused = asked.infer("caller", &with(copied(9, 1), json!({ "model": "copied" })));
        let text = "inference request batch-size must be <= 8 for 'copied'";
        assert!(refused[1].as_str().is_some_and(|found| found.contains(text)), "{refused}");
        failures += 2;
        asked.wait_for_counts("caller", |counts| counts == [1, failures, 1, 1]);
        // What was called counts as well.
        asked.wait_for_counts("copied", |[successes, _, items, runs]| (successes, items, runs) == (1, 2, 1));
    });
}

#[test]
fn the_same_is_answered_over_grpc() {
    let Some(directory) = backends() else { return };
    let repository = models();
    let config = r#"backend: "identity" runtime: "libtriton_identity.so"
        input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
        output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }"#;
    repository.model("plain", config).model("calling", &config.replace("identity", "caller"));
    everywhere(repository.path(), &[&flag(&directory)], |asked| {
        let mut grpc = Grpc::connect(asked.server.grpc);
        let values = [7, -8, 9];
        let request = |model: &str| vectors(model, "g", &[("INPUT0", "INT32", &values)]);
        let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let answer: ModelInferResponse = grpc.call("ModelInfer", &request("plain")).expect("an answer");
        assert_eq!((answer.id.as_str(), &answer.raw_output_contents[0][..]), ("g", &expected[..]));
        let mut call = request("calling");
        let target = InferParameter { parameter_choice: Some(ParameterChoice::StringParam("plain".to_owned())) };
        call.parameters.insert("model".to_owned(), target);
        let answer: ModelInferResponse = grpc.call("ModelInfer", &call).expect("an answer");
        assert_eq!((answer.id.as_str(), &answer.raw_output_contents[0][..]), ("g", &expected[..]));
        let refused = grpc.call::<ModelInferResponse>("ModelInfer", &request("calling"));
        let text = "the request has no parameter 'model'".to_owned();
        assert_eq!(refused.expect_err("a refusal"), Status { code: code::INVALID_ARGUMENT, message: text });
    });
}

#[test]
fn examples_give_every_handle_back() {
    let Some(directory) = backends() else { return };
    let environment = [("NEREID_CHECK_HANDLES", "1")];
    let repository = models();
    let server = Server::start_in(usual(), repository.path(), &[&flag(&directory)], "/v2/health/ready", &environment);
    let asked = Asked { server: &server, is_ours: true };
    for (model, parameter) in [("caller", json!({ "model": "copied" })), ("caller", json!({ "model": "nobody" }))] {
        asked.infer(model, &with(copied(2, 1), parameter));
    }
    asked.infer("caller", &copied(2, 1));
    for model in ["sums", "sums_of_server"] {
        assert_eq!(asked.infer(model, &step(3, 1, "start")), sum(1));
        assert_eq!(asked.infer(model, &step(3, 1, "end")), sum(2));
    }
    asked.infer(
        "copies",
        &json!({ "inputs": [
        { "name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1] },
        { "name": "INPUT1", "datatype": "BYTES", "shape": [1, 1], "data": ["a"] } ] }),
    );
    let three = [("IN", "INT32", &[1, 2][..]), ("DELAY", "UINT32", &[0, 0][..]), ("WAIT", "UINT32", &[0][..])];
    for request in [vectors("repeats", "r", &three), vectors("squares", "s", &[("IN", "INT32", &[3])])] {
        assert_eq!(all_of(&asked, &request).last(), Some(&json!("end")));
    }
    let log = server.stop();
    for backend in ["accumulator", "caller", "identity", "repeat", "square"] {
        let told = format!("at the end of backend '{backend}' all handles were given back");
        assert!(log.contains(&told), "{backend}: {log}");
    }
    assert!(log.contains("at the server's end all handles were given back"), "{log}");
}

#[test]
fn many_callers_call_at_the_same_time() {
    let Some(directory) = backends() else { return };
    everywhere(models().path(), &[&flag(&directory)], |asked| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for round in 0..25 {
                        let first = thread * 1000 + round;
                        let body = with(copied(1, first), json!({ "model": "copied" }));
                        assert_eq!(asked.infer("caller", &body), json!({ "OUTPUT0": [[1, 2], [first, first + 1]] }));
                    }
                });
            }
        });
        asked.wait_for_counts("caller", |counts| counts == [100, 0, 100, 100]);
    });
}

#[test]
fn models_of_a_library_are_reloaded() {
    let Some(directory) = backends() else { return };
    let flags = [&flag(&directory), "--model-control-mode=explicit", "--load-model=copied", "--load-model=caller"];
    everywhere(models().path(), &flags, |asked| {
        for round in 0..5 {
            for name in ["copied", "caller"] {
                let answer = asked.peer().post(&format!("/v2/repository/models/{name}/load"), &[], b"");
                assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            }
            let body = with(copied(1, round), json!({ "model": "copied" }));
            assert_eq!(asked.infer("caller", &body), json!({ "OUTPUT0": [[1, 2], [round, round + 1]] }));
        }
        let answer = asked.peer().post("/v2/repository/models/copied/unload", &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        wait_until_gone(asked, "copied");
        let refused = asked.infer("caller", &with(copied(1, 1), json!({ "model": "copied" })));
        assert!(refused[1].as_str().is_some_and(|text| text.contains("'copied'")), "{refused}");
    });
}

fn wait_until_gone(asked: &Asked<'_>, model: &str) {
    let started = std::time::Instant::now();
    while asked.peer().get(&format!("/v2/models/{model}/ready")).status == 200 {
        assert!(started.elapsed() < nereid_test_support::server::PATIENCE, "{model} stays");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_model_that_an_example_cannot_serve_is_not_loaded() {
    let Some(directory) = backends() else { return };
    let repository = models();
    let tensors = |names: [&str; 2]| {
        format!(
            "input {{ name: \"{}\" data_type: TYPE_INT32 dims: [ 1 ] }}
             output {{ name: \"{}\" data_type: TYPE_INT32 dims: [ 1 ] }}",
            names[0], names[1]
        )
    };
    let named = |backend: &str| format!("backend: \"{backend}\" runtime: \"libtriton_{backend}.so\"");
    let decoupled = "model_transaction_policy { decoupled: true }";
    let cases = [
        (
            "without_sequences",
            format!("{} {}", named("accumulator"), tensors(["INPUT", "OUTPUT"])),
            "model 'without_sequences' must be configured with sequence_batching",
        ),
        (
            "coupled",
            format!("{} {}", named("square"), tensors(["IN", "OUT"])),
            "square backend needs model_transaction_policy { decoupled: true }",
        ),
        (
            "batches",
            format!("{} {} {decoupled} max_batch_size: 4", named("square"), tensors(["IN", "OUT"])),
            "square backend only supports models with max_batch_size == 0",
        ),
        (
            "misnamed",
            format!("{} {} {decoupled}", named("square"), tensors(["X", "OUT"])),
            "expected input IN of TYPE_INT32 and dims [1], got ",
        ),
        ("too_few", format!("{} {} {decoupled}", named("repeat"), tensors(["IN", "OUT"])), "expected 3 inputs, got 1"),
    ];
    for (name, config, _) in &cases {
        repository.model(name, config);
    }
    let flags = [&flag(&directory), "--exit-on-error=false"];
    everywhere_in(&[], repository.path(), &flags, "/v2/health/live", |asked| {
        let index = asked.peer().post("/v2/repository/index", &[], b"").json();
        for (name, _, text) in &cases {
            let row = index.as_array().into_iter().flatten().find(|row| row["name"] == *name);
            let row = row.unwrap_or_else(|| panic!("no {name} in {index}"));
            let reason = row["reason"].as_str().unwrap_or_default();
            assert!(reason.starts_with(&format!("Invalid argument: {text}")), "{name}: {row}");
            assert_eq!(row["state"], "UNAVAILABLE", "{name}");
        }
        // The others of the same libraries serve.
        assert_eq!(asked.infer("sums", &step(1, 4, "start end")), sum(4));
    });
}
