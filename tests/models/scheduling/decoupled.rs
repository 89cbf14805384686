//! Models with any number of responses to a request (contract/grpc.md section 5, contract/backends.md sections 2 and 3,
//! contract/http.md).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::grpc::{Exchange, Grpc, SERVICE, Status, code, decode};
use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::steadily::in_time;
use nereid_test_support::variant::{self, Variant, each, usual};

const DECOUPLED: &str = "model_transaction_policy { decoupled: true }\n";
/// `RESOURCE_EXHAUSTED`.
const EXHAUSTED: u32 = 8;

pub fn repeat_config() -> String {
    format!(
        r#"backend: "repeat"
        input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }},
                {{ name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }},
                {{ name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }},
                 {{ name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }} ]
        instance_group [ {{ kind: KIND_CPU count: 1 }} ] {DECOUPLED}"#
    )
}

fn square_config(parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n"))
        .collect();
    format!(
        r#"backend: "square"
        input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        instance_group [ {{ kind: KIND_CPU count: 1 }} ] {DECOUPLED} {parameters}"#
    )
}

/// `repeat`, `square`, and an identity that answers once.
fn models() -> Repository {
    let repository = Repository::new();
    repository.model("repeat", &repeat_config()).model("square", &square_config(&[]));
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

fn vector(name: &str, datatype: &str, len: usize) -> InferInputTensor {
    let shape = vec![len as i64];
    InferInputTensor { name: name.into(), datatype: datatype.into(), shape, ..Default::default() }
}

pub fn bytes_of(values: impl IntoIterator<Item = i32>) -> Bytes {
    values.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<u8>>().into()
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

pub fn repeat(id: &str, values: &[i32], delays_ms: &[i32], wait_ms: i32) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "repeat".into(),
        id: id.into(),
        inputs: vec![
            vector("IN", "INT32", values.len()),
            vector("DELAY", "UINT32", delays_ms.len()),
            vector("WAIT", "UINT32", 1),
        ],
        raw_input_contents: vec![
            bytes_of(values.iter().copied()),
            bytes_of(delays_ms.iter().copied()),
            bytes_of([wait_ms]),
        ],
        ..Default::default()
    }
}

pub fn single(model: &str, id: &str, input: &str, values: &[i32]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.into(),
        id: id.into(),
        inputs: vec![vector(input, "INT32", values.len())],
        raw_input_contents: vec![bytes_of(values.iter().copied())],
        ..Default::default()
    }
}

fn square(id: &str, count: i32) -> ModelInferRequest {
    single("square", id, "IN", &[count])
}

fn with(mut request: ModelInferRequest, key: &str, choice: ParameterChoice) -> ModelInferRequest {
    request.parameters.insert(key.into(), parameter(choice));
    request
}

pub fn with_empty_final(request: ModelInferRequest) -> ModelInferRequest {
    with(request, "triton_enable_empty_final_response", ParameterChoice::BoolParam(true))
}

pub fn open(grpc: &mut Grpc) -> Exchange {
    grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[])
}

/// A message of a stream, taken apart.
#[derive(Debug)]
pub struct Answer {
    pub error: String,
    pub inner: ModelInferResponse,
}

impl Answer {
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    pub fn is_final(&self) -> Option<bool> {
        match self.inner.parameters.get("triton_final_response")?.parameter_choice.as_ref()? {
            ParameterChoice::BoolParam(is_final) => Some(*is_final),
            other => panic!("{other:?}"),
        }
    }

    /// The first number of each output.
    pub fn values(&self) -> Vec<i32> {
        let first = |bytes: &Bytes| i32::from_le_bytes(bytes[..4].try_into().expect("a number"));
        self.inner.raw_output_contents.iter().map(first).collect()
    }

    fn text(&self, key: &str) -> String {
        match self.inner.parameters.get(key).and_then(|parameter| parameter.parameter_choice.clone()) {
            Some(ParameterChoice::StringParam(text)) => text,
            other => panic!("{key}: {other:?}"),
        }
    }
}

