//! Programs that ask a server of their own, and models that ask others: requests, allocators, streams, traces, calls.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::program::Program;
use crate::support::backend;
use crate::support::http::{Peer, request};
use crate::support::repository::{Pair, Repository};
use crate::support::server::Server;
use crate::support::variant::{self, each};

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
    repository.identity("labelled", 0, &[Pair::new("INT32", "2").labels()]);
    repository.file("labelled/labels.txt", "cat\ndog\n\n");
    let several = |name: &str, more: &str| {
        let config = crate::support::repository::identity_config("identity", name, 8, &int32("-1"), more);
        repository.model(name, &config.replace("KIND_CPU count: 1", "KIND_CPU count: 2"));
    };
    several("batched", "dynamic_batching { max_queue_delay_microseconds: 500 }");
    several("ordered", &format!("dynamic_batching {{ preserve_ordering: true }}\n{}", delay(3, 4)));
    let policy = "dynamic_batching { default_queue_policy { allow_timeout_override: true \
                  default_timeout_microseconds: 3600000000 max_queue_size: 2 } }";
    repository.identity_of("identity", "slow", 1, &int32("-1"), &format!("{policy}\n{}", delay(600, 0)));
    repository.identity_of("identity", "sequence", 8, &int32("-1"), "sequence_batching { }");
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
