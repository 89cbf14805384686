//! Load reports out of band: OpenRcaService/StreamCoreMetrics on the gRPC port (contract/scale_out.md section 6).

use std::time::Instant;

use nereid_wire::Duration;
use nereid_wire::xds::data::orca::v3::OrcaLoadReport;
use nereid_wire::xds::service::orca::v3::OrcaLoadReportRequest;

use nereid_test_support::grpc::{Exchange, Grpc, code, decode, frame, frame_bytes};
use nereid_test_support::http2::{RawPeer, frame as http2_frame, kind};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::{self, Variant, each, usual};

const PATH: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

fn request(seconds: i64, nanos: i32) -> OrcaLoadReportRequest {
    let request_cost_names = vec!["nothing".to_owned()];
    OrcaLoadReportRequest { report_interval: Some(Duration { seconds, nanos }), request_cost_names }
}

fn start(variant: Variant, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(variant, repository.path(), flags);
    (repository, server)
}

/// Opens a stream as gRPC clients do: the request and its end come at once.
fn open(grpc: &mut Grpc, request: &OrcaLoadReportRequest) -> Exchange {
    let mut exchange = grpc.open(PATH, &[]);
    grpc.send(&mut exchange, request);
    grpc.half_close(&mut exchange);
    exchange
}

fn next(grpc: &mut Grpc, exchange: &mut Exchange) -> OrcaLoadReport {
    decode(&grpc.next(exchange).expect("a report"))
}

#[test]
fn reports_come_at_once_and_after_each_interval() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let mut grpc = Grpc::connect(server.grpc);
        // The floor, an interval of some length, and what is none.
        for (seconds, nanos, least_ms) in
            [(0, 0, 100), (0, 300_000_000, 300), (-5, 0, 100), (i64::MIN, i32::MIN, 100), (0, 1, 100)]
        {
            // From before the request: however late this thread reads, no report has come earlier than it may.
            let began = Instant::now();
            let mut exchange = open(&mut grpc, &request(seconds, nanos));
            let first = next(&mut grpc, &mut exchange);
            assert!(first.mem_utilization > 0.0 && first.named_metrics.contains_key("queue_depth"), "{first:?}");
            for count in 1..=3 {
                next(&mut grpc, &mut exchange);
                // No earlier than an interval after the one before.
                let least = count * least_ms;
                assert!(began.elapsed().as_millis() >= least, "{seconds} {nanos}: report {count}");
            }
            grpc.cancel(exchange);
        }
        // Of a long interval there is the first report only, and others are not held up.
        let mut long = open(&mut grpc, &request(i64::MAX, i32::MAX));
        next(&mut grpc, &mut long);
        let mut other = open(&mut grpc, &OrcaLoadReportRequest::default());
        next(&mut grpc, &mut other);
        server.stop();
    });
}

