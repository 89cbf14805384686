//! What is to be measured: which server, what to send, how fast, and when a figure counts.
//!
//! Plain data that a command line fills in. Nothing here is looked at while requests run: drivers make their own,
//! ready-to-send form of it once, before the first request.

use std::path::PathBuf;
use std::time::Duration;

use super::measurement::ErrorTexts;
use super::openai::OpenAi;
use nereid_client::{Alpn, Security};
use nereid_memory::Slice;
use nereid_recording::Contents;
use nereid_shard::EngineKind;

pub use nereid_client::{Endpoint, Tls};

/// One run: every load point of a sweep, against one model.
#[derive(Debug, Clone)]
pub struct Plan {
    pub target: Target,
    pub service: Service,
    pub model: String,
    /// Empty lets the server choose.
    pub version: String,
    pub work: Work,
    pub load: Load,
    pub rules: Rules,
    pub client: Client,
    /// Ask the model's statistics before and after each window.
    pub server_statistics: bool,
    /// Models whose statistics are reported beside the model's own: those of an ensemble, or those a script calls.
    pub composing_models: Vec<String>,
    pub metrics: Option<MetricsSource>,
    /// So many requests of a load point are kept one by one ([`super::Record`]); 0 keeps none.
    pub records_max: usize,
}

/// The interface of the server that is loaded.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Service {
    /// KServe v2, in the protocol of the target.
    #[default]
    Triton,
    /// OpenAI's, over HTTP.
    OpenAi(Box<OpenAi>),
}

impl Service {
    pub fn openai(&self) -> Option<&OpenAi> {
        match self {
            Service::Triton => None,
            Service::OpenAi(openai) => Some(openai),
        }
    }
}

/// The server, and how it is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub endpoint: Endpoint,
    pub tls: Option<Tls>,
    pub protocol: Protocol,
}

