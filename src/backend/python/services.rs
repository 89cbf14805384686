//! What a worker asks for beside requests: lines of the log, metrics of its own, models to be loaded and unloaded.

mod log;
mod metrics;
mod models;

pub use log::log;
pub use metrics::Metrics;
pub use models::{Models, Reply};
