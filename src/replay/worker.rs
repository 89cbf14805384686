//! Sends one request after the other on a connection of its own, and compares the answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use super::lookahead::Numbered;
use super::plan::Plan;
use super::prepared::{Prepared, prepare};
use nereid_client::{Alpn, CallError, GrpcClient, HttpClient, Security, Wire};
use nereid_recording::{AnswerFacts, Protocol, Record, Tensor, TensorFacts, compare};

/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 30;
const METHOD: &str = "/inference.GRPCInferenceService/ModelInfer";

/// What became of a record.
#[derive(Debug)]
pub enum Verdict {
    Equal,
    /// There is no recorded answer.
    NotCompared,
    Different(String),
    /// The connection failed.
    Failed(String),
    /// It was not sent.
    Skipped(String),
}

/// The news of a worker that is free again.
pub struct Done {
    pub worker: usize,
    pub number: u64,
    pub model: String,
    /// Over which it was sent, or was to be.
    pub protocol: Protocol,
    pub verdict: Verdict,
    /// Of the exchange, if there was one.
    pub took_ns: Option<u64>,
}

/// What a server answered.
struct Given {
    status: u16,
    is_good: bool,
    text: String,
    body: Vec<u8>,
    json_len: Option<usize>,
    protocol: Protocol,
}

impl Given {
    fn outputs(&self) -> Result<Vec<Tensor>, String> {
        let outputs = match self.protocol {
            Protocol::Http => Tensor::of_http_answer(&self.body, self.json_len),
            Protocol::Grpc => Tensor::of_grpc_answer(self.body.clone().into()),
        };
        outputs.map_err(|error| format!("the answer cannot be read: {error}"))
    }
}

pub struct Worker {
    plan: Arc<Plan>,
    security: [Option<Security>; 2],
    http: Option<HttpClient>,
    grpc: Option<GrpcClient>,
}

impl Worker {
    /// `security`: for HTTP and for gRPC.
    pub fn new(plan: Arc<Plan>, security: [Option<Security>; 2]) -> Worker {
        Worker { plan, security, http: None, grpc: None }
    }

    /// Works until no record comes any more.
    pub fn run(mut self, worker: usize, records: &Receiver<Numbered>, done: &Sender<Done>) {
        for Numbered { number, record } in records {
            let protocol = self.plan.protocol.unwrap_or(record.head.protocol);
            // Without news of this record the replay would wait for ever.
            let outcome = catch_unwind(AssertUnwindSafe(|| self.replay(number, &record)));
            let (verdict, took_ns) = outcome.unwrap_or_else(|_| {
                (self.http, self.grpc) = (None, None);
                (Verdict::Failed("the program panicked at this record".to_owned()), None)
            });
            let model = record.head.model;
            if done.send(Done { worker, number, model, protocol, verdict, took_ns }).is_err() {
                return;
            }
        }
    }

    fn replay(&mut self, number: u64, record: &Record) -> (Verdict, Option<u64>) {
        let prepared = match prepare(record, number, &self.plan) {
            Ok(prepared) => prepared,
            Err(reason) => return (Verdict::Skipped(reason), None),
        };
        let started = Instant::now();
        let given = match self.send(&prepared) {
            Ok(given) => given,
            Err(CallError::Connection(reason) | CallError::TimedOut(reason) | CallError::Refused(reason)) => {
                return (Verdict::Failed(reason), None);
            }
        };
        let took_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        (self.judge(record, &given), Some(took_ns))
    }

    /// Sends on the connection that is there, and once more on a new one if that has ended meanwhile. A request that
    /// took too long is not sent again: the server may still be working on it.
    fn send(&mut self, prepared: &Prepared) -> Result<Given, CallError> {
        let had_connection = match prepared {
            Prepared::Http { .. } => self.http.is_some(),
            Prepared::Grpc { .. } => self.grpc.is_some(),
        };
        match self.send_once(prepared) {
            Err(CallError::Connection(_)) if had_connection => self.send_once(prepared),
            outcome => outcome,
        }
    }

