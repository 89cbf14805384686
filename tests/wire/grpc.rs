//! The gRPC port of a whole server, met by a peer made of the crate h2 and the messages of proto/ (contract/grpc.md).

mod errors;
mod exiting;
mod forms;
mod management;
mod message;
mod order;
mod readiness;
mod recurring;
mod stream;
mod transport;
