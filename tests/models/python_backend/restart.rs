//! After a worker's death: a new worker immediately or after a pause, refusals meanwhile, and the work of other
//! instances (contract/python_backend.md section 6; docs/python-faults.md).

use std::time::Instant;

use super::{models, trouble};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{Server, signal};
use nereid_test_support::variant::{self, Variant, each, usual};

const EXPLICIT: [&str; 2] = ["--model-control-mode=explicit", "--load-model=*"];

fn control(peer: &mut Peer, action: &str, model: &str) -> (u16, String) {
    let answer = peer.post(&format!("/v2/repository/models/{model}/{action}"), &[], b"");
    (answer.status, answer.text())
}

/// A path of the test's own that is not there yet.
fn mark(repository: &Repository, name: &str) -> String {
    repository.path().with_extension(name).display().to_string()
}

fn is_ready(peer: &mut Peer, model: &str) -> bool {
    peer.get(&format!("/v2/models/{model}/ready")).status == 200
}

#[test]
fn a_worker_that_dies_idle_is_replaced_without_a_request() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&[]);
        trouble::add(&repository, "trouble", 1, "");
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let mut peer = Peer::connect(server.http);
        let first = trouble::worker(&mut peer, "trouble");
        // The process that completed the configuration may be about to go.
        trouble::wait_until("there is one worker", || trouble::children(server.pid()) == [first]);
        let labels = r#"{model="trouble",version="1"}"#;
        let sample = |name: &str| trouble::metric(&server, &format!("nereid_python_{name}{labels}"));
        assert_eq!((sample("deaths"), sample("restarts")), (Some(0.0), Some(0.0)));
        signal(first, "KILL");
        server.wait_for_log("the process of model 'trouble', instance 'trouble_0_0' was ended by signal 9 (SIGKILL)");
        server.wait_for_log("the process of model 'trouble', instance 'trouble_0_0' is started again");
        trouble::wait_until("the restart is counted", || sample("restarts") == Some(1.0));
        assert_eq!(sample("deaths"), Some(1.0));
        let second = trouble::worker(&mut peer, "trouble");
        assert!(second != first && is_ready(&mut peer, "trouble"));
        assert_eq!(trouble::children(server.pid()), [second]);
        server.stop();
    });
}

/// What a model knew of a sequence died with its worker: a request that goes on with it is refused, whether it comes
/// before or after the successor, and a new start works.
#[test]
fn a_sequence_does_not_outlive_its_worker() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&["sequence", "sequence_oldest"]);
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let mut peer = Peer::connect(server.http);
        for model in ["sequence", "sequence_oldest"] {
            let mut add_to = |value: i32, id: u64, start: bool, end: bool| {
                let body = format!(
                    r#"{{"parameters":{{"sequence_id":{id},"sequence_start":{start},"sequence_end":{end}}},"inputs":[
                    {{"name":"IN","datatype":"INT32","shape":[1,1],"data":[{value}]}}],"outputs":[{{"name":"SUM"}}]}}"#
                );
                peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes())
            };
            let mut add = |value: i32, id: u64, start: bool| add_to(value, id, start, false);
            let sum = |answer: &nereid_test_support::http::Answer| answer.json()["outputs"][0]["data"][0].as_i64();
            for id in [1, 2] {
                assert_eq!(sum(&add(5, id, true)), Some(5));
                assert_eq!(sum(&add(6, id, false)), Some(11));
            }
            let workers = || models::workers(&server, &format!("{model}_0"));
            let dead = workers();
            signal(dead[0], "KILL");
            // At once, while the death may not have been noticed, ...
            let answer = add(7, 1, false);
            assert_ne!(answer.status, 200, "{}", answer.text());
            trouble::wait_until("there is a successor", || {
                let now = workers();
                !now.is_empty() && now != dead
            });
            server.wait_for_log(&format!("the process of model '{model}', instance '{model}_0_0' is started again"));
            // ... and later.
            for id in [1, 2] {
                let answer = add(7, id, false);
                let text = "must specify the START flag on the first request of the sequence";
                assert!(answer.status == 400 && answer.error().contains(text), "{} {}", answer.status, answer.text());
                assert_eq!(sum(&add(8, id, true)), Some(8));
                assert_eq!(sum(&add(1, id, false)), Some(9));
            }
            for id in [1, 2] {
                assert_eq!(sum(&add_to(1, id, false, true)), Some(10));
            }
        }
        server.stop();
    });
}

