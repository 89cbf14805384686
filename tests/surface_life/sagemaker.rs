//! The SageMaker port (spec: http.md section 8).
