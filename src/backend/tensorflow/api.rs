//! TensorFlow's C interface as safe Rust: the opened library, its sessions and its tensors.
//!
//! All calls of the library are in this folder, the only one of the crate that allows `unsafe`.

#![allow(unsafe_code)]

mod functions;
mod graph;
mod library;
mod session;
mod status;
mod tensor;
mod tensor_strings;

pub use self::graph::Node;
pub use self::library::{Inspected, Runtime, inspect, load, locate};
pub use self::session::{Port, Session};
pub use self::status::TensorFlowError;
pub use self::tensor::Tensor;
