//! Pings, ages and limits of gRPC connections (spec: grpc.md section 7).
