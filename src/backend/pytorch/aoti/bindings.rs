//! The C functions of torch and of the libraries in packages: tensors, containers of models, and the libraries
//! themselves.

#![allow(unsafe_code)]

mod api;
mod container;
mod empty_library;
mod library;
mod tensor;

pub use api::Api;
pub use container::Container;
pub use library::{LibraryFault, ModelLibrary};
pub use tensor::Tensor;
