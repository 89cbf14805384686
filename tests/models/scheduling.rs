//! Schedulers as clients see them: what batches form, in which order answers come, who waits for what and for how long
//! (contract/schedulers.md). Statistics tell what was executed.

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
