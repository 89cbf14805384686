//! Schedulers as clients see them: what batches form, in which order answers come, who waits for what and for how long
//! (contract/schedulers.md). Statistics tell what was executed.

mod support {
    pub mod backend;
    pub mod grpc;
    pub mod http;
    pub mod ports;
    pub mod python;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod schedulers {
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
}
