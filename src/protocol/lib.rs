//! Bytes ⇄ messages, sans-IO: every codec is a state machine that is fed received bytes at any split and leaves what it
//! wants to send in a gather list.
//!
//! Codecs use no model and no socket, so that the same ones run on both engines, in the load generator, in fuzzers and
//! in the simulation.

pub mod compression;
pub mod grpc;
pub mod hpack;
pub mod http1;
pub mod http2;
pub mod json;
pub mod service;
pub mod slow_peers;
