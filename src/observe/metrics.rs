//! Prometheus metrics: the families of the server and of backends, and the text that a scraper reads.
//!
//! Nothing here is on the request path but [`Counter::increment`]; everything else is work of control threads.

mod distributions;
mod engines;
mod exposition;
mod families;
mod gpu;
mod host;
mod nvml;
mod process;
mod registry;
mod settings;
mod values;

pub use engines::{CACHE_FAMILY, CACHE_KIND, EngineMetrics, ModelCache};
pub use exposition::{Kind, PageFormat};
pub use families::{ModelSample, render};
pub use gpu::{Devices, Field};
pub use host::{GpuSource, HostGauges, HostPoller, Sources};
pub use process::process_metrics;
pub use registry::{
    CallbackMetric, Counter, Family, MAX_BOUNDS, MAX_SERIES, MAX_TEXT_BYTES, Metric, MetricError, Registry,
};
pub use settings::{MetricsConfig, is_customizable};
