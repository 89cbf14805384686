//! Packed requests and answers on both ports (spec: http.md section 5, grpc.md section 7).
