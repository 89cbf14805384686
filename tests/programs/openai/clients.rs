//! OpenAI's own clients, unchanged: Python's in its present version and the one that Triton's tests use, and Node's.

use std::process::Command;

use serde_json::json;

use super::frontend::{Frontend, TEMPLATE, Tokenizer, add, has_run, repository, vllm_backend};
use crate::foreign::node;
use nereid_test_support::prepared::{source, step};
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::{ALL, each, usual};

const KEY: &str = "a-key-of-clients";

/// The models of tests/python/openai_client.py: two that call a tool by themselves, and one of embeddings.
fn models() -> Repository {
    let repository = repository(&[]);
    let calls = "parameters { key: \"TOOL_FORM\" value { string_value: \"hermes\" } }\n";
    repository.model("llm", &format!("backend: \"vllm\"\n{calls}"));
    add(&repository, "openai_mock_trtllm", "trt");
    add(&repository, "openai_embedding_mock", "embed");
    let config = std::fs::read_to_string(repository.path().join("trt/config.pbtxt")).expect("a configuration");
    repository.file("trt/config.pbtxt", config + calls);
    repository
}

#[test]
fn the_client_of_python() {
    let (Some(present), Some(older)) = (Python::with("openai.txt"), Python::with("openai_1.txt")) else { return };
    each(&ALL, |variant| {
        let (backends, directory) = vllm_backend();
        let (repository, tokenizer) = (models(), Tokenizer::new());
        let key = format!("--openai-api-key={KEY}");
        let flags = [directory.as_str(), &tokenizer.flag(), &key, "--tool-call-parser=hermes"];
        let Some(frontend) = Frontend::start_as(variant, &repository, &flags) else { return };
        let url = frontend.address.to_string();
        print!("{}", present.run("openai_client.py", &["--url", &url, "--key", KEY]));
        if variant == usual() {
            print!("{}", older.run("openai_client.py", &["--url", &url, "--key", KEY]));
        }
        frontend.stop();
        drop(backends);
    });
}

#[test]
fn the_client_of_node() {
    if has_run() {
        return;
    }
    let Some(modules) = node::modules() else { return };
    let (backends, directory) = vllm_backend();
    let (repository, tokenizer) = (models(), Tokenizer::new());
    let key = format!("--openai-api-key={KEY}");
    let flags = [directory.as_str(), &tokenizer.flag(), &key, "--tool-call-parser=hermes"];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    let mut client = Command::new("node");
    client.arg(source("tests/node/openai.mjs")).arg("--modules").arg(modules);
    client.args(["--url", &frontend.address.to_string(), "--key", KEY]);
    let said = step(&mut client).unwrap_or_else(|error| panic!("OpenAI's client for Node: {error}"));
    assert_eq!(said.trim(), "ok");
    frontend.stop();
    drop(backends);
}

#[test]
fn tokens_are_those_of_the_original_tokenizer() {
    if has_run() {
        return;
    }
    let Some(python) = Python::with("openai.txt") else { return };
    let configuration =
        json!({"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 4096});
    let (repository, tokenizer) = (repository(&["openai_mock"]), Tokenizer::with(&configuration));
    let folder = tokenizer.path().display().to_string();
    python.run("openai_tokens.py", &["train", &folder]);
    let Some(frontend) = Frontend::start(&repository, &[&tokenizer.flag()]) else { return };
    let said = python.run("openai_tokens.py", &["check", &folder, &frontend.address.to_string()]);
    assert_eq!(said.trim(), "ok");
    frontend.stop();
}
