//! TensorRT's library behind safe types: [`Library`] is opened once for the process, a [`Runtime`] reads plans into an
//! [`Engine`] on one device, a [`Context`] enqueues executions of it.
//!
//! All `unsafe` of the backend is below this module. The library is never closed: its threads and plug-ins are not made
//! for that.

#![allow(unsafe_code)]

mod abi;
mod context;
mod engine;
mod library;
mod logger;
mod output_allocator;
#[cfg(test)]
mod tests;

pub use self::abi::{DIMS_MAX, Dims};
pub use self::context::Context;
pub use self::engine::{AllocationStrategy, Engine, Runtime, Selector};
pub use self::library::{Library, inspect, load, open_plugins};
pub use self::output_allocator::OutputAllocator;
