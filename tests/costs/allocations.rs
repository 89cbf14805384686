//! Allocations of one request.

use super::child::Counted;
use super::measurement::measure;
use super::models::{IMAGE, Protocol, ROW_OF_BATCH, Row, SMALL, flags, repository};
use nereid_test_support::variant::usual;

const fn small(name: &'static str, protocol: Protocol, connections: usize, in_flight: usize) -> Row {
    Row { name, protocol, model: "identity", shape: SMALL, connections, in_flight, requests: 1000 }
}

const fn image(name: &'static str, protocol: Protocol) -> Row {
    Row { name, protocol, model: "identity", shape: IMAGE, connections: 1, in_flight: 1, requests: 40 }
}

/// Plain requests need no memory of their own where a shard executes them.
const PLAIN: [(Row, f64); 5] = [
    (small("gRPC, one in flight", Protocol::Grpc, 1, 1), 0.0),
    (small("gRPC, 4 connections x 16", Protocol::Grpc, 4, 16), 0.0),
    (small("gRPC, 64 connections", Protocol::Grpc, 64, 1), 0.0),
    (small("HTTP, one in flight", Protocol::Http, 1, 1), 0.0),
    (small("HTTP, 64 connections", Protocol::Http, 64, 1), 0.0),
];
/// What it is more where a worker executes: 10, and now and then a list that grows while the two meet.
const HAND_OVER: f64 = 11.0;

/// Rows with the calls that one request may need: allocations, reallocations and frees together.
const SOME: [(Row, f64); 10] = [
    (small("JSON, one in flight", Protocol::Json, 1, 1), 12.0),
    (small("JSON, 64 connections", Protocol::Json, 64, 1), 12.0),
    (small("stream, one in flight", Protocol::Stream, 1, 1), 0.0),
    (small("stream, 64 in flight", Protocol::Stream, 1, 64), 0.0),
    (small("gRPC, shared memory", Protocol::GrpcShared, 4, 1), 28.0),
    (small("HTTP, shared memory", Protocol::HttpShared, 4, 1), 2.0),
    (image("gRPC, 588 KiB", Protocol::Grpc), 14.0),
    (image("HTTP, 588 KiB", Protocol::Http), 0.0),
    (Row { model: "batched", shape: ROW_OF_BATCH, ..small("gRPC, batches, 4 x 16", Protocol::Grpc, 4, 16) }, 12.0),
    (Row { model: "repeat", requests: 200, ..small("16 responses to a request", Protocol::Decoupled, 1, 1) }, 72.0),
];

/// Measures `rows`, each with its bound, and fails with all that need more.
fn hold(rows: impl Iterator<Item = (Row, f64)>, more_flags: &[&str]) {
    let repository = repository(false);
    let flags = flags(None);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more_flags.iter().copied()).collect();
    let mut counted = Counted::start(usual(), repository.path(), &flags);
    let mut beyond = Vec::new();
    for (row, bound) in rows {
        let cost = measure(&row, &mut counted).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        let told = format!(
            "{:28} {:6.2} allocations, {:6.2} reallocations, {:6.2} frees a request, at most {bound} together",
            row.name, cost.allocations, cost.reallocations, cost.frees
        );
        println!("{told}");
        // Less than one in a hundred requests is no request's own.
        if cost.calls() > bound + 0.01 {
            beyond.push(told);
        }
    }
    counted.stop();
    assert!(beyond.is_empty(), "more calls of the allocator than allowed:\n{}", beyond.join("\n"));
}

#[test]
fn plain_requests_keep_to_their_bounds_where_a_shard_executes_them() {
    hold(PLAIN.into_iter(), &[]);
}

#[test]
fn plain_requests_keep_to_their_bounds_where_a_worker_executes_them() {
    hold(PLAIN.into_iter().map(|(row, bound)| (row, bound + HAND_OVER)), &["--run-to-completion=off"]);
}

#[test]
fn other_requests_keep_to_their_bounds() {
    hold(SOME.into_iter(), &[]);
}
