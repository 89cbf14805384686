//! What the tests share: the server as a child process and the ways in which it is run, peers that speak HTTP and gRPC,
//! model repositories, certificates, and the programs that are compiled or fetched for tests.

pub mod backend;
pub mod certificates;
pub mod confine;
pub mod grpc;
pub mod http;
pub mod http2;
pub mod in_process;
pub mod library;
pub mod original;
pub mod paths;
pub mod perf_analyzer;
pub mod ports;
pub mod prepared;
pub mod python;
pub mod python_backend;
pub mod random;
pub mod repository;
pub mod server;
pub mod skip;
pub mod steadily;
pub mod strace;
pub mod variant;
