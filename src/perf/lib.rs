//! The load generator: sends the requests of a plan at the rate of the plan, and reports the outcome.
//!
//! The codecs are the server's own in the client's role and the threads are shards, so that a core of the client can
//! load a core of the server, and a figure shows the server rather than the client that measures it. Latencies of an
//! open loop count from the time at which a request was due: a server that stalls cannot hide the requests that its
//! stall kept from being sent.
//!
//! ```text
//! Plan ─► run ─► threads (shards): schedule ─► exchange (HTTP, unary, stream) ─► totals ─► windows ─► Measurement
//! ```

mod answer;
mod check;
mod connection;
mod connector;
pub mod data;
mod driver;
mod exchange;
mod generation;
mod generator_limit;
mod interrupt;
mod measurement;
mod metadata_client;
mod metrics;
mod model_info;
pub mod openai;
mod plan;
mod regions;
pub mod report;
mod request;
mod schedule;
mod session;
mod stability;
mod sweep;
mod threads;
mod window_totals;
mod work;

pub use generation::{GenerationCounts, GenerationTotals};
pub use generator_limit::{ClientSide, GeneratorLimit, ThreadUsage};
pub use measurement::{
    ClientLimits, ERROR_TEXTS_MAX, ErrorTexts, Histograms, LATENCY_MAX_NS, LoadPoint, Measurement, MetricFigures,
    Phase, Progress, Record, RequestCounts, ServerSide, Stage, Step, Timeline, WindowFigures,
};
pub use model_info::{ModelInfo, TensorFacts};
pub use plan::{
    Client, Compression, Endpoint, Expected, Form, Input, Load, MetricsSource, Parameter, Plan, Protocol, Recording,
    Rules, Sequences, Service, SharedMemory, Spacing, Sweep, Target, Template, Times, Tls, Window, Work,
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
    /// The server refused a call before any load: metadata, registration of shared memory.
    #[error("{what}: {reason}")]
    Refused { what: String, reason: String },
    #[error("{what}: {source}")]
    System { what: String, source: std::io::Error },
}

/// Requests the metadata and configuration of a model from the server.
pub fn inspect(
    target: &Target,
    model: &str,
    version: &str,
    headers: &[(String, String)],
) -> Result<ModelInfo, PerfError> {
    metadata_client::MetadataClient::new(target, headers)?.inspect(model, version)
}

/// The program and version that answers, as the server's metrics page names it; `None` if there is no such page, or a
/// server of another kind.
pub fn server_build(source: &MetricsSource) -> Option<String> {
    metrics::build(&metadata_client::fetch(&source.endpoint, &source.path).ok()?)
}

/// Measures every load point of a plan. Ctrl-C ends it early, with everything cleaned up and what is measured returned.
pub fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<Vec<Measurement>, PerfError> {
    session::run(plan, progress)
}
