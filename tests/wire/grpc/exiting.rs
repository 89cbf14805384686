//! Responses of a server that is stopping (contract/grpc.md sections 3 and 5) to calls that were opened before the
//! signal and send their messages after it.

use std::cell::Cell;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nereid_wire::inference::*;

use super::message::numbers;
use nereid_test_support::backend;
use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::{Exchange, Grpc, SERVICE, Status, code, decode, frame_bytes};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::steadily::{ATTEMPTS_IN_TIME, Window, in_time};
use nereid_test_support::variant::{self, Variant, each};

const STOPPING: &str = "GRPC server is shutting down and has stopped accepting new requests.";
const EXITING: &str = "Server exiting";
const NOT_READY: &str = "Server not ready";

/// Nobody is let in any more. Meanwhile the peer answers the pings by which the server asks who is still there.
fn wait_for_closed_door(server: &Server, grpc: &mut Grpc) {
    let started = Instant::now();
    while TcpStream::connect(server.grpc).is_ok() {
        assert!(started.elapsed() < PATIENCE, "the port stays open:\n{}", server.log());
        grpc.flush();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One request waits behind another: both have been accepted.
fn wait_for_pending(server: &Server) {
    let mut peer = Peer::connect(server.metrics);
    let started = Instant::now();
    let pending = |line: &str| line.starts_with("nv_inference_pending_request_count{") && line.ends_with("} 1");
    while !peer.get("/metrics").text().lines().any(pending) {
        assert!(started.elapsed() < PATIENCE, "no request is pending:\n{}", server.log());
    }
}

fn encoded(message: impl prost::Message) -> Vec<u8> {
    message.encode_to_vec()
}

#[test]
fn calls_are_refused_and_streams_told_in_band() {
    each(&variant::ALL, |variant| in_time(|window| refused_calls_and_streams(variant, window)));
}

fn refused_calls_and_streams(variant: Variant, window: &Window) {
    let (repository, gate) = (Repository::new(), Gate::new());
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity_of(gate::BACKEND, "slow", 0, &[Pair::new("INT32", "-1")], &gate.of_executions());
    let Some(backends) = backend::directory_flag() else { return };
    let flags = ["--exit-timeout-secs=3000", "--model-control-mode=explicit", "--load-model=*", &backends];
    let server = Server::start(variant, repository.path(), &flags);
    let mut grpc = Grpc::connect(server.grpc);
    let named = || "plain".to_string();
    let unavailable = |text: &str| Some(Status { code: code::UNAVAILABLE, message: text.to_string() });
    let calls: [(&str, Vec<u8>, Option<Status>); 13] = [
        ("inference.GRPCInferenceService/ServerLive", vec![], unavailable(EXITING)),
        ("inference.GRPCInferenceService/ServerReady", vec![], unavailable(EXITING)),
        ("grpc.health.v1.Health/Check", vec![], unavailable(EXITING)),
        (
            "inference.GRPCInferenceService/ModelReady",
            encoded(ModelReadyRequest { name: named(), version: String::new() }),
            unavailable(NOT_READY),
        ),
        (
            "inference.GRPCInferenceService/ModelMetadata",
            encoded(ModelMetadataRequest { name: named(), version: String::new() }),
            unavailable(NOT_READY),
        ),
        (
            "inference.GRPCInferenceService/ModelStatistics",
            encoded(ModelStatisticsRequest { name: named(), version: String::new() }),
            unavailable(NOT_READY),
        ),
        ("inference.GRPCInferenceService/RepositoryIndex", vec![], unavailable(NOT_READY)),
        (
            "inference.GRPCInferenceService/RepositoryModelLoad",
            encoded(RepositoryModelLoadRequest { model_name: named(), ..Default::default() }),
            unavailable(NOT_READY),
        ),
        (
            "inference.GRPCInferenceService/RepositoryModelUnload",
            encoded(RepositoryModelUnloadRequest { model_name: named(), ..Default::default() }),
            unavailable(NOT_READY),
        ),
        ("inference.GRPCInferenceService/ModelInfer", encoded(numbers("plain", "", &[1])), unavailable(STOPPING)),
        ("inference.GRPCInferenceService/ModelInfer", encoded(numbers("absent", "", &[1])), unavailable(STOPPING)),
        // Not gated, and nothing that a core that stops refuses.
        ("inference.GRPCInferenceService/ServerMetadata", vec![], None),
        ("inference.GRPCInferenceService/LogSettings", vec![], None),
    ];
    let mut open: Vec<Exchange> = calls.iter().map(|(path, ..)| grpc.open(&format!("/{path}"), &[])).collect();
    // One request executes on the stream, so that the server waits for it; its answer is owed.
    let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
    grpc.send(&mut stream, &numbers("plain", "first", &[1]));
    let first: ModelStreamInferResponse = decode(&grpc.next(&mut stream).expect("an answer"));
    assert_eq!(first.infer_response.unwrap_or_default().id, "first", "all calls are open");
    // The two requests keep the server from ending until the gate opens, then the open stream does for two seconds.
    grpc.send(&mut stream, &numbers("slow", "owed", &[2]));
    grpc.send(&mut stream, &numbers("slow", "owed too", &[2]));
    grpc.flush();
    wait_for_pending(&server);
    server.terminate();
    wait_for_closed_door(&server, &mut grpc);
    grpc.send(&mut stream, &numbers("plain", "late", &[3]));
    for ((path, message, expected), mut exchange) in calls.iter().zip(open.drain(..)) {
        grpc.send_bytes(&mut exchange, frame_bytes(0, message));
        grpc.half_close(&mut exchange);
        let reply = grpc.finish(exchange);
        let ok = Status { code: code::OK, message: String::new() };
        assert_eq!(reply.status, expected.clone().unwrap_or(ok), "{path}");
        assert_eq!(reply.messages.len(), usize::from(expected.is_none()), "{path}");
    }
    window.open(Duration::from_secs(2));
    gate.open();
    for (id, text) in [("owed", ""), ("owed too", ""), ("late", STOPPING)] {
        let response: ModelStreamInferResponse = decode(&grpc.next(&mut stream).expect("an answer"));
        assert_eq!(response.error_message, text);
        assert_eq!(response.infer_response.unwrap_or_default().id, id);
    }
    // Nothing is under way any more, and the client has not gone yet: it gets the time to.
    std::thread::sleep(Duration::from_millis(200));
    grpc.half_close(&mut stream);
    assert_eq!(grpc.finish(stream).status.code, code::OK);
    window.close();
    drop(grpc);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_scenario_is_repeated_where_it_missed_its_window_alone() {
    for (limit, expected) in [(Duration::ZERO, ATTEMPTS_IN_TIME), (Duration::MAX, 1)] {
        let attempts = Cell::new(0);
        let scenario = |window: &Window| {
            attempts.set(attempts.get() + 1);
            window.open(limit);
            panic!("the scenario fails");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| in_time(scenario))).is_err());
        assert_eq!(attempts.get(), expected);
    }
}
