//! `generate` and `generate_stream` (spec: http.md section 7).
