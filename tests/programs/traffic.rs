//! Traffic rules (docs/traffic.md) from outside: which version answers, what the API changes, and what shadow versions
//! and failing canaries do to clients.

mod changes;
mod choice;
mod client;
mod rollback;
mod shadow;

use serde_json::Value;

use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;

const BODY: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;

/// `parameters` of a configuration.
fn parameters(rule: &[(&str, &str)]) -> String {
    let one = |(key, value): &(&str, &str)| {
        format!("parameters {{ key: \"nereid.traffic.{key}\" value {{ string_value: \"{value}\" }} }}\n")
    };
    rule.iter().map(one).collect::<String>() + "version_policy { all {} }\n"
}

/// An identity model with three versions.
fn identity(repository: &Repository, name: &str, rule: &[(&str, &str)]) {
    repository.identity_of("identity", name, 0, &[Pair::new("INT32", "-1")], &parameters(rule));
    repository.version(name, "2").version(name, "3");
}

/// Sends a request to the path and returns the version that answered.
fn version(peer: &mut Peer, path: &str, headers: &[(&str, &str)]) -> i64 {
    let answer = peer.post(path, headers, BODY.as_bytes());
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    version_of(&answer)
}

fn version_of(answer: &Answer) -> i64 {
    answer.json()["model_version"].as_str().and_then(|version| version.parse().ok()).expect("a version")
}

/// Whether a count of `trials` events of that probability is within six standard deviations.
fn is_near(count: usize, trials: usize, probability: f64) -> bool {
    let mean = trials as f64 * probability;
    (count as f64 - mean).abs() <= 6.0 * (mean * (1.0 - probability)).sqrt()
}

/// The rule as the API shows it.
fn shown(server: &Server, model: &str) -> Value {
    let answer = Peer::connect(server.http).get(&format!("/v2/models/{model}/traffic"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The value of a sample of the metrics page, which begins with that text.
fn sample(server: &Server, begins: &str) -> Option<f64> {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with(begins))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A Python model whose versions do what the texts say with `value`, a numpy array, before it is the answer.
fn python_model(repository: &Repository, name: &str, rule: &[(&str, &str)], acts: &[&str]) {
    let tensors = "input [ { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n\
                   output [ { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] } ]\n";
    let kind = "instance_group [ { count: 1 kind: KIND_CPU } ]\n";
    let config = format!("backend: \"python\"\n{tensors}{kind}{}", parameters(rule));
    repository.file(&format!("{name}/config.pbtxt"), config);
    for (at, act) in acts.iter().enumerate() {
        let script = format!(
            "import os, time\n\
             import triton_python_backend_utils as pb_utils\n\n\n\
             class TritonPythonModel:\n\
             \x20   def execute(self, requests):\n\
             \x20       responses = []\n\
             \x20       for request in requests:\n\
             \x20           value = pb_utils.get_input_tensor_by_name(request, 'INPUT0').as_numpy()\n\
             \x20           {act}\n\
             \x20           tensor = pb_utils.Tensor('OUTPUT0', value)\n\
             \x20           responses.append(pb_utils.InferenceResponse([tensor]))\n\
             \x20       return responses\n"
        );
        repository.file(&format!("{name}/{}/model.py", at + 1), script);
    }
}

/// The flag that names an interpreter with numpy; none, after a visible skip, where there is none.
fn interpreter() -> Option<String> {
    Some(format!("--backend-config=python,interpreter={}", Python::get()?.interpreter().display()))
}
