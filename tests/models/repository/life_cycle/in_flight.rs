//! Requests in flight while their model is reloaded or unloaded, or the server stops.

use serde_json::json;

use crate::repository::life_cycle::control::{BODY, EXPLICIT, Life, config, generation, make_old, parameter, touch};
use nereid_test_support::gate::Gate;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{OTHER_SERVER, Server};
use nereid_test_support::variant::{self, each, usual};

fn held(generation: &str, gate: &Gate) -> String {
    config("m", &(gate.of_executions() + &parameter("generation", generation)))
}

/// Sends a request on a connection of its own.
fn send(server: &Server) -> Peer {
    let mut peer = Peer::connect(server.http);
    peer.send(&request("POST", "/v2/models/m/infer", &[], BODY.as_bytes()));
    peer
}

/// Requests that the model holds in its queue.
fn pending(server: &Server) -> usize {
    let text = Peer::connect(server.metrics).get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with("nv_inference_pending_request_count{model=\"m\""));
    line.and_then(|line| line.split("} ").nth(1)?.parse().ok()).unwrap_or_default()
}

/// Sends `count` requests and waits until the server has all of them: the gate holds one, the rest are pending.
fn in_flight(server: &Server, gate: &Gate, count: usize) -> Vec<Peer> {
    let mut peers = vec![send(server)];
    gate.wait_until_held(server, "m");
    peers.extend((1..count).map(|_| send(server)));
    server.wait_until(&format!("{count} requests are in flight"), || pending(server) + 1 == count);
    peers
}

fn all_answered(peers: Vec<Peer>) {
    for mut peer in peers {
        let answer = peer.answer();
        assert_eq!(answer.status, 200, "a request in flight: {}", answer.text());
        assert_eq!(answer.json()["outputs"][0]["data"], json!([7]));
    }
}

#[test]
fn unload_returns_at_once_and_requests_in_flight_are_answered() {
    each(&variant::ALL, |variant| {
        let (repository, gate) = (Repository::new(), Gate::new());
        repository.model("m", &held("one", &gate));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT, "--load-model=m"]) else { return };
        let peers = in_flight(&life.server, &gate, 4);
        life.must_unload("m");
        // The answer did not wait for the executions.
        assert_eq!(life.rows_of("m"), ["1:UNLOADING:"]);
        assert!(!life.is_ready("m"));
        let answer = life.infer("m");
        assert_eq!(answer.status, 404);
        assert_eq!(answer.error(), "Request for unknown model: 'm' has no available versions");
        gate.open();
        all_answered(peers);
        life.wait_for_rows("m", &["1:UNAVAILABLE:unloaded"]);
        life.server.wait_for_log("model finalize: m");
        life.server.stop();
    });
}

#[test]
fn a_reload_lets_requests_finish_on_the_old_model() {
    each(&variant::ALL, |variant| {
        let (repository, gate) = (Repository::new(), Gate::new());
        repository.model("m", &held("one", &gate));
        make_old(&repository.path().join("m"));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT, "--load-model=m"]) else { return };
        let peers = in_flight(&life.server, &gate, 4);
        repository.file("m/config.pbtxt", generation("m", "two"));
        touch(&repository, "m/config.pbtxt", 10);
        life.must_load("m");
        assert_eq!(life.generation("m"), "two");
        // The new one serves while the old one still executes.
        assert_eq!(life.served_by("m"), "1");
        assert!(!life.server.log().contains("model finalize"), "the old model ended before its requests");
        gate.open();
        all_answered(peers);
        life.server.wait_for_log("model finalize: m");
        assert_eq!(life.rows_of("m"), ["1:READY:"]);
        life.server.stop();
    });
}

#[test]
fn a_model_can_be_loaded_again_while_its_unload_drains() {
    let (repository, gate) = (Repository::new(), Gate::new());
    repository.model("m", &held("one", &gate));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT, "--load-model=m"]) else { return };
    let peers = in_flight(&life.server, &gate, 3);
    life.must_unload("m");
    life.must_load("m");
    assert_eq!(life.rows_of("m"), ["1:READY:"]);
    assert!(!life.server.log().contains("model finalize"), "the unload is over before the load");
    gate.open();
    all_answered(peers);
    assert_eq!(life.served_by("m"), "1");
    life.server.wait_for_log("model finalize: m");
    assert_eq!(life.rows_of("m"), ["1:READY:"], "the old one's end does not touch the new one");
    life.server.stop();
}

#[test]
fn a_drain_waits_for_a_model_that_unloads_in_the_background() {
    each(&variant::ALL, |variant| {
        let (repository, gate) = (Repository::new(), Gate::new());
        repository.model("m", &held("one", &gate));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT, "--load-model=m"]) else { return };
        let peers = in_flight(&life.server, &gate, 3);
        life.must_unload("m");
        life.server.terminate();
        life.server.wait_for_log("Signal (15) received.");
        gate.open();
        all_answered(peers);
        drop(life.server.stop());
    });
}

/// Loads of one model from many clients at once: each is granted, and in the end one model serves.
#[test]
fn many_load_and_unload_one_model_at_once() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("m", &config("m", "")).model("other", &config("other", ""));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT]) else { return };
        let address = life.server.http;
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                std::thread::spawn(move || {
                    let mut peer = Peer::connect(address);
                    for round in 0..15 {
                        let verb = if (thread + round) % 3 == 0 { "unload" } else { "load" };
                        let model = if thread == 3 { "other" } else { "m" };
                        let answer = peer.post(&format!("/v2/repository/models/{model}/{verb}"), &[], b"");
                        let overtaken = answer.status == 400 && answer.text().contains("out-dated");
                        assert!(answer.status == 200 || overtaken, "{verb} {model}: {}", answer.text());
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a client"));
        for model in ["m", "other"] {
            life.must_load(model);
            assert_eq!(life.rows_of(model), ["1:READY:"]);
            assert_eq!(life.served_by(model), "1");
        }
        life.server.stop();
    });
}

/// A slow load keeps nobody waiting: neither requests nor the life of another model.
#[test]
fn a_slow_load_holds_up_nobody_else() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return; // 2.51 answers the index only when the load is over.
    }
    each(&variant::ALL, |variant| {
        let (repository, gate) = (Repository::new(), Gate::new());
        repository.model("m", &config("m", &gate.of_loads())).model("quick", &config("quick", ""));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT, "--load-model=quick"]) else { return };
        let mut slow = Peer::connect(life.server.http);
        slow.send(&request("POST", "/v2/repository/models/m/load", &[], b""));
        life.wait_for_rows("m", &["1:LOADING:"]);
        assert!(!life.is_ready("m"));
        for _ in 0..20 {
            assert_eq!(life.served_by("quick"), "1");
        }
        life.must_unload("quick");
        life.must_load("quick");
        assert_eq!(life.rows_of("m"), ["1:LOADING:"], "the slow load was over before anything else was done");
        gate.open();
        let answer = slow.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
        assert_eq!(life.served_by("m"), "1");
        life.server.stop();
    });
}
