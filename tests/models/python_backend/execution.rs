//! Results, sent responses and errors of execute, and the content of its requests (contract/python_backend.md sections
//! 2 and 6).

use serde_json::Value;

use super::models;
use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, ALL, each, usual};

/// Runs a script of tests/python against a server of these models.
fn with_client(variant: variant::Variant, script: &str, models: &[&str], flags: &[&str]) -> Option<Server> {
    let repository = models::repository(models);
    let python = Python::get()?;
    let server = models::serve(variant, &repository, flags)?;
    python.run(script, &[&server.http.to_string(), &server.grpc.to_string()]);
    Some(server)
}

#[test]
fn all_that_execute_may_return_or_raise_is_an_answer() {
    let models = ["failing", "mixed", "coroutines", "holder"];
    let Some(server) = with_client(usual(), "model_results.py", &models, &[]) else { return };
    // The same texts, in the order of the specification's tests.
    server.wait_for_log(
        "mixed: the sender said Unable to send response. Non-decoupled model cannot send complete final before \
         sending a response.|Inference Response object must be provided when the response flags is set to zero.|\
         Unable to send response. Unsupported flag provided.|sent|Unable to send response. Non-decoupled model cannot \
         send more than one response.|Unable to send response. Response sender has been closed.",
    );
    server.stop();
}

#[test]
fn models_see_their_requests_whole_and_together() {
    let models = [
        "echo_request",
        "together",
        "ragged",
        "sequence",
        "sequence_oldest",
        "sequence_texts",
        "iterative",
        "rounds",
        "puts_back",
    ];
    with_client(usual(), "model_batches.py", &models, &[]).map(Server::stop);
}

#[test]
fn tensors_of_every_kind_go_through() {
    each(&ALL, |variant| {
        let models = ["identity", "identity_batched", "shapes", "holder"];
        with_client(variant, "model_tensors.py", &models, &[]).map(Server::stop);
    });
}

#[test]
fn tensors_lie_in_the_shared_memory_of_clients() {
    with_client(usual(), "model_shared.py", &["identity"], &["--allow-client-shm=true"]).map(Server::stop);
}

#[test]
fn responses_of_senders_come_in_order_whoever_reads_and_goes() {
    each(&ALL, |variant| {
        let repository = models::repository(&["stream", "decoupled", "decoupled_async"]);
        let Some(python) = Python::get() else { return };
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        python.run("model_streams.py", &[&server.grpc.to_string()]);
        for line in ["a thread saw the cancellation", "execute saw the cancellation"] {
            server.wait_for_log(&format!("stream: {line}"));
        }
        server.stop();
    });
}

#[test]
fn a_model_that_sleeps_sees_that_its_client_left() {
    each(&ALL, |variant| {
        let repository = models::repository(&["queued"]);
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let body = |wait_ms: i32| {
            format!(r#"{{"inputs":[{{"name":"SLEEP_MS","datatype":"INT32","shape":[1,1],"data":[{wait_ms}]}}]}}"#)
        };
        let path = "/v2/models/queued/infer";
        {
            let mut peer = Peer::connect(server.http);
            peer.send(&generate(path, body(-1).as_bytes()));
            server.wait_for_log("queued: DIFFERENTIAL executes");
        }
        // There is one instance, and it waits for nothing but that.
        let answer = Peer::connect(server.http).post(path, &[], body(0).as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.stop();
    });
}

#[test]
fn memory_is_bounded_and_comes_back() {
    let repository = models::repository(&["holder", "stream"]);
    let Some(python) = Python::get() else { return };
    let flags = ["--backend-config=python,shm-max-byte-size=16777216"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let addresses = [server.http, server.grpc].map(|address| address.to_string());
    python.run("model_memory.py", &[&addresses[0], &addresses[1], &server.pid().to_string()]);
    server.stop();
}

fn ask(peer: &mut Peer, how: &str) -> u16 {
    let body = format!(r#"{{"inputs":[{{"name":"HOW","datatype":"BYTES","shape":[1],"data":["{how}"]}}]}}"#);
    peer.post("/v2/models/failing/infer", &[], body.as_bytes()).status
}

fn statistics(peer: &mut Peer, model: &str) -> Value {
    peer.get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
}

#[test]
fn executions_are_counted_as_tritons_backend_does() {
    let repository = models::repository(&["failing", "iterative"]);
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    assert_eq!([ask(&mut peer, "fine"), ask(&mut peer, "plain_error"), ask(&mut peer, "raise_empty")], [200, 500, 500]);
    let counted = statistics(&mut peer, "failing");
    let count = |name: &str| counted["inference_stats"][name]["count"].clone();
    // An error that a response carries is a success, and an exception is an execution all the same.
    assert_eq!(
        (counted["inference_count"].clone(), counted["execution_count"].clone()),
        (2.into(), 3.into()),
        "{counted}"
    );
    assert_eq!((count("success"), count("fail")), (2.into(), 1.into()), "{counted}");
    for name in ["queue", "compute_input", "compute_infer", "compute_output"] {
        assert_eq!(count(name), 2, "{name}: {counted}");
    }
    assert_eq!(counted["batch_stats"][0]["compute_infer"]["count"], 3, "{counted}");
    assert_eq!(counted["response_stats"], serde_json::json!({}), "{counted}");
    assert!(
        peer_metrics(&server)
            .contains(r#"nv_inference_request_failure{model="failing",reason="BACKEND",version="1"} 1"#)
    );
    // Each round of an iterative sequence is one.
    let body = r#"{"inputs":[{"name":"ROUNDS","datatype":"INT32","shape":[1,1],"data":[3]}]}"#;
    assert_eq!(peer.post("/v2/models/iterative/infer", &[], body.as_bytes()).status, 200);
    let counted = statistics(&mut peer, "iterative");
    assert_eq!(
        (counted["inference_count"].clone(), counted["execution_count"].clone()),
        (4.into(), 4.into()),
        "{counted}"
    );
    server.stop();
}

fn peer_metrics(server: &Server) -> String {
    Peer::connect(server.metrics).get("/metrics").text()
}

/// A POST whose answer may come in parts.
pub fn generate(path: &str, body: &[u8]) -> Vec<u8> {
    nereid_test_support::http::request("POST", path, &[], body)
}
