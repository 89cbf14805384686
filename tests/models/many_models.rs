//! More models than memory (docs/many-models.md): models are loaded when requests come for them, and unloaded when
//! their memory or place is needed, or when they are idle.

mod budgets;
mod loads;
mod scale;
mod waiting;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::json;

use crate::python_backend::models;
use nereid_test_support::grpc::{Grpc, Status};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

pub const ON_DEMAND: &str = "--model-load-on-demand=true";
pub const EXPLICIT: &str = "--model-control-mode=explicit";

/// Adds an identity of INT32.
fn add_identity(repository: &Repository, name: &str) {
    repository.identity(name, 0, &[Pair::new("INT32", "-1")]);
}

/// A busy machine may need longer for a load than a request waits by default.
const PATIENT: &str = "--model-load-wait-secs=600";

/// The flags of these tests, and [`PATIENT`] where no other time is among them.
fn with_these<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    let is_given = flags.iter().any(|flag| flag.starts_with("--model-load-wait-secs="));
    let patient = (!is_given).then_some(PATIENT);
    [EXPLICIT, ON_DEMAND].into_iter().chain(patient).chain(flags.iter().copied()).collect()
}

/// A server with loads on demand in the explicit mode.
fn start(repository: &Repository, flags: &[&str]) -> Server {
    let all = with_these(flags);
    Server::start(usual(), repository.path(), &all)
}

/// Adds a Python identity of INT32 that, when it is loaded, runs these lines of Python first.
fn add_python(repository: &Repository, name: &str, at_load: &str) {
    let lines: String = at_load.lines().map(|line| format!("        {line}\n")).collect();
    let program = format!(
        "import os, time\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    \
         def initialize(self, args):\n        self.name = args['model_name']\n{lines}\n    \
         def execute(self, requests):\n        responses = []\n        for request in requests:\n            \
         data = pb_utils.get_input_tensor_by_name(request, 'INPUT0').as_numpy()\n            \
         responses.append(pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', data)]))\n        return responses\n"
    );
    repository.model(name, &python_config(name));
    repository.file(&format!("{name}/1/model.py"), program);
}

fn python_config(name: &str) -> String {
    format!(
        "name: \"{name}\"\nbackend: \"python\"\n\
         input [ {{ name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }} ]\n\
         output [ {{ name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }} ]\n\
         instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n"
    )
}

/// A server of Python models; none, after a visible skip, where there is no interpreter with numpy.
fn start_python(repository: &Repository, flags: &[&str]) -> Option<Server> {
    let all = with_these(flags);
    models::serve(usual(), repository, &all)
}

/// A file that a model waits for while it is loaded, and a mark that its load has begun.
struct Gate(PathBuf);

impl Gate {
    fn new(repository: &Repository, name: &str) -> Gate {
        let path = repository.path().with_extension(format!("gate-{name}"));
        let _ = std::fs::remove_file(&path);
        Gate(path)
    }

    /// The lines of a model that waits.
    fn lines(&self) -> String {
        format!("while not os.path.exists('{}'):\n    time.sleep(0.01)", self.0.display())
    }

    fn open(&self) {
        std::fs::write(&self.0, "").expect("a file can be written");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn body(value: i32) -> String {
    json!({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [value]}]}).to_string()
}

fn infer(peer: &mut Peer, model: &str, value: i32) -> Answer {
    peer.post(&format!("/v2/models/{model}/infer"), &[], body(value).as_bytes())
}

/// The model must answer with the value.
fn must_infer(peer: &mut Peer, model: &str, value: i32) {
    let answer = infer(peer, model, value);
    assert_eq!(answer.status, 200, "{model}: {}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"], json!([value]), "{model}");
}

fn grpc_request(model: &str, value: i32) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_input_contents: vec![Bytes::copy_from_slice(&value.to_le_bytes())],
        ..Default::default()
    }
}

fn grpc_infer(grpc: &mut Grpc, model: &str, value: i32) -> Result<(), Status> {
    let answer: ModelInferResponse = grpc.call("ModelInfer", &grpc_request(model, value))?;
    assert_eq!(answer.raw_output_contents, [Bytes::copy_from_slice(&value.to_le_bytes())], "{model}");
    Ok(())
}

/// The value of a metric without labels, or with these; 0 where it is not shown.
fn metric(server: &Server, name: &str) -> f64 {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().expect("a number"))
}

/// The rows of the index: name, state, reason.
fn index(peer: &mut Peer) -> Vec<(String, String, String)> {
    let answer = peer.post("/v2/repository/index", &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let rows = answer.json().as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| (text(&row["name"]), text(&row["state"]), text(&row["reason"]))).collect()
}

fn state(peer: &mut Peer, model: &str) -> (String, String) {
    let row = index(peer).into_iter().find(|(name, ..)| name == model);
    row.map(|(_, state, reason)| (state, reason)).unwrap_or_default()
}

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/onnx").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
