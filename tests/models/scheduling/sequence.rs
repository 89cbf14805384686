//! The sequence batcher (contract/schedulers.md section 3), with a backend that adds up the values of a sequence's
//! requests (tests/backends/sequences.c).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::grpc::{Exchange, Grpc, SERVICE, Status, code, decode};
use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each, usual};

/// The `--backend-directory` flag with backend `sequences` in it. None, after a visible skip, without a C compiler.
fn backend_flag() -> Option<String> {
    backend::compiled("sequences.c").map(|directory| format!("--backend-directory={}", directory.display()))
}

const READY_AND_START: &str = r#"
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
"#;
/// A second between two requests of a sequence, which is the default, is nothing on a busy machine.
const PATIENT: &str = "max_sequence_idle_microseconds: 600000000";
const STATE: &str = r#"state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ 1 ] }"#;

/// The configuration of a model of the backend.
fn config(name: &str, mode: &str, rows: u32, instances: u32, batching: &str, more: &str) -> String {
    format!(
        r#"name: "{name}" backend: "sequences" max_batch_size: {rows}
        input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
        output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
        parameters {{ key: "mode" value {{ string_value: "{mode}" }} }}
        instance_group {{ kind: KIND_CPU count: {instances} }}
        {batching} {more}"#
    )
}

/// What happens to a request in its sequence.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Start,
    On,
    End,
    Only,
}
use Step::{End, On, Only, Start};

fn message(model: &str, id: impl Into<Id>, step: Step, value: i32) -> ModelInferRequest {
    let flag = |is_set| ParameterChoice::BoolParam(is_set);
    let parameters = [
        ("sequence_id", id.into().0),
        ("sequence_start", flag(matches!(step, Start | Only))),
        ("sequence_end", flag(matches!(step, End | Only))),
    ];
    let named = |(key, choice): (&str, _)| (key.to_owned(), InferParameter { parameter_choice: Some(choice) });
    ModelInferRequest {
        model_name: model.to_owned(),
        parameters: parameters.into_iter().map(named).collect(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![1, 1],
            ..Default::default()
        }],
        raw_input_contents: vec![Bytes::copy_from_slice(&value.to_le_bytes())],
        ..Default::default()
    }
}

struct Id(ParameterChoice);

impl From<i64> for Id {
    fn from(id: i64) -> Id {
        Id(ParameterChoice::Int64Param(id))
    }
}

impl From<&str> for Id {
    fn from(id: &str) -> Id {
        Id(ParameterChoice::StringParam(id.to_owned()))
    }
}

/// What a response says: the sum, and what the backend saw.
#[derive(Debug, PartialEq)]
struct Said {
    sum: i32,
    rows: i64,
    row: i64,
    instance: String,
    id: String,
}

fn said(response: &ModelInferResponse) -> Said {
    let bytes = response.raw_output_contents.first().expect("an output");
    let parameter = |name: &str| match response.parameters.get(name).and_then(|it| it.parameter_choice.clone()) {
        Some(ParameterChoice::Int64Param(number)) => number.to_string(),
        Some(ParameterChoice::StringParam(text)) => text,
        other => panic!("{name}: {other:?}"),
    };
    Said {
        sum: i32::from_le_bytes(bytes[..].try_into().expect("four bytes")),
        rows: parameter("rows").parse().expect("a number"),
        row: parameter("row").parse().expect("a number"),
        instance: parameter("instance"),
        id: parameter("id"),
    }
}

fn call(grpc: &mut Grpc, request: &ModelInferRequest) -> Result<Said, Status> {
    grpc.call::<ModelInferResponse>("ModelInfer", request).map(|response| said(&response))
}

/// Sends without waiting for the answer.
fn post(grpc: &mut Grpc, request: &ModelInferRequest) -> Exchange {
    let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
    grpc.send(&mut exchange, request);
    grpc.half_close(&mut exchange);
    grpc.flush();
    exchange
}

fn finish(grpc: &mut Grpc, exchange: Exchange) -> Result<Said, Status> {
    let reply = grpc.finish(exchange);
    match reply.status.code {
        code::OK => Ok(said(&decode(&reply.messages[0]))),
        _ => Err(reply.status),
    }
}

fn statistics(address: SocketAddr, model: &str) -> Value {
    Peer::connect(address).get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
}

