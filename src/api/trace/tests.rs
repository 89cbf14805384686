//! The texts of http.md section 3 and grpc.md section 6, without a server.
