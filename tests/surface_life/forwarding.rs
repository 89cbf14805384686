//! Headers and metadata that become parameters (spec: http.md section 5, grpc.md section 7).