/// Executions by the number of their rows.
fn batches(address: SocketAddr, model: &str) -> BTreeMap<u64, u64> {
    let stats = statistics(address, model);
    let sizes = stats["batch_stats"].as_array().expect("batches").iter();
    sizes.map(|it| (it["batch_size"].as_u64().unwrap(), it["compute_infer"]["count"].as_u64().unwrap())).collect()
}

fn start(variant: Variant, repository: &Repository, environment: &[(&str, &str)]) -> Option<Server> {
    let flag = backend_flag()?;
    Some(Server::start_in(variant, repository.path(), &[&flag], "/v2/health/ready", environment))
}

fn unknown(id: &str, model: &str) -> String {
    format!(
        "inference request for sequence {id} to model '{model}' must specify the START flag on the first request of the \
         sequence"
    )
}

/// One after the other, the requests of a sequence; their sums are right and all come from one place.
fn run_sequence(grpc: &mut Grpc, model: &str, id: &str, length: i32, is_direct: bool) {
    let mut place = None;
    for step in 0..length {
        let flag = match step {
            0 => Start,
            step if step + 1 == length => End,
            _ => On,
        };
        let got = call(grpc, &message(model, id, flag, step + 1)).expect("an answer");
        assert_eq!((got.sum, got.id.as_str()), ((step + 1) * (step + 2) / 2, id), "step {step}");
        let here = (got.instance, if is_direct { got.row } else { 0 });
        assert_eq!(*place.get_or_insert(here.clone()), here, "sequence {id}, step {step}");
    }
}

#[test]
fn sums_stay_with_their_sequences_however_many_there_are() {
    let repository = Repository::new();
    let direct = format!("sequence_batching {{ {PATIENT} direct {{ }} {READY_AND_START} }}");
    let oldest = format!("sequence_batching {{ {PATIENT} oldest {{ max_candidate_sequences: 3 }} {STATE} }}");
    repository.model("rows", &config("rows", "rows", 2, 2, &direct, ""));
    repository.model("states", &config("states", "states", 2, 2, &oldest, ""));
    each(&variant::ALL, |variant| {
        let Some(server) = start(variant, &repository, &[]) else { return };
        for (model, is_direct) in [("rows", true), ("states", false)] {
            let (clients, sequences, length) = (10, 3, 5);
            std::thread::scope(|scope| {
                for client in 0..clients {
                    let address = server.grpc;
                    scope.spawn(move || {
                        let mut grpc = Grpc::connect(address);
                        for sequence in 0..sequences {
                            run_sequence(&mut grpc, model, &format!("{client} {sequence}"), length, is_direct);
                        }
                    });
                }
            });
            let stats = statistics(server.http, model);
            let requests = (clients * sequences * length) as u64;
            assert_eq!(stats["inference_stats"]["success"]["count"], requests);
            assert_eq!(stats["inference_stats"]["fail"]["count"], 0);
            assert!(stats["execution_count"].as_u64().unwrap() <= requests);
        }
        server.stop();
    });
}

#[test]
fn the_official_client_runs_sequences() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    let direct = format!("sequence_batching {{ {PATIENT} {READY_AND_START} }}");
    repository.model("rows", &config("rows", "rows", 4, 1, &direct, ""));
    let Some(server) = start(usual(), &repository, &[]) else { return };
    for (protocol, address) in [("http", server.http), ("grpc", server.grpc), ("grpc-aio", server.grpc)] {
        let url = address.to_string();
        python.run("sequences.py", &["--protocol", protocol, "--url", &url, "--model", "rows"]);
    }
    server.stop();
}

