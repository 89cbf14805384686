//! One connection's protocol in the client's role: requests go in, bytes come out; bytes go in, outcomes come out.
//!
//! None of them has a socket or a clock, so each is tested by itself and runs on either engine.

mod generated;
mod http;
mod ring;
mod stream;
mod unary;

use std::sync::Arc;

use super::answer::Expectation;
use super::generation::Generation;
use super::openai::OpenAi;
use super::plan::{Compression, Plan, Protocol, Service};
use super::regions::ArenaLayout;
use super::request::{Marks, Placement, Prepared};
use generated::GeneratedAnswer;
use http::HttpExchange;
use nereid_ipc::ClientEnd;
use nereid_memory::{Pool, Slice};
use nereid_protocol::grpc::{Code, PREFIX_BYTES, decode_message};
use nereid_protocol::http2::{Config, Headers};
use ring::RingExchange;
pub use ring::Traffic;
#[cfg(test)]
pub(crate) use ring::tests as ring_tests;
use stream::StreamExchange;
use unary::UnaryExchange;

/// Bytes that are kept of an answer with an error.
const ERROR_BYTES: usize = 4096;

/// A request that is on its way.
#[derive(Debug, Default)]
pub struct Flight {
    /// When it was to be sent; the same as `sent_ns` in a closed loop.
    pub due_ns: u64,
    pub sent_ns: u64,
    pub template: usize,
    /// Which of the sequences that run at a time it belongs to.
    pub sequence: Option<usize>,
    pub marks: Marks,
    pub responses: u64,
    /// When the last response came.
    pub last_response_ns: u64,
    /// Times of responses, where a request is recorded.
    pub times_ns: Option<Vec<u64>>,
    /// What a language model generated for it, when it is over.
    pub generation: Option<Box<Generation>>,
}

#[derive(Debug)]
pub struct Finished {
    pub flight: Flight,
    pub at_ns: u64,
    pub outcome: Result<(), String>,
}

/// Requests that ended, and times of responses, since the thread counted them last.
#[derive(Debug, Default)]
pub struct Outcomes {
    pub finished: Vec<Finished>,
    /// Times from sending to the first response, and from one response to the next.
    pub first_ns: Vec<u64>,
    pub between_ns: Vec<u64>,
}

impl Outcomes {
    fn response(&mut self, flight: &mut Flight, now_ns: u64) {
        let since_ns = if flight.responses == 0 { flight.sent_ns } else { flight.last_response_ns };
        let times = if flight.responses == 0 { &mut self.first_ns } else { &mut self.between_ns };
        times.push(now_ns.saturating_sub(since_ns));
        flight.responses += 1;
        flight.last_response_ns = now_ns;
        if let Some(times_ns) = &mut flight.times_ns {
            times_ns.push(now_ns);
        }
    }

    fn finish(&mut self, flight: Flight, at_ns: u64, outcome: Result<(), String>) {
        self.finished.push(Finished { flight, at_ns, outcome });
    }
}

/// Why a request could not begin here.
#[derive(Debug)]
pub enum NotBegun {
    /// The peer allows no more requests at a time: later.
    Full(Flight),
    /// Never again on this connection.
    Over(Flight),
}

/// What the threads' exchanges share.
#[derive(Debug)]
pub struct RequestSet {
    pub templates: Vec<Prepared>,
    /// For each template.
    pub expectations: Vec<Option<Arc<Expectation>>>,
    /// Names and values of the head of each gRPC call.
    call: Vec<(Vec<u8>, Vec<u8>)>,
    /// Those of them that the user gave.
    metadata: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where tensors lie in the arena of each ring, if they do.
    arena: Option<ArenaLayout>,
    protocol: Protocol,
    service: Service,
    decoupled: bool,
}

impl RequestSet {
    pub fn new(plan: &Plan, templates: Vec<Prepared>, expectations: Vec<Option<Arc<Expectation>>>) -> RequestSet {
        let method = match plan.target.protocol {
            Protocol::GrpcStream => "ModelStreamInfer",
            Protocol::GrpcUnary | Protocol::Http | Protocol::Ipc => "ModelInfer",
        };
        let encoding = match plan.work.compression {
            Compression::None => None,
            Compression::Gzip => Some("gzip"),
            Compression::Deflate => Some("deflate"),
        };
        let tls = plan.target.tls.is_some();
        let call = call_head(&plan.target.endpoint.authority(), tls, method, encoding, &plan.work.headers);
        RequestSet {
            templates,
            expectations,
            call,
            metadata: metadata(&plan.work.headers),
            arena: None,
            protocol: plan.target.protocol,
            service: plan.service.clone(),
            decoupled: plan.work.decoupled,
        }
    }

    /// With tensors in the arena of each ring.
    pub fn in_arena(self, arena: Option<ArenaLayout>) -> RequestSet {
        RequestSet { arena, ..self }
    }

