//! Clients that others wrote, and peers that nobody should write: the wire as the world speaks it.

mod curl;
mod described;
mod go;
mod http1_peers;
mod http2_peers;
mod in_process;
mod node;
mod perf_analyzer;
