//! Programs that send requests to an embedded server, and models that call other models: requests, allocators, streams,
//! traces, calls.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use serde_json::{Value, json};

use super::program::Program;
use nereid_test_support::backend;
use nereid_test_support::grpc::{Grpc, SERVICE, Status, code, decode};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is UTF-8")
}

fn int32(dims: &'static str) -> [Pair; 1] {
    [Pair::new("INT32", dims)]
}

const FIXED: &str = "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ 4 ] }\n\
                     output { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ 4 ] }\n";

fn delay(ms: u32, multiplier: u32) -> String {
    format!(
        "parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{ms}\" }} }}\n\
         parameters {{ key: \"instance_wise_delay_multiplier\" value {{ string_value: \"{multiplier}\" }} }}"
    )
}

/// What the programs ask.
fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("echo", 8, &int32("-1"));
    repository.identity("fixed", 0, &int32("4"));
    repository.identity("pair", 0, &[Pair::new("INT32", "-1"), Pair::new("INT32", "-1").optional()]);
    repository.identity("text", 0, &[Pair::new("BYTES", "-1")]);
    repository.identity("word", 0, &[Pair::new("BYTES", "1")]);
    repository.identity("labelled", 0, &[Pair::new("INT32", "2").labels()]);
    repository.file("labelled/labels.txt", "cat\ndog\n\n");
    let several = |name: &str, more: &str| {
        let config = nereid_test_support::repository::identity_config("identity", name, 8, &int32("-1"), more);
        repository.model(name, &config.replace("KIND_CPU count: 1", "KIND_CPU count: 2"));
    };
    several("batched", "dynamic_batching { max_queue_delay_microseconds: 500 }");
    several("levels", "dynamic_batching { priority_levels: 20 default_priority_level: 10 }");
    several("many_levels", "dynamic_batching { priority_levels: 5000000000 default_priority_level: 1 }");
    several("ordered", &format!("dynamic_batching {{ preserve_ordering: true }}\n{}", delay(3, 4)));
    let policy = "dynamic_batching { default_queue_policy { allow_timeout_override: true \
                  default_timeout_microseconds: 3600000000 max_queue_size: 2 } }";
    repository.identity_of("identity", "slow", 1, &int32("-1"), &format!("{policy}\n{}", delay(1500, 0)));
    // Under valgrind, on a busy machine, a second between two requests is nothing.
    let patient = "sequence_batching { max_sequence_idle_microseconds: 600000000 }";
    repository.identity_of("identity", "sequence", 8, &int32("-1"), patient);
    repository.identity_of("identity", "cached", 0, &int32("4"), "response_cache { enable: true }");
    let step = |from: &str, to: &str| {
        format!(
            "step {{ model_name: \"fixed\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{from}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{to}\" }} }}\n"
        )
    };
    let steps = step("INPUT0", "between") + &step("between", "OUTPUT0");
    repository.model("chain", &format!("platform: \"ensemble\"\n{FIXED}ensemble_scheduling {{\n{steps}}}\n"));
    let decoupled = "model_transaction_policy { decoupled: true }";
    repository.model(
        "square",
        &format!(
            "backend: \"square\"\ninput {{ name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] }}\n\
             output {{ name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }}\n{decoupled}"
        ),
    );
    repository.model(
        "repeat",
        &format!(
            "backend: \"repeat\"\ninput [ {{ name: \"IN\" data_type: TYPE_INT32 dims: [ -1 ] }}, \
             {{ name: \"DELAY\" data_type: TYPE_UINT32 dims: [ -1 ] }}, \
             {{ name: \"WAIT\" data_type: TYPE_UINT32 dims: [ 1 ] }} ]\n\
             output [ {{ name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }}, \
             {{ name: \"IDX\" data_type: TYPE_UINT32 dims: [ 1 ] }} ]\n{decoupled}"
        ),
    );
    repository
}

fn runs(source: &str, backends: &Path) {
    let Some(program) = Program::compiled(source) else { return };
    let repository = repository();
    program.run(&[text(repository.path()), text(backends)]);
    program.run_checked(&[text(repository.path()), text(backends)]);
}

/// The same under valgrind.
fn runs_watched(source: &str, backends: &Path) {
    let Some(program) = Program::compiled(source) else { return };
    let repository = repository();
    program.run_watched(&[text(repository.path()), text(backends)]);
}