/// A server whose only model cannot be initialised again, after its worker has been killed.
fn crippled(variant: Variant, again: &str) -> Option<(Repository, Server, Peer)> {
    let repository = models::repository(&["sums"]);
    let mark = mark(&repository, "mark");
    let _ = std::fs::remove_file(&mark);
    trouble::add(&repository, "trouble", 1, &trouble::parameter("again", &format!("{mark} {again}")));
    let server = models::serve(variant, &repository, &EXPLICIT)?;
    let mut peer = Peer::connect(server.http);
    signal(trouble::worker(&mut peer, "trouble"), "KILL");
    Some((repository, server, peer))
}

#[test]
fn during_a_pause_requests_are_refused_at_once_and_an_unload_ends_it() {
    let Some((repository, server, mut peer)) = crippled(usual(), "raise no more") else { return };
    server
        .wait_for_log("instance 'trouble_0_0' of model 'trouble' cannot be started again: ValueError: as it was told");
    server.wait_for_log("instance 'trouble_0_0' of model 'trouble' is started again in 2 s");
    let mut answer = trouble::act(&mut peer, "trouble", "echo here");
    // It came too late for the pause, and the attempt behind it takes longer than a request waits.
    while answer.status == 503 && answer.error().ends_with("; it is being started again") {
        answer = trouble::act(&mut peer, "trouble", "echo here");
    }
    let begin = "Stub process 'trouble_0_0' is not healthy. The process of model 'trouble' cannot be started again: \
                 ValueError: as it was told: no more";
    assert!(answer.status == 503 && answer.error().starts_with(begin), "{} {}", answer.status, answer.text());
    assert!(answer.error().ends_with("; it will be started again"), "{}", answer.text());
    assert!(!is_ready(&mut peer, "trouble") && is_ready(&mut peer, "sums"));
    server.wait_for_log("'trouble' version 1 is not ready: Stub process 'trouble_0_0' is not healthy.");
    assert_eq!(control(&mut peer, "unload", "trouble").0, 200);
    server.wait_for_log("successfully unloaded 'trouble' version 1");
    let _ = std::fs::remove_file(mark(&repository, "mark"));
    // With the cause gone it can be loaded again.
    assert_eq!(control(&mut peer, "load", "trouble").0, 200);
    assert_eq!(trouble::done(&trouble::act(&mut peer, "trouble", "echo here")), "here");
    server.stop();
}

#[test]
fn an_unload_ends_a_restart_that_hangs() {
    let Some((repository, server, mut peer)) = crippled(usual(), "sleep 3600") else { return };
    server.wait_for_log("instance 'trouble_0_0' was ended by signal 9 (SIGKILL)");
    trouble::wait_until("the successor hangs", || trouble::children(server.pid()).len() == 2);
    assert!(!is_ready(&mut peer, "trouble"));
    assert_eq!(control(&mut peer, "unload", "trouble").0, 200);
    server.wait_for_log("successfully unloaded 'trouble' version 1");
    trouble::wait_until("only the other model has a worker", || trouble::children(server.pid()).len() == 1);
    let _ = std::fs::remove_file(mark(&repository, "mark"));
    server.stop();
}

#[test]
fn without_restarts_a_reload_brings_it_back() {
    let repository = models::repository(&["sums"]);
    trouble::add(&repository, "trouble", 1, "");
    let flags = [&EXPLICIT[..], &["--python-restart=false"]].concat();
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    let text = "Stub process 'trouble_0_0' is not healthy. The process of model 'trouble' exited with code 7";
    let answer = trouble::act(&mut peer, "trouble", "exit 7");
    assert_eq!((answer.status, answer.error().as_str()), (500, text));
    for _ in 0..3 {
        let answer = trouble::act(&mut peer, "trouble", "echo here");
        assert_eq!((answer.status, answer.error().as_str()), (500, text));
        assert!(!is_ready(&mut peer, "trouble") && is_ready(&mut peer, "sums"));
    }
    trouble::wait_until("only the other model has a worker", || trouble::children(server.pid()).len() == 1);
    for action in ["unload", "load"] {
        assert_eq!(control(&mut peer, action, "trouble").0, 200);
    }
    assert!(is_ready(&mut peer, "trouble"));
    assert_eq!(trouble::done(&trouble::act(&mut peer, "trouble", "echo here")), "here");
    server.stop();
}

