//! Bytes ⇄ messages, sans-IO: knows no model, no socket.

pub mod hpack;
pub mod http2;