/// No backend lies there: the models run on those that are built in.
fn no_backends() -> &'static Path {
    Path::new("/nonexistent/backends")
}

#[test]
fn requests_are_built_sent_and_answered() {
    runs("requests.c", no_backends());
}

#[test]
fn allocators_give_the_memory_of_answers() {
    runs("allocators.c", no_backends());
}

#[test]
fn requests_stream_wait_expire_and_are_called_back() {
    runs("streams.c", no_backends());
}

#[test]
fn traces_follow_requests() {
    runs("tracing.c", no_backends());
}

/// Cases of Triton's Python binding and of its core's tests.
#[test]
fn what_tritons_own_programs_do_works_here() {
    let Some(program) = Program::compiled("binding.c") else { return };
    let repository = repository();
    program.run(&[text(repository.path()), text(no_backends())]);
    program.run_blameless(&[text(repository.path()), text(no_backends())]);
}

/// More of them: sizes, strings in pieces, releases that come early.
#[test]
fn what_does_not_fit_is_refused_unread() {
    runs("sizes.c", no_backends());
}

#[test]
fn what_tritons_own_programs_do_leaves_nothing_behind() {
    runs_watched("binding.c", no_backends());
}

#[test]
fn an_application_reads_and_gets_its_log() {
    let Some(program) = Program::compiled("log.c") else { return };
    for is_checked in [false, true] {
        let repository = Repository::new();
        repository.file("log/none", "");
        let (log, empty) = (repository.path().join("log/its.log"), repository.path().join("empty"));
        std::fs::create_dir(&empty).expect("an empty repository");
        let arguments = [text(&log), text(&empty)];
        match is_checked {
            false => program.run(&arguments),
            true => program.run_checked(&arguments),
        };
    }
}

#[test]
fn requests_and_answers_leave_nothing_behind() {
    runs_watched("requests.c", no_backends());
}

#[test]
fn allocators_get_everything_back() {
    runs_watched("allocators.c", no_backends());
}

#[test]
fn streams_leave_nothing_behind() {
    runs_watched("streams.c", no_backends());
}

#[test]
fn traces_leave_nothing_behind() {
    runs_watched("tracing.c", no_backends());
}

/// The backend that asks other models. None, after a visible skip, without a compiler.
fn caller() -> Option<PathBuf> {
    backend::compiled("caller.c")
}

fn calling(repository: &Repository, name: &str, callee: &str, more: &str) {
    let parameter = format!("parameters {{ key: \"callee\" value {{ string_value: \"{callee}\" }} }}\n");
    let any = FIXED.replace("[ 4 ]", "[ -1 ]");
    repository.model(name, &format!("backend: \"caller\"\n{any}{parameter}{more}"));
}

#[test]
fn a_library_writes_where_the_application_wants_it() {
    let (Some(backends), Some(program)) = (caller(), Program::compiled("calling.c")) else { return };
    let repository = repository();
    calling(&repository, "call", "fixed", "");
    calling(&repository, "policed", "fixed", "instance_group { kind: KIND_CPU count: 1 host_policy: \"special\" }");
    let arguments = [text(repository.path()), text(&backends)];
    program.run(&arguments);
    program.run_checked(&arguments);
    program.run_watched(&arguments);
}

fn infer(peer: &mut Peer, model: &str, values: &[i32], parameters: &str) -> (u16, serde_json::Value) {
    let body =
        json!({ "inputs": [{ "name": "INPUT0", "datatype": "INT32", "shape": [values.len()], "data": values }] });
    let body = body.to_string().replacen('{', &format!("{{\"parameters\":{parameters},"), 1);
    let answer = peer.send(&request("POST", &format!("/v2/models/{model}/infer"), &[], body.as_bytes())).answer();
    (answer.status, answer.json())
}

