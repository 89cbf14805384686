//! Requests from Rust.
