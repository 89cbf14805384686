//! The gRPC transport over HTTP/2: content types, unknown methods, framing, and the RPCs of later versions.

use bytes::Bytes;
use nereid_wire::inference::*;

use super::message::numbers;
use nereid_test_support::backend;
use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::{Grpc, SERVICE, code, decode, frame, frame_bytes};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

fn start(variant: variant::Variant) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(variant, repository.path(), &[]);
    (repository, server)
}

#[test]
fn the_head_of_an_answer() {
    let (_repository, server) = start(usual());
    let mut grpc = Grpc::connect(server.grpc);
    for kind in ["application/grpc", "application/grpc+proto"] {
        let request = frame(&numbers("plain", "", &[1]));
        let reply = grpc.exchange(&format!("{SERVICE}ModelInfer"), &[("content-type", kind)], &[request]);
        assert_eq!((reply.http_status, reply.status.code), (200, code::OK), "{kind}: {:?}", reply.status);
        let answered = reply.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert!(answered.starts_with("application/grpc"), "{kind}: {answered}");
        assert!(reply.headers.get("grpc-encoding").is_none_or(|value| value == "identity"), "{kind}");
    }
    server.stop();
}

#[test]
fn unknown_methods_and_services() {
    let (_repository, server) = start(usual());
    let mut grpc = Grpc::connect(server.grpc);
    for path in [
        "/inference.GRPCInferenceService/Nothing",
        "/inference.Nothing/ModelInfer",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/Nothing",
        "/",
    ] {
        let reply = grpc.exchange(path, &[], &[frame_bytes(0, b"")]);
        assert_eq!((reply.http_status, reply.status.code), (200, code::UNIMPLEMENTED), "{path}: {:?}", reply.status);
    }
    server.stop();
}

#[test]
fn messages_in_every_split() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut grpc = Grpc::connect(server.grpc);
        let bytes = frame(&numbers("plain", "split", &[1, 2, 3]));
        for at in 0..=bytes.len() {
            let pieces = [bytes.slice(..at), bytes.slice(at..)];
            let reply = grpc.exchange(&format!("{SERVICE}ModelInfer"), &[], &pieces);
            assert_eq!(reply.status.code, code::OK, "split at {at}: {:?}", reply.status);
            let answer: ModelInferResponse = decode(&reply.messages[0]);
            assert_eq!(answer.raw_output_contents[0].as_ref(), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0], "split at {at}");
        }
        let pieces: Vec<Bytes> = bytes.iter().map(|&byte| Bytes::from(vec![byte])).collect();
        assert_eq!(grpc.exchange(&format!("{SERVICE}ModelInfer"), &[], &pieces).status.code, code::OK);
        server.stop();
    });
}

#[test]
fn broken_framing_is_an_error_of_the_call() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut grpc = Grpc::connect(server.grpc);
        let path = format!("{SERVICE}ModelInfer");
        let good = frame(&numbers("plain", "", &[1]));
        let cases: [(&str, Vec<Bytes>); 6] = [
            ("no message", vec![]),
            ("half a prefix", vec![good.slice(..3)]),
            ("half a message", vec![good.slice(..good.len() - 1)]),
            ("two messages", vec![good.clone(), good.clone()]),
            ("no protobuf", vec![frame_bytes(0, b"\x0a\xff\xff\xff\xff\x7f")]),
            ("text that is not UTF-8", vec![frame_bytes(0, b"\x0a\x01\xff")]),
        ];
        for (what, pieces) in cases {
            let reply = grpc.exchange(&path, &[], &pieces);
            assert_ne!(reply.status.code, code::OK, "{what}: {reply:?}");
            assert!(reply.messages.is_empty(), "{what}: {reply:?}");
        }
        // None of it harms the connection.
        assert_eq!(grpc.exchange(&path, &[], &[good]).status.code, code::OK);
        server.stop();
    });
}

#[test]
fn many_calls_share_a_connection() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        let mut grpc = Grpc::connect(server.grpc);
        let mut exchanges = Vec::new();
        for number in 0..100 {
            let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
            grpc.send(&mut exchange, &numbers("plain", &number.to_string(), &[number]));
            grpc.half_close(&mut exchange);
            exchanges.push(exchange);
        }
        for (number, exchange) in exchanges.into_iter().enumerate().rev() {
            let reply = grpc.finish(exchange);
            assert_eq!(reply.status.code, code::OK, "{:?}", reply.status);
            let answer: ModelInferResponse = decode(&reply.messages[0]);
            assert_eq!(answer.id, number.to_string());
        }
        server.stop();
    });
}

#[test]
fn a_deadline_ends_a_call_that_waits_in_its_queue() {
    each(&variant::ALL, |variant| {
        let (repository, gate) = (Repository::new(), Gate::new());
        repository.identity_of(gate::BACKEND, "slow", 0, &[Pair::new("INT32", "-1")], &gate.of_executions());
        let Some(backends) = backend::directory_flag() else { return };
        let server = Server::start(variant, repository.path(), &[&backends]);
        let mut grpc = Grpc::connect(server.grpc);
        let path = format!("{SERVICE}ModelInfer");
        let mut patient = grpc.open(&path, &[]);
        grpc.send(&mut patient, &numbers("slow", "patient", &[1]));
        grpc.half_close(&mut patient);
        grpc.flush();
        gate.wait_until_held(&server, "slow");
        let mut hasty = grpc.open(&path, &[("grpc-timeout", "500m")]);
        grpc.send(&mut hasty, &numbers("slow", "hasty", &[2]));
        grpc.half_close(&mut hasty);
        let reply = grpc.finish(hasty);
        assert_eq!((reply.status.code, reply.messages.len()), (DEADLINE_EXCEEDED, 0), "{reply:?}");
        gate.open();
        let reply = grpc.finish(patient);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 1), "{reply:?}");
        let asked = ModelStatisticsRequest { name: "slow".to_owned(), ..Default::default() };
        let count = |of: Option<StatisticDuration>| of.unwrap_or_default().count;
        let mut counts = (0, 0, 0);
        // The backend reports behind its answer.
        server.wait_until("the execution is counted", || {
            let answer: ModelStatisticsResponse = grpc.call("ModelStatistics", &asked).expect("statistics");
            let model = &answer.model_stats[0];
            let stats = model.inference_stats.unwrap_or_default();
            counts = (count(stats.success), count(stats.fail), model.execution_count);
            counts.0 > 0 && counts.2 > 0
        });
        assert_eq!(counts, (1, 1, 1), "never executed");
        drop(grpc);
        server.stop();
    });
}

/// `grpc-status` of a call whose time is up.
const DEADLINE_EXCEEDED: u32 = 4;