#[test]
fn every_slot_is_a_row_of_the_batch() {
    let repository = Repository::new();
    let direct = format!("sequence_batching {{ {PATIENT} direct {{ }} {READY_AND_START} }}");
    repository.model("rows", &config("rows", "rows", 4, 1, &direct, ""));
    let Some(server) = start(usual(), &repository, &[("TRITONSERVER_DELAY_SCHEDULER", "4")]) else { return };
    let mut grpc = Grpc::connect(server.grpc);
    // Nothing is executed before the fourth one has come.
    let first: Vec<_> = (1..=4).map(|id| post(&mut grpc, &message("rows", id, Start, 10 * id as i32))).collect();
    for (at, exchange) in first.into_iter().enumerate() {
        let got = finish(&mut grpc, exchange).expect("an answer");
        assert_eq!((got.sum, got.rows, got.row), (10 * (at as i32 + 1), 4, at as i64));
    }
    assert_eq!(batches(server.http, "rows"), BTreeMap::from([(4, 1)]));
    // Slots without a request are rows as well, up to the highest one that has one.
    let got = call(&mut grpc, &message("rows", 3, End, 5)).expect("an answer");
    assert_eq!((got.sum, got.rows, got.row), (35, 3, 2));
    let got = call(&mut grpc, &message("rows", 1, On, 1)).expect("an answer");
    assert_eq!((got.sum, got.rows, got.row), (11, 1, 0));
    let got = call(&mut grpc, &message("rows", "new", Start, 7)).expect("an answer");
    assert_eq!((got.sum, got.rows, got.row), (7, 3, 2), "the lowest free slot");
    assert_eq!(batches(server.http, "rows"), BTreeMap::from([(1, 1), (3, 2), (4, 1)]));
    let stats = statistics(server.http, "rows");
    assert_eq!(
        (&stats["inference_count"], &stats["execution_count"]),
        (&json!(7), &json!(4)),
        "null rows do not count"
    );
    // A server that stops waits for the ends of sequences.
    for id in [1, 2, 4] {
        call(&mut grpc, &message("rows", id, End, 1)).expect("an answer");
    }
    call(&mut grpc, &message("rows", "new", End, 1)).expect("an answer");
    server.stop();
}

#[test]
fn what_is_wrong_with_a_sequence_is_said() {
    let repository = Repository::new();
    let ids = "control_input { name: \"ID\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }";
    let batching = format!("sequence_batching {{ {ids} {STATE} }}");
    repository.model("states", &config("states", "states", 0, 1, &batching, ""));
    repository.model("other", &config("other", "states", 2, 1, &batching.replace("AFTER", "ELSE"), ""));
    repository.model("stateless", &config("stateless", "stateless", 2, 1, "", ""));
    let Some(server) = start(usual(), &repository, &[]) else { return };
    let mut grpc = Grpc::connect(server.grpc);
    let mut refused = |request: &ModelInferRequest| {
        let status = call(&mut grpc, request).expect_err("an error");
        (status.code, status.message)
    };
    let invalid = |text: &str| (code::INVALID_ARGUMENT, text.to_owned());
    let plain = |request: ModelInferRequest| {
        let mut request = request;
        request.inputs[0].shape = vec![1];
        request
    };
    assert_eq!(refused(&plain(message("states", 7, On, 1))), invalid(&unknown("7", "states")));
    assert_eq!(
        refused(&plain(message("states", 0, Start, 1))),
        invalid("inference request to model 'states' must specify a non-zero or non-empty correlation ID")
    );
    assert_eq!(
        refused(&plain(message("states", "seven", Start, 1))),
        invalid(
            "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'BYTES', but model 'states' expects \
             'UINT64'"
        )
    );
    let hidden = ModelInferRequest {
        outputs: vec![InferRequestedOutputTensor { name: "AFTER".to_owned(), ..Default::default() }],
        ..plain(message("states", 7, Start, 1))
    };
    assert_eq!(refused(&hidden), invalid("unexpected inference output 'AFTER' for model 'states'"));
    let mut two = message("other", 7, Start, 1);
    two.inputs[0].shape = vec![2, 1];
    two.raw_input_contents = vec![Bytes::from_static(&[0; 8])];
    assert_eq!(
        refused(&two),
        invalid("inference request to model 'other' must specify batch-size 1 due to requirements of sequence batcher")
    );
    assert_eq!(refused(&message("other", 7, Only, 1)), invalid("state 'AFTER' is not a valid state name."));
    assert_eq!(
        refused(&message("stateless", 7, Only, 1)),
        invalid("unable to add state 'AFTER'. State configuration is missing for model 'stateless'.")
    );
    let body = json!({
        "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}],
        "parameters": {"sequence_id": 9, "sequence_end": true},
    });
    let answer = Peer::connect(server.http).post("/v2/models/states/infer", &[], body.to_string().as_bytes());
    assert_eq!((answer.status, answer.error()), (400, unknown("9", "states")));
    // Refusals are nobody's failures; what a backend answers is.
    let fails = ["states", "other", "stateless"]
        .map(|model| statistics(server.http, model)["inference_stats"]["fail"]["count"].clone());
    assert_eq!(fails, [json!(0), json!(1), json!(1)]);
    server.stop();
}

