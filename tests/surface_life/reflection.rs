//! gRPC server reflection.
