//! The scenarios: model, protocol, and requests in flight.

use super::side::Side;
use crate::side::answer::Check;
use crate::side::burst::BurstPeer;
use crate::side::http::HttpPeer;
use crate::side::line::Peer;
use crate::side::question::{Named, Question};
use crate::side::unary::UnaryPeer;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    Http,
    /// All responses to one request on a ModelStreamInfer call.
    Stream,
}

pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub model: &'static str,
    pub protocol: Protocol,
    pub connections: usize,
    /// Requests in flight on each connection.
    pub in_flight: usize,
}

/// Responses of one request of the decoupled model.
pub const RESPONSES: usize = 128;
/// Elements of the tensor of strings.
const STRINGS: usize = 10_000;
/// One image.
const IMAGE: [i64; 4] = [1, 3, 224, 224];

#[rustfmt::skip]
pub const SCENARIOS: [Scenario; 15] = [
    of("grpc-1", "add and subtract 16 FP32, gRPC, one client", "sums", Protocol::Grpc, 1, 1),
    of("http-1", "the same over HTTP", "sums", Protocol::Http, 1, 1),
    of("grpc-16", "add and subtract 16 FP32, gRPC, 4 connections × 4 in flight", "sums", Protocol::Grpc, 4, 4),
    of("http-16", "the same over HTTP, 16 connections", "sums", Protocol::Http, 16, 1),
    of("batched-16", "the same as grpc-16, a model with dynamic batching up to 16", "batched", Protocol::Grpc, 4, 4),
    of("strings-grpc", "10,000 short strings in and out, gRPC, one client", "strings", Protocol::Grpc, 1, 1),
    of("strings-http", "the same over HTTP", "strings", Protocol::Http, 1, 1),
    of("image-grpc", "588 KiB in and out, gRPC, one client", "image", Protocol::Grpc, 1, 1),
    of("image-http", "the same over HTTP", "image", Protocol::Http, 1, 1),
    of("image-grpc-4", "588 KiB in and out, gRPC, 4 connections", "image", Protocol::Grpc, 4, 1),
    of("image-http-4", "the same over HTTP", "image", Protocol::Http, 4, 1),
    of("chain-1", "a model that calls two others in turn (BLS), gRPC, one client", "chain", Protocol::Grpc, 1, 1),
    of("chain-16", "the same, 4 connections × 4 in flight", "chain", Protocol::Grpc, 4, 4),
    of("burst-1", "128 responses to a request, ModelStreamInfer, one client", "burst", Protocol::Stream, 1, 1),
    of("burst-4", "the same, 4 clients", "burst", Protocol::Stream, 4, 1),
];

const fn of(
    name: &'static str,
    about: &'static str,
    model: &'static str,
    protocol: Protocol,
    connections: usize,
    in_flight: usize,
) -> Scenario {
    Scenario { name, about, model, protocol, connections, in_flight }
}

fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn tensor(name: &'static str, shape: &[i64], data: Vec<u8>) -> Named {
    Named { name, datatype: "FP32", shape: shape.to_vec(), data }
}

impl Scenario {
    /// The clients of one run. Every slot of every connection sends its own data.
    pub fn peers(&self, side: &Side) -> Vec<(std::net::SocketAddr, Box<dyn Peer>)> {
        let questions = |connection: usize| {
            let first = connection * self.in_flight;
            (first..first + self.in_flight).map(|slot| self.question(slot)).collect::<Vec<_>>()
        };
        let mut peers: Vec<(_, Box<dyn Peer>)> = Vec::new();
        for connection in 0..self.connections {
            let mut questions = questions(connection).into_iter();
            match self.protocol {
                Protocol::Grpc => {
                    let unary = |question: Question| -> (_, Check) {
                        (question.grpc_request(), Box::new(move |frame: &[u8]| question.check_unary(frame)))
                    };
                    peers.push((side.grpc, Box::new(UnaryPeer::new(questions.map(unary).collect()))));
                }
                Protocol::Http => peers.extend(questions.map(|question| {
                    let request = question.http_request();
                    let check: Check = Box::new(move |noted: &[u8]| question.check_http(noted));
                    (side.http, Box::new(HttpPeer::new(request, check)) as Box<dyn Peer>)
                })),
                Protocol::Stream => peers.extend(questions.next().map(|question| {
                    let request = question.grpc_request();
                    let check = |question: Question| -> Check {
                        Box::new(move |message: &[u8]| question.check_streamed(message))
                    };
                    let checks = (0..RESPONSES).map(|_| check(question.clone())).collect();
                    (side.grpc, Box::new(BurstPeer::new(request, checks)) as Box<dyn Peer>)
                })),
            }
        }
        peers
    }

    fn question(&self, slot: usize) -> Question {
        let base = slot as f32 * 64.0;
        let (inputs, outputs) = match self.model {
            "strings" => {
                let text = |at: usize| format!("word {slot} {at}").into_bytes();
                let data: Vec<u8> = (0..STRINGS)
                    .map(text)
                    .flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], &text].concat())
                    .collect();
                let named = |name| Named { name, datatype: "BYTES", shape: vec![STRINGS as i64], data: data.clone() };
                (vec![named("INPUT0")], vec![named("OUTPUT0")])
            }
            "image" => {
                let count = IMAGE.iter().product::<i64>();
                let values = |add: f32| floats((0..count).map(move |at| base + (at % 251) as f32 / 4.0 + add));
                (vec![tensor("INPUT0", &IMAGE, values(0.0))], vec![tensor("OUTPUT0", &IMAGE, values(1.0))])
            }
            "burst" => {
                let data = floats((0..16).map(|at| base + at as f32));
                (vec![tensor("INPUT0", &[16], data.clone())], vec![tensor("OUTPUT0", &[16], data)])
            }
            model => {
                let shape: &[i64] = if model == "batched" { &[1, 16] } else { &[16] };
                let left = |at: i32| base + at as f32 / 4.0;
                let right = |at: i32| at as f32 / 2.0 + 1.0;
                let of = |value: &dyn Fn(i32) -> f32| floats((0..16).map(value));
                let inputs = vec![tensor("INPUT0", shape, of(&left)), tensor("INPUT1", shape, of(&right))];
                let outputs = match model {
                    // The chain adds the second tensor twice.
                    "chain" => vec![tensor("OUTPUT0", shape, of(&|at| left(at) + right(at) + right(at)))],
                    _ => vec![
                        tensor("OUTPUT0", shape, of(&|at| left(at) + right(at))),
                        tensor("OUTPUT1", shape, of(&|at| left(at) - right(at))),
                    ],
                };
                (inputs, outputs)
            }
        };
        Question { model: self.model, inputs, outputs }
    }
}