    fn send_once(&mut self, prepared: &Prepared) -> Result<Given, CallError> {
        let outcome = match prepared {
            Prepared::Http { target, headers, body } => {
                let client = match self.http.take() {
                    Some(client) => client,
                    None => self.connect_http()?,
                };
                let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
                let answer = self.http.insert(client).exchange_bytes("POST", target, &headers, body, ANSWER_BYTES_MAX);
                answer.map(|answer| Given {
                    status: answer.status,
                    is_good: answer.status == 200,
                    text: String::new(),
                    json_len: answer.json_len,
                    body: answer.body,
                    protocol: Protocol::Http,
                })
            }
            Prepared::Grpc { metadata, message } => {
                let client = match self.grpc.take() {
                    Some(client) => client,
                    None => self.connect_grpc()?,
                };
                let answer = self.grpc.insert(client).unary(METHOD, message, metadata);
                answer.map(|answer| Given {
                    status: answer.code as u16,
                    is_good: answer.code as u16 == 0,
                    text: answer.text,
                    json_len: None,
                    body: answer.message,
                    protocol: Protocol::Grpc,
                })
            }
        };
        if outcome.is_err() {
            match prepared {
                Prepared::Http { .. } => self.http = None,
                Prepared::Grpc { .. } => self.grpc = None,
            }
        }
        outcome
    }

    fn connect_http(&self) -> Result<HttpClient, CallError> {
        let server = &self.plan.server;
        let wire = Wire::connect(&server.http, self.security[0].as_ref(), server.patience);
        let wire = wire.map_err(CallError::Connection)?;
        Ok(HttpClient::new(wire, server.http.authority(), server.headers.clone()))
    }

    fn connect_grpc(&self) -> Result<GrpcClient, CallError> {
        let server = &self.plan.server;
        let wire = Wire::connect(&server.grpc, self.security[1].as_ref(), server.patience);
        let wire = wire.map_err(CallError::Connection)?;
        Ok(GrpcClient::new(wire, server.grpc.authority(), server.tls.is_some(), server.headers.clone()))
    }

    fn judge(&self, record: &Record, given: &Given) -> Verdict {
        let Some(recorded) = &record.head.answer else { return Verdict::NotCompared };
        let protocol = record.head.protocol;
        let was_good = match protocol {
            Protocol::Http => recorded.status == 200,
            Protocol::Grpc => recorded.status == 0,
        };
        let is_same = match protocol == given.protocol {
            true => recorded.status == given.status,
            false => was_good == given.is_good,
        };
        if !is_same {
            let recorded = shown(protocol, recorded.status);
            let text = match given.protocol {
                Protocol::Http => {
                    String::from_utf8_lossy(given.body.get(..given.body.len().min(200)).unwrap_or_default())
                        .into_owned()
                }
                Protocol::Grpc => given.text.clone(),
            };
            let given = shown(given.protocol, given.status);
            let text = if text.is_empty() { String::new() } else { format!(": {text}") };
            return Verdict::Different(format!("{given}, not {recorded}{text}"));
        }
        if !self.plan.compares || !was_good {
            return Verdict::Equal;
        }
        let outcome = given.outputs().and_then(|outputs| {
            let (expected, has_contents) = expected(record, recorded)?;
            Ok(compare(&expected, &outputs, self.plan.tolerance, has_contents))
        });
        match outcome {
            Ok(None) => Verdict::Equal,
            Ok(Some(difference)) => Verdict::Different(difference.to_string()),
            Err(reason) => Verdict::Different(reason),
        }
    }
}

fn shown(protocol: Protocol, status: u16) -> String {
    match protocol {
        Protocol::Http => format!("HTTP status {status}"),
        Protocol::Grpc => format!("gRPC code {status}"),
    }
}

/// The recorded outputs, and whether their contents were recorded, with a request that was sent as it came.
fn expected(record: &Record, recorded: &AnswerFacts) -> Result<(Vec<Tensor>, bool), String> {
    let outputs = match (&record.answer_body, record.head.protocol, &record.request_body) {
        (Some(body), Protocol::Http, Some(_)) => {
            let json_len = recorded.json_byte_size.and_then(|len| usize::try_from(len).ok());
            Tensor::of_http_answer(body, json_len)
        }
        (Some(body), Protocol::Grpc, Some(_)) => Tensor::of_grpc_answer(body.clone().into()),
        _ => {
            let tensor = |facts: &TensorFacts| Tensor {
                name: facts.name.clone(),
                datatype: facts.datatype.clone(),
                shape: facts.shape.clone(),
                ..Tensor::default()
            };
            return Ok((recorded.outputs.iter().map(tensor).collect(), false));
        }
    };
    outputs.map(|outputs| (outputs, true)).map_err(|error| format!("the recorded answer cannot be read: {error}"))
}

/// The sessions of connections for both protocols.
pub fn security(plan: &Plan) -> Result<[Option<Security>; 2], String> {
    let server = &plan.server;
    let session = |endpoint, alpn| server.tls.as_ref().map(|tls| Security::new(tls, endpoint, alpn)).transpose();
    Ok([session(&server.http, Alpn::Http1)?, session(&server.grpc, Alpn::Http2)?])
}
