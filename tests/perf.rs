//! The load generator against real servers: what it sends arrives, what it counts and says is true, and nothing of it
//! stays.

mod support {
    pub mod backend;
    pub mod certificates;
    pub mod http;
    pub mod perf_analyzer;
    pub mod ports;
    pub mod prepared;
    pub mod python;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod load_generator {
    mod encryption;
    mod exits;
    mod input_data;
    mod loads;
    mod plans;
    mod program;
    mod reports;
    mod sequences;
    mod shared_memory;
    mod signals;
    mod trouble;
}
