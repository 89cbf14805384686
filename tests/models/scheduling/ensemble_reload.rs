//! Ensembles with composing models that are reloaded while clients send requests over the same connections: the
//! ensemble stays, and its responses are those of the new models (contract/schedulers.md sections 5 and 10).

use serde_json::{Value, json};

use nereid_test_support::http::{Answer, Peer, infer_with_tail};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

/// Enough for a request to be known to the server.
const ROUNDS: u32 = 12;

fn tensor(side: &str, name: &str) -> String {
    format!("{side} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ -1 ] }} ")
}

/// A part that multiplies.
fn times(repository: &Repository, name: &str, scale: f32) {
    let tensors = tensor("input", "INPUT0") + &tensor("output", "OUTPUT0");
    let scale = format!("parameters {{ key: \"scale\" value {{ string_value: \"{scale}\" }} }}");
    let config = format!("name: \"{name}\" backend: \"affine\" {tensors} {scale} instance_group {{ kind: KIND_CPU }}");
    repository.model(name, &config);
}

/// `p`, then `q`.
fn ensemble(repository: &Repository) {
    let step = |model: &str, reads: &str, writes: &str| {
        format!(
            "step {{ model_name: \"{model}\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{reads}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{writes}\" }} }} "
        )
    };
    let tensors = tensor("input", "X") + &tensor("output", "Y");
    let steps = step("p", "X", "A") + &step("q", "A", "Y");
    repository.model("e", &format!("name: \"e\" platform: \"ensemble\" {tensors} ensemble_scheduling {{ {steps} }}"));
}

/// One client that sends JSON and one that sends binary tensors, each on one connection from the first request on.
struct Clients {
    json: Peer,
    binary: Peer,
}

impl Clients {
    fn connect(server: &Server) -> Clients {
        Clients { json: Peer::connect(server.http), binary: Peer::connect(server.http) }
    }

    fn json(&mut self, value: f32) -> Answer {
        let input = json!({ "name": "X", "datatype": "FP32", "shape": [1], "data": [value] });
        self.json.post("/v2/models/e/infer", &[], json!({ "inputs": [input] }).to_string().as_bytes())
    }

    fn binary(&mut self, value: f32) -> Answer {
        let input = json!({ "name": "X", "datatype": "FP32", "shape": [1], "parameters": { "binary_data_size": 4 } });
        let body = json!({ "inputs": [input], "parameters": { "binary_data_output": true } }).to_string();
        self.binary.send(&infer_with_tail("/v2/models/e/infer", &body, &value.to_le_bytes())).answer()
    }

    /// Every answer is `factor` times what was sent.
    fn must_multiply_by(&mut self, factor: f32) {
        for round in 0..ROUNDS {
            let value = round as f32;
            let answer = self.json(value);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let json = answer.json();
            assert_eq!((&json["model_name"], &json["model_version"]), (&json!("e"), &json!("1")));
            let output = &json["outputs"][0];
            assert_eq!((&output["name"], &output["datatype"]), (&json!("Y"), &json!("FP32")));
            assert_eq!(output["data"][0].as_f64(), Some(f64::from(value * factor)), "JSON, round {round}: {json}");
            let answer = self.binary(value);
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.split().1, (value * factor).to_le_bytes(), "binary, round {round}");
        }
    }

    fn must_be_refused(&mut self, text: &str) {
        for _ in 0..ROUNDS {
            for answer in [self.json(1.0), self.binary(1.0)] {
                assert_eq!((answer.status, answer.error().as_str()), (404, text));
            }
        }
    }
}

fn control(server: &Server, model: &str, action: &str) {
    let answer = Peer::connect(server.http).post(&format!("/v2/repository/models/{model}/{action}"), &[], b"");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{action} {model}");
}

/// Of a version of `model`: how many requests it has answered.
fn successes(server: &Server, model: &str, version: &str) -> u64 {
    let answer = Peer::connect(server.http).get(&format!("/v2/models/{model}/versions/{version}/stats"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json: Value = answer.json();
    json["model_stats"][0]["inference_stats"]["success"]["count"].as_u64().expect("a count")
}

#[test]
fn answers_follow_the_parts_that_are_loaded_now() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        times(&repository, "p", 2.0);
        times(&repository, "q", 5.0);
        ensemble(&repository);
        let flags = ["--model-control-mode=explicit", "--load-model=e"];
        let server = Server::start(variant, repository.path(), &flags);
        let mut clients = Clients::connect(&server);
        clients.must_multiply_by(10.0);

        // Each of the two, while the ensemble and the other one stay.
        times(&repository, "p", 3.0);
        control(&server, "p", "load");
        clients.must_multiply_by(15.0);
        times(&repository, "q", 7.0);
        control(&server, "q", "load");
        clients.must_multiply_by(21.0);

        // Without a part there is no ensemble; with it, another one is the ensemble's.
        control(&server, "p", "unload");
        clients.must_be_refused("Request for unknown model: 'e' has no available versions");
        times(&repository, "p", 4.0);
        control(&server, "p", "load");
        clients.must_multiply_by(28.0);

        // The newest version of a part is meant, be it newer than the ensemble.
        repository.version("q", "2");
        control(&server, "q", "load");
        clients.must_multiply_by(28.0);
        assert_eq!(successes(&server, "q", "2"), u64::from(2 * ROUNDS), "the new version has answered all of them");
        server.stop();
    });
}
