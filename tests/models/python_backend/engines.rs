//! Models that drive an engine of their own, as programs for language models and saved functions do: an event loop in a
//! thread, responses after `execute` from other threads, and metrics (contract/frameworks.md section 7). The engines
//! are small ones of these tests, with the same interface; the last test runs MLflow itself.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::models;
use nereid_test_support::http::Peer;
use nereid_test_support::large_runtimes::is_large_runtime_wanted;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{ALL, each, usual};

#[test]
fn engines_stream_cancel_fail_and_end_as_their_clients_ask() {
    each(&ALL, |variant| {
        let repository = models::repository(&["llm_engine", "llm_api", "llm_pipeline", "llm_text", "frames"]);
        // The same script answers once, as the file beside it says.
        models::add(&repository, "llm_api", "llm_single");
        let settings = fs::read_to_string(repository.path().join("llm_single/1/model.json")).expect("the settings");
        let single = settings.replace("\"decoupled\": true", "\"decoupled\": false");
        assert_ne!(settings, single);
        repository.file("llm_single/1/model.json", single);
        let flags = ["--model-control-mode=explicit", "--load-model=*"];
        let Some(python) = Python::get() else { return };
        let Some(server) = models::serve(variant, &repository, &flags) else { return };
        let addresses = [server.http, server.grpc, server.metrics].map(|address| address.to_string());
        python.run("model_engines.py", &addresses.each_ref().map(String::as_str));
        // The pipeline's client has left, the pipeline has cancelled its call, and the engine has seen that.
        server.wait_for_log("llm_api: cancelled a request");
        let log = server.stop();
        assert_eq!(log.matches("llm_engine: finalized with 0 requests under way").count(), 3, "{log}");
        // Both models of that script end their engine's process, and their workers run exit functions.
        for line in ["llm_api: the engine's process ended with -15", "llm_api: at exit"] {
            assert_eq!(log.matches(line).count(), 2, "{line}\n{log}");
        }
        assert!(!log.contains("a response cannot be sent") && !log.contains("Exit timeout expired"), "{log}");
    });
}

fn generate(server: &Server, model: &str, body: &Value) -> (u16, Value) {
    let path = format!("/v2/models/{model}/generate");
    let answer = Peer::connect(server.http).post(&path, &[], body.to_string().as_bytes());
    (answer.status, answer.json())
}

#[test]
fn an_engine_is_a_backend_of_several_models_and_one_that_does_not_start_fails_its_load() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_models/llm_engine/1");
    let backends = Repository::new();
    for file in ["model.py", "fake_engine.py"] {
        backends.file(&format!("engine/{file}"), fs::read(from.join(file)).expect("a script"));
    }
    let repository = Repository::new();
    let group = |count: u32| format!("instance_group [ {{ kind: KIND_MODEL count: {count} }} ]");
    for (model, count, settings) in [
        ("one", 1, r#"{"step_s": 0.001, "loras": ["mine"]}"#),
        ("two", 2, r#"{"step_s": 0.001, "loras": []}"#),
        ("broken", 1, r#"{"loras": []}"#),
    ] {
        let metrics = r#"parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "yes" } }"#;
        repository.model(model, &format!("backend: \"engine\" {} {metrics}", group(count)));
        repository.file(&format!("{model}/1/model.json"), settings);
    }
    let directory = format!("--backend-directory={}", backends.path().display());
    let flags = [directory.as_str(), "--model-control-mode=explicit", "--load-model=one", "--load-model=two"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let asked = |model: &str, lora: Option<&str>| {
        let parameters = json!({"max_tokens": 2, "lora_name": lora});
        let parameters = if lora.is_some() { parameters } else { json!({"max_tokens": 2}) };
        generate(&server, model, &json!({"text_input": "a b", "parameters": parameters}))
    };
    let (status, said) = asked("one", Some("mine"));
    assert_eq!((status, &said["text_output"]), (200, &json!("mine:a.0 mine:b.1")), "{said}");
    let (status, said) = asked("two", Some("mine"));
    assert_eq!(status, 400, "{said}");
    assert_eq!(said["error"], "LoRA mine is not supported, we currently support []");
    for _ in 0..4 {
        let (status, said) = asked("two", None);
        assert_eq!((status, &said["text_output"]), (200, &json!("a.0 b.1")), "{said}");
    }
    // The instances share their samples; each model has its own.
    let page = || Peer::connect(server.metrics).get("/metrics").text();
    for (model, count) in [("one", 1), ("two", 4)] {
        let line = format!("engine:tokens_of_request_count{{model=\"{model}\",version=\"1\"}} {count}");
        server.wait_until(&line, || page().lines().any(|one| one == line));
    }
    let load = Peer::connect(server.http).post("/v2/repository/models/broken/load", &[], b"{}");
    assert_eq!(load.status, 400, "{}", load.text());
    assert!(load.text().contains("KeyError: 'step_s'"), "{}", load.text());
    server.wait_until("its process is gone", || models::workers(&server, "broken").is_empty());
    server.stop();
}

#[test]
fn a_function_that_mlflow_saved_answers() {
    if !is_large_runtime_wanted("mlflow") {
        return;
    }
    let Some(python) = Python::with("mlflow.txt") else { return };
    let repository = models::repository(&["mlflow_function"]);
    let function = repository.path().join("mlflow_function/1/function");
    python.run("mlflow_function.py", &[&function.to_string_lossy()]);
    let interpreter = format!("--backend-config=python,interpreter={}", python.interpreter().display());
    let Some(server) = models::serve(usual(), &repository, &[&interpreter]) else { return };
    let ask = |inputs: Value| {
        let body = json!({ "inputs": inputs }).to_string();
        let answer = Peer::connect(server.http).post("/v2/models/mlflow_function/infer", &[], body.as_bytes());
        (answer.status, answer.json())
    };
    let column = |name: &str, datatype: &str, data: Value| json!({"name": name, "datatype": datatype, "shape": [2, 1], "data": data});
    let names = column("name", "BYTES", json!(["Ada", "Emmy Noether"]));
    let ages = column("age", "INT64", json!([36, 53]));
    let scores = column("score", "FP64", json!([1.5, 2.25]));
    for (inputs, labels) in [
        (json!([&names, &ages]), json!(["Ada is 36", "Emmy Noether is 53"])),
        (json!([&names, &ages, &scores]), json!(["Ada is 36 (1.5)", "Emmy Noether is 53 (2.25)"])),
    ] {
        let (status, said) = ask(inputs);
        assert_eq!(status, 200, "{said}");
        let data = |output: usize| (said["outputs"][output]["name"].clone(), said["outputs"][output]["data"].clone());
        assert_eq!(data(0), (json!("label"), labels));
        assert_eq!(data(1), (json!("length"), json!([3, 12])));
    }
    let (status, said) = ask(json!([&names, column("age", "INT64", json!([1, -1]))]));
    assert_eq!((status, &said["error"]), (500, &json!("an age is negative")));
    server.stop();
}
