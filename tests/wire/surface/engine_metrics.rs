//! `--engine-metrics`: queue, running requests and key-value cache as endpoint pickers read them (contract/scale_out.md
//! section 5).

use serde_json::{Value, json};

use super::super::grpc::message::numbers;
use super::custom_metrics;
use nereid_test_support::backend;
use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::{Grpc, SERVICE};
use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const ENGINES: [&str; 4] = ["vllm", "triton", "trtllm", "sglang"];
const REQUIREMENTS: &str = "metrics-requirements.txt";

/// What a picker takes from the page.
fn picked(python: &Python, engine: &str, server: &Server, options: &[&str]) -> Value {
    let url = format!("http://{}/metrics", server.metrics);
    let arguments: Vec<&str> = [engine, &url].into_iter().chain(options.iter().copied()).collect();
    serde_json::from_str(&python.run("picker.py", &arguments)).expect("JSON")
}

#[test]
fn a_picker_reads_queue_and_running_requests_of_any_model() {
    let Some((python, backends)) = Python::with(REQUIREMENTS).zip(backend::directory_flag()) else { return };
    for engine in ENGINES {
        let (repository, gate) = (Repository::new(), Gate::new());
        repository.identity_of("identity", "zz_idle", 0, &[Pair::new("INT32", "-1")], "");
        repository.identity_of(gate::BACKEND, "slow", 0, &[Pair::new("INT32", "-1")], &gate.of_executions());
        let server = Server::start(usual(), repository.path(), &[&format!("--engine-metrics={engine}"), &backends]);
        assert_eq!(picked(&python, engine, &server, &[]), json!({"queued": 0.0, "running": 0.0, "used": 0.0}));
        let sizes = picked(&python, engine, &server, &["--sizes"]);
        assert!(sizes["missing"].is_string(), "{engine}: no model has a cache, so no size is made up: {sizes}");
        let mut grpc = Grpc::connect(server.grpc);
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
                grpc.send(&mut exchange, &numbers("slow", "1", &[1]));
                grpc.half_close(&mut exchange);
                exchange
            })
            .collect();
        grpc.flush();
        // One executes and three wait. The picker sees the most loaded model, wherever its name stands.
        let expected = json!({"queued": 3.0, "running": 1.0, "used": 0.0});
        server.wait_until("the queue is seen", || picked(&python, engine, &server, &[]) == expected);
        // The names of the other engines are not there.
        for other in ENGINES.iter().filter(|other| **other != engine) {
            assert!(picked(&python, other, &server, &[])["missing"].is_string(), "{engine} shows {other}");
        }
        waiting.into_iter().for_each(|exchange| grpc.cancel(exchange));
        gate.open();
        server.stop();
    }
}

#[test]
fn by_default_no_engine_has_its_names() {
    let Some(python) = Python::with(REQUIREMENTS) else { return };
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    for engine in ENGINES {
        assert!(picked(&python, engine, &server, &[])["missing"].is_string(), "{engine}");
    }
    server.stop();
}

/// A backend that publishes its cache: its numbers come under the names of the engine, and its own family stays one.
#[test]
fn the_cache_of_a_model_is_shown_where_the_model_publishes_it() {
    let Some(python) = Python::with(REQUIREMENTS) else { return };
    for engine in ENGINES {
        let flag = format!("--engine-metrics={engine}");
        let Some((_repository, server)) = custom_metrics::start_with(usual(), &[&flag]) else { return };
        let mut peer = Peer::connect(server.http);
        assert_eq!(peer.post("/v2/models/one/generate", &[], br#"{"INPUT0":1}"#).status, 200);
        let taken = picked(&python, engine, &server, &["--sizes"]);
        assert_eq!((&taken["used"], &taken["sizes"]), (&json!(0.125), &json!([64.0, 8.0])), "{engine}: {taken}");
        server.stop();
    }
}