#[test]
fn an_idle_sequence_makes_room_though_nobody_comes() {
    let repository = Repository::new();
    let batching = format!("sequence_batching {{ max_sequence_idle_microseconds: 300000 {STATE} }}");
    repository.model("states", &config("states", "states", 1, 1, &batching, ""));
    let Some(server) = start(usual(), &repository, &[]) else { return };
    let mut grpc = Grpc::connect(server.grpc);
    assert_eq!(call(&mut grpc, &message("states", 1, Start, 5)).expect("an answer").sum, 5);
    // The only slot is taken; nothing but time frees it.
    let got = call(&mut grpc, &message("states", 2, Only, 7)).expect("an answer");
    assert_eq!((got.sum, got.id.as_str()), (7, "2"), "and nothing of the former one is left");
    let gone = call(&mut grpc, &message("states", 1, On, 1)).expect_err("an error");
    assert_eq!(gone.message, unknown("1", "states"));
    server.stop();
}

#[test]
fn who_waits_in_the_backlog_may_give_up_or_run_out_of_time() {
    let repository = Repository::new();
    let batching = format!("sequence_batching {{ {PATIENT} {STATE} }}");
    repository.model("states", &config("states", "states", 1, 1, &batching, ""));
    each(&variant::ALL, |variant| {
        let Some(server) = start(variant, &repository, &[]) else { return };
        let mut grpc = Grpc::connect(server.grpc);
        assert_eq!(call(&mut grpc, &message("states", 1, Start, 5)).expect("an answer").sum, 5);
        // One whose client leaves, one whose time is up, one that waits.
        let mut leaver = Grpc::connect(server.grpc);
        let left = post(&mut leaver, &message("states", 2, Start, 1));
        // A call that ends before it has arrived whole is no request.
        server.wait_until("it waits", || {
            let page = Peer::connect(server.metrics).get("/metrics").text();
            let pending = page.lines().find(|line| line.starts_with("nv_inference_pending_request_count{"));
            pending.is_some_and(|line| line.ends_with(" 1"))
        });
        let mut timed = message("states", 3, On, 1);
        timed.parameters.insert(
            "timeout".to_owned(),
            InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(300_000)) },
        );
        let untimed = post(&mut grpc, &message("states", 3, Start, 1));
        let timed = post(&mut grpc, &timed);
        let patient = post(&mut grpc, &message("states", 4, Only, 9));
        let text = "timeout of the corresponding sequence has been expired";
        for exchange in [untimed, timed] {
            let status = finish(&mut grpc, exchange).expect_err("an error");
            assert_eq!((status.code, status.message.as_str()), (code::UNAVAILABLE, text));
        }
        leaver.cancel(left);
        server.wait_until("all three have failed", || {
            statistics(server.http, "states")["inference_stats"]["fail"]["count"] == 3
        });
        assert_eq!(call(&mut grpc, &message("states", 1, End, 1)).expect("an answer").sum, 6);
        assert_eq!(finish(&mut grpc, patient).expect("an answer").sum, 9);
        let page = Peer::connect(server.metrics).get("/metrics").text();
        for (reason, count) in [("REJECTED", 2), ("CANCELED", 1), ("BACKEND", 0), ("OTHER", 0)] {
            let line = page.lines().find(|line| {
                line.starts_with("nv_inference_request_failure{") && line.contains(&format!("reason=\"{reason}\""))
            });
            assert!(line.is_some_and(|line| line.ends_with(&format!(" {count}"))), "{reason}: {line:?}");
        }
        let pending = page.lines().find(|line| line.starts_with("nv_inference_pending_request_count{"));
        assert!(pending.is_some_and(|line| line.ends_with(" 0")), "{pending:?}");
        server.stop();
    });
}

