//! Clients that others wrote, and peers that nobody should write: the wire as the world speaks it.

mod support {
    pub mod certificates;
    pub mod grpc;
    pub mod http;
    pub mod http2;
    pub mod in_process;
    pub mod perf_analyzer;
    pub mod ports;
    pub mod prepared;
    pub mod python;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod foreign_programs {
    mod curl;
    mod described;
    mod go;
    mod http1_peers;
    mod http2_peers;
    mod in_process;
    mod node;
    mod perf_analyzer;
}