fn read(bytes: &Bytes) -> Answer {
    let message: ModelStreamInferResponse = decode(bytes);
    Answer { error: message.error_message, inner: message.infer_response.unwrap_or_default() }
}

pub fn next(grpc: &mut Grpc, exchange: &mut Exchange) -> Answer {
    read(&grpc.next(exchange).expect("a message on the stream"))
}

/// Half-closes, and reads what is left.
pub fn rest(grpc: &mut Grpc, mut exchange: Exchange) -> (Vec<Answer>, Status) {
    grpc.half_close(&mut exchange);
    let reply = grpc.finish(exchange);
    (reply.messages.iter().map(read).collect(), reply.status)
}

pub fn all_of(grpc: &mut Grpc, requests: &[ModelInferRequest]) -> Vec<Answer> {
    let mut exchange = open(grpc);
    requests.iter().for_each(|request| grpc.send(&mut exchange, request));
    let (answers, status) = rest(grpc, exchange);
    assert_eq!(status, Status { code: code::OK, message: String::new() });
    answers
}

fn statistics(server: &Server, model: &str) -> Value {
    Peer::connect(server.http).get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
}

/// Asks for the statistics until `fact` holds of them.
pub fn statistics_until(server: &Server, model: &str, fact: impl Fn(&Value) -> bool) -> Value {
    let started = std::time::Instant::now();
    loop {
        let found = statistics(server, model);
        if fact(&found) {
            return found;
        }
        assert!(started.elapsed() < nereid_test_support::server::PATIENCE, "{found}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_request_has_as_many_responses_as_its_model_makes() {
    each(&variant::ALL, |variant| {
        let repository = models();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let answers = all_of(&mut grpc, &[repeat("three", &[7, -8, 9], &[0, 1, 0], 0)]);
        let seen: Vec<_> = answers.iter().map(|answer| (answer.values(), answer.is_final())).collect();
        let expected = [[7, 0], [-8, 1], [9, 2]].map(|values| (values.to_vec(), Some(false)));
        assert_eq!(seen, expected, "the end comes apart, and silently");
        for answer in &answers {
            let inner = &answer.inner;
            assert_eq!((answer.id(), &*inner.model_name, &*inner.model_version), ("three", "repeat", "1"));
            let outputs: Vec<_> = inner.outputs.iter().map(|output| (&*output.name, &output.shape[..])).collect();
            assert_eq!(outputs, [("OUT", &[1][..]), ("IDX", &[1][..])]);
            assert_eq!(answer.error, "");
        }
        assert!(all_of(&mut grpc, &[repeat("none", &[], &[], 0)]).is_empty());
        // The next one on the same stream does not inherit the wish for an end.
        let ends = [
            with_empty_final(repeat("a", &[], &[], 0)),
            with_empty_final(ModelInferRequest { model_version: "1".into(), ..repeat("b", &[1], &[0], 0) }),
            repeat("c", &[], &[], 0),
        ];
        let answers = all_of(&mut grpc, &ends);
        let of = |id: &str| -> Vec<&Answer> { answers.iter().filter(|answer| answer.id() == id).collect() };
        let ([a], [first, last], []) = (&of("a")[..], &of("b")[..], &of("c")[..]) else { panic!("{answers:?}") };
        assert_eq!((first.values(), first.is_final()), (vec![1, 0], Some(false)));
        for (end, version) in [(a, ""), (last, "1")] {
            assert_eq!((end.is_final(), end.inner.outputs.len(), &*end.error), (Some(true), 0, ""));
            assert_eq!((&*end.inner.model_name, &*end.inner.model_version), ("repeat", version), "as requested");
        }
        // A model that answers once says so in its only answer, whatever was asked for.
        let answers = all_of(&mut grpc, &[with_empty_final(single("plain", "p", "INPUT0", &[5]))]);
        let [only] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((only.values(), only.is_final()), (vec![5], Some(true)));
        server.stop();
    });
}

#[test]
fn responses_come_as_they_are_made_and_the_others_keep_their_order() {
    each(&variant::ALL, |variant| {
        let repository = models();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        // On a machine that is very slow the others may come too late: then a round says nothing of their order.
        let in_time = DELAYS_MS.into_iter().any(|delay_ms| slow_beside_quick(&mut grpc, delay_ms));
        assert!(in_time, "never were the others there in time");
        server.stop();
    });
}

/// What a response waits for others of which a test says that they come before it: longer and longer, until they do.
const DELAYS_MS: [i32; 4] = [1_000, 5_000, 25_000, 125_000];

/// A slow request, and others behind it on the same stream; false if the slow one's time was over before theirs.
fn slow_beside_quick(grpc: &mut Grpc, delay_ms: i32) -> bool {
    let mut exchange = open(grpc);
    // Released at once, answered for as long as the test reads: its end is behind everything else.
    let began = std::time::Instant::now();
    grpc.send(&mut exchange, &repeat("slow", &[1, 2], &[0, delay_ms], 0));
    assert_eq!(next(grpc, &mut exchange).id(), "slow");
    for number in 0..10 {
        grpc.send(&mut exchange, &single("plain", &format!("p{number}"), "INPUT0", &[number]));
    }
    grpc.send(&mut exchange, &repeat("quick", &[3, 4], &[0, 0], 0));
    let mut answers = Vec::new();
    while answers.iter().filter(|answer: &&Answer| answer.id() != "slow").count() < 12 {
        answers.push(next(grpc, &mut exchange));
    }
    let in_time = began.elapsed() < Duration::from_millis(delay_ms as u64);
    let (last, status) = rest(grpc, exchange);
    answers.extend(last);
    assert_eq!(status.code, code::OK);
    let ids: Vec<&str> = answers.iter().map(Answer::id).collect();
    let plain: Vec<&str> = ids.iter().copied().filter(|id| id.starts_with('p')).collect();
    assert_eq!(plain, (0..10).map(|number| format!("p{number}")).collect::<Vec<_>>());
    assert_eq!(ids.iter().filter(|id| **id == "quick").count(), 2);
    assert_eq!(ids.iter().filter(|id| **id == "slow").count(), 1, "the stream ends behind its last response");
    assert!(!in_time || ids.last() == Some(&"slow"), "{ids:?}");
    in_time
}

#[test]
fn decoupled_models_are_for_streams_only() {
    let repository = models();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    // Before anything else of the request is looked at.
    for request in [square("a", 1), ModelInferRequest { model_name: "square".into(), ..Default::default() }] {
        let refused = grpc.call::<ModelInferResponse>("ModelInfer", &request).unwrap_err();
        let text = "ModelInfer RPC doesn't support models with decoupled transaction policy";
        assert_eq!((refused.code, &*refused.message), (code::UNIMPLEMENTED, text));
    }
    let unknown = ModelInferRequest { model_version: "7".into(), ..square("a", 1) };
    assert_eq!(grpc.call::<ModelInferResponse>("ModelInfer", &unknown).unwrap_err().code, code::NOT_FOUND);
    let mut peer = Peer::connect(server.http);
    for (headers, body) in [(&[][..], "{}"), (&[("Content-Encoding", "gzip")][..], "no JSON")] {
        let answer = peer.post("/v2/models/square/infer", headers, body.as_bytes());
        let text = "HTTP end point doesn't support models with decoupled transaction policy";
        assert_eq!((answer.status, answer.error()), (501, text.to_owned()));
        assert_eq!(answer.header("content-type"), Some("text/plain"));
    }
    let config = peer.get("/v2/models/square/config").json();
    assert_eq!(config["model_transaction_policy"]["decoupled"], true);
    server.stop();
}

/// Errors on a stream on which a response is still to come; false if its time was over before theirs.
fn errors_beside_an_answer(grpc: &mut Grpc, delay_ms: i32) -> bool {
    let mut exchange = open(grpc);
    let began = std::time::Instant::now();
    grpc.send(&mut exchange, &repeat("open", &[1, 2], &[0, delay_ms], 0));
    assert_eq!(next(grpc, &mut exchange).id(), "open");
    // Refused at once, though another one is being answered: neither model nor flag.
    grpc.send(&mut exchange, &single("square", "wrong", "IN", &[1, 2]));
    // Answered with an error by the model.
    let unequal = ModelInferRequest { model_version: "1".into(), ..repeat("unequal", &[1], &[2, 3], 0) };
    let wrong = next(grpc, &mut exchange);
    grpc.send(&mut exchange, &unequal);
    let answer = next(grpc, &mut exchange);
    let in_time = began.elapsed() < Duration::from_millis(delay_ms as u64);
    let (answers, status) = rest(grpc, exchange);
    assert_eq!(status.code, code::OK);
    if !in_time {
        return false;
    }
    assert!(wrong.error.contains("unexpected shape for input 'IN' for model 'square'"), "{wrong:?}");
    assert_eq!((wrong.id(), &*wrong.inner.model_name, wrong.is_final()), ("wrong", "", None));
    assert_eq!(answer.error, "expected IN and DELAY shape to match, got [1] and [2]");
    assert_eq!((answer.id(), answer.is_final()), ("unequal", Some(true)));
    assert_eq!((&*answer.inner.model_name, &*answer.inner.model_version), ("repeat", "1"));
    assert_eq!(answers.len(), 1, "the first one goes on");
    true
}

#[test]
fn errors_stay_in_band() {
    let repository = models();
    let failing = [("CUSTOM_FAIL_COUNT", "2"), ("CUSTOM_EMPTY_COUNT", "1")];
    repository.model("failing", &square_config(&failing));
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let in_time = DELAYS_MS.into_iter().any(|delay_ms| errors_beside_an_answer(&mut grpc, delay_ms));
    assert!(in_time, "never were the errors there in time");
    // Four responses: one good, two failed, one not sent.
    let answers =
        all_of(&mut grpc, &[with_empty_final(ModelInferRequest { model_name: "failing".into(), ..square("f", 4) })]);
    let seen: Vec<_> = answers.iter().map(|answer| (&*answer.error, answer.is_final())).collect();
    let failure = ("simulated failure", Some(false));
    assert_eq!(seen, [("", Some(false)), failure, failure, ("", Some(true))]);
    let tallies = &statistics(&server, "failing")["response_stats"];
    for (index, field) in [("0", "success"), ("1", "fail"), ("2", "fail"), ("3", "empty_response")] {
        assert_eq!(tallies[index][field]["count"], 1, "{tallies}");
    }
    assert_eq!(tallies["3"]["compute_output"]["count"], 0);
    // With the header a failed response is the end of everything on the stream.
    let mut exchange = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[("triton_grpc_error", "true")]);
    grpc.send(&mut exchange, &single("square", "wrong", "IN", &[1, 2]));
    assert_eq!(next(&mut grpc, &mut exchange).id(), "wrong", "a refusal stays in band all the same");
    grpc.send(&mut exchange, &repeat("long", &[1; 600], &[100; 600], 0));
    grpc.send(&mut exchange, &ModelInferRequest { model_name: "failing".into(), ..square("f", 3) });
    let reply = grpc.finish(exchange);
    assert_eq!(reply.status, Status { code: code::UNKNOWN, message: "simulated failure".into() });
    let answers: Vec<Answer> = reply.messages.iter().map(read).collect();
    assert!(answers.iter().all(|answer| answer.error.is_empty()), "{answers:?}");
    // The long one's thread does not look at cancellations: the server does not wait for it.
    drop(server);
}

#[test]
fn whoever_leaves_cancels_what_is_on_its_way() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("square", &square_config(&[("CUSTOM_INFER_DELAY_NS", "5000000")]));
        let server = Server::start(variant, repository.path(), &[]);
        let is_cancelled = |found: &Value| {
            let responses = found["response_stats"].as_object().expect("an object");
            responses.values().any(|response| response["cancel"]["count"] != 0)
        };
        // A call that is given up, and a connection that goes away.
        for leaves in [false, true] {
            let mut grpc = Grpc::connect(server.grpc);
            let mut exchange = open(&mut grpc);
            grpc.send(&mut exchange, &square("many", 100_000));
            assert_eq!(next(&mut grpc, &mut exchange).values(), [100_000]);
            match leaves {
                false => grpc.cancel(exchange),
                true => drop((exchange, grpc)),
            }
            let cancels = |found: &Value| -> u64 {
                let responses = found["response_stats"].as_object().expect("an object");
                responses.values().filter_map(|response| response["cancel"]["count"].as_u64()).sum()
            };
            let expected = 1 + u64::from(leaves);
            let found = statistics_until(&server, "square", |found| cancels(found) == expected);
            assert!(is_cancelled(&found));
            assert_eq!((&found["inference_count"], &found["execution_count"]), (&0.into(), &0.into()));
            assert_eq!(found["inference_stats"]["success"]["count"], 0);
        }
        server.stop();
    });
}

