//! What the server tells about itself: statistics, metrics, logs.

pub mod metrics;
pub mod statistics;
