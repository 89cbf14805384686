//! gRPC: unary inference, streams, and server reflection (contract/grpc.md).

pub mod answer;
pub mod inference;
pub mod methods;
pub mod reflection;
pub mod streams;
