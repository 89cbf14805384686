//! The models of these tests, and the clients that load them.

use std::net::SocketAddr;
use std::path::Path;

use crate::side::answer::Check;
use crate::side::burst::BurstPeer;
use crate::side::http::HttpPeer;
use crate::side::line::Peer;
use crate::side::question::{Named, Question};
use crate::side::stream::StreamPeer;
use crate::side::tensor::Tensor;
use crate::side::unary::UnaryPeer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;

/// Responses of one request of the decoupled model.
pub const RESPONSES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    Http,
    Json,
    Stream,
    GrpcShared,
    HttpShared,
    /// One request at a time, answered by [`RESPONSES`] responses on its stream.
    Decoupled,
}

/// One load.
#[derive(Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    pub protocol: Protocol,
    pub model: &'static str,
    pub shape: &'static [i64],
    pub connections: usize,
    pub in_flight: usize,
    /// Of the warm-up, and of each measured window.
    pub requests: u64,
}

/// 16 FP32 are 64 bytes.
pub const SMALL: &[i64] = &[16];
/// The same for a model with batches.
pub const ROW_OF_BATCH: &[i64] = &[1, 16];
/// 588 KiB.
pub const IMAGE: &[i64] = &[150_528];

/// `identity` and `batched`, whose output is their input; `copies`, which writes its output, if `backends` has its
/// backend; and `repeat`, which is decoupled.
pub fn repository(with_copies: bool) -> Repository {
    let pair = [Pair::new("FP32", "-1")];
    let repository = Repository::new();
    repository.identity("identity", 0, &pair);
    let batching = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 200 }";
    repository.identity_of("identity", "batched", 8, &pair, batching);
    let input = |name: &str, kind: &str| format!("input {{ name: \"{name}\" data_type: {kind} dims: [ -1 ] }}\n");
    let config = [
        "name: \"repeat\"\nbackend: \"repeat\"\nmodel_transaction_policy { decoupled: true }\n",
        &input("IN", "TYPE_INT32"),
        &input("DELAY", "TYPE_UINT32"),
        "input { name: \"WAIT\" data_type: TYPE_UINT32 dims: [ 1 ] }\n",
        "output { name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }\n",
        "output { name: \"IDX\" data_type: TYPE_UINT32 dims: [ 1 ] }\n",
        "instance_group [ { kind: KIND_CPU count: 1 } ]\n",
    ];
    repository.model("repeat", &config.concat());
    if with_copies {
        repository.identity_of("copycat", "copies", 0, &pair, "");
    }
    repository
}

/// What the server of these tests is told besides.
pub fn flags(backends: Option<&Path>) -> Vec<String> {
    let mut flags = vec!["--allow-metrics=false".to_owned(), "--allow-client-shm=true".to_owned()];
    flags.extend(backends.map(|directory| format!("--backend-directory={}", directory.display())));
    flags
}

type Peers = Vec<(SocketAddr, Box<dyn Peer>)>;

impl Row {
    /// Every slot of every connection sends a tensor of its own.
    pub fn peers(&self, server: &Server) -> Result<Peers, String> {
        if self.protocol == Protocol::Decoupled {
            let check = |at: usize| -> Check {
                let question = repeated(self.model, at);
                Box::new(move |message: &[u8]| question.check_streamed(message))
            };
            let request = repeated(self.model, 0).grpc_request();
            return Ok(vec![(server.grpc, Box::new(BurstPeer::new(request, (0..RESPONSES).map(check).collect())))]);
        }
        let mut peers: Peers = Vec::new();
        for connection in 0..self.connections {
            let first = connection * self.in_flight;
            let mut tensors = Vec::new();
            for slot in first..first + self.in_flight {
                tensors.push(self.tensor(slot, server)?);
            }
            let http = |tensor: Tensor| -> (SocketAddr, Box<dyn Peer>) {
                let binary = self.protocol == Protocol::Http;
                let request = tensor.http_request(binary);
                let check: Check = Box::new(move |noted: &[u8]| tensor.check_http(noted, binary));
                (server.http, Box::new(HttpPeer::new(request, check)))
            };
            match self.protocol {
                Protocol::Stream => peers.push((server.grpc, Box::new(StreamPeer::new(tensors)))),
                Protocol::Grpc | Protocol::GrpcShared => {
                    let call = |tensor: Tensor| -> (_, Check) {
                        (tensor.grpc_request(""), Box::new(move |frame: &[u8]| tensor.check_unary(frame)))
                    };
                    peers.push((server.grpc, Box::new(UnaryPeer::new(tensors.into_iter().map(call).collect()))));
                }
                _ => peers.extend(tensors.into_iter().map(http)),
            }
        }
        Ok(peers)
    }

    fn tensor(&self, slot: usize, server: &Server) -> Result<Tensor, String> {
        let tensor = Tensor::new(self.model, self.shape, slot);
        if !matches!(self.protocol, Protocol::GrpcShared | Protocol::HttpShared) {
            return Ok(tensor);
        }
        let tensor = tensor.in_region()?;
        tensor.register(server.http)?;
        Ok(tensor)
    }
}

/// A request, and what response `at` of it must hold.
fn repeated(model: &'static str, at: usize) -> Question {
    let named = |name, datatype, values: &[i32]| Named {
        name,
        datatype,
        shape: vec![i64::try_from(values.len()).unwrap_or(i64::MAX)],
        data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    let index = i32::try_from(at).unwrap_or(i32::MAX);
    Question {
        model,
        inputs: vec![
            named("IN", "INT32", &[7; RESPONSES]),
            named("DELAY", "UINT32", &[0; RESPONSES]),
            named("WAIT", "UINT32", &[0]),
        ],
        outputs: vec![named("OUT", "INT32", &[7]), named("IDX", "UINT32", &[index])],
    }
}
