//! Statistics, metrics, logs, the audit log and traces of the server.

pub mod audit;
pub mod exemplars;
pub mod load;
pub mod log;
pub mod metrics;
pub mod panics;
pub mod stacks;
pub mod statistics;
pub mod trace;
