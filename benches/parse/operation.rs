//! The [`Operation`] trait, and the list of the counted operations.

use super::{batch, grpc, http1, http2, json};

/// One operation on state that stays warm. The code that feeds and checks it is not counted.
pub trait Operation {
    fn prepare(&mut self) {}
    fn perform(&mut self);
    /// Checks the outcome and makes room for the next time.
    fn settle(&mut self);
}

pub struct Named {
    pub name: &'static str,
    pub about: &'static str,
    pub make: fn() -> Box<dyn Operation>,
}

const fn of(name: &'static str, about: &'static str, make: fn() -> Box<dyn Operation>) -> Named {
    Named { name, about, make }
}

#[rustfmt::skip]
pub const OPERATIONS: [Named; 11] = [
    of("http1-receive", "HTTP/1.1: receive head and body of a binary infer request, 64 B", http1::receive),
    of("http1-respond", "HTTP/1.1: head and framing of a binary infer response, 64 B, to bytes to send", http1::respond),
    of("http2-receive", "HTTP/2: receive HEADERS and DATA of a ModelInfer call on a warm connection", http2::receive),
    of("http2-respond", "HTTP/2: HEADERS, DATA and trailers of its answer, to bytes to send", http2::respond),
    of("grpc-read", "gRPC: frame and scan of a ModelInferRequest, 64 B", grpc::read),
    of("grpc-write", "gRPC: ModelInferResponse, 64 B, to bytes", grpc::write),
    of("json-read-header", "JSON: infer request whose tensor is in the binary tail", json::read_header),
    of("json-read-floats", "JSON: infer request of 16 FP32, into the tensor", json::read_floats),
    of("json-write-header", "JSON: infer response whose tensor is in the binary tail", json::write_header),
    of("json-write-floats", "JSON: infer response of 16 FP32, from the tensor", json::write_floats),
    of("batch-cut", "dynamic batcher: eight requests enqueued and cut as one batch", batch::cut),
];

/// Warms up, then performs `times` times inside the function that callgrind collects.
pub fn repeat(operation: &mut dyn Operation, times: u64) {
    for _ in 0..100 {
        operation.prepare();
        operation.perform();
        operation.settle();
    }
    for _ in 0..times {
        operation.prepare();
        perform_measured(operation);
        operation.settle();
    }
}

/// Callgrind collects the function of this name; the call inside is not its last act, or it would become a jump.
#[inline(never)]
fn perform_measured(operation: &mut dyn Operation) {
    operation.perform();
    std::hint::black_box(());
}
