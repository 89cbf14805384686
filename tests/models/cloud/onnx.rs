//! An ONNX model in a bucket, with the files beside it.

use std::path::Path;

use super::stands::{Mount, Stands};
use nereid_test_support::http::Peer;
use nereid_test_support::paths;
use nereid_test_support::python::Python;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;
use serde_json::json;

#[test]
fn a_model_in_a_bucket_has_its_weights_beside_it() {
    let (Some(mut stands), Some(python)) = (Stands::start(), Python::get()) else { return };
    let fixtures = paths::root().join("tests/fixtures/onnx");
    for (key, file) in [("graph.onnx", "external.onnx"), ("external.weights", "external.weights")] {
        let content = std::fs::read(fixtures.join(file)).expect("a fixture");
        stands.put(&format!("repo/external/1/{key}"), &content);
    }
    stands.put("repo/external/config.pbtxt", b"backend: \"onnxruntime\" default_model_filename: \"graph.onnx\"");
    let mount = Mount::new();
    let location = stands.s3_location("models/repo");
    let keys = stands.s3_keys();
    let mut environment: Vec<(&str, &str)> = keys.iter().map(|(name, value)| (*name, value.as_str())).collect();
    environment.push(("TRITON_AWS_MOUNT_DIRECTORY", mount.text()));
    let flags = [python.onnxruntime_flag()];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_in(usual(), Path::new(&location), &flags, "/v2/health/ready", &environment);
    let body = json!({"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let answer = Peer::connect(server.http).post("/v2/models/external/infer", &[], body.to_string().as_bytes());
    assert_eq!(answer.json()["outputs"][0]["data"], json!([101.0, 202.0, 303.0, 404.0]), "{}", answer.text());
    server.stop();
}
