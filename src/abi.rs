//! Triton's C symbols, and the server's own: for libraries that the server loads, and for programs that link it.
//!
//! The functions are thin: every handle that a plug-in holds is a pointer to the same value that native backends use
//! (a request, an input tensor), so nothing is copied or mirrored between the C interface and the `Backend` trait. A
//! panic in here becomes an error of the call; a NULL where a handle is due becomes INVALID_ARG.

#![allow(unsafe_code)]

pub mod agents;
pub mod backend;
mod border;
pub mod cache;
mod casts;
pub mod crash;
mod foreign;
pub mod frontends;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guard;
mod handle_registry;
pub mod handles;
pub mod interface;
mod library_ranges;
pub mod plugin;
pub mod server;
pub mod symbols;

use crate::server::Libraries;

/// The functions that open libraries of each kind. Every server is started with them.
pub const LIBRARIES: Libraries = Libraries {
    plugins: plugin::loader,
    agents: agents::libraries,
    cache: cache::open,
    report_handles: || handle_registry::report(None),
};