/// Models that ask models that ask models, while clients ask on two shards.
#[test]
fn models_ask_other_models() {
    let Some(backends) = caller() else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        calling(&repository, "call", "fixed", "");
        calling(&repository, "deep", "call", "");
        calling(&repository, "ensembled", "chain", "");
        calling(&repository, "lost", "nosuch", "");
        let flag = format!("--backend-directory={}", backends.display());
        let server = Server::start(variant, repository.path(), &[&flag, "--cache-config=local,size=1048576"]);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    let mut peer = Peer::connect(server.http);
                    for round in 0..20 {
                        for (model, callee) in [("call", "fixed"), ("deep", "call"), ("ensembled", "chain")] {
                            let values = [thread, round, 3, 4];
                            let (status, json) = infer(&mut peer, model, &values, "{\"twice\":true}");
                            assert_eq!(status, 200, "{json}");
                            assert_eq!(json["outputs"][0]["data"], json!(values), "{json}");
                            let told = &json["parameters"];
                            assert_eq!((&told["callee"], &told["place"]), (&json!(callee), &json!("0:0")), "{json}");
                        }
                    }
                });
            }
        });
        let mut peer = Peer::connect(server.http);
        let (status, json) = infer(&mut peer, "call", &[1, 2], "{}");
        let expected = "[request id: asked] unexpected shape for input 'INPUT0' for model 'fixed'. Expected [4], got \
                        [2]. ";
        assert_eq!((status, json["error"].as_str()), (400, Some(expected)));
        let (status, json) = infer(&mut peer, "lost", &[1], "{}");
        assert_eq!((status, json["error"].as_str()), (404, Some("Request for unknown model: 'nosuch' is not found")));
        // What models ask is counted as what clients ask: twice by `call`, once by each of the two `call` that `deep`
        // asks for, and by the two steps of each of the two `chain` that `ensembled` asks for.
        let statistics = peer.get("/v2/models/fixed/stats").json();
        let count = &statistics["model_stats"][0]["inference_stats"]["success"]["count"];
        assert_eq!(*count, json!(4 * 20 * (2 + 2 + 2 * 2)), "{statistics}");
        server.stop();
    });
}

fn message(model: &str, values: &[i32]) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![values.len() as i64],
        ..InferInputTensor::default()
    };
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let twice = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::from(bytes)],
        parameters: [("twice".to_owned(), twice)].into(),
        ..ModelInferRequest::default()
    }
}

/// Who answered, and what.
fn answered(response: &ModelInferResponse) -> (String, Vec<u8>) {
    let callee = response.parameters.get("callee").and_then(|parameter| parameter.parameter_choice.clone());
    let Some(ParameterChoice::StringParam(callee)) = callee else { panic!("no callee: {response:?}") };
    (callee, response.raw_output_contents[0].to_vec())
}

/// The same for clients of gRPC, one call at a time and many on a stream.
#[test]
fn models_ask_other_models_for_grpc() {
    let Some(backends) = caller() else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        let models = [("call", "fixed"), ("deep", "call"), ("ensembled", "chain")];
        models.into_iter().for_each(|(name, callee)| calling(&repository, name, callee, ""));
        calling(&repository, "lost", "nosuch", "");
        let flag = format!("--backend-directory={}", backends.display());
        let server = Server::start(variant, repository.path(), &[&flag, "--cache-config=local,size=1048576"]);
        let mut grpc = Grpc::connect(server.grpc);
        let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        for round in 0..5 {
            for (model, callee) in models {
                let values = [round, 2, 3, 4];
                let response = grpc.call("ModelInfer", &message(model, &values)).expect("an answer");
                assert_eq!(answered(&response), (callee.to_owned(), bytes(&values)));
            }
        }
        let unknown = "Request for unknown model: 'nosuch' is not found";
        let short =
            "[request id: asked] unexpected shape for input 'INPUT0' for model 'fixed'. Expected [4], got [1]. ";
        for (model, code, text) in [("lost", code::NOT_FOUND, unknown), ("call", code::INVALID_ARGUMENT, short)] {
            let refused = grpc.call::<ModelInferResponse>("ModelInfer", &message(model, &[1]));
            assert_eq!(refused, Err(Status { code, message: text.to_owned() }));
        }

        let mut exchange = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
        for round in 0..10 {
            for (model, _) in models {
                grpc.send(&mut exchange, &message(model, &[round, 6, 7, 8]));
            }
            grpc.send(&mut exchange, &message("lost", &[round]));
        }
        grpc.half_close(&mut exchange);
        for round in 0..10 {
            for (_, callee) in models {
                let response: ModelStreamInferResponse = decode(&grpc.next(&mut exchange).expect("an answer"));
                assert_eq!(response.error_message, "");
                let response = response.infer_response.expect("an answer");
                assert_eq!(answered(&response), (callee.to_owned(), bytes(&[round, 6, 7, 8])));
            }
            let response: ModelStreamInferResponse = decode(&grpc.next(&mut exchange).expect("an answer"));
            assert_eq!(response.error_message, unknown);
        }
        assert_eq!(grpc.finish(exchange).status.code, code::OK);
        server.stop();
    });
}

