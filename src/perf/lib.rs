//! The load generator: sends what a plan says, as fast as it says, and tells what came of it.
//!
//! The codecs are the server's own in the client's role and the threads are shards, so that a core of the client can
//! load a core of the server, and a figure tells of the server rather than of what measures it. Latencies of an open
//! loop count from the time at which a request was due: a server that stalls cannot hide the requests that its stall
//! kept from being sent.
//!
//! ```text
//! Plan ─► run ─► threads (shards): schedule ─► exchange (HTTP, unary, stream) ─► tally ─► windows ─► Measurement
//! ```

mod answer;
mod check;
mod connection;
mod connector;
pub mod data;
mod driver;
mod exchange;
mod interrupt;
mod measurement;
mod metadata_client;
mod metrics;
mod model_info;
mod plan;
mod regions;
pub mod report;
mod request;
mod schedule;
mod session;
mod stability;
mod sweep;
mod tally;
mod threads;
mod tls;
mod work;

pub use measurement::{
    ClientLimits, ERROR_TEXTS_MAX, ErrorTexts, Histograms, LATENCY_MAX_NS, LoadPoint, Measurement, MetricFigures,
    Phase, Progress, Record, RequestCounts, ServerSide, Stage, Step, Timeline, WindowFigures,
};
pub use model_info::{ModelInfo, TensorFacts};
pub use plan::{
    Client, Compression, Endpoint, Expected, Form, Input, Load, MetricsSource, Parameter, Plan, Protocol, Rules,
    Sequences, SharedMemory, Spacing, Sweep, Target, Template, Tls, Window, Work,
};

/// Why a run gives no figures.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The plan contradicts itself or the model.
    #[error("{0}")]
    Plan(String),
    /// Nobody answers at the address, or no longer.
    #[error("{endpoint}: {reason}")]
    Unreachable { endpoint: Endpoint, reason: String },
    /// The server refused what is asked before any load: metadata, registration of shared memory.
    #[error("{what}: {reason}")]
    Refused { what: String, reason: String },
    #[error("{what}: {source}")]
    System { what: String, source: std::io::Error },
}

/// Asks the server for what requests to a model have to look like.
pub fn inspect(
    target: &Target,
    model: &str,
    version: &str,
    headers: &[(String, String)],
) -> Result<ModelInfo, PerfError> {
    metadata_client::MetadataClient::new(target, headers)?.inspect(model, version)
}

/// Measures every load point of a plan. Ctrl-C ends it early, with everything cleaned up and what is measured returned.
pub fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<Vec<Measurement>, PerfError> {
    session::run(plan, progress)
}
