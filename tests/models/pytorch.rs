//! TorchScript models (contract/frameworks.md section 1), from tests/fixtures/pytorch. These tests need the library of
//! a PyTorch, which is large: they run if NEREID_TEST_LARGE_RUNTIMES is 1 or pytorch.

mod execution;
mod loading;
mod naming;

use std::path::Path;

use serde_json::{Value, json};

use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::large_runtimes::{self, is_large_runtime_wanted};
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;

/// The flag that names the library; `None`, after a note, if the calling test does not run.
fn library_flag() -> Option<String> {
    if !is_large_runtime_wanted("pytorch") {
        return None;
    }
    Some(format!("--backend-config=pytorch,library={}", large_runtimes::pytorch()?.display()))
}

#[test]
#[ignore = ".ci/run calls it, and leaves out the other tests of PyTorch if it fails"]
fn its_package_is_installed() {
    assert!(Python::with("torch.txt").is_some());
}

/// The bytes of a TorchScript file.
fn fixture(file: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch").join(format!("{file}.pt"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Adds model `name` with the file `<file>.pt` of the fixtures.
fn add(repository: &Repository, name: &str, file: &str, config: &str) {
    let config = format!("name: \"{name}\" platform: \"pytorch_libtorch\" {config}");
    repository.model(name, &config).file(&format!("{name}/1/model.pt"), fixture(file));
}

/// An input or output of a configuration.
fn tensor(what: &str, name: &str, data_type: &str, dims: &str) -> String {
    format!("{what} {{ name: \"{name}\" data_type: {data_type} dims: [ {dims} ] }} ")
}

fn infer(server: &Server, model: &str, inputs: Value) -> Answer {
    let body = json!({ "inputs": inputs }).to_string();
    Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes())
}

/// The data of an output.
fn data(answer: &Answer, name: &str) -> Value {
    let json = answer.json();
    let outputs = json["outputs"].as_array().unwrap_or_else(|| panic!("no outputs: {json}"));
    let output = outputs.iter().find(|output| output["name"] == name);
    output.unwrap_or_else(|| panic!("no {name}: {json}"))["data"].clone()
}
