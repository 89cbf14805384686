//! Models of OpenVINO in a whole server (contract/frameworks.md section 3).

mod inference;
mod loading;

use std::fs;

use serde_json::{Value, json};

use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::openvino::OpenVino;
use nereid_test_support::repository::Repository;

/// Two FP32 inputs and outputs: their sum and difference.
const PAIR: &str = "input [ { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ 16 ] },\n\
                    { name: \"INPUT1\" data_type: TYPE_FP32 dims: [ 16 ] } ]\n\
                    output [ { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ 16 ] },\n\
                    { name: \"OUTPUT1\" data_type: TYPE_FP32 dims: [ 16 ] } ]\n";

/// A repository with models of the tests' folder.
struct Models {
    openvino: OpenVino,
    repository: Repository,
}

impl Models {
    /// `None`, after a visible skip, without the packages.
    fn get() -> Option<Models> {
        Some(Models { openvino: OpenVino::get()?, repository: Repository::new() })
    }

    /// A model of `<file>.xml` and its weights; an empty `config`: none at all.
    fn add(&self, name: &str, file: &str, config: &str) -> &Models {
        for (suffix, bytes) in self.openvino.files(file) {
            self.repository.file(&format!("{name}/1/model{suffix}"), bytes);
        }
        self.config(name, config)
    }

    /// A model of a file, or of the file in a directory, of another format.
    fn add_file(&self, name: &str, file: &str, target: &str, config: &str) -> &Models {
        let bytes = fs::read(self.openvino.models().join(file)).expect("a file of the models");
        self.repository.file(&format!("{name}/1/{target}"), bytes);
        self.config(name, config)
    }

    fn config(&self, name: &str, config: &str) -> &Models {
        if !config.is_empty() {
            self.repository.file(&format!("{name}/config.pbtxt"), format!("backend: \"openvino\"\n{config}"));
        }
        self
    }

    fn flags(&self) -> [String; 1] {
        [self.openvino.flag()]
    }
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
}

fn ask(shape: &[usize], values: [&[f32]; 2]) -> String {
    let input =
        |at: usize| json!({ "name": format!("INPUT{at}"), "datatype": "FP32", "shape": shape, "data": values[at] });
    json!({ "inputs": [input(0), input(1)] }).to_string()
}

fn infer(peer: &mut Peer, model: &str, body: &str) -> Answer {
    peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes())
}

/// The values of an output of a JSON response.
fn values(answer: &Answer, output: usize) -> Vec<f64> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let data = answer.json()["outputs"][output]["data"].as_array().cloned().unwrap_or_default();
    data.iter().map(|value| value.as_f64().expect("a number")).collect()
}

/// Sends `rows` rows of numbers and checks sum and difference.
fn must_add(peer: &mut Peer, model: &str, rows: usize) {
    let a: Vec<f32> = (0..rows * 16).map(|at| at as f32).collect();
    let b = vec![0.5f32; rows * 16];
    let answer = infer(peer, model, &ask(&[rows, 16], [&a, &b]));
    let sums: Vec<f64> = a.iter().map(|value| f64::from(*value) + 0.5).collect();
    let differences: Vec<f64> = a.iter().map(|value| f64::from(*value) - 0.5).collect();
    let named = |name: &str| {
        let outputs = answer.json()["outputs"].as_array().cloned().unwrap_or_default();
        outputs.iter().position(|output| output["name"] == name).unwrap_or_else(|| panic!("{}", answer.text()))
    };
    assert_eq!(values(&answer, named("OUTPUT0")), sums, "{model}");
    assert_eq!(values(&answer, named("OUTPUT1")), differences, "{model}");
    assert_eq!(answer.json()["outputs"][0]["shape"], json!([rows, 16]), "{model}");
}

fn statistics(peer: &mut Peer, model: &str) -> Value {
    peer.get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
}