#[test]
fn an_instance_that_has_no_worker_leaves_the_requests_to_the_other() {
    let repository = models::repository(&[]);
    trouble::add(&repository, "trouble", 2, "");
    let Some(server) = models::serve(usual(), &repository, &["--python-restart=false"]) else { return };
    let mut peer = Peer::connect(server.http);
    let answer = trouble::act(&mut peer, "trouble", "exit 1");
    assert_eq!(answer.status, 500, "{}", answer.text());
    let started = Instant::now();
    let mut refused = 0;
    for _ in 0..200 {
        let answer = trouble::act(&mut peer, "trouble", "echo here");
        match answer.status {
            200 => assert_eq!(trouble::done(&answer), "here"),
            _ => refused += 1,
        }
    }
    // One a second at most, instead of half of them.
    let most = started.elapsed().as_secs() + 1;
    assert!(refused <= most, "{refused} requests of 200 were refused in {most} s");
    assert!(!is_ready(&mut peer, "trouble"), "every instance has to be ready");
    server.stop();
}

#[test]
fn a_load_that_fails_says_how_and_leaves_nothing() {
    let repository = models::repository(&["sums"]);
    let cases = [
        ("raises", trouble::parameter("initialize", "raise not today"), "ValueError: as it was told: not today"),
        ("leaves", trouble::parameter("initialize", "exit 4"), "Stub process 'leaves_0_0' is not healthy."),
        ("crashes", trouble::parameter("initialize", "crash"), "was ended by signal 11 (SIGSEGV)"),
        ("completes", trouble::parameter("auto_complete", "exit 5"), "Stub process '' is not healthy."),
        ("objects", trouble::parameter("auto_complete", "raise no"), "ValueError: as it was told: no"),
    ];
    for (name, more, _) in &cases {
        trouble::add(&repository, name, 2, more);
    }
    let flags = ["--model-control-mode=explicit", "--load-model=sums"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    for (name, _, text) in &cases {
        let (status, answer) = control(&mut peer, "load", name);
        assert!(status == 400 && answer.contains(text), "{name}: {status} {answer}");
    }
    trouble::wait_until("only the other model has a worker", || trouble::children(server.pid()).len() == 1);
    server.stop();
}

#[test]
fn requests_that_wait_for_responses_are_answered_when_the_worker_dies() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&["owing"]);
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let stream = |peer: &mut Peer, words: &str| {
            let body = format!(r#"{{"DO":"{words}"}}"#);
            peer.send(&request("POST", "/v2/models/owing/generate_stream", &[], body.as_bytes()));
        };
        let [mut held, mut last] = [Peer::connect(server.http), Peer::connect(server.http)];
        stream(&mut held, "hold");
        assert_eq!(held.head().status, 200);
        let event = |peer: &mut Peer| peer.chunk().map(|chunk| String::from_utf8_lossy(&chunk).into_owned());
        assert!(event(&mut held).is_some_and(|event| event.contains(r#""DONE":"held""#)));
        stream(&mut last, "exit 6");
        let text = "Stub process 'owing_0' is not healthy. The process of model 'owing' exited with code 6";
        let end = event(&mut held).unwrap_or_default();
        assert!(end.contains(text), "{end:?}");
        assert_eq!(event(&mut held), None);
        let answer = last.answer();
        assert!(answer.text().contains(text), "{}", answer.text());
        // The successor knows nothing of them.
        stream(&mut last, "count 3");
        assert_eq!(last.head().status, 200);
        for number in 0..3 {
            assert!(event(&mut last).is_some_and(|event| event.contains(&format!(r#""DONE":"{number}""#))));
        }
        assert_eq!(event(&mut last), None);
        server.stop();
    });
}
