//! Names of LoRA adapters behind those of models (contract/openai.md sections 3.1 and 3.6).

use serde_json::{Value, json};

use super::frontend::{COMPLETIONS, Frontend, add, completion, has_run, vllm_backend, with};
use nereid_test_support::repository::Repository;

const TRITON: &str = "--openai-compat=triton";

fn listed(frontend: &Frontend) -> Vec<String> {
    let list = frontend.get("/v1/models").json();
    let mut ids: Vec<String> = list["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["id"].as_str().unwrap_or("").to_owned())
        .collect();
    ids.sort();
    ids
}

/// A vllm model with two adapters, one without the switch, and one whose files cannot be read.
fn vllm_models() -> Repository {
    let repository = Repository::new();
    for model in ["llm", "off", "broken"] {
        repository.model(model, "backend: \"vllm\"");
    }
    repository.file("llm/1/model.json", r#"{"model": "x", "enable_lora": "true"}"#);
    repository.file("llm/1/multi_lora.json", r#"{"doll": "/x/doll", "cat": "/x/cat"}"#);
    repository.file("off/1/model.json", r#"{"model": "x", "enable_lora": false}"#);
    repository
}

#[test]
fn adapters_of_vllm_are_listed_named_and_refused() {
    if has_run() {
        return;
    }
    let (backends, directory) = vllm_backend();
    let repository = vllm_models();
    let flags = [directory.as_str(), TRITON, "--lora-separator=-lora-"];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    let known = listed(&frontend);
    assert_eq!(known, ["broken", "llm", "llm-lora-cat", "llm-lora-doll", "off"]);
    assert_eq!(frontend.get("/v1/models/llm-lora-cat").status, 200);
    assert_eq!(frontend.get("/v1/models/llm-lora-sheep").status, 404);

    let sampling = |model: &str| -> Value {
        let answer = frontend.asked(COMPLETIONS, &completion(model, "<<inputs>>"));
        assert_eq!(answer["model"], model, "the name as it was given");
        let said: Value = serde_json::from_str(answer["choices"][0]["text"].as_str().expect("a text")).expect("JSON");
        let text = said["inputs"]["sampling_parameters"]["data"][0].as_str().expect("a text").to_owned();
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(sampling("llm")["lora_name"], Value::Null);
    assert_eq!(sampling("llm-lora-doll")["lora_name"], "doll");
    for (model, lora) in [("llm", "sheep"), ("off", "doll")] {
        let name = format!("{model}-lora-{lora}");
        let text = format!("Unknown LoRA: {lora}; for model: {name}");
        assert_eq!(frontend.refused(400, COMPLETIONS, &completion(&name, "x")), text.as_str());
    }
    // A list that cannot be read lets every name through.
    assert_eq!(frontend.asked(COMPLETIONS, &completion("broken-lora-any", "<<reply x>>"))["choices"][0]["text"], "x");
    // Two separators are no adapter's.
    let name = "llm-lora-cat-lora-doll";
    let text = format!("Unknown model: {name}");
    assert_eq!(frontend.refused(400, COMPLETIONS, &completion(name, "x")), text.as_str());
    drop(backends);
    frontend.stop();
}

#[test]
fn without_a_separator_there_are_no_adapters() {
    if has_run() {
        return;
    }
    let (backends, directory) = vllm_backend();
    let repository = vllm_models();
    let Some(frontend) = Frontend::start(&repository, &[&directory, TRITON]) else { return };
    assert_eq!(listed(&frontend), ["broken", "llm", "off"]);
    let answer = frontend.post(COMPLETIONS, &completion("llm-lora-doll", "x"));
    assert_eq!((answer.status, answer.text().as_str()), (400, "{\"detail\":\"Unknown model: llm-lora-doll\"}"));
    drop(backends);
    frontend.stop();
}

/// The head and the data of a `.npy` file of version 1.0.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut head = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (head.len() + 11) % 64 != 0 {
        head.push(' ');
    }
    head.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&(head.len() as u16).to_le_bytes());
    file.extend_from_slice(head.as_bytes());
    file.extend_from_slice(data);
    file
}

#[test]
fn weights_of_adapters_go_to_tensorrt_llm_once() {
    if has_run() {
        return;
    }
    let repository = Repository::new();
    add(&repository, "openai_mock_trtllm", "llm");
    repository.file("llm/1/multi_lora.json", r#"{"doll": "llm/loras/doll", "cat": "llm/loras/cat"}"#);
    for name in ["doll", "cat"] {
        // Half floats 1 and 2, and a row of three integers; both with a batch dimension.
        let weights = npy("<f2", "(1, 1, 2)", &[0x00, 0x3c, 0x00, 0x40]);
        repository.file(&format!("llm/loras/{name}/model.lora_weights.npy"), weights);
        let numbers: Vec<u8> = [7i32, 8, 9].iter().flat_map(|number| number.to_le_bytes()).collect();
        repository.file(&format!("llm/loras/{name}/model.lora_config.npy"), npy("<i4", "(1, 1, 3)", &numbers));
    }
    let Some(frontend) = Frontend::start(&repository, &["--lora-separator=+"]) else { return };
    let inputs = |model: &str, more: Value| -> Value {
        let answer = frontend.asked(COMPLETIONS, &with(&completion(model, "<<inputs>>"), more));
        let text = answer["choices"][0]["text"].as_str().expect("a text");
        serde_json::from_str::<Value>(text).expect("JSON")["inputs"].clone()
    };
    assert_eq!(inputs("llm", json!({}))["lora_task_id"], Value::Null);
    let first = inputs("llm+doll", json!({}));
    assert_eq!(first["lora_task_id"]["data"], json!([1]));
    assert_eq!(first["lora_weights"], json!({"shape": [1, 1, 2], "data": [1.0, 2.0]}));
    assert_eq!(first["lora_config"], json!({"shape": [1, 1, 3], "data": [7, 8, 9]}));
    let again = inputs("llm+doll", json!({}));
    assert_eq!((&again["lora_task_id"]["data"], &again["lora_weights"]), (&json!([1]), &Value::Null));
    // Not known before a request has succeeded.
    let failing = frontend.post(COMPLETIONS, &completion("llm+cat", "<<fail 1>>"));
    assert_eq!(failing.status, 500, "{}", failing.text());
    let second = inputs("llm+cat", json!({}));
    assert_eq!((&second["lora_task_id"]["data"], second["lora_weights"].is_object()), (&json!([2]), true));
    frontend.stop();
}
