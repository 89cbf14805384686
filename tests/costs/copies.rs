//! How often a byte of a tensor is copied in user space.
//!
//! Of large tensors the bytes are counted: what a request copies besides (heads, names, JSON) does not depend on their
//! size, so the difference between two sizes, divided by the difference of the sizes, is what one byte takes. Of
//! tensors that are too small to be carried by reference the copies themselves are counted, by their length, against
//! those of requests with next to nothing in them.

use super::child::Counted;
use super::ledger::MIDDLING;
use super::measurement::{Cost, measure};
use super::models::{Protocol, Row, flags, repository};
use nereid_test_support::backend;
use nereid_test_support::variant::usual;

/// 64 bytes, and the fewest that are counted as a copy, a bit less than what is carried.
const SMALL: [&[i64]; 2] = [&[16], &[(*MIDDLING.start() / 4) as i64]];
/// 147 and 980 KiB, far apart: the first chunk of a request is copied, and how much comes in it is the network's.
const LARGE: [&[i64]; 2] = [&[37_632], &[250_880]];

fn copies(counted: &mut Counted, protocol: Protocol, model: &'static str, shapes: [&'static [i64]; 2]) -> f64 {
    let requests = if shapes == LARGE { 20 } else { 200 };
    let [less, more]: [Cost; 2] = shapes.map(|shape| {
        let row = Row { name: "copies", protocol, model, shape, connections: 1, in_flight: 1, requests };
        measure(&row, counted).unwrap_or_else(|error| panic!("{protocol:?} {model}: {error}"))
    });
    if shapes == SMALL {
        return more.middling_copies - less.middling_copies;
    }
    let [size, larger] = shapes.map(|shape| shape.iter().product::<i64>() as f64 * 4.0);
    (more.copied_bytes - less.copied_bytes) / (larger - size)
}

#[test]
fn tensors_are_copied_no_more_than_told() {
    if !cfg!(target_arch = "x86_64") {
        nereid_test_support::skip::skip("memcpy is counted on x86-64 only");
        return;
    }
    let Some(backends) = backend::directory() else { return };
    let repository = repository(true);
    let flags = flags(Some(&backends));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut counted = Counted::start(usual(), repository.path(), &flags);
    let mut beyond = Vec::new();
    // Of a model that writes its output one copy is its own.
    let rows = [
        (Protocol::Grpc, "identity", LARGE, 0.0),
        (Protocol::Http, "identity", LARGE, 0.0),
        (Protocol::Stream, "identity", LARGE, 0.0),
        (Protocol::GrpcShared, "identity", LARGE, 1.0),
        (Protocol::HttpShared, "identity", LARGE, 1.0),
        (Protocol::Grpc, "copies", LARGE, 1.0),
        (Protocol::Http, "copies", LARGE, 1.0),
        (Protocol::GrpcShared, "copies", LARGE, 1.0),
        (Protocol::HttpShared, "copies", LARGE, 1.0),
        (Protocol::Grpc, "identity", SMALL, 3.0),
        (Protocol::Http, "identity", SMALL, 3.0),
        (Protocol::Stream, "identity", SMALL, 3.0),
        (Protocol::GrpcShared, "identity", SMALL, 1.0),
        (Protocol::HttpShared, "identity", SMALL, 1.0),
        (Protocol::Grpc, "copies", SMALL, 4.0),
        (Protocol::Http, "copies", SMALL, 4.0),
    ];
    for (protocol, model, shapes, most) in rows {
        let copies = copies(&mut counted, protocol, model, shapes);
        let size = if shapes == LARGE { "large" } else { "small" };
        let told = format!("{protocol:?} {model} {size}: {copies:.3} copies of a tensor's byte, at most {most}");
        println!("{told}");
        if copies > most + 0.05 {
            beyond.push(told);
        }
    }
    counted.stop();
    assert!(beyond.is_empty(), "more copies than allowed:\n{}", beyond.join("\n"));
}