impl Target {
    /// What makes sessions with the server; none where it is spoken to without TLS.
    pub(super) fn security(&self) -> Result<Option<Security>, String> {
        let alpn = match self.protocol {
            Protocol::Http => Alpn::Http1,
            // A ring has no TLS.
            Protocol::GrpcUnary | Protocol::GrpcStream | Protocol::Ipc => Alpn::Http2,
        };
        self.tls.as_ref().map(|tls| Security::new(tls, &self.endpoint, alpn)).transpose()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http,
    /// ModelInfer.
    GrpcUnary,
    /// ModelStreamInfer: one call for each connection and run.
    GrpcStream,
    /// ModelInfer through rings of shared memory, which a Unix socket leads to (docs/ipc.md).
    Ipc,
}

/// What is sent.
#[derive(Debug, Clone)]
pub struct Work {
    /// Without sequences, request `n` is template `n` modulo the number of all templates, stream after stream. With
    /// sequences, each sequence takes the next stream and sends its templates from the first on, again and again.
    pub streams: Vec<Vec<Template>>,
    /// Fields of every request's head: HTTP fields, gRPC metadata.
    pub headers: Vec<(String, String)>,
    pub sequences: Option<Sequences>,
    /// Of tensors in HTTP requests; gRPC sends raw contents.
    pub input_form: Form,
    /// Of tensors in HTTP answers.
    pub output_form: Form,
    pub compression: Compression,
    pub shared_memory: SharedMemory,
    /// The model may answer a request with any number of responses.
    pub decoupled: bool,
    /// The `priority` parameter; 0 leaves it out.
    pub priority: u64,
    /// The `timeout` parameter: how long a request may wait in the server's queue, in microseconds.
    pub queue_timeout_us: Option<u64>,
    /// Where the templates come from, if that is a recording. Each load then begins with the first of them.
    pub recording: Option<Recording>,
}

/// A file of recorded requests, and what is sent of it.
#[derive(Debug, Clone)]
pub struct Recording {
    pub file: PathBuf,
    /// Requests that are sent.
    pub used: u64,
    /// Those of them whose contents were not recorded, and are made.
    pub made: u64,
    /// What is made.
    pub contents: Contents,
    /// Requests that are not sent, by the reason.
    pub left_out: ErrorTexts,
    /// What is wrong with the end of the file, if anything is.
    pub note: Option<String>,
}

/// One request, but for its id and the flags of its sequence.
#[derive(Debug, Clone, Default)]
pub struct Template {
    pub inputs: Vec<Input>,
    /// Names of the outputs wanted; none requests all.
    pub outputs: Vec<String>,
    pub parameters: Vec<(String, Parameter)>,
    /// Outputs to compare each answer with.
    pub expected: Option<Vec<Expected>>,
    /// The JSON of a request to a server of OpenAI's interface, which has nothing else.
    pub body: Option<Slice>,
}

#[derive(Debug, Clone)]
pub struct Input {
    pub name: String,
    /// KServe's name for it: FP32, BYTES, …
    pub datatype: String,
    /// With the batch dimension, where the model has one.
    pub shape: Vec<i64>,
    /// Little-endian, as in raw contents; strings of BYTES have their four-byte lengths before them.
    pub data: Slice,
}

#[derive(Debug, Clone)]
pub struct Expected {
    pub name: String,
    /// As raw contents hold it. Compared with what comes in that form (gRPC, binary tensors, shared memory).
    pub data: Slice,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    #[default]
    Binary,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    #[default]
    None,
    Gzip,
    Deflate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SharedMemory {
    #[default]
    None,
    /// Tensors in and out lie in system shared memory. An output of unknown size gets `output_bytes`.
    System { output_bytes: usize },
    /// The same in the arena of each ring.
    Arena { output_bytes: usize },
}

/// Requests that belong together, in order: never are two of one sequence in flight.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequences {
    /// How many at a time with an open loop; a closed loop has as many as its concurrency.
    pub at_once: usize,
    /// Requests of one; those of a stream of templates if None and there is more than one template in it.
    pub length: Option<usize>,
    /// Lengths vary evenly by so many percent around the length.
    pub length_variation_percent: f64,
    /// Ids are taken in turn from here on …
    pub first_id: u64,
    /// … and begin again here, if there is an end (not included).
    pub end_id: Option<u64>,
}

/// How fast.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// Closed loop: so many requests in flight, always.
    Concurrency(Sweep<usize>),
    /// Open loop: requests a second, whether answers come or not.
    Rate { sweep: Sweep<f64>, spacing: Spacing },
    /// Open loop: the times between requests, again and again.
    Intervals(Vec<Duration>),
    /// Open loop: the times of a recording, again and again.
    Recorded(Times),
}

/// When the requests of a recording came.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// Of each template since the first, in order.
    pub offsets: Vec<Duration>,
    /// How many times as fast they are sent.
    pub speed: f64,
}

impl Times {
    /// No request lies further away than a year, whatever a file states.
    const LONGEST_NS: f64 = 31_536_000.0 * 1e9;

    fn scaled_ns(&self, offset: Duration) -> u64 {
        (offset.as_nanos() as f64 / self.speed).clamp(0.0, Times::LONGEST_NS) as u64
    }

    /// From the first request to the first of the next round, in nanoseconds: the last one and the first are apart as
    /// two requests are on average. None if all come at once, as a single one does.
    pub fn round_ns(&self) -> Option<u64> {
        let last_ns = self.scaled_ns(self.offsets.last().copied()?);
        let gaps = self.offsets.len().saturating_sub(1) as u64;
        (last_ns > 0).then(|| last_ns.saturating_add(last_ns / gaps.max(1)))
    }

    /// When each is due, in nanoseconds since the first.
    pub fn due_ns(&self) -> impl Iterator<Item = u64> {
        self.offsets.iter().map(|offset| self.scaled_ns(*offset))
    }

    /// Requests a second on average; 0 if they have no times.
    pub fn rate(&self) -> f64 {
        self.round_ns().map_or(0.0, |round_ns| self.offsets.len() as f64 * 1e9 / round_ns as f64)
    }
}

/// From `start` to `end`, included. Without an end the sweep goes on until the latency threshold is passed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sweep<T> {
    pub start: T,
    pub end: Option<T>,
    pub step: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spacing {
    #[default]
    Constant,
    Poisson,
}

