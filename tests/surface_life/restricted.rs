//! Groups of routes and RPCs that need a header (spec: http.md section 2, grpc.md section 3).
