//! Requests that wait for a load: together, for a bounded time, and until their clients leave.

use super::*;
use nereid_test_support::grpc::{SERVICE, code};

#[test]
fn all_that_wait_are_answered_by_one_load() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "shared");
    add_python(&repository, "slow", &gate.lines());
    add_identity(&repository, "quick");
    let Some(server) = start_python(&repository, &[]) else { return };
    std::thread::scope(|scope| {
        let http: Vec<_> = (0..8)
            .map(|at| {
                let address = server.http;
                scope.spawn(move || must_infer(&mut Peer::connect(address), "slow", at))
            })
            .collect();
        let grpc: Vec<_> = (0..8)
            .map(|at| {
                let address = server.grpc;
                scope.spawn(move || assert_eq!(grpc_infer(&mut Grpc::connect(address), "slow", at), Ok(())))
            })
            .collect();
        server.wait_until("all of them wait", || metric(&server, "nereid_model_load_waiting") == 16.0);
        // Other models are served meanwhile, and loaded.
        let mut peer = Peer::connect(server.http);
        (0..3).for_each(|at| must_infer(&mut peer, "quick", at));
        // A client that leaves waits no more.
        let mut leaving = Peer::connect(server.http);
        leaving.send(&nereid_test_support::http::request("POST", "/v2/models/slow/infer", &[], body(1).as_bytes()));
        server.wait_until("it waits too", || metric(&server, "nereid_model_load_waiting") == 17.0);
        drop(leaving);
        let mut grpc_leaving = Grpc::connect(server.grpc);
        let mut call = grpc_leaving.open(&format!("{SERVICE}ModelInfer"), &[]);
        grpc_leaving.send(&mut call, &grpc_request("slow", 1));
        grpc_leaving.half_close(&mut call);
        grpc_leaving.flush();
        grpc_leaving.cancel(call);
        server.wait_until("both have left", || metric(&server, "nereid_model_load_waiting") == 16.0);
        gate.open();
        http.into_iter().chain(grpc).for_each(|client| client.join().expect("a client"));
    });
    assert_eq!(server.stop().matches("loading: slow:1").count(), 1);
}

#[test]
fn what_waits_for_too_long_is_refused_and_the_load_goes_on() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "long");
    add_python(&repository, "slow", &gate.lines());
    let Some(server) = start_python(&repository, &["--model-load-wait-secs=1"]) else { return };
    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    let answer = infer(&mut peer, "slow", 1);
    let text = "model 'slow' is being loaded, which takes longer than --model-load-wait-secs";
    assert_eq!((answer.status, answer.error().as_str()), (503, text));
    assert_eq!((answer.header("nereid-refused"), answer.header("Retry-After")), (Some("model_loading"), Some("1")));
    let status = grpc_infer(&mut grpc, "slow", 1).expect_err("it is still being loaded");
    assert_eq!((status.code, status.message.as_str()), (code::UNAVAILABLE, text));
    // A deadline that ends earlier ends the call.
    let mut call = grpc.open(&format!("{SERVICE}ModelInfer"), &[("grpc-timeout", "100m")]);
    grpc.send(&mut call, &grpc_request("slow", 1));
    grpc.half_close(&mut call);
    assert_eq!(grpc.finish(call).status.code, 4, "DEADLINE_EXCEEDED");
    assert_eq!(peer.get("/v2/models/slow").status, 503, "metadata waits too");
    server.wait_until("nothing waits", || metric(&server, "nereid_model_load_waiting") == 0.0);
    gate.open();
    server.wait_until("it serves in the end", || infer(&mut peer, "slow", 1).status == 200);
    assert_eq!(server.stop().matches("loading: slow:1").count(), 1, "one load all the time");
}

#[test]
fn names_that_no_repository_has_do_not_wait_for_loads() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "only");
    add_python(&repository, "slow", &gate.lines());
    let flags = ["--model-load-thread-count=1", "--model-load-wait-secs=600"];
    let Some(server) = start_python(&repository, &flags) else { return };
    let address = server.http;
    let slow = std::thread::spawn(move || must_infer(&mut Peer::connect(address), "slow", 1));
    server.wait_for_log("loading: slow:1");
    let mut peer = Peer::connect(server.http);
    for at in 0..100 {
        assert_eq!(infer(&mut peer, &format!("nowhere{at}"), 1).status, 404);
    }
    gate.open();
    slow.join().expect("a client");
    server.stop();
}

#[test]
fn the_end_of_the_server_refuses_what_waits() {
    let repository = Repository::new();
    let first = Gate::new(&repository, "first");
    add_python(&repository, "slow", &first.lines());
    add_identity(&repository, "next");
    // One load at a time: the second one waits for its turn.
    let Some(server) = start_python(&repository, &["--model-load-thread-count=1", "--exit-timeout-secs=600"]) else {
        return;
    };
    let waiting = |model: &'static str| {
        let address = server.http;
        std::thread::spawn(move || infer(&mut Peer::connect(address), model, 1).status)
    };
    let slow = waiting("slow");
    server.wait_for_log("loading: slow:1");
    let next = waiting("next");
    server.wait_until("both wait", || metric(&server, "nereid_model_load_waiting") == 2.0);
    server.terminate();
    assert_eq!(next.join().expect("a client"), 503, "its load has not begun");
    first.open();
    let status = slow.join().expect("a client");
    assert!(matches!(status, 200 | 503), "{status}");
    let (status, log) = server.wait();
    assert!(status.success(), "{log}");
}
