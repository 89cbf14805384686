//! The load generator against real servers: what it sends arrives, what it counts is true, and nothing of it stays.

mod support {
    pub mod backend;
    pub mod certificates;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod perf_life {
    mod loads;
    mod plans;
    mod sequences;
    mod shared_memory;
    mod trouble;
}
