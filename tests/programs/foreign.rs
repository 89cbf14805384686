//! Clients from other projects, and peers that violate the protocols.

mod curl;
mod described;
mod go;
mod http1_peers;
mod http2_peers;
mod in_process;
pub mod node;
mod perf_analyzer;
