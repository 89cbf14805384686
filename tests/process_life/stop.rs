//! SIGTERM and SIGINT: what is in flight is answered, what is new is refused, and the exit code says how it went
//! (cli.md sections 6 and 7).

use std::net::TcpStream;

use serde_json::json;
use tritonserver::wire::inference::model_infer_request::InferInputTensor;
use tritonserver::wire::inference::{ModelInferRequest, ModelInferResponse};

use crate::support::grpc::{Grpc, SERVICE, code, decode};
use crate::support::http::{Peer, request};
use crate::support::repository::{Pair, Repository};
use crate::support::server::{Server, signal};
use crate::support::variant::{self, each, usual};

const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[8]}]}"#;

fn slow_repository(delay_ms: u32) -> Repository {
    let repository = Repository::new();
    let delay = format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}");
    repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], &delay);
    repository
}

/// Waits until the model has taken at least `count` requests out of the queue or holds them in it: only then is a
/// request in flight for certain.
fn wait_for_pending(server: &Server, count: u64) {
    let mut peer = Peer::connect(server.metrics);
    loop {
        let text = peer.get("/metrics").text();
        let pending = |line: &str| line.starts_with("nv_inference_pending_request_count{");
        let value =
            text.lines().find(|line| pending(line)).and_then(|line| line.split("} ").nth(1)?.parse::<u64>().ok());
        if value.is_some_and(|value| value >= count) {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn requests_in_flight_are_answered_before_the_end() {
    each(&variant::ALL, |variant| {
        let repository = slow_repository(200);
        let server = Server::start(variant, repository.path(), &[]);
        let mut peers: Vec<Peer> = (0..3).map(|_| Peer::connect(server.http)).collect();
        for peer in &mut peers {
            peer.send(&request("POST", "/v2/models/slow/infer", &[], BODY));
        }
        let mut grpc = Grpc::connect(server.grpc);
        let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
        let message = ModelInferRequest {
            model_name: "slow".into(),
            inputs: vec![InferInputTensor {
                name: "INPUT0".into(),
                datatype: "INT32".into(),
                shape: vec![1],
                ..Default::default()
            }],
            raw_input_contents: vec![bytes::Bytes::from_static(b"\x09\0\0\0")],
            ..Default::default()
        };
        grpc.send(&mut exchange, &message);
        grpc.half_close(&mut exchange);
        // One executes, the others wait: three of the four are pending once all have arrived.
        grpc.flush();
        wait_for_pending(&server, 3);
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
        let reply = grpc.exchange(&format!("{SERVICE}ServerLive"), &[], &[crate::support::grpc::frame_bytes(0, b"")]);
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
    let repository = slow_repository(3_600_000);
    let server = Server::start(usual(), repository.path(), &["--exit-timeout-secs=1"]);
    let mut peer = Peer::connect(server.http);
    peer.send(&request("POST", "/v2/models/slow/infer", &[], BODY));
    let mut second = Peer::connect(server.http);
    second.send(&request("POST", "/v2/models/slow/infer", &[], BODY));
    wait_for_pending(&server, 1);
    server.terminate();
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("failed to stop server: ") && log.contains("Exit timeout expired."), "{log}");
}

#[test]
fn a_second_signal_is_ignored() {
    let repository = slow_repository(300);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    peer.send(&request("POST", "/v2/models/slow/infer", &[], BODY));
    let mut second = Peer::connect(server.http);
    second.send(&request("POST", "/v2/models/slow/infer", &[], BODY));
    wait_for_pending(&server, 1);
    server.terminate();
    server.wait_for_log("Signal (15) received.");
    server.terminate();
    assert_eq!(peer.answer().status, 200);
    assert_eq!(second.answer().status, 200);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}
