//! ONNX models as clients see them (contract/backends.md section 4): their files, their types, libraries of operators,
//! and settings. The models are those of tests/fixtures/onnx, and one that scikit-learn exports.

mod composites;
mod faults;
mod files;
mod settings;
mod sklearn;
mod types;
mod versions;

use nereid_test_support::http::Peer;
use nereid_test_support::paths;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;
use serde_json::{Value, json};

/// The bytes of a file of tests/fixtures/onnx.
fn fixture(name: &str) -> Vec<u8> {
    let path = paths::root().join("tests/fixtures/onnx").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Puts `<name>/1/model.onnx` there, with the bytes of the fixture `<fixture>.onnx`.
fn put(repository: &Repository, name: &str, file: &str) {
    repository.file(&format!("{name}/1/model.onnx"), fixture(&format!("{file}.onnx")));
}

/// A server with the ONNX Runtime of the tests; `None` after a visible skip.
fn start(repository: &Repository, flags: &[&str]) -> Option<Server> {
    start_probing(repository, flags, "/v2/health/ready")
}

/// The same, ready when `probe` answers 200.
fn start_probing(repository: &Repository, flags: &[&str], probe: &str) -> Option<Server> {
    let library = Python::get()?.onnxruntime_flag();
    let flags: Vec<&str> = flags.iter().copied().chain([library.as_str()]).collect();
    Some(Server::start_with(usual(), repository.path(), &flags, probe))
}

fn fp32(name: &str, shape: &[i64], data: &[f32]) -> Value {
    json!({"name": name, "datatype": "FP32", "shape": shape, "data": data})
}

/// The outputs of an inference over HTTP, by their names.
fn infer(peer: &mut Peer, model: &str, inputs: &Value, outputs: &[&str]) -> Value {
    let mut body = json!({"inputs": inputs});
    if !outputs.is_empty() {
        body["outputs"] = outputs.iter().map(|name| json!({"name": name})).collect();
    }
    let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let outputs = json["outputs"].as_array().cloned().unwrap_or_default();
    outputs.into_iter().map(|output| (output["name"].as_str().unwrap_or_default().to_owned(), output)).collect()
}

/// The error of an inference that fails.
fn refusal(peer: &mut Peer, model: &str, inputs: &Value, outputs: &[&str]) -> String {
    let outputs: Vec<Value> = outputs.iter().map(|name| json!({"name": name})).collect();
    let body = json!({"inputs": inputs, "outputs": outputs});
    let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.to_string().as_bytes());
    assert_ne!(answer.status, 200, "{}", answer.text());
    answer.error()
}