/// Values and flags of the answers to each request.
type ById = BTreeMap<String, Vec<(Vec<i32>, Option<bool>)>>;

#[test]
fn many_streams_at_once() {
    each(&variant::ALL, |variant| {
        let repository = models();
        let server = Server::start(variant, repository.path(), &[]);
        let mut connections: Vec<Grpc> = (0..4).map(|_| Grpc::connect(server.grpc)).collect();
        let mut open_streams = Vec::new();
        for (at, grpc) in connections.iter_mut().enumerate() {
            for stream in 0..8 {
                let mut exchange = open(grpc);
                for number in 0..5 {
                    let id = format!("{at}-{stream}-{number}");
                    grpc.send(&mut exchange, &with_empty_final(square(&id, number)));
                }
                open_streams.push((at, stream, exchange));
            }
            grpc.flush();
        }
        for (at, stream, exchange) in open_streams {
            let (answers, status) = rest(&mut connections[at], exchange);
            assert_eq!(status.code, code::OK);
            let mut by_id: ById = BTreeMap::new();
            for answer in &answers {
                by_id.entry(answer.id().to_owned()).or_default().push((answer.values(), answer.is_final()));
            }
            let expected: ById = (0..5)
                .map(|number| {
                    let mut answers = vec![(vec![number], Some(false)); number as usize];
                    answers.push((vec![], Some(true)));
                    (format!("{at}-{stream}-{number}"), answers)
                })
                .collect();
            assert_eq!(by_id, expected);
        }
        server.stop();
    });
}