#[test]
fn a_request_is_executed_until_its_backend_has_had_enough() {
    let repository = Repository::new();
    for (name, strategy) in [("direct", "direct { }"), ("oldest", "oldest { }")] {
        let batching = format!("sequence_batching {{ iterative_sequence: true {PATIENT} {strategy} {STATE} }}");
        repository.model(name, &config(name, "laps", 2, 1, &batching, ""));
    }
    let slow = format!("sequence_batching {{ iterative_sequence: true max_sequence_idle_microseconds: 1000 {STATE} }}");
    let sleep = r#"parameters { key: "sleep" value { string_value: "50" } }"#;
    repository.model("slow", &config("slow", "laps", 2, 1, &slow, sleep));
    repository.model("plain", &config("plain", "laps", 2, 1, &format!("sequence_batching {{ {STATE} }}"), ""));
    let Some(server) = start(usual(), &repository, &[]) else { return };
    let mut grpc = Grpc::connect(server.grpc);
    let alone = |model: &str, laps: i32| {
        let mut request = message(model, 0, On, laps);
        request.parameters.clear();
        request
    };
    for model in ["direct", "oldest"] {
        // More of them than slots.
        let laps = [4, 7, 1, 2];
        let exchanges = laps.map(|laps| post(&mut grpc, &alone(model, laps)));
        let got = exchanges.map(|exchange| finish(&mut grpc, exchange).expect("an answer"));
        assert_eq!(got.each_ref().map(|got| got.sum), laps, "{model}");
        assert_eq!(got.each_ref().map(|got| got.id.as_str()), ["1", "2", "3", "4"]);
        let stats = statistics(server.http, model);
        assert_eq!(stats["inference_stats"]["success"]["count"], 4, "each is one request");
        let executions = stats["execution_count"].as_u64().unwrap();
        assert!((7..=14).contains(&executions), "{model}: {executions}");
    }
    let late = call(&mut grpc, &alone("slow", 3)).expect_err("an error");
    assert_eq!(late.message, unknown("1", "slow"), "its sequence is gone when it comes back");
    assert_eq!(call(&mut grpc, &alone("slow", 1)).expect("an answer").sum, 1, "the instance is free");
    let plain = call(&mut grpc, &message("plain", 1, Only, 2)).expect_err("an error");
    assert_eq!(
        plain.message,
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle \
         such a flag."
    );
    server.stop();
}

#[test]
fn states_begin_as_configured() {
    let repository = Repository::new();
    let state = r#"state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ 1 ]
        use_same_buffer_for_input_output: true
        initial_state { name: "first" data_type: TYPE_INT32 dims: [ 1 ] data_file: "forty" } }"#;
    repository
        .model("states", &config("states", "states", 2, 1, &format!("sequence_batching {{ {PATIENT} {state} }}"), ""));
    repository.file("states/initial_state/forty", 40i32.to_le_bytes());
    let growing = STATE.replace("dims: [ 1 ]", "dims: [ 1 ] use_growable_memory: true");
    repository.model("growing", &config("growing", "states", 2, 1, &format!("sequence_batching {{ {growing} }}"), ""));
    let again = STATE.replace("AFTER", "OTHER") + &STATE.replace("BEFORE", "OTHER");
    let doubled = config("doubled", "states", 2, 1, &format!("sequence_batching {{ {PATIENT} {STATE} {again} }}"), "");
    repository.model("doubled", &doubled);
    let Some(server) = start(usual(), &repository, &[]) else { return };
    for text in
        ["'input_name' in the state configuration: 'BEFORE.'", "'output_name' in the state configuration: 'AFTER'."]
    {
        server.wait_for_log(&format!("Detected duplicate {text} This state configuration will be ignored."));
    }
    let mut grpc = Grpc::connect(server.grpc);
    let doubled = [(Start, 2), (On, 3), (End, 4)]
        .map(|(step, value)| call(&mut grpc, &message("doubled", 1, step, value)).expect("an answer").sum);
    assert_eq!(doubled, [2, 5, 9], "the first state of a name is used");
    let sums = [(1, Start, 2), (2, Start, 1), (1, On, 3), (1, Start, 1), (2, End, 1), (2, Start, 0)]
        .map(|(id, step, value)| call(&mut grpc, &message("states", id, step, value)).expect("an answer").sum);
    assert_eq!(sums, [42, 41, 45, 41, 42, 40]);
    server.wait_for_log("sequence 1 for model 'states' has a conflict");
    // A server that stops waits for the ends of sequences.
    for id in [1, 2] {
        call(&mut grpc, &message("states", id, End, 1)).expect("an answer");
    }
    assert!(call(&mut grpc, &message("growing", 1, Only, 1)).is_err(), "its input is missing");
    server.wait_for_log(
        "Failed to initialize sequence state: In order to 'use_growable_memory', you must also enable \
         'use_single_buffer' for state input name 'BEFORE'.",
    );
    server.stop();
}
