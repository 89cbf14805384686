//! The kinds of requests, and the clients that send them.

use std::net::SocketAddr;

use nereid_memory::Slice;

use super::options::Options;
use crate::side::answer::Check;
use crate::side::burst::BurstPeer;
use crate::side::floor::EchoPeer;
use crate::side::http::HttpPeer;
use crate::side::line::Peer;
use crate::side::question::{Named, Question};
use crate::side::request::Request;
use crate::side::stream::StreamPeer;
use crate::side::tensor::Tensor;
use crate::side::unary::UnaryPeer;
use crate::side::varied;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Grpc,
    Http,
    Json,
    Stream,
    GrpcShared,
    HttpShared,
    SumsGrpc,
    SumsHttp,
    PairGrpc,
    PairHttp,
    Burst,
    LiveGrpc,
    LiveHttp,
    MetadataGrpc,
    MetadataHttp,
}

const NAMES: [(&str, Kind); 15] = [
    ("grpc", Kind::Grpc),
    ("http", Kind::Http),
    ("json", Kind::Json),
    ("stream", Kind::Stream),
    ("grpc-shm", Kind::GrpcShared),
    ("http-shm", Kind::HttpShared),
    ("sums-grpc", Kind::SumsGrpc),
    ("sums-http", Kind::SumsHttp),
    ("pair-grpc", Kind::PairGrpc),
    ("pair-http", Kind::PairHttp),
    ("burst", Kind::Burst),
    ("live-grpc", Kind::LiveGrpc),
    ("live-http", Kind::LiveHttp),
    ("metadata-grpc", Kind::MetadataGrpc),
    ("metadata-http", Kind::MetadataHttp),
];

pub type Peers = Vec<(SocketAddr, Box<dyn Peer>)>;

/// How a request is sent, and what its answer must be.
enum Traffic {
    Call(&'static [u8], Vec<(Request, Check)>),
    Posts(Vec<(Request, Check)>),
    Stream(Vec<Tensor>),
    Burst(Slice, Vec<Check>),
}

const INFER: &[u8] = b"/inference.GRPCInferenceService/ModelInfer";

impl Kind {
    pub fn named(name: &str) -> Result<Kind, String> {
        let found = NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        found.ok_or_else(|| format!("there is no kind {name:?}"))
    }

    /// The clients of a run. Every slot of every connection sends its own data, where there is a choice.
    pub fn peers(self, options: &Options) -> Result<Peers, String> {
        let of_one = matches!(self, Kind::Grpc | Kind::GrpcShared | Kind::Http | Kind::HttpShared | Kind::Json);
        let has_numbers = of_one || matches!(self, Kind::PairGrpc | Kind::PairHttp);
        if options.unrepeated && (!has_numbers || options.echo) {
            return Err(format!("{self:?} cannot number its requests"));
        }
        let mut peers: Peers = Vec::new();
        for connection in 0..options.connections {
            let first = connection * options.in_flight;
            let traffic = self.traffic(first..first + options.in_flight, options)?;
            if options.echo {
                peers.push((options.http, Box::new(EchoPeer::new(traffic.requests()))));
                continue;
            }
            match traffic {
                Traffic::Call(path, calls) => peers.push((options.grpc, Box::new(UnaryPeer::calling(path, calls)))),
                Traffic::Stream(tensors) => peers.push((options.grpc, Box::new(StreamPeer::new(tensors)))),
                Traffic::Burst(request, checks) => {
                    peers.push((options.grpc, Box::new(BurstPeer::new(request, checks))));
                }
                // One request at a time: HTTP/1.1 has no other way that clients use.
                Traffic::Posts(posts) => {
                    peers.extend(posts.into_iter().map(|(request, check)| {
                        (options.http, Box::new(HttpPeer::new(request, check)) as Box<dyn Peer>)
                    }))
                }
            }
        }
        Ok(peers)
    }

