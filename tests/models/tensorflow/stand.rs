//! A repository of TensorFlow models, a server on it, and its clients.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use nereid_test_support::grpc::{Grpc, Status};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::large_runtimes::{is_large_runtime_wanted, tensorflow};
use nereid_test_support::paths;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

pub const EXPLICIT: &str = "--model-control-mode=explicit";

/// Models to be served.
pub struct Models {
    pub repository: Repository,
    library: PathBuf,
}

impl Models {
    /// `None`, after a note, if tests of large runtimes are not wanted.
    pub fn new() -> Option<Models> {
        if !is_large_runtime_wanted("tensorflow") {
            return None;
        }
        Some(Models { repository: Repository::new(), library: tensorflow()? })
    }

    /// Copies a fixture to `<name>/1/model.<extension>`. Empty `config`: there is none.
    pub fn add(&self, name: &str, fixture: &str, config: &str) -> &Models {
        let (_, extension) = fixture.split_once('.').expect("an extension");
        let source = paths::root().join("tests/fixtures/tensorflow").join(fixture);
        copy(&source, &format!("{name}/1/model.{extension}"), &self.repository);
        if !config.is_empty() {
            self.repository.file(&format!("{name}/config.pbtxt"), config);
        }
        self
    }

    pub fn serve(self, flags: &[&str]) -> Stand {
        self.serve_in(flags, &[])
    }

    /// The same with environment variables.
    pub fn serve_in(self, flags: &[&str], environment: &[(&str, &str)]) -> Stand {
        let library = format!("--backend-config=tensorflow,library={}", self.library.display());
        let flags: Vec<&str> = flags.iter().copied().chain([library.as_str()]).collect();
        let path = self.repository.path();
        let server = Server::start_in(usual(), path, &flags, "/v2/health/live", environment);
        let (http, grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
        Stand { _repository: self.repository, server, http, grpc }
    }
}

fn copy(from: &Path, to: &str, repository: &Repository) {
    if from.is_file() {
        repository.file(to, fs::read(from).expect("a fixture"));
        return;
    }
    for entry in fs::read_dir(from).expect("a fixture") {
        let entry = entry.expect("an entry of a fixture");
        copy(&entry.path(), &format!("{to}/{}", entry.file_name().to_string_lossy()), repository);
    }
}

pub struct Stand {
    /// Removed when it is dropped.
    _repository: Repository,
    pub server: Server,
    pub http: Peer,
    pub grpc: Grpc,
}

impl Stand {
    pub fn load(&mut self, model: &str) -> Answer {
        self.http.post(&format!("/v2/repository/models/{model}/load"), &[], b"")
    }

    pub fn must_load(&mut self, model: &str) {
        let answer = self.load(model);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "load {model}");
    }

    pub fn must_unload(&mut self, model: &str) {
        let answer = self.http.post(&format!("/v2/repository/models/{model}/unload"), &[], b"");
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "unload {model}");
    }

    /// Waits until the index has this state for the model.
    pub fn wait_for_state(&mut self, model: &str, state: &str) {
        let http = &mut self.http;
        self.server.wait_until(state, || {
            let index = http.post("/v2/repository/index", &[], b"").json();
            let rows = index.as_array().expect("an index");
            rows.iter().any(|row| row["name"] == model && row["state"] == state)
        });
    }

    pub fn config(&mut self, model: &str) -> Value {
        self.http.get(&format!("/v2/models/{model}/config")).json()
    }

    /// Infers over HTTP with JSON.
    pub fn infer(&mut self, model: &str, inputs: Value, outputs: &[&str]) -> Answer {
        let outputs: Vec<Value> = outputs.iter().map(|name| json!({ "name": name })).collect();
        let body = json!({ "inputs": inputs, "outputs": outputs }).to_string();
        self.http.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes())
    }

    /// Infers over gRPC with raw tensors.
    pub fn call(
        &mut self,
        model: &str,
        inputs: &[(&str, &str, &[i64], Vec<u8>)],
        outputs: &[&str],
    ) -> Result<ModelInferResponse, Status> {
        let tensor = |(name, datatype, shape, _): &(&str, &str, &[i64], Vec<u8>)| InferInputTensor {
            name: (*name).to_owned(),
            datatype: (*datatype).to_owned(),
            shape: shape.to_vec(),
            ..Default::default()
        };
        let output = |name: &&str| InferRequestedOutputTensor { name: (*name).to_owned(), ..Default::default() };
        let request = ModelInferRequest {
            model_name: model.to_owned(),
            inputs: inputs.iter().map(tensor).collect(),
            outputs: outputs.iter().map(output).collect(),
            raw_input_contents: inputs.iter().map(|(.., data)| Bytes::copy_from_slice(data)).collect(),
            ..Default::default()
        };
        self.grpc.call("ModelInfer", &request)
    }
}

pub fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// BYTES as they are on the wire.
pub fn strings(elements: &[&[u8]]) -> Vec<u8> {
    let one = |element: &&[u8]| {
        let len = u32::try_from(element.len()).expect("a short string");
        [&len.to_le_bytes()[..], element].concat()
    };
    elements.iter().flat_map(one).collect()
}

/// Name, shape and data of each output of a JSON answer.
pub fn outputs(answer: &Answer) -> Vec<(String, Value, Value)> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    let outputs = body["outputs"].as_array().expect("outputs");
    let one = |output: &Value| {
        (output["name"].as_str().expect("a name").to_owned(), output["shape"].clone(), output["data"].clone())
    };
    outputs.iter().map(one).collect()
}
