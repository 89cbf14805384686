//! Tensors in shared memory (spec: http.md section 4, grpc.md sections 4 and 6).