    fn traffic(self, slots: std::ops::Range<usize>, options: &Options) -> Result<Traffic, String> {
        let any = |text: &'static str| -> Check {
            Box::new(move |answer: &[u8]| match String::from_utf8_lossy(answer).contains(text) {
                true => Ok(()),
                false => Err(format!("the answer lacks {text:?}")),
            })
        };
        let get = |path: String| {
            Request::new(Slice::copy_of(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()))
        };
        let model = options.model;
        Ok(match self {
            Kind::Grpc | Kind::GrpcShared => {
                let call = |tensor: Tensor| -> (Request, Check) {
                    (tensor.grpc_request("").into(), Box::new(move |frame: &[u8]| tensor.check_unary(frame)))
                };
                Traffic::Call(INFER, self.tensors(slots, options)?.into_iter().map(call).collect())
            }
            Kind::Http | Kind::Json | Kind::HttpShared => {
                let binary = self == Kind::Http;
                let post = |tensor: Tensor| -> (Request, Check) {
                    let request = tensor.http_request(binary).into();
                    (request, Box::new(move |noted: &[u8]| tensor.check_http(noted, binary)))
                };
                Traffic::Posts(self.tensors(slots, options)?.into_iter().map(post).collect())
            }
            Kind::Stream => Traffic::Stream(self.tensors(slots, options)?),
            Kind::SumsGrpc => {
                let call = |question: Question| -> (Request, Check) {
                    (question.grpc_request().into(), Box::new(move |frame: &[u8]| question.check_unary(frame)))
                };
                Traffic::Call(INFER, slots.map(|slot| call(sums(options, slot))).collect())
            }
            Kind::SumsHttp => {
                let post = |question: Question| -> (Request, Check) {
                    (question.http_request().into(), Box::new(move |noted: &[u8]| question.check_http(noted)))
                };
                Traffic::Posts(slots.map(|slot| post(sums(options, slot))).collect())
            }
            Kind::PairGrpc => {
                Traffic::Call(INFER, slots.map(|slot| varied::grpc(model, slot, options.unrepeated)).collect())
            }
            Kind::PairHttp => Traffic::Posts(slots.map(|slot| varied::http(model, slot, options.unrepeated)).collect()),
            Kind::Burst => {
                let check = |at: usize| -> Check {
                    let question = repeated(model, options.responses, at);
                    Box::new(move |message: &[u8]| question.check_streamed(message))
                };
                let request = repeated(model, options.responses, 0).grpc_request();
                Traffic::Burst(request, (0..options.responses).map(check).collect())
            }
            Kind::LiveGrpc => {
                let calls = slots.map(|_| (framed(&[]).into(), any("\u{1}"))).collect();
                Traffic::Call(b"/inference.GRPCInferenceService/ServerLive", calls)
            }
            Kind::MetadataGrpc => {
                let message = [&[0x0a, model.len() as u8], model.as_bytes()].concat();
                let calls = slots.map(|_| (framed(&message).into(), any(model))).collect();
                Traffic::Call(b"/inference.GRPCInferenceService/ModelMetadata", calls)
            }
            Kind::LiveHttp => Traffic::Posts(slots.map(|_| (get("/v2/health/live".to_owned()), any("\n"))).collect()),
            Kind::MetadataHttp => {
                Traffic::Posts(slots.map(|_| (get(format!("/v2/models/{model}")), any(model))).collect())
            }
        })
    }

    fn tensors(self, slots: std::ops::Range<usize>, options: &Options) -> Result<Vec<Tensor>, String> {
        let shared = matches!(self, Kind::GrpcShared | Kind::HttpShared);
        slots
            .map(|slot| {
                let mut tensor = Tensor::new(options.model, options.shape, slot);
                if options.unrepeated {
                    tensor = tensor.unrepeated();
                }
                if !shared {
                    return Ok(tensor);
                }
                let tensor = tensor.in_region()?;
                if !options.echo {
                    tensor.register(options.http)?;
                }
                Ok(tensor)
            })
            .collect()
    }

    /// Responses to one request.
    pub fn responses(self, options: &Options) -> u64 {
        if self == Kind::Burst { options.responses as u64 } else { 1 }
    }
}

impl Traffic {
    fn requests(self) -> Vec<Slice> {
        match self {
            Traffic::Call(_, requests) | Traffic::Posts(requests) => {
                requests.iter().map(|(request, _)| request.next()).collect()
            }
            Traffic::Stream(tensors) => tensors.iter().map(|tensor| tensor.grpc_request("")).collect(),
            Traffic::Burst(request, _) => vec![request],
        }
    }
}

/// A message of gRPC, not compressed.
fn framed(message: &[u8]) -> Slice {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    Slice::copy_of(&[&[0], &length.to_be_bytes()[..], message].concat())
}

fn named<const N: usize>(
    name: &'static str,
    datatype: &'static str,
    shape: &[i64],
    values: impl Iterator<Item = [u8; N]>,
) -> Named {
    Named { name, datatype, shape: shape.to_vec(), data: values.flatten().collect() }
}

/// Two tensors whose sum and difference are requested.
fn sums(options: &Options, slot: usize) -> Question {
    let count = options.shape.iter().product::<i64>();
    let tensor = |name, value: &dyn Fn(i32) -> i32| {
        let values = (0..count).map(|at| value((at % 251) as i32));
        match options.integers {
            true => named(name, "INT32", options.shape, values.map(i32::to_le_bytes)),
            false => named(name, "FP32", options.shape, values.map(|value| (value as f32 / 4.0).to_le_bytes())),
        }
    };
    let base = slot as i32 * 256;
    let left = |at: i32| base + at;
    let right = |at: i32| 2 * at + 4;
    Question {
        model: options.model,
        inputs: vec![tensor("INPUT0", &left), tensor("INPUT1", &right)],
        outputs: vec![tensor("OUTPUT0", &|at| left(at) + right(at)), tensor("OUTPUT1", &|at| left(at) - right(at))],
    }
}

/// A request for `responses` responses, and the expected contents of response `at`.
fn repeated(model: &'static str, responses: usize, at: usize) -> Question {
    let ints = |name, datatype, values: &[i32]| {
        named(name, datatype, &[values.len() as i64], values.iter().map(|value| value.to_le_bytes()))
    };
    let index = i32::try_from(at).unwrap_or(i32::MAX);
    Question {
        model,
        inputs: vec![
            ints("IN", "INT32", &vec![7; responses]),
            ints("DELAY", "UINT32", &vec![0; responses]),
            ints("WAIT", "UINT32", &[0]),
        ],
        outputs: vec![ints("OUT", "INT32", &[7]), ints("IDX", "UINT32", &[index])],
    }
}
