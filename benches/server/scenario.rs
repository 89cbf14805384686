//! The scenarios: protocol, size of the tensor, and requests in flight.

use std::net::SocketAddr;

use nereid_memory::Slice;

use super::process::Server;
use crate::side::answer::Check;
use crate::side::floor::EchoPeer;
use crate::side::http::HttpPeer;
use crate::side::line::Peer;
use crate::side::stream::StreamPeer;
use crate::side::tensor::Tensor;
use crate::side::unary::UnaryPeer;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    GrpcUnary,
    /// All requests of a connection on one ModelStreamInfer call.
    GrpcStream,
    HttpBinary,
    HttpJson,
    /// Tensors in shared memory.
    GrpcShared,
    HttpShared,
}

pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub protocol: Protocol,
    pub shape: &'static [i64],
    pub model: &'static str,
    pub connections: usize,
    /// Requests in flight on each connection.
    pub in_flight: usize,
}

/// 16 FP32: 64 bytes.
const SMALL: &[i64] = &[16];
/// One image: 588 KiB.
const IMAGE: &[i64] = &[1, 3, 224, 224];

#[rustfmt::skip]
pub const SCENARIOS: [Scenario; 15] = [
    of("grpc-64b-64x1", "gRPC unary, 64 B, 64 connections × 1 in flight", Protocol::GrpcUnary, SMALL, 64, 1),
    of("grpc-64b-4x16", "gRPC unary, 64 B, 4 connections × 16 in flight", Protocol::GrpcUnary, SMALL, 4, 16),
    of("grpc-64b-1x1", "gRPC unary, 64 B, one client", Protocol::GrpcUnary, SMALL, 1, 1),
    of("http-64b-64x1", "HTTP binary tensors, 64 B, 64 connections × 1 in flight", Protocol::HttpBinary, SMALL, 64, 1),
    of("http-64b-1x1", "HTTP binary tensors, 64 B, one client", Protocol::HttpBinary, SMALL, 1, 1),
    of("json-64b-64x1", "HTTP JSON tensors, 64 B, 64 connections × 1 in flight", Protocol::HttpJson, SMALL, 64, 1),
    of("stream-64b-1x64", "ModelStreamInfer, 64 B, one stream × 64 in flight", Protocol::GrpcStream, SMALL, 1, 64),
    of("grpc-588k-4x1", "gRPC unary, 588 KiB in and out, 4 connections × 1", Protocol::GrpcUnary, IMAGE, 4, 1),
    of("http-588k-4x1", "HTTP binary tensors, 588 KiB in and out, 4 connections × 1", Protocol::HttpBinary, IMAGE, 4, 1),
    of("grpc-shm-64b-64x1", "gRPC, 64 B in shared memory, 64 connections × 1 in flight", Protocol::GrpcShared, SMALL, 64, 1),
    of("http-shm-64b-64x1", "HTTP, 64 B in shared memory, 64 connections × 1 in flight", Protocol::HttpShared, SMALL, 64, 1),
    of("grpc-shm-588k-4x1", "gRPC, 588 KiB in and out in shared memory, 4 connections × 1", Protocol::GrpcShared, IMAGE, 4, 1),
    of("http-shm-588k-4x1", "HTTP, 588 KiB in and out in shared memory, 4 connections × 1", Protocol::HttpShared, IMAGE, 4, 1),
    chain("ensemble-64b-1x1", "three steps, gRPC unary, 64 B, one client: against three of grpc-64b-1x1", 1, 1),
    chain("ensemble-64b-4x16", "the same, 4 connections × 16 in flight: against three of grpc-64b-4x16", 4, 16),
];

const fn of(
    name: &'static str,
    about: &'static str,
    protocol: Protocol,
    shape: &'static [i64],
    connections: usize,
    in_flight: usize,
) -> Scenario {
    let model = if shape.len() == 1 { "identity" } else { "image" };
    Scenario { name, about, protocol, shape, model, connections, in_flight }
}

/// Requests for the ensemble that sends a small tensor through three models.
const fn chain(name: &'static str, about: &'static str, connections: usize, in_flight: usize) -> Scenario {
    let scenario = of(name, about, Protocol::GrpcUnary, SMALL, connections, in_flight);
    Scenario { model: "chain", ..scenario }
}

/// Clients and the addresses of their servers.
pub type Peers = Vec<(SocketAddr, Box<dyn Peer>)>;

impl Scenario {
    /// The clients of one run. Every slot of every connection sends a tensor of its own.
    pub fn peers(&self, server: &Server) -> Result<Peers, String> {
        let tensors = |connection: usize| -> Result<Vec<Tensor>, String> {
            let first = connection * self.in_flight;
            (first..first + self.in_flight).map(|slot| self.tensor(slot, server)).collect()
        };
        let http = |binary| {
            move |tensor: Tensor| {
                let request = tensor.http_request(binary);
                let check = Box::new(move |noted: &[u8]| tensor.check_http(noted, binary));
                Box::new(HttpPeer::new(request, check)) as Box<dyn Peer>
            }
        };
        let unary = |tensor: Tensor| -> (Slice, Check) {
            (tensor.grpc_request(""), Box::new(move |frame: &[u8]| tensor.check_unary(frame)))
        };
        let mut peers: Peers = Vec::with_capacity(self.connections);
        for connection in 0..self.connections {
            let tensors = tensors(connection)?;
            if server.is_floor() {
                let requests = tensors.iter().map(|tensor| self.request(tensor)).collect();
                peers.push((server.http, Box::new(EchoPeer::new(requests))));
                continue;
            }
            match self.protocol {
                Protocol::GrpcUnary | Protocol::GrpcShared => {
                    let requests = tensors.into_iter().map(unary).collect();
                    peers.push((server.grpc, Box::new(UnaryPeer::new(requests))))
                }
                Protocol::GrpcStream => peers.push((server.grpc, Box::new(StreamPeer::new(tensors)))),
                // One request at a time: HTTP/1.1 has no other way that clients use.
                Protocol::HttpBinary => {
                    peers.extend(tensors.into_iter().map(http(true)).map(|peer| (server.http, peer)))
                }
                Protocol::HttpJson | Protocol::HttpShared => {
                    peers.extend(tensors.into_iter().map(http(false)).map(|peer| (server.http, peer)))
                }
            }
        }
        Ok(peers)
    }

    /// The tensor of a slot; if it is in shared memory, it is registered with the server.
    fn tensor(&self, slot: usize, server: &Server) -> Result<Tensor, String> {
        let tensor = Tensor::new(self.model, self.shape, slot);
        if !self.is_shared() {
            return Ok(tensor);
        }
        let tensor = tensor.in_region()?;
        if !server.is_floor() {
            tensor.register(server.http)?;
        }
        Ok(tensor)
    }

    /// Whether its tensors are in shared memory, which needs a flag of the server.
    pub fn is_shared(&self) -> bool {
        matches!(self.protocol, Protocol::GrpcShared | Protocol::HttpShared)
    }

    fn request(&self, tensor: &Tensor) -> Slice {
        match self.protocol {
            Protocol::GrpcUnary | Protocol::GrpcStream | Protocol::GrpcShared => tensor.grpc_request(""),
            Protocol::HttpBinary => tensor.http_request(true),
            Protocol::HttpJson | Protocol::HttpShared => tensor.http_request(false),
        }
    }
}
