//! What the tests share: the server as a child process and the ways in which it is run, peers that speak HTTP and gRPC,
//! model repositories, certificates, and the programs that are compiled or fetched for tests.

// What a library owes to strangers, and only our tests call this one.
#![allow(clippy::new_without_default, clippy::should_implement_trait)]

pub mod backend;
pub mod certificates;
pub mod confine;
pub mod grpc;
pub mod http;
pub mod http2;
pub mod in_process;
pub mod library;
pub mod original;
pub mod own_process;
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
