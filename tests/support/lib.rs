//! The support crate of all tests: it starts the server as a child process on each engine, connects HTTP and gRPC
//! peers, creates model repositories and certificates, and compiles or downloads the programs that tests need.

// These lints are for the public API of a library; only our tests call this crate.
#![allow(clippy::new_without_default, clippy::should_implement_trait)]

pub mod backend;
pub mod bound;
pub mod certificates;
pub mod confine;
pub mod gate;
pub mod grpc;
pub mod http;
pub mod http2;
pub mod in_process;
pub mod large_runtimes;
pub mod library;
pub mod openvino;
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
pub mod torch;
pub mod tree_models;
pub mod variant;

pub use large_runtimes::is_large_runtime_wanted;
