//! SIGTERM and SIGINT: requests in flight are answered, new ones are refused, and the exit code reports the result
//! (contract/cli.md sections 6 and 7).

use std::net::TcpStream;

use nereid_wire::inference::ModelInferResponse;
use serde_json::json;

use crate::process::one_number::{BODY, message};
use nereid_test_support::grpc::{Grpc, SERVICE, Status, code, decode};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, signal};
use nereid_test_support::variant::{self, each, usual};

const OUT_OF_TIME: &str = "the server exits before this request can be finished; send it to another server";

fn slow_repository(delay_ms: u32) -> Repository {
    let repository = Repository::new();
    let delay = format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}");
    repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], &delay);
    repository
}

/// Sends a request on a connection of its own.
fn send(server: &Server) -> Peer {
    let mut peer = Peer::connect(server.http);
    peer.send(&request("POST", "/v2/models/slow/infer", &[], BODY));
    peer
}

/// Requests that the model has answered.
fn answered(server: &Server) -> usize {
    let stats = Peer::connect(server.http).get("/v2/models/slow/stats").json();
    stats["model_stats"][0]["inference_stats"]["success"]["count"].as_u64().expect("a count") as usize
}

/// Requests that the model holds in its queue.
fn pending(server: &Server) -> usize {
    let text = Peer::connect(server.metrics).get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with("nv_inference_pending_request_count{"));
    line.and_then(|line| line.split("} ").nth(1)?.parse().ok()).unwrap_or_default()
}

/// Sends requests until `count` are pending behind the one that executes and all have arrived: only then are they in
/// flight for certain. `others` were sent before. A slow machine has answered the first ones by the time it is asked
/// about them: then as many again are sent.
fn in_flight(server: &Server, count: usize, others: usize) -> Vec<Peer> {
    let mut peers: Vec<Peer> = (others..=count).map(|_| send(server)).collect();
    server.wait_until(&format!("{count} requests are pending"), || {
        // In this order, so that one that is answered between the two looks counts for too little, not for too much.
        let owed = (peers.len() + others).saturating_sub(answered(server));
        let pending = pending(server);
        if owed <= count {
            peers.extend((0..=peers.len()).map(|_| send(server)));
        }
        pending >= count && pending + 1 >= owed
    });
    peers
}

#[test]
fn requests_in_flight_are_answered_before_the_end() {
    each(&variant::ALL, |variant| {
        let repository = slow_repository(200);
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
        grpc.send(&mut exchange, &message("slow"));
        grpc.half_close(&mut exchange);
        grpc.flush();
        let mut peers = in_flight(&server, 3, 1);
        let http = server.http;
        server.terminate();
        for peer in &mut peers {
            let answer = peer.answer();
            assert_eq!(answer.status, 200, "a request in flight at SIGTERM: {}", answer.text());
            assert_eq!(answer.json()["outputs"][0]["data"], json!([8]));
        }
        let reply = grpc.finish(exchange);
        assert_eq!(reply.status.code, code::OK, "a call in flight at SIGTERM: {:?}", reply.status);
        assert_eq!(decode::<ModelInferResponse>(&reply.messages[0]).raw_output_contents[0].as_ref(), [9, 0, 0, 0]);
        drop((peers, grpc));
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(TcpStream::connect(http).is_err(), "the port still answers after the end");
    });
}

#[test]
fn idle_connections_do_not_hold_the_process() {
    each(&variant::ALL, |variant| {
        let repository = slow_repository(0);
        let server = Server::start(variant, repository.path(), &["--exit-timeout-secs=100"]);
        let mut peer = Peer::connect(server.http);
        assert_eq!(peer.get("/v2/health/live").status, 200);
        let _silent = Peer::connect(server.http);
        let mut grpc = Grpc::connect(server.grpc);
        let reply =
            grpc.exchange(&format!("{SERVICE}ServerLive"), &[], &[nereid_test_support::grpc::frame_bytes(0, b"")]);
        assert_eq!(reply.status.code, code::OK);
        // stop() demands exit code 0; with idle peers held until the time-out it would be 1.
        server.stop();
        peer.expect_close();
    });
}

#[test]
fn sigint_stops_like_sigterm() {
    let repository = slow_repository(0);
    let server = Server::start(usual(), repository.path(), &[]);
    signal(server.pid(), "INT");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("Signal (2) received."), "{log}");
}

#[test]
fn a_drain_that_takes_too_long_exits_1() {
    // The model executes for longer than the test lasts; only the exit time-out ends the process.
    each(&variant::ALL, |variant| {
        let repository = slow_repository(3_600_000);
        let server = Server::start(variant, repository.path(), &["--exit-timeout-secs=1"]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
        grpc.send(&mut exchange, &message("slow"));
        grpc.half_close(&mut exchange);
        grpc.flush();
        let peers = in_flight(&server, 1, 1);
        let mut half = Peer::connect(server.http);
        let head =
            "POST /v2/models/slow/infer HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n";
        assert_eq!(half.send(head.as_bytes()).answer().status, 100);
        server.terminate();
        for mut peer in peers.into_iter().chain([half]) {
            let answer = peer.answer();
            assert_eq!(answer.status, 503, "a request that cannot finish: {}", answer.text());
            assert_eq!(answer.error(), OUT_OF_TIME);
            peer.expect_close();
        }
        let reply = grpc.finish(exchange);
        let expected = Status { code: code::UNAVAILABLE, message: OUT_OF_TIME.to_owned() };
        assert_eq!(reply.status, expected, "a call that cannot finish");
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("failed to stop server: ") && log.contains("Exit timeout expired."), "{log}");
    });
}

#[test]
fn a_second_signal_is_ignored() {
    let repository = slow_repository(300);
    let server = Server::start(usual(), repository.path(), &[]);
    let peers = in_flight(&server, 1, 0);
    server.terminate();
    server.wait_for_log("Signal (15) received.");
    server.terminate();
    for mut peer in peers {
        assert_eq!(peer.answer().status, 200);
    }
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}