/// The traces of what a model asks are children of the one of the request that it answers, in the server's own file.
#[test]
fn what_models_ask_is_traced_below_what_they_are_asked() {
    let Some(backends) = caller() else { return };
    each(&variant::ALL, |variant| {
        let (repository, traces) = (repository(), Repository::new());
        calling(&repository, "call", "fixed", "");
        calling(&repository, "deep", "call", "");
        let file = traces.path().join("traces.json");
        let flags = [
            &*format!("--backend-directory={}", backends.display()),
            "--cache-config=local,size=1048576",
            "--trace-config=level=TIMESTAMPS",
            "--trace-config=rate=1",
            &*format!("--trace-config=triton,file={}", file.display()),
        ];
        let server = Server::start(variant, repository.path(), &flags);
        let (status, json) = infer(&mut Peer::connect(server.http), "deep", &[1, 2, 3, 4], "{\"twice\":true}");
        assert_eq!((status, &json["parameters"]["traced"]), (200, &json!(true)), "{json}");
        Grpc::connect(server.grpc).call::<ModelInferResponse>("ModelInfer", &message("call", &[1, 2, 3, 4])).unwrap();
        server.stop();

        let entries: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("complete");
        let identities: Vec<&Value> = entries.iter().filter(|entry| entry.get("model_name").is_some()).collect();
        let parent = |of: &Value| identities.iter().find(|other| other["id"] == of["parent_id"]).copied();
        // Each by the models above it. `deep` does not say "twice" to `call`.
        let mut paths: Vec<String> = Vec::new();
        for identity in &identities {
            let mut path = identity["model_name"].as_str().expect("a name").to_owned();
            let mut at = *identity;
            while let Some(above) = parent(at) {
                path = format!("{}/{path}", above["model_name"].as_str().expect("a name"));
                at = above;
            }
            assert!(at.get("parent_id").is_none(), "a parent that nobody wrote: {at}");
            paths.push(path);
            let of = |name: &str| {
                let times = entries.iter().filter(|entry| entry["id"] == identity["id"]);
                times.filter(|entry| entry["timestamps"].to_string().contains(name)).count()
            };
            for name in ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"] {
                assert_eq!(of(name), 1, "{name} of {identity} in {entries:?}");
            }
        }
        paths.sort();
        let expected = [
            "call",
            "call/fixed",
            "call/fixed",
            "deep",
            "deep/call",
            "deep/call",
            "deep/call/fixed",
            "deep/call/fixed",
        ];
        assert_eq!(paths, expected, "{entries:?}");
    });
}

/// A model that is warmed asks another one before it serves.
#[test]
fn a_model_that_is_warmed_may_ask() {
    let Some(backends) = caller() else { return };
    let repository = repository();
    let sample = "model_warmup { name: \"zeros\" batch_size: 1 count: 3 inputs { key: \"INPUT0\" value { \
                  data_type: TYPE_INT32 dims: [ 4 ] zero_data: true } } }";
    calling(&repository, "warm", "fixed", sample);
    calling(&repository, "cold", "nosuch", sample);
    let flag = format!("--backend-directory={}", backends.display());
    let flags = [&*flag, "--model-control-mode=explicit", "--load-model=fixed"];
    let server = Server::start(variant::usual(), repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    let mut load = |model: &str| {
        let path = format!("/v2/repository/models/{model}/load");
        let answer = peer.send(&request("POST", &path, &[], b"{}")).answer();
        (answer.status, answer.text().to_owned())
    };
    let (status, text) = load("cold");
    assert!(status == 400 && text.contains("Request for unknown model: 'nosuch' is not found"), "{status} {text}");
    assert_eq!(load("warm").0, 200);
    let statistics = peer.get("/v2/models/fixed/stats").json();
    assert_eq!(statistics["model_stats"][0]["inference_stats"]["success"]["count"], json!(3), "{statistics}");
    let (status, json) = infer(&mut peer, "warm", &[1, 2, 3, 4], "{}");
    assert_eq!(status, 200, "{json}");
    server.stop();
}
