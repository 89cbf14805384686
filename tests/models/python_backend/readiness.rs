//! The effect of a model's `is_ready` (contract/python_backend.md section 2, "is_ready").

use std::fs;

use super::{models, trouble};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::server::{Server, signal};
use nereid_test_support::variant::{self, each, usual};

fn ready(peer: &mut Peer) -> u16 {
    peer.get("/v2/models/attentive/ready").status
}

fn be(peer: &mut Peer, mood: &str) {
    assert_eq!(trouble::done(&trouble::act(peer, "attentive", &format!("be {mood}"))), "done");
}

/// What the log says of a model whose word does not come in time.
const LATE: &str = "is not ready: Timed out waiting for";

/// How often the log says that.
fn said(server: &Server, text: &str) -> usize {
    server.log().matches(text).count()
}

#[test]
fn a_model_says_itself_whether_it_is_ready() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&["attentive"]);
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let mut peer = Peer::connect(server.http);
        let not_boolean = "is not ready: is_ready() must return a boolean value";
        let moods = [
            ("true", true, ""),
            ("false", false, "Model 'attentive_0' is not ready (user-defined check failed)."),
            ("later true", true, ""),
            ("later false", false, "Model 'attentive_0' is not ready (user-defined check failed)."),
            ("raise too early", false, "is not ready: ValueError: too early"),
            ("none", false, not_boolean),
            ("one", false, not_boolean),
            ("numpy", false, not_boolean),
            ("exit 3", false, "Stub process is not healthy while waiting for user-defined is_ready() response"),
        ];
        for (mood, is_ready, text) in moods {
            be(&mut peer, mood);
            // A worker that gets no time for as long as the server waits for its word is asked again.
            if is_ready {
                trouble::wait_until(&format!("{mood} is ready"), || ready(&mut peer) == 200);
                continue;
            }
            let (before, mut late) = (said(&server, text), said(&server, LATE));
            assert_ne!(ready(&mut peer), 200, "{mood}");
            trouble::wait_until("the log says why", || {
                let is_late = said(&server, LATE) > late;
                if is_late {
                    late += 1;
                    assert_ne!(ready(&mut peer), 200, "{mood}");
                }
                said(&server, text) > before
            });
        }
        // Its successor is in a good mood.
        trouble::wait_until("there is a successor", || ready(&mut peer) == 200);
        server.stop();
    });
}

#[test]
fn it_is_asked_while_it_executes_and_an_answer_that_is_late_is_waited_for_by_others() {
    let repository = models::repository(&["attentive"]);
    let [gate, end] = ["gate", "end"].map(|name| repository.path().with_extension(name));
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let [mut peer, mut other] = [Peer::connect(server.http), Peer::connect(server.http)];
    let body = trouble::body(&format!("wait {}", gate.display()));
    other.send(&request("POST", "/v2/models/attentive/infer", &[], &body));
    // Before the execution ends, which it does only below.
    trouble::wait_until("it is ready", || ready(&mut peer) == 200);
    fs::write(&gate, "").unwrap();
    assert_eq!(other.answer().status, 200);

    let asked =
        |peer: &mut Peer| trouble::done(&trouble::act(peer, "attentive", "asked")).parse::<u64>().expect("a number");
    let before = asked(&mut peer);
    be(&mut peer, &format!("wait {}", end.display()));
    assert_ne!(ready(&mut peer), 200);
    server.wait_for_log("is not ready: Timed out waiting for user-defined is_ready() response");
    assert_ne!(ready(&mut peer), 200);
    server.wait_for_log("is not ready: Timed out waiting for in-flight is_ready() response");
    // The model works meanwhile, and was asked once for both.
    assert_eq!(asked(&mut peer), before + 1);
    fs::write(&end, "").unwrap();
    trouble::wait_until("it is ready again", || ready(&mut peer) == 200);
    server.stop();
    [gate, end].into_iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// A worker that is stopped while it is idle, and one that never comes back from its execution.
#[test]
fn a_model_whose_only_worker_stands_still_is_not_ready_until_it_goes_on() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&["sums"]);
        trouble::add(&repository, "trouble", 1, "");
        // Somebody else's executions are long on a busy host; what counts here is how it ends.
        let Some(server) = models::serve(variant, &repository, &["--stall-timeout=0.4"]) else { return };
        let mut peer = Peer::connect(server.http);
        let worker = trouble::worker(&mut peer, "trouble");
        let status = |path: &str| Peer::connect(server.http).get(path).status;
        let becomes = |is_ready: bool| {
            trouble::wait_until("the model's readiness changes", || {
                (status("/v2/models/trouble/ready") == 200) == is_ready
                    && (status("/v2/health/ready") == 200) == is_ready
            });
        };
        becomes(true);
        let stalls = || trouble::metric(&server, r#"nereid_instance_stalls{model="trouble",version="1"}"#);
        signal(worker, "STOP");
        becomes(false);
        let name = "instance 'trouble_0_0' of model 'trouble' version 1";
        server.wait_for_log(&format!("{name} is stalled: its process {worker} is stopped (--stall-timeout)"));
        trouble::wait_until("the other model is ready", || status("/v2/models/sums/ready") == 200);
        signal(worker, "CONT");
        becomes(true);
        server.wait_for_log(&format!("{name} goes on after a stall"));
        let before = stalls().expect("a sample");
        assert!(before >= 1.0);
        // It stops itself in the middle of an execution.
        peer.send(&request("POST", "/v2/models/trouble/infer", &[], &trouble::body("stop")));
        becomes(false);
        server.wait_for_log(&format!("{name} is stalled: its execution has not returned for "));
        trouble::wait_until("the stall is counted", || stalls() > Some(before));
        // The stack of the thread that waits for the process is there at once, those of the process when it goes on.
        server.wait_for_log("stack of its thread:");
        signal(worker, "CONT");
        server.wait_for_log("(most recent call first)");
        assert_eq!(trouble::done(&peer.answer()), "done");
        becomes(true);
        server.stop();
    });
}

#[test]
fn a_worker_that_stands_still_holds_the_server_no_longer_than_its_time_to_exit() {
    for words in ["", "stop"] {
        let repository = models::repository(&[]);
        trouble::add(&repository, "trouble", 1, "");
        let Some(server) = models::serve(usual(), &repository, &["--exit-timeout-secs=1"]) else { return };
        let mut peer = Peer::connect(server.http);
        let worker = trouble::worker(&mut peer, "trouble");
        match words {
            "" => signal(worker, "STOP"),
            words => {
                peer.send(&request("POST", "/v2/models/trouble/infer", &[], &trouble::body(words)));
                trouble::wait_until("it is stopped", || trouble::state(worker) == Some('T'));
            }
        }
        server.terminate();
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(1), "{log}");
        trouble::wait_until("the worker is gone", || !trouble::runs(worker));
    }
}
