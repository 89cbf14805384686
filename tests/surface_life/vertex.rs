//! The Vertex AI port (spec: http.md section 9).
