//! How often a byte of a tensor is copied in user space.
//!
//! What a request copies besides (heads, names, JSON) does not depend on its tensor's size where sizes are written with
//! as many digits: the difference between two sizes, divided by the difference of the sizes, is what one byte takes.

use super::child::Counted;
use super::measurement::measure;
use super::models::{Protocol, Row, flags, repository};
use crate::support::backend;
use crate::support::variant::usual;

/// Sizes that are copied rather than carried, as one of 64 bytes is, and far enough from each other for a difference.
const SMALL: [&[i64]; 2] = [&[130], &[240]];
/// 588 KiB and a third more.
const LARGE: [&[i64]; 2] = [&[150_528], &[200_704]];

fn copies(counted: &mut Counted, protocol: Protocol, model: &'static str, shapes: [&'static [i64]; 2]) -> f64 {
    let mut points = Vec::new();
    for shape in shapes {
        let bytes = shape.iter().product::<i64>() as f64 * 4.0;
        let requests = if bytes > 1e5 { 20 } else { 500 };
        let row = Row { name: "copies", protocol, model, shape, connections: 1, in_flight: 1, requests };
        let cost = measure(&row, counted).unwrap_or_else(|error| panic!("{protocol:?} {model}: {error}"));
        points.push((bytes, cost.copied_bytes));
    }
    let [(size, copied), (larger, copied_more)] = points[..] else { panic!("two sizes") };
    (copied_more - copied) / (larger - size)
}

#[test]
fn tensors_are_copied_no_more_than_told() {
    if !cfg!(target_arch = "x86_64") {
        crate::support::skip::skip("memcpy is counted on x86-64 only");
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
        (Protocol::Grpc, "identity", SMALL, 2.0),
        (Protocol::Http, "identity", SMALL, 2.0),
        (Protocol::Stream, "identity", SMALL, 2.0),
        (Protocol::GrpcShared, "identity", SMALL, 1.0),
        (Protocol::HttpShared, "identity", SMALL, 1.0),
        (Protocol::Grpc, "copies", SMALL, 3.0),
        (Protocol::Http, "copies", SMALL, 3.0),
    ];
    for (protocol, model, shapes, most) in rows {
        let copies = copies(&mut counted, protocol, model, shapes);
        let size = if shapes == LARGE { "588 KiB" } else { "small" };
        let told = format!("{protocol:?} {model} {size}: {copies:.3} copies of a tensor's byte, at most {most}");
        println!("{told}");
        if copies > most + if shapes == LARGE { 0.05 } else { 0.4 } {
            beyond.push(told);
        }
    }
    counted.stop();
    assert!(beyond.is_empty(), "more copies than allowed:\n{}", beyond.join("\n"));
}
