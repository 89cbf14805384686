//! Tests of the gRPC port of a whole server with a peer that uses the crate h2 and the messages of proto/
//! (contract/grpc.md).

mod errors;
mod exiting;
mod forms;
mod management;
pub mod message;
mod order;
mod readiness;
mod recurring;
mod stream;
mod transport;
