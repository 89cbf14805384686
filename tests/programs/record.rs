//! Recording of requests (docs/record-and-replay.md) and `nereid replay`, as an operator uses them.

mod recording;
mod replaying;

use std::path::{Path, PathBuf};

use nereid_recording::{Reader, Record};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, run_to_end};
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};

const JSON: &str = r#"{"id":"7","parameters":{"customer":"eve"},
    "inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2],"data":[0.5,7]}]}"#;
const INFER: &str = "/v2/models/m/infer";

/// An identity model of numbers.
fn identity() -> Repository {
    let repository = Repository::new();
    repository.identity("m", 0, &[Pair::new("FP32", "-1")]);
    repository
}

fn file(repository: &Repository) -> PathBuf {
    repository.path().join("recording")
}

pub fn flag(file: &Path) -> String {
    format!("--record={}", file.display())
}

/// A request with a binary tensor.
fn binary() -> Vec<u8> {
    let json = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}],
        "outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}"#;
    let tail = 2.5f32.to_le_bytes();
    let length = json.len().to_string();
    let headers = [("Inference-Header-Content-Length", &*length), ("Authorization", "Bearer of-eve"), ("X-Plain", "p")];
    request("POST", INFER, &headers, &[json.as_bytes(), &tail].concat())
}

fn message() -> ModelInferRequest {
    ModelInferRequest {
        model_name: "m".to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![3],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![
            [1f32, 2.0, 3.0].iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>().into(),
        ],
        ..ModelInferRequest::default()
    }
}

/// One request in each form, and one that fails.
fn traffic(server: &Server) {
    let mut peer = Peer::connect(server.http);
    let answer = peer.post(INFER, &[("Cookie", "of-eve")], JSON.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(peer.send(&binary()).answer().status, 200);
    assert_eq!(peer.post("/v2/models/absent/infer", &[], JSON.as_bytes()).status, 404);
    let mut grpc = Grpc::connect(server.grpc);
    let answer: ModelInferResponse = grpc.call("ModelInfer", &message()).expect("an answer");
    assert_eq!(answer.outputs[0].shape, [3]);
}

/// Waits until so many requests have that outcome.
pub fn wait_for(server: &Server, outcome: &str, count: u64) {
    let sample = format!("nereid_recorded_requests_total{{outcome=\"{outcome}\"}} {count}\n");
    server.wait_until(&sample, || Peer::connect(server.metrics).get("/metrics").text().contains(&sample));
}

pub fn records(file: &Path) -> Vec<Record> {
    let mut reader = Reader::open(file).expect("a recording");
    std::iter::from_fn(|| reader.next_record().expect("a record")).collect()
}

/// Replays to that server: the exit code, and the report as JSON or the text of the error.
fn replay(file: &Path, server: &Server, more: &[&str]) -> (Option<i32>, serde_json::Value, String) {
    let file = file.display().to_string();
    let (url, grpc) = (format!("--url={}", server.http), format!("--grpc-url={}", server.grpc));
    let arguments = [&["replay", &*file, &*url, &*grpc, "--format=json"][..], more].concat();
    let (status, out, errors) = run_to_end(&arguments);
    (status.code(), serde_json::from_str(&out).unwrap_or_default(), errors)
}
