//! The load generator: what it measures, what it says of it, and that it leaves nothing behind.

mod support {
    pub mod http;
    pub mod perf_analyzer;
    pub mod prepared;
    pub mod python;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod perf_life {
    mod exits;
    mod input_data;
    mod program;
    mod reports;
}
