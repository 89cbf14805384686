//! TLS and mutual TLS on both ports (spec: grpc.md section 7).
