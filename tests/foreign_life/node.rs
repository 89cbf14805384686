//! A client of Node's grpc-js.
