//! Requests in flight while their model is reloaded or unloaded, or the server stops.

use serde_json::json;

use crate::repository::life_cycle::control::{BODY, EXPLICIT, Life, config, make_old, parameter, touch};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{OTHER_SERVER, Server};
use nereid_test_support::variant::{self, each, usual};

fn slow(generation: &str, delay_ms: u32) -> String {
    config("m", &(parameter("execute_delay_ms", &delay_ms.to_string()) + &parameter("generation", generation)))
}

/// Sends a request on a connection of its own.
fn send(server: &Server) -> Peer {
    let mut peer = Peer::connect(server.http);
    peer.send(&request("POST", "/v2/models/m/infer", &[], BODY.as_bytes()));
    peer
}

/// Requests that the model has answered.
fn answered(server: &Server) -> usize {
    let stats = Peer::connect(server.http).get("/v2/models/m/stats").json();
    stats["model_stats"][0]["inference_stats"]["success"]["count"].as_u64().expect("a count") as usize
}

/// Requests that the model holds in its queue.
fn pending(server: &Server) -> usize {
    let text = Peer::connect(server.metrics).get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with("nv_inference_pending_request_count{model=\"m\""));
    line.and_then(|line| line.split("} ").nth(1)?.parse().ok()).unwrap_or_default()
}

/// Sends requests until `count` are in flight and the server has all of them: one executes, the rest are pending. A
/// slow machine has answered the first ones by the time it is asked about them: then as many again are sent.
fn in_flight(server: &Server, count: usize) -> Vec<Peer> {
    let mut peers: Vec<Peer> = (0..count).map(|_| send(server)).collect();
    server.wait_until(&format!("{count} requests are in flight"), || {
        // In this order, so that one that is answered between the two looks counts for too little, not for too much.
        let owed = peers.len().saturating_sub(answered(server));
        let pending = pending(server);
        if owed < count {
            peers.extend((0..peers.len()).map(|_| send(server)));
        }
        pending + 1 >= count && pending + 1 >= owed
    });
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
        let repository = Repository::new();
        repository.model("m", &slow("one", 600));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT, "--load-model=m"]) else { return };
        let peers = in_flight(&life.server, 4);
        life.must_unload("m");
        // Four executions of 600 ms are not over: the answer did not wait for them.
        assert_eq!(life.rows_of("m"), ["1:UNLOADING:"]);
        assert!(!life.is_ready("m"));
        let answer = life.infer("m");
        assert_eq!(answer.status, 404);
        assert_eq!(answer.error(), "Request for unknown model: 'm' has no available versions");
        all_answered(peers);
        life.wait_for_rows("m", &["1:UNAVAILABLE:unloaded"]);
        life.server.wait_for_log("model finalize: m");
        life.server.stop();
    });
}

#[test]
fn a_reload_lets_requests_finish_on_the_old_model() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("m", &slow("one", 1000));
        make_old(&repository.path().join("m"));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT, "--load-model=m"]) else { return };
        let peers = in_flight(&life.server, 4);
        repository.file("m/config.pbtxt", slow("two", 0));
        touch(&repository, "m/config.pbtxt", 10);
        life.must_load("m");
        assert_eq!(life.generation("m"), "two");
        // The new one serves while the old one still executes.
        assert_eq!(life.served_by("m"), "1");
        assert!(!life.server.log().contains("model finalize"), "the old model ended before its requests");
        all_answered(peers);
        life.server.wait_for_log("model finalize: m");
        assert_eq!(life.rows_of("m"), ["1:READY:"]);
        life.server.stop();
    });
}

#[test]
fn a_model_can_be_loaded_again_while_its_unload_drains() {
    let repository = Repository::new();
    repository.model("m", &slow("one", 300));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT, "--load-model=m"]) else { return };
    let peers = in_flight(&life.server, 3);
    life.must_unload("m");
    life.must_load("m");
    assert_eq!(life.rows_of("m"), ["1:READY:"]);
    all_answered(peers);
    assert_eq!(life.served_by("m"), "1");
    life.server.wait_for_log("model finalize: m");
    assert_eq!(life.rows_of("m"), ["1:READY:"], "the old one's end does not touch the new one");
    life.server.stop();
}

#[test]
fn a_drain_waits_for_a_model_that_unloads_in_the_background() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("m", &slow("one", 300));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT, "--load-model=m"]) else { return };
        let peers = in_flight(&life.server, 3);
        life.must_unload("m");
        life.server.terminate();
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
        let repository = Repository::new();
        repository.model("m", &config("m", &parameter("load_delay_ms", "5000"))).model("quick", &config("quick", ""));
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
        let answer = slow.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
        assert_eq!(life.served_by("m"), "1");
        life.server.stop();
    });
}
