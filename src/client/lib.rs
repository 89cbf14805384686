//! Calls to a server from programs beside it: `nereid perf`, `nereid replay`, `nereid top` and
//! `nereid status`.
//!
//! Everything blocks, with a bound on the time and on the bytes of an answer. The codec is the server's own in the
//! client's role. The load itself does not go this way: `nereid_perf` has connections of its own for it.

mod connect;
mod endpoint;
pub mod exposition;
mod grpc;
mod http;
mod link;
mod tls;
mod wire;

pub use connect::{connect_tcp, connect_unix};
pub use endpoint::Endpoint;
pub use grpc::{GrpcAnswer, GrpcClient};
pub use http::{ANSWER_BYTES_MAX, Answer, CallError, HttpClient};
pub use link::HttpLink;
pub use tls::{Alpn, Security, Tls};
pub use wire::Wire;