/// When a figure counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub window: Window,
    /// Three windows after each other are stable when their rates and their latencies differ from their mean by no
    /// more than so many percent.
    pub stability_percent: f64,
    /// Windows that one load point may take.
    pub trials_max: u32,
    /// The latency that must be stable and below the threshold: this percentile of it, or its mean.
    pub percentile: Option<f64>,
    /// Requests of each load point that nothing counts of.
    pub warm_up_requests: u64,
    /// Exactly so many requests for each load point, in one window, instead of windows until they are stable.
    pub request_count: Option<u64>,
    pub latency_threshold: Option<Duration>,
    /// Look for the highest load within the threshold by halving, instead of going from step to step.
    pub binary_search: bool,
    /// Of the spacing of Poisson schedules and of sequences' lengths.
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    Time(Duration),
    /// Ends with so many completed requests.
    Count(u64),
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            window: Window::Time(Duration::from_secs(5)),
            stability_percent: 10.0,
            trials_max: 10,
            percentile: None,
            warm_up_requests: 0,
            request_count: None,
            latency_threshold: None,
            binary_search: false,
            seed: 1,
        }
    }
}

/// The machinery on this side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Connections in all. None: over HTTP as many as may be in flight (closed loop) or as are needed, over gRPC a few,
    /// with all calls multiplexed over them.
    pub connections: Option<usize>,
    /// Each request in flight has a connection of its own, with gRPC too.
    pub unique_connections: bool,
    pub threads: usize,
    /// Thread `n` is confined to the `n`th of these cores; none are pinned if it is empty.
    pub pin_to: Vec<usize>,
    /// None takes what the machine has.
    pub engine: Option<EngineKind>,
    /// A request without an answer for so long failed; its connection is made again.
    pub request_timeout: Duration,
    /// Requests that an open loop may have sent or due at a time; beyond it the load point ends as unsustainable.
    pub outstanding_max: usize,
    /// How long a thread that waits for answers polls its rings before it sleeps. That is counted apart from its work.
    pub ring_spin: Duration,
}

impl Default for Client {
    fn default() -> Client {
        Client {
            connections: None,
            unique_connections: false,
            threads: 1,
            pin_to: Vec::new(),
            engine: None,
            request_timeout: Duration::from_secs(60),
            outstanding_max: 16_384,
            ring_spin: Duration::ZERO,
        }
    }
}

/// A page of metrics in Prometheus's text form that is read every `interval` while a window lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsSource {
    pub endpoint: Endpoint,
    pub path: String,
    pub interval: Duration,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn recorded_times_go_round_at_their_speed() {
        let times = |offsets: &[u64], speed| Times {
            offsets: offsets.iter().map(|secs| Duration::from_secs(*secs)).collect(),
            speed,
        };
        let twice = times(&[0, 1, 4], 2.0);
        assert_eq!(twice.due_ns().collect::<Vec<_>>(), [0, 500_000_000, 2_000_000_000]);
        assert_eq!((twice.round_ns(), twice.rate()), (Some(3_000_000_000), 1.0));
        for without in [&[][..], &[0], &[0, 0]] {
            assert_eq!((times(without, 1.0).round_ns(), times(without, 1.0).rate()), (None, 0.0));
        }
        let far = times(&[0, u64::MAX], 0.001);
        assert!(far.round_ns().is_some_and(|round_ns| round_ns < 1 << 60), "{far:?}");
    }

    /// One request in flight, of one template without tensors, for a tenth of a second.
    pub fn plan(target: Target) -> Plan {
        Plan {
            target,
            service: Service::Triton,
            model: "model".to_owned(),
            version: String::new(),
            work: Work {
                streams: vec![vec![Template::default()]],
                headers: Vec::new(),
                sequences: None,
                input_form: Form::Binary,
                output_form: Form::Binary,
                compression: Compression::None,
                shared_memory: SharedMemory::None,
                decoupled: false,
                priority: 0,
                queue_timeout_us: None,
                recording: None,
            },
            load: Load::Concurrency(Sweep { start: 1, end: Some(1), step: 1 }),
            rules: Rules { window: Window::Time(Duration::from_millis(100)), ..Rules::default() },
            client: Client::default(),
            server_statistics: false,
            composing_models: Vec::new(),
            metrics: None,
            records_max: 0,
        }
    }
}
