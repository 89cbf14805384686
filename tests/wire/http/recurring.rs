//! Repeated requests over open connections, which the plan cache recognises: when their model changes, its plans are
//! dropped, and only the new model answers (contract/http.md sections 3, 5 and 6).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use serde_json::{Value, json};

use nereid_test_support::http::{Peer, infer_with_tail, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::{self, each};

/// Enough repetitions to create a plan for any head and to use it.
const ROUNDS: i32 = 12;
const EXPLICIT: [&str; 2] = ["--model-control-mode=explicit", "--load-model=plain"];
const ANY: &str = "/v2/models/plain/infer";
const FIRST: &str = "/v2/models/plain/versions/1/infer";

/// The form of tensors in request and response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Binary,
    Json,
}

const FORMS: [Form; 2] = [Form::Binary, Form::Json];

/// A request that is sent repeatedly.
#[derive(Clone, Copy, Debug)]
struct Question {
    path: &'static str,
    form: Form,
    datatype: &'static str,
}

/// The content of a response; of a refusal its status and text.
type Outcome = Result<Answered, (u16, String)>;

#[derive(Clone, Debug, PartialEq)]
struct Answered {
    version: String,
    datatype: String,
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Question {
    /// The bytes of the request: the same head for as many values, and in binary the same JSON.
    fn bytes(&self, values: &[i32]) -> Vec<u8> {
        let Question { path, form, datatype } = *self;
        let mut input = json!({ "name": "INPUT0", "datatype": datatype, "shape": [values.len()] });
        match form {
            Form::Json => {
                input["data"] = json!(values);
                request("POST", path, &[], json!({ "inputs": [input] }).to_string().as_bytes())
            }
            Form::Binary => {
                let tail: Vec<u8> = values.iter().flat_map(|value| self.element(*value)).collect();
                input["parameters"] = json!({ "binary_data_size": tail.len() });
                let body = json!({ "inputs": [input], "parameters": { "binary_data_output": true } });
                infer_with_tail(path, &body.to_string(), &tail)
            }
        }
    }

    fn element(&self, value: i32) -> [u8; 4] {
        if self.datatype == "FP32" { (value as f32).to_le_bytes() } else { value.to_le_bytes() }
    }

    fn ask(&self, peer: &mut Peer, values: &[i32]) -> Outcome {
        let answer = peer.send(&self.bytes(values)).answer();
        if answer.status != 200 {
            return Err((answer.status, answer.error()));
        }
        let (json, tail) = answer.split();
        let output = &json["outputs"][0];
        let is_float = output["datatype"] == "FP32";
        let number = |bytes: &[u8]| {
            let bytes = bytes.try_into().expect("four bytes");
            if is_float { f64::from(f32::from_le_bytes(bytes)) } else { f64::from(i32::from_le_bytes(bytes)) }
        };
        let values = match self.form {
            Form::Binary => tail.chunks(4).map(number).collect(),
            Form::Json => output["data"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect(),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(Answered {
            version: text(&json["model_version"]),
            datatype: text(&output["datatype"]),
            shape: serde_json::from_value(output["shape"].clone()).expect("a shape"),
            values,
        })
    }

    /// Sends it so often that it has a plan; each time `version` must return the sent values.
    fn must_be_answered(&self, peer: &mut Peer, version: &str) {
        for round in 0..ROUNDS {
            let expected = self.echo(version, &[round, 7]);
            assert_eq!(self.ask(peer, &[round, 7]), Ok(expected), "{self:?}, round {round}");
        }
    }

    fn echo(&self, version: &str, values: &[i32]) -> Answered {
        Answered {
            version: version.to_owned(),
            datatype: self.datatype.to_owned(),
            shape: vec![values.len()],
            values: values.iter().map(|value| f64::from(*value)).collect(),
        }
    }

    fn must_be_refused(&self, peer: &mut Peer, status: u16, text: &str) {
        for round in 0..ROUNDS {
            let refusal = (status, text.to_owned());
            assert_eq!(self.ask(peer, &[round, 7]), Err(refusal), "{self:?}, round {round}");
        }
    }
}

fn questions(path: &'static str, datatype: &'static str) -> [Question; 2] {
    FORMS.map(|form| Question { path, form, datatype })
}

fn control(server: &Server, action: &str) {
    let answer = Peer::connect(server.http).post(&format!("/v2/repository/models/plain/{action}"), &[], b"");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{action}");
}

fn wrong_type(sent: &str, expected: &str) -> String {
    format!(
        "[request id: <id_unknown>] inference input 'INPUT0' data-type is '{sent}', but model 'plain' expects \
         '{expected}'"
    )
}

#[test]
fn what_is_known_of_a_model_goes_with_it() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let server = Server::start(variant, repository.path(), &EXPLICIT);
        // One connection for each request throughout the test, and one for all of them.
        let mut mixed = Peer::connect(server.http);
        let mut own: Vec<(Question, Peer)> = Vec::new();
        for path in [ANY, FIRST] {
            for datatype in ["INT32", "FP32"] {
                own.extend(questions(path, datatype).map(|question| (question, Peer::connect(server.http))));
            }
        }
        let mut each_way = |hold: &dyn Fn(&Question, &mut Peer)| {
            for (question, peer) in &mut own {
                hold(question, peer);
                hold(question, &mut mixed);
            }
        };
        let takes = |datatype: &'static str| {
            move |question: &Question, peer: &mut Peer| match question.datatype == datatype {
                true => question.must_be_answered(peer, "1"),
                false => question.must_be_refused(peer, 400, &wrong_type(question.datatype, datatype)),
            }
        };
        each_way(&takes("INT32"));

        control(&server, "unload");
        each_way(&|question, peer| match question.path {
            ANY => question.must_be_refused(peer, 404, "Request for unknown model: 'plain' has no available versions"),
            _ => {
                let text = "Request for unknown model: 'plain' version 1 is not at ready state";
                question.must_be_refused(peer, 503, text);
            }
        });

        // With another datatype it accepts what it refused, and refuses what it accepted.
        repository.identity("plain", 0, &[Pair::new("FP32", "-1")]);
        control(&server, "load");
        each_way(&takes("FP32"));

        // From here on the next model replaces one that serves.
        repository.identity("plain", 0, &[Pair::new("INT32", "3")]);
        control(&server, "load");
        let text = "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'plain'. Expected [3], \
                    got [2]. ";
        each_way(&|question, peer| match question.datatype {
            "INT32" => question.must_be_refused(peer, 400, text),
            other => question.must_be_refused(peer, 400, &wrong_type(other, "INT32")),
        });

        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        control(&server, "load");
        each_way(&takes("INT32"));

        // Only the newest version is served.
        repository.version("plain", "2");
        control(&server, "load");
        each_way(&|question, peer| match (question.path, question.datatype) {
            (ANY, "INT32") => question.must_be_answered(peer, "2"),
            (ANY, other) => question.must_be_refused(peer, 400, &wrong_type(other, "INT32")),
            _ => {
                let text = "Request for unknown model: 'plain' version 1 is not at ready state";
                question.must_be_refused(peer, 503, text);
            }
        });
        server.stop();
    });
}

