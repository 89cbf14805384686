//! Services for workers beside requests: log lines, custom metrics, loading and unloading of models.

mod log;
mod metrics;
mod models;

pub use log::log;
pub use metrics::Metrics;
pub use models::{Models, Reply};