#[test]
fn a_model_is_unloaded_behind_its_last_response() {
    let repository = models();
    let flags = ["--model-control-mode=explicit", "--load-model=repeat"];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut grpc = Grpc::connect(server.grpc);
    let mut exchange = open(&mut grpc);
    grpc.send(&mut exchange, &repeat("r", &[1, 2, 3], &[0, 150, 150], 0));
    assert_eq!(next(&mut grpc, &mut exchange).values(), [1, 0]);
    let mut peer = Peer::connect(server.http);
    assert_eq!(peer.post("/v2/repository/models/repeat/unload", &[], b"").status, 200);
    assert_ne!(peer.get("/v2/models/repeat/ready").status, 200);
    let (answers, status) = rest(&mut grpc, exchange);
    assert_eq!((answers.len(), status.code), (2, code::OK));
    let started = std::time::Instant::now();
    loop {
        let index = peer.post("/v2/repository/index", &[], b"").json();
        let row = index.as_array().and_then(|rows| rows.iter().find(|row| row["name"] == "repeat")).cloned();
        if row.as_ref().is_some_and(|row| row["reason"] == "unloaded") {
            break;
        }
        assert!(started.elapsed() < nereid_test_support::server::PATIENCE, "{index}");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.stop();
}

#[test]
fn the_clients_of_triton_see_every_response() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let repository = models();
        let server = Server::start(variant, repository.path(), &[]);
        python.run("decoupled.py", &["--url", &server.grpc.to_string()]);
        server.stop();
    });
}

