//! Statistics, metrics, logs and traces of the server.

pub mod log;
pub mod metrics;
pub mod panics;
pub mod stacks;
pub mod statistics;
pub mod trace;