/// At any time of the change, a response is completely that of the old or of the new model.
#[test]
fn while_a_model_changes_each_request_has_one_of_both() {
    const CHANGES: usize = 20;
    /// Requests of each kind between two changes.
    const ENOUGH: u64 = 2 * ROUNDS.unsigned_abs() as u64;
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let types = ["INT32", "FP32"];
        let become_of = |datatype| repository.identity("plain", 0, &[Pair::new(datatype, "-1")]);
        become_of(types[0]);
        let server = Server::start(variant, repository.path(), &EXPLICIT);
        let is_over = AtomicBool::new(false);
        let is_alive = |clients: &[ScopedJoinHandle<'_, ()>]| clients.iter().all(|client| !client.is_finished());
        let mut is_stuck = false;
        let (taken, refused) = ([0, 1].map(|_| AtomicU64::new(0)), [0, 1].map(|_| AtomicU64::new(0)));
        let client = |form: Form| {
            let mut peer = Peer::connect(server.http);
            let asked = types.map(|datatype| Question { path: ANY, form, datatype });
            while !is_over.load(Ordering::Relaxed) {
                for (at, question) in asked.iter().enumerate() {
                    match question.ask(&mut peer, &[at as i32, 7]) {
                        Ok(answered) => {
                            assert_eq!(answered, question.echo("1", &[at as i32, 7]), "{question:?}");
                            taken[at].fetch_add(1, Ordering::Relaxed);
                        }
                        Err(refusal) => {
                            assert_eq!(refusal, (400, wrong_type(types[at], types[1 - at])), "{question:?}");
                            refused[at].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let client = &client;
            let clients = FORMS.map(|form| scope.spawn(move || client(form)));
            for change in 1..=CHANGES {
                become_of(types[change % 2]);
                control(&server, "load");
                // Both are used in every state of the model.
                let seen = [&taken[change % 2], &refused[1 - change % 2]].map(|count| (count, now(count)));
                let started = Instant::now();
                while seen.iter().any(|(count, before)| now(count) - before < ENOUGH) && is_alive(&clients) {
                    is_stuck = started.elapsed() > PATIENCE;
                    if is_stuck {
                        break;
                    }
                    std::thread::yield_now();
                }
                if is_stuck || !is_alive(&clients) {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(!is_stuck, "a change that no request sees: taken {taken:?}, refused {refused:?}");
        server.stop();
    });
}

fn now(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}