    pub fn openai(&self) -> Option<&OpenAi> {
        self.service.openai()
    }

    fn metadata(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.metadata.iter().map(|(name, value)| (&name[..], &value[..]))
    }

    fn call(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.call.iter().map(|(name, value)| (&name[..], &value[..]))
    }

    fn expectation(&self, template: usize) -> Option<&Arc<Expectation>> {
        self.expectations.get(template).and_then(Option::as_ref)
    }
}

/// The head of a call, pseudo-headers first.
pub fn call_head(
    authority: &str,
    tls: bool,
    method: &str,
    encoding: Option<&str>,
    headers: &[(String, String)],
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let path = format!("/inference.GRPCInferenceService/{method}");
    let scheme = if tls { "https" } else { "http" };
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", scheme),
        (":path", &path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "nereid-perf"),
        ("grpc-accept-encoding", "identity"),
    ];
    fields.extend(encoding.map(|encoding| ("grpc-encoding", encoding)));
    let own = fields.into_iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
    own.chain(metadata(headers)).collect()
}

/// Fields that the user gave, as gRPC has them.
pub fn metadata(headers: &[(String, String)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let field = |(name, value): &(String, String)| (name.to_ascii_lowercase().into_bytes(), value.clone().into_bytes());
    headers.iter().map(field).collect()
}

/// The message that comes for a call.
#[derive(Debug)]
struct Collected {
    /// Bytes, with the prefix.
    received: usize,
    /// Where the answer is kept to be compared.
    wanted: Option<(Arc<Expectation>, Vec<u8>)>,
}

impl Collected {
    fn new(wanted: Option<(Arc<Expectation>, Vec<u8>)>) -> Collected {
        Collected { received: 0, wanted }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.received += bytes.len();
        if let Some((_, kept)) = &mut self.wanted {
            kept.extend_from_slice(bytes);
        }
    }

    /// Whether what came of an answer is one.
    fn check(&self) -> Result<(), String> {
        self.check_length()?;
        let Some((expectation, frame)) = &self.wanted else { return Ok(()) };
        match frame.split_first_chunk::<PREFIX_BYTES>() {
            Some(([0, a, b, c, d], message)) if u32::from_be_bytes([*a, *b, *c, *d]) as usize == message.len() => {
                expectation.check_message(message)
            }
            _ => Err("an answer that is no plain message".to_owned()),
        }
    }

    /// The same for one whose outputs lie in memory that `read` copies from.
    fn check_placed(
        &self,
        placement: &Placement,
        read: impl Fn(usize, usize) -> Option<Vec<u8>>,
    ) -> Result<(), String> {
        self.check_length()?;
        let Some((expectation, _)) = &self.wanted else { return Ok(()) };
        expectation.check_placed(placement, |at, len| {
            let at = usize::try_from(at).ok();
            at.and_then(|at| read(at, len)).ok_or_else(|| "it ends before that output".to_owned())
        })
    }

    fn check_length(&self) -> Result<(), String> {
        if self.received < PREFIX_BYTES { Err("an answer without a message".to_owned()) } else { Ok(()) }
    }

    /// The memory for the next answer.
    fn into_spare(self) -> Option<Vec<u8>> {
        let (_, mut kept) = self.wanted?;
        kept.clear();
        Some(kept)
    }
}

/// Whether a call ended well, by the header list that ended it.
pub fn end_of_call(headers: &Headers) -> Result<(), String> {
    match headers.get(b"grpc-status") {
        Some(b"0") => Ok(()),
        Some(status) => {
            let message = decode_message(headers.get(b"grpc-message").unwrap_or_default());
            Err(format!("{}: {message}", Code::from_header(status).name()))
        }
        None => {
            let status = headers.status().map_or_else(|| "none".into(), String::from_utf8_lossy);
            Err(format!("an answer without a gRPC status (HTTP status {status})"))
        }
    }
}

/// Windows that whole tensors fit into.
pub fn http2_config() -> Config {
    Config { stream_window: 16 << 20, connection_window: 64 << 20, ..Config::default() }
}

/// The protocol of a connection.
pub enum Exchange {
    Http(Box<HttpExchange>),
    OpenAi(Box<HttpExchange<GeneratedAnswer>>),
    Unary(Box<UnaryExchange>),
    Stream(Box<StreamExchange>),
    Ring(Box<RingExchange>),
}

impl Exchange {
    pub fn new(request_set: &Arc<RequestSet>, pool: &Pool) -> Exchange {
        match request_set.protocol {
            Protocol::Http if request_set.openai().is_some() => {
                Exchange::OpenAi(Box::new(HttpExchange::new(Arc::clone(request_set), pool.clone())))
            }
            Protocol::Http => Exchange::Http(Box::new(HttpExchange::new(Arc::clone(request_set), pool.clone()))),
            // Of a ring only in unit tests: connections of rings are made with `ring`.
            Protocol::GrpcUnary | Protocol::Ipc => {
                Exchange::Unary(Box::new(UnaryExchange::new(Arc::clone(request_set), pool.clone())))
            }
            Protocol::GrpcStream => {
                Exchange::Stream(Box::new(StreamExchange::new(Arc::clone(request_set), pool.clone())))
            }
        }
    }

    pub fn ring(request_set: &Arc<RequestSet>, end: ClientEnd) -> Result<Exchange, String> {
        Ok(Exchange::Ring(Box::new(RingExchange::new(Arc::clone(request_set), end)?)))
    }

    pub fn begin(&mut self, flight: Flight) -> Result<(), NotBegun> {
        match self {
            Exchange::Http(exchange) => exchange.begin(flight),
            Exchange::OpenAi(exchange) => exchange.begin(flight),
            Exchange::Unary(exchange) => exchange.begin(flight),
            Exchange::Stream(exchange) => exchange.begin(flight),
            Exchange::Ring(exchange) => exchange.begin(flight),
        }
    }

    /// An error is the connection's, and its end.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        match self {
            Exchange::Http(exchange) => exchange.receive(bytes, now_ns, outcomes),
            Exchange::OpenAi(exchange) => exchange.receive(bytes, now_ns, outcomes),
            Exchange::Unary(exchange) => exchange.receive(bytes, now_ns, outcomes),
            Exchange::Stream(exchange) => exchange.receive(bytes, now_ns, outcomes),
            // Bells; frames are polled.
            Exchange::Ring(_) => Ok(()),
        }
    }

    /// Takes up to `most` pieces of what is to be sent.
    pub fn take_output(&mut self, most: usize, into: &mut Vec<Slice>) {
        match self {
            Exchange::Http(exchange) => exchange.take_output(most, into),
            Exchange::OpenAi(exchange) => exchange.take_output(most, into),
            Exchange::Unary(exchange) => exchange.take_output(most, into),
            Exchange::Stream(exchange) => exchange.take_output(most, into),
            Exchange::Ring(exchange) => exchange.take_output(into),
        }
    }

    pub fn in_flight(&self) -> usize {
        match self {
            Exchange::Http(exchange) => exchange.in_flight(),
            Exchange::OpenAi(exchange) => exchange.in_flight(),
            Exchange::Unary(exchange) => exchange.in_flight(),
            Exchange::Stream(exchange) => exchange.in_flight(),
            Exchange::Ring(exchange) => exchange.in_flight(),
        }
    }

    /// Whether the peer has ended the connection in good order, so that it takes no more requests.
    pub fn is_over(&self) -> bool {
        match self {
            Exchange::Http(exchange) => exchange.is_over(),
            Exchange::OpenAi(exchange) => exchange.is_over(),
            Exchange::Unary(exchange) => exchange.is_over(),
            Exchange::Stream(exchange) => exchange.is_over(),
            Exchange::Ring(exchange) => exchange.is_over(),
        }
    }

    /// Gives up requests that were sent before `before_ns`; an error if the connection has to be given up with them.
    pub fn expire(&mut self, before_ns: u64, now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        match self {
            Exchange::Http(exchange) => exchange.expire(before_ns),
            Exchange::OpenAi(exchange) => exchange.expire(before_ns),
            Exchange::Unary(exchange) => {
                exchange.expire(before_ns, now_ns, outcomes);
                Ok(())
            }
            Exchange::Stream(exchange) => exchange.expire(before_ns),
            Exchange::Ring(exchange) => exchange.expire(before_ns, now_ns, outcomes),
        }
    }

    /// The connection is gone: so is what is in flight.
    pub fn fail(&mut self, reason: &str, now_ns: u64, outcomes: &mut Outcomes) {
        match self {
            Exchange::Http(exchange) => exchange.fail(reason, now_ns, outcomes),
            Exchange::OpenAi(exchange) => exchange.fail(reason, now_ns, outcomes),
            Exchange::Unary(exchange) => exchange.fail(reason, now_ns, outcomes),
            Exchange::Stream(exchange) => exchange.fail(reason, now_ns, outcomes),
            Exchange::Ring(exchange) => exchange.fail(reason, now_ns, outcomes),
        }
    }

    /// Says goodbye where the protocol has a way to; true if the peer's own goodbye is worth waiting for.
    pub fn part(&mut self) -> bool {
        match self {
            Exchange::Http(_) | Exchange::OpenAi(_) | Exchange::Unary(_) | Exchange::Ring(_) => false,
            Exchange::Stream(exchange) => exchange.part(),
        }
    }
}

const EXPIRED: &str = "no answer within the request timeout";
