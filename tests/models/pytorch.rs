//! TorchScript models (contract/frameworks.md section 1), from tests/fixtures/pytorch. These tests need the library of
//! a PyTorch, which is large: they run if NEREID_TEST_LARGE_RUNTIMES is 1, with the PyTorch that the server finds.

mod execution;
mod loading;
mod naming;

use std::path::Path;

use serde_json::{Value, json};

use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;

const LARGE_RUNTIMES: &str = "NEREID_TEST_LARGE_RUNTIMES";

/// Whether the calling test runs; if not, after a note.
fn is_wanted() -> bool {
    let is_wanted = std::env::var(LARGE_RUNTIMES).is_ok_and(|value| value == "1");
    if !is_wanted {
        eprintln!("not run: set {LARGE_RUNTIMES}=1");
    }
    is_wanted
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
