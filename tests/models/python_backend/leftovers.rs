//! No process, memory or file of a worker remains after any kind of end.

use super::{models, trouble};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::server::{Server, signal};
use nereid_test_support::variant::usual;

const EXPLICIT: [&str; 2] = ["--model-control-mode=explicit", "--load-model=sums"];

fn control(peer: &mut Peer, action: &str, model: &str) {
    let answer = peer.post(&format!("/v2/repository/models/{model}/{action}"), &[], b"");
    assert_eq!(answer.status, 200, "{action}: {}", answer.text());
}

/// Processes, descriptors and threads of a server.
fn belongings(server: &Server) -> (usize, usize, usize) {
    (trouble::children(server.pid()).len(), server.descriptors(), server.threads())
}

#[test]
fn neither_unloads_nor_deaths_leave_anything() {
    let repository = models::repository(&["sums"]);
    trouble::add(&repository, "trouble", 2, "");
    let Some(server) = models::serve(usual(), &repository, &EXPLICIT) else { return };
    let mut peer = Peer::connect(server.http);
    let round = |peer: &mut Peer| {
        control(peer, "load", "trouble");
        // Enough for memory of its own, in both directions.
        let long = "x".repeat(100_000);
        assert_eq!(trouble::done(&trouble::act(peer, "trouble", &format!("echo {long}"))), long);
        assert_eq!(trouble::shared_names(server.pid()), Vec::<String>::new());
        assert_eq!(trouble::act(peer, "trouble", "signal 9").status, 500);
        trouble::worker_after_pauses(peer, "trouble");
        trouble::children(server.pid()).into_iter().max().into_iter().for_each(|pid| signal(pid, "KILL"));
        control(peer, "unload", "trouble");
        trouble::wait_until("the workers are gone", || trouble::children(server.pid()).len() == 1);
    };
    // What the server makes once is made by then.
    round(&mut peer);
    round(&mut peer);
    let before = belongings(&server);
    for _ in 0..4 {
        round(&mut peer);
    }
    trouble::wait_until("there is as little as before", || {
        let now = belongings(&server);
        now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2
    });
    server.stop();
}

#[test]
fn workers_and_what_they_have_started_end_with_a_server_that_is_killed() {
    let repository = models::repository(&["sums"]);
    trouble::add(&repository, "trouble", 3, "");
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    // Those that completed the configurations may still be ending.
    trouble::wait_until("there are four workers", || trouble::children(server.pid()).len() == 4);
    let workers = trouble::children(server.pid());
    assert_eq!(trouble::shared_names(server.pid()), Vec::<String>::new());
    signal(server.pid(), "KILL");
    let (status, _) = server.wait();
    assert!(!status.success());
    for worker in workers {
        trouble::wait_until("the worker is gone", || !trouble::runs(worker));
    }
}

#[test]
fn a_finalize_that_fails_is_no_reason_to_stay() {
    for (words, text) in [
        ("raise at the end", "Failed to finalize 'trouble_0_0': ValueError: as it was told: at the end"),
        ("exit 3", "the process of model 'trouble', instance 'trouble_0_0' exited with code 3 before it was finalized"),
        ("thread", ""),
    ] {
        let repository = models::repository(&[]);
        trouble::add(&repository, "trouble", 1, &trouble::parameter("finalize", words));
        let Some(server) = models::serve(usual(), &repository, &[]) else { return };
        let worker = trouble::worker(&mut Peer::connect(server.http), "trouble");
        let log = server.stop();
        assert!(log.contains(text), "{words}: {text:?} is not in the log:\n{log}");
        trouble::wait_until("the worker is gone", || !trouble::runs(worker));
    }
}

#[test]
fn a_finalize_that_hangs_holds_the_server_no_longer_than_its_time_to_exit() {
    let repository = models::repository(&[]);
    trouble::add(&repository, "trouble", 1, &trouble::parameter("finalize", "sleep 3600"));
    let Some(server) = models::serve(usual(), &repository, &["--exit-timeout-secs=1"]) else { return };
    let worker = trouble::worker(&mut Peer::connect(server.http), "trouble");
    server.terminate();
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    trouble::wait_until("the worker is gone", || !trouble::runs(worker));
}

#[test]
fn a_finalize_that_hangs_holds_an_unload_no_longer_than_the_stubs_time() {
    let repository = models::repository(&[]);
    trouble::add(&repository, "trouble", 1, &trouble::parameter("finalize", "sleep 3600"));
    let flags = [EXPLICIT[0], "--load-model=trouble", "--backend-config=python,stub-timeout-seconds=1"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    let worker = trouble::worker(&mut peer, "trouble");
    control(&mut peer, "unload", "trouble");
    server.wait_for_log(
        "the process of model 'trouble', instance 'trouble_0_0' was ended because its finalize() took more than 1 s",
    );
    server.wait_for_log("successfully unloaded 'trouble' version 1");
    assert!(!trouble::runs(worker));
    server.stop();
}

#[test]
fn what_hangs_since_an_unload_or_a_load_holds_the_server_no_longer_either() {
    let repository = models::repository(&["sums"]);
    trouble::add(&repository, "ending", 2, &trouble::parameter("finalize", "sleep 3600"));
    trouble::add(&repository, "beginning", 1, &trouble::parameter("initialize", "sleep 3600"));
    let flags = [&EXPLICIT[..], &["--load-model=ending", "--exit-timeout-secs=1"]].concat();
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    control(&mut Peer::connect(server.http), "unload", "ending");
    let mut loading = Peer::connect(server.http);
    loading.send(&request("POST", "/v2/repository/models/beginning/load", &[], b"{}"));
    trouble::wait_until("it loads", || models::workers(&server, "beginning").len() == 1);
    let workers = [models::workers(&server, "ending"), models::workers(&server, "beginning")].concat();
    assert_eq!(workers.len(), 3, "{workers:?}");
    server.terminate();
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    for worker in workers {
        trouble::wait_until("the worker is gone", || !trouble::runs(worker));
    }
}

/// What was loaded before another model failed is unloaded, within the same time.
#[test]
fn a_server_that_cannot_start_ends_whatever_its_models_do() {
    let Some(interpreter) = models::interpreter() else { return };
    let repository = models::repository(&[]);
    trouble::add(&repository, "failing", 1, &trouble::parameter("initialize", "raise on purpose"));
    trouble::add(&repository, "loaded_in_vain", 1, &trouble::parameter("finalize", "sleep 3600"));
    let interpreter = format!("--backend-config=python,interpreter={}", interpreter.display());
    let flags = [interpreter.as_str(), "--exit-timeout-secs=1"];
    let server = Server::start_saying(usual(), repository.path(), &flags, "successfully loaded 'loaded_in_vain'");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("failed to load all models") && log.contains("Exit timeout expired"), "{log}");
    trouble::wait_until("the worker is gone", || models::workers_of_any("loaded_in_vain").is_empty());
}