#[test]
fn bad_streams_end_with_a_status() {
    let (_repository, server) = start(usual(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let reply = grpc.exchange(PATH, &[], &[]);
    let text = "a stream of load reports needs a request";
    assert_eq!((reply.status.code, reply.status.message.as_str()), (code::INVALID_ARGUMENT, text));
    let reply = grpc.exchange(PATH, &[], &[frame_bytes(0, b"\xff\xff\xff")]);
    assert_eq!((reply.status.code, reply.status.message.as_str()), (code::INTERNAL, "Unable to parse request"));
    let twice = [frame(&request(1, 0)), frame(&request(2, 0))];
    let reply = grpc.exchange(PATH, &[], &twice);
    let text = "a stream of load reports takes one request";
    assert_eq!((reply.status.code, reply.status.message.as_str()), (code::INVALID_ARGUMENT, text));
    let reply = grpc.exchange("/xds.service.orca.v3.OpenRcaService/Other", &[], &[frame(&request(1, 0))]);
    assert_eq!(reply.status.code, code::UNIMPLEMENTED);
    server.stop();
}

/// More streams than a shard has are refused; the others go on, and their end makes room.
#[test]
fn there_is_a_bound_of_streams() {
    let (_repository, server) = start(usual(), &[]);
    let mut connections: Vec<Grpc> = (0..32).map(|_| Grpc::connect(server.grpc)).collect();
    let mut open_streams = Vec::new();
    for grpc in &mut connections {
        for _ in 0..32 {
            open_streams.push(open(grpc, &request(3600, 0)));
        }
        grpc.flush();
    }
    for (at, exchange) in open_streams.iter_mut().enumerate() {
        next(&mut connections[at / 32], exchange);
    }
    let mut grpc = Grpc::connect(server.grpc);
    let reply = grpc.exchange(PATH, &[], &[frame(&request(3600, 0))]);
    assert_eq!(reply.status.code, code::RESOURCE_EXHAUSTED, "{:?}", reply.status);
    drop(open_streams);
    drop(connections);
    server.wait_until("the streams of clients that left make room", || {
        let mut exchange = open(&mut grpc, &request(3600, 0));
        let has_report = grpc.next(&mut exchange).is_some();
        grpc.cancel(exchange);
        has_report
    });
    server.stop();
}

/// A stream holds its place for a while without a request, and then ends by itself; one with a request goes on.
#[test]
fn a_stream_without_a_request_ends() {
    let (_repository, server) = start(usual(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut served = open(&mut grpc, &request(1, 0));
    let mut silent = grpc.open(PATH, &[]);
    grpc.flush();
    assert_eq!(grpc.next(&mut silent), None, "a stream without a request has no report");
    assert_eq!(grpc.finish(silent).status.code, code::INVALID_ARGUMENT);
    (0..3).for_each(|_| drop(next(&mut grpc, &mut served)));
    server.stop();
}

/// A client without a window for data has one report waiting, and no more when it opens the window at last.
#[test]
fn reports_do_not_pile_up_for_a_client_that_does_not_read() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[]);
        let mut peer = RawPeer::greet(server.grpc, &[(INITIAL_WINDOW_SIZE, 0)]);
        peer.open(1, PATH).message(1, &prost::Message::encode_to_vec(&request(0, 100_000_000)));
        peer.expect(kind::HEADERS);
        // Another stream measures the time: ten intervals.
        let mut grpc = Grpc::connect(server.grpc);
        let mut other = open(&mut grpc, &request(0, 100_000_000));
        (0..10).for_each(|_| drop(next(&mut grpc, &mut other)));
        peer.send(&http2_frame(kind::WINDOW_UPDATE, 0, 1, &(1u32 << 20).to_be_bytes()));
        let (first, began) = (peer.expect(kind::DATA), Instant::now());
        peer.expect(kind::DATA);
        // The first had waited; had the second one too, they would have come together.
        let length = u32::from_be_bytes([first.payload[1], first.payload[2], first.payload[3], first.payload[4]]);
        assert_eq!(first.payload.len(), 5 + length as usize, "one report waited");
        assert!(began.elapsed() < PATIENCE);
        server.stop();
    });
}

/// At the end of the server the streams end well, before its time for them is up.
#[test]
fn streams_end_with_the_server() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &["--exit-timeout-secs=100"]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut exchange = open(&mut grpc, &request(3600, 0));
        next(&mut grpc, &mut exchange);
        server.terminate();
        let reply = grpc.finish(exchange);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 0), "{:?}", reply.status);
        drop(grpc);
        let (status, log) = server.wait();
        assert!(status.success() && !log.contains("Exit timeout expired"), "{status}: {log}");
    });
}

#[test]
fn the_service_can_be_switched_off_and_restricted() {
    let (_repository, server) = start(usual(), &["--orca=off"]);
    let reply = Grpc::connect(server.grpc).exchange(PATH, &[], &[frame(&request(1, 0))]);
    assert_eq!(reply.status.code, code::UNIMPLEMENTED, "Envoy asks no more then");
    server.stop();
    let (_repository, server) = start(usual(), &["--grpc-restricted-protocol=statistics:key=secret"]);
    let mut grpc = Grpc::connect(server.grpc);
    let reply = grpc.exchange(PATH, &[], &[frame(&request(1, 0))]);
    assert_eq!(reply.status.code, code::UNAVAILABLE, "{:?}", reply.status);
    let mut exchange = grpc.open(PATH, &[("triton-grpc-protocol-key", "secret")]);
    grpc.send(&mut exchange, &request(1, 0));
    next(&mut grpc, &mut exchange);
    server.stop();
}
