//! Statistics, metrics, logs and traces of the server.

pub mod log;
pub mod metrics;
pub mod panics;
pub mod statistics;
pub mod trace;
