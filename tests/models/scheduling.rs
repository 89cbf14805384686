//! Schedulers as clients see them: batches, the order of responses, and waiting times (contract/schedulers.md).
//! Statistics show the executions.

mod cache;
mod decoupled;
mod dynamic;
mod ensemble;
mod ensemble_decoupled;
mod ensemble_graph;
mod ensemble_reload;
mod ensemble_tensors;
mod rate_limiter;
mod sequence;