/// A directory for `--backend-directory` with later.c in it. None, after a visible skip, without a C compiler.
pub fn backends() -> Option<PathBuf> {
    backend::compiled("later.c")
}

/// The C backend as decoupled model `later`, and as `once`, which promises one response.
pub fn start_later(variant: Variant, directory: &Path, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity_of("later", "later", 0, &[Pair::new("INT32", "-1")], DECOUPLED);
    repository.identity_of("later", "once", 0, &[Pair::new("INT32", "-1")], "");
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let directory = format!("--backend-directory={}", directory.display());
    let server = Server::start(variant, repository.path(), &[&[&*directory], flags].concat());
    (repository, server)
}

pub fn later(what: &str, values: &[i32]) -> ModelInferRequest {
    with(single("later", what, "INPUT0", values), "do", ParameterChoice::StringParam(what.into()))
}

fn once(what: &str, values: &[i32]) -> ModelInferRequest {
    ModelInferRequest { model_name: "once".into(), ..later(what, values) }
}

#[test]
fn a_library_answers_later_often_never_twice() {
    let Some(directory) = backends() else { return };
    each(&variant::ALL, |variant| {
        let (_repository, server) = start_later(variant, &directory, &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut ask = |what: &str, values: &[i32]| -> Vec<(String, Vec<i32>, Option<bool>)> {
            let answers = all_of(&mut grpc, &[with_empty_final(later(what, values))]);
            assert!(answers.iter().all(|answer| answer.id() == what), "{answers:?}");
            answers.iter().map(|answer| (answer.error.clone(), answer.values(), answer.is_final())).collect()
        };
        let good = |value: i32, is_final: bool| (String::new(), vec![value], Some(is_final));
        let bad = |text: &str, is_final: bool| (text.to_owned(), vec![], Some(is_final));
        let end = bad("", true);
        assert_eq!(ask("plainly", &[4, 5]), [good(4, false), good(5, false), end.clone()]);
        assert_eq!(ask("plainly", &[]), std::slice::from_ref(&end));
        assert_eq!(ask("together", &[4, 5]), [good(4, false), good(5, true)]);
        let unended = "the model ended the request without a final response";
        assert_eq!(ask("never", &[4]), [good(4, false), bad(unended, true)]);
        assert_eq!(ask("nothing", &[4]), [bad(unended, true)]);
        assert_eq!(ask("twice", &[4]), [good(4, false), end.clone()], "what follows the end is dropped");
        assert_eq!(ask("error", &[4, 5]), [bad("trouble at 4", false), bad("trouble at 5", false), end.clone()]);
        let misfit = "output 'OUTPUT0' has 4 bytes, which do not fit its shape [7]";
        assert_eq!(ask("shape", &[4]), [bad(misfit, false), end.clone()]);
        assert_eq!(ask("empty", &[4, 5]), [good(4, false), good(5, false), end]);
        server.stop();
    });
}

#[test]
fn a_model_that_promised_one_response_is_held_to_it() {
    let Some(directory) = backends() else { return };
    let (_repository, server) = start_later(usual(), &directory, &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut peer = Peer::connect(server.http);
    let unended = "the model ended the request without a final response";
    for (what, values, expected) in [
        ("together", &[4][..], Ok(4)),
        // One response, and its end apart.
        ("plainly", &[4], Ok(4)),
        ("twice", &[4], Ok(4)),
        ("plainly", &[4, 5], Err((code::INTERNAL, "expected a single response, got 2"))),
        ("plainly", &[], Err((code::INTERNAL, "expected a single response, got 0"))),
        ("nothing", &[4], Err((code::INTERNAL, unended))),
        ("error", &[4], Err((code::UNKNOWN, "trouble at 4"))),
    ] {
        let outcome = grpc.call::<ModelInferResponse>("ModelInfer", &once(what, values));
        match (outcome, expected) {
            (Ok(answer), Ok(value)) => assert_eq!(answer.raw_output_contents[0].as_ref(), i32::to_le_bytes(value)),
            (Err(status), Err((code, text))) => assert_eq!((status.code, &*status.message), (code, text), "{what}"),
            (outcome, _) => panic!("{what} {values:?}: {outcome:?}"),
        }
        let input = json!({"name": "INPUT0", "datatype": "INT32", "shape": [values.len()], "data": values});
        let body = json!({"parameters": {"do": what}, "inputs": [input]}).to_string();
        let answer = peer.post("/v2/models/once/infer", &[], body.as_bytes());
        match expected {
            Ok(value) => assert_eq!(answer.json()["outputs"][0]["data"][0], value),
            Err((found, text)) => {
                let status = if found == code::INTERNAL { 500 } else { 400 };
                assert_eq!((answer.status, answer.error()), (status, text.to_owned()));
            }
        }
        // On a stream the flag tells whether the end came along, and of several responses the first one counts.
        let answers = all_of(&mut grpc, &[once(what, values)]);
        let [answer] = &answers[..] else { panic!("{answers:?}") };
        let is_first = values.len() > 1;
        let came_along = expected.is_err() && !is_first && what != "error" || what == "together";
        assert_eq!((answer.id(), answer.is_final()), (what, Some(came_along)), "{what} {values:?}");
        match expected {
            Err((_, text)) if !is_first => assert_eq!(answer.error, text),
            _ => assert_eq!((answer.error.as_str(), answer.values()), ("", vec![values[0]])),
        }
    }
    server.stop();
}

#[test]
fn a_library_reports_its_responses_and_sees_cancellation() {
    let Some(directory) = backends() else { return };
    let (_repository, server) = start_later(usual(), &directory, &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let answers = all_of(&mut grpc, &[later("report", &[1])]);
    let refusals: Vec<String> = (0..3).map(|at| answers[0].text(&format!("refusal{at}"))).collect();
    assert_eq!(
        refusals,
        [
            "Response start cannot happen after compute output start",
            "Compute output start cannot happen after response end",
            "Response start cannot happen after response end"
        ]
    );
    let found = statistics(&server, "later");
    let fields = ["success", "empty_response", "fail", "cancel", "compute_infer", "compute_output"];
    let counts = |index: &str| fields.map(|field| found["response_stats"][index][field]["count"].as_u64());
    let expected =
        [("0", [1, 0, 0, 0, 1, 1]), ("1", [0, 1, 0, 0, 1, 0]), ("2", [0, 0, 1, 0, 1, 1]), ("3", [0, 0, 0, 1, 0, 0])];
    for (index, expected) in expected {
        assert_eq!(counts(index), expected.map(Some), "{found}");
    }
    assert_eq!(found["response_stats"].as_object().map(|all| all.len()), Some(4), "refused reports count nothing");
    assert_eq!(found["response_stats"]["0"]["compute_infer"]["ns"], 4);
    let answers = all_of(&mut grpc, &[later("state", &[1])]);
    let text = "unable to add state 'S'. State configuration is missing for model 'later'.";
    assert_eq!(answers[0].text("state"), text);
    let mut exchange = open(&mut grpc);
    grpc.send(&mut exchange, &later("cancelled", &[1, 2]));
    assert_eq!(next(&mut grpc, &mut exchange).values(), [1]);
    grpc.cancel(exchange);
    server.wait_for_log("later.c: saw the cancellation");
    server.stop();
}

/// Responses of a MiB each, far more than the server may keep for one client.
pub const BIG: usize = 300;

#[test]
fn a_slow_reader_holds_the_model_back_and_not_the_memory() {
    let Some(directory) = backends() else { return };
    each(&variant::ALL, |variant| {
        for flags in [&[][..], &["--grpc-max-response-pool-size=1"]] {
            in_time(|window| {
                let (_repository, server) = start_later(variant, &directory, flags);
                let before = server.resident_kib();
                let mut grpc = Grpc::connect(server.grpc);
                let mut exchange = open(&mut grpc);
                let values: Vec<i32> = (0..BIG as i32).collect();
                grpc.send(&mut exchange, &later("big", &values));
                grpc.half_close(&mut exchange);
                let mut most = 0;
                for value in 0..BIG as i32 {
                    // A client that reads nothing for so long loses its stream.
                    window.open(Duration::from_secs(10));
                    let answer = next(&mut grpc, &mut exchange);
                    assert_eq!((answer.values(), answer.inner.raw_output_contents[0].len()), (vec![value], 1 << 20));
                    if value % 20 == 0 {
                        // Nothing is read meanwhile; others are served.
                        let mut other = Grpc::connect(server.grpc);
                        let plain = single("plain", "p", "INPUT0", &[value]);
                        other.call::<ModelInferResponse>("ModelInfer", &plain).expect("an answer");
                        most = most.max(server.resident_kib());
                    }
                }
                assert_eq!(grpc.finish(exchange).status.code, code::OK);
                let grown = most.saturating_sub(before) >> 10;
                assert!(grown < BIG as u64 / 3, "the server grew by {grown} MiB");
                server.stop();
            });
        }
    });
}

#[test]
fn a_client_that_never_reads_loses_its_stream() {
    let Some(directory) = backends() else { return };
    let (_repository, server) = start_later(usual(), &directory, &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut exchange = open(&mut grpc);
    let values: Vec<i32> = (0..BIG as i32).collect();
    grpc.send(&mut exchange, &later("big", &values));
    assert_eq!(next(&mut grpc, &mut exchange).values(), [0]);
    server.wait_for_log("a stream is ended: its client does not read");
    let reply = grpc.finish(exchange);
    let text = "the client does not read the responses of the stream";
    assert_eq!(reply.status, Status { code: EXHAUSTED, message: text.into() });
    assert!(reply.messages.len() < BIG / 2, "{} responses", reply.messages.len());
    // Neither the connection nor the model has suffered.
    assert_eq!(all_of(&mut grpc, &[later("plainly", &[1, 2])]).len(), 2);
    server.stop();
}

#[test]
fn delays_for_debugging_delay_their_request_and_nobody_else() {
    let repository = models();
    let delays = [
        ("TRITONSERVER_DELAY_GRPC_ENQUEUE", "60"),
        ("TRITONSERVER_DELAY_GRPC_RESPONSE", "90"),
        ("TRITONSERVER_DELAY_GRPC_NOTIFICATION", "10"),
    ];
    let server = Server::start_in(usual(), repository.path(), &[], "/v2/health/ready", &delays);
    let mut grpc = Grpc::connect(server.grpc);
    let started = std::time::Instant::now();
    let mut exchange = open(&mut grpc);
    grpc.send(&mut exchange, &square("s", 3));
    grpc.send(&mut exchange, &single("plain", "p", "INPUT0", &[5]));
    grpc.send(&mut exchange, &single("square", "wrong", "IN", &[1, 2]));
    grpc.flush();
    // The shard goes on meanwhile.
    assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
    let (answers, status) = rest(&mut grpc, exchange);
    assert!(started.elapsed() >= Duration::from_millis(150));
    assert_eq!((answers.len(), status.code), (5, code::OK));
    assert_eq!(answers.iter().filter(|answer| answer.error.is_empty()).count(), 4);
    grpc.call::<ModelInferResponse>("ModelInfer", &single("plain", "p", "INPUT0", &[5])).expect("an answer");
    let wrong = grpc.call::<ModelInferResponse>("ModelInfer", &single("plain", "p", "INPUT", &[5])).unwrap_err();
    assert_eq!(wrong.code, code::INVALID_ARGUMENT);
    // Given up before, and after, it went to its model.
    for first in [false, true] {
        let mut exchange = open(&mut grpc);
        grpc.send(&mut exchange, &square("s", 3));
        grpc.flush();
        if first {
            next(&mut grpc, &mut exchange);
        }
        grpc.cancel(exchange);
    }
    grpc.call::<ModelInferResponse>("ModelInfer", &single("plain", "p", "INPUT0", &[5])).expect("an answer");
    server.stop();
}
