//! What the server tells about itself: statistics, metrics, logs.

pub mod log;
pub mod metrics;
pub mod statistics;
pub mod trace;
