//! Bytes to messages and back, without sockets, clocks or knowledge of models.
//!
//! Everything here is a state machine that is fed bytes and can stop at any of them, so that both engines, the tests,
//! fuzzers and the load generator run the same code.

pub mod grpc;
