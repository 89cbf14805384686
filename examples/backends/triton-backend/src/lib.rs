//! Backends in Rust for servers that speak Triton's C interface: a safe layer with what the examples need of it.
//!
//! A backend implements [`Backend`] for the state of one instance and says [`export!`]. What the interface demands and
//! the compiler cannot check is kept here, by ownership: a request is given back exactly once, a response is sent or
//! deleted, an error is deleted, whoever forgets to answer is answered for, and a panic becomes an error.
//!
//! All of `unsafe` is in `ffi.rs` (the declarations), `handles.rs` (objects of the server) and `exports.rs` (calls by
//! the server).

mod error;
#[doc(hidden)]
pub mod exports;
mod ffi;
mod handles;
mod threads;

use std::sync::Arc;

pub use error::{Code, Error};
pub use handles::{Input, Instance, Request, Responder, Response, ResponseTimes, Times};
pub use serde_json::Value;
pub use threads::Threads;

/// `TRITONSERVER_DataType`: its number, and its name in configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DataType {
    Uint32 = 4,
    Int32 = 8,
}

impl DataType {
    /// As it stands in a model's configuration.
    pub fn config_name(self) -> &'static str {
        match self {
            DataType::Uint32 => "TYPE_UINT32",
            DataType::Int32 => "TYPE_INT32",
        }
    }
}

/// One instance of a model. The server drives it on one thread at a time.
pub trait Backend: Sized + Send + 'static {
    /// What the instances of a model version share.
    type Model: Send + Sync + 'static;

    /// Fills in what a configuration leaves open, where the server permits it (`--disable-auto-complete-config` forbids
    /// it). Returns whether anything was changed. Inputs, outputs, `max_batch_size`, the scheduler and
    /// `model_transaction_policy` can be completed; the server ignores changes of all else.
    fn complete(_config: &mut Value) -> Result<bool, Error> {
        Ok(false)
    }

    /// Holds a model against what this backend can serve. An error refuses the load.
    fn open(config: &Value) -> Result<Self::Model, Error>;

    /// Makes one instance. Instances of a model may be made at the same time.
    fn create(model: Arc<Self::Model>, instance: Instance) -> Result<Self, Error>;

    /// Runs a batch. Each request is answered by what is done with it: see [`Request`].
    fn execute(&mut self, requests: Vec<Request>);
}

/// Nanoseconds of the clock in which statistics are told.
pub fn now_ns() -> u64 {
    ffi::monotonic_ns()
}

/// Exports a [`Backend`] under the names that servers look up.
#[macro_export]
macro_rules! export {
    ($backend:ty) => {
        #[allow(unsafe_code)]
        const _: () = {
            use std::ffi::c_void;

            use $crate::exports as to;

            /// # Safety
            /// Called by a server.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_Initialize(backend: *mut c_void) -> *mut c_void {
                // SAFETY: the server's promise is passed on.
                unsafe { to::initialize(backend) }
            }

            /// # Safety
            /// Called by a server.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_GetBackendAttribute(
                _backend: *mut c_void,
                attributes: *mut c_void,
            ) -> *mut c_void {
                // SAFETY: the server's promise is passed on.
                unsafe { to::describe(attributes) }
            }

            /// # Safety
            /// Called by a server.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInitialize(model: *mut c_void) -> *mut c_void {
                // SAFETY: the server's promise is passed on.
                unsafe { to::model_initialize::<$backend>(model) }
            }

            /// # Safety
            /// Called by a server.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelFinalize(model: *mut c_void) -> *mut c_void {
                // SAFETY: the server's promise is passed on.
                unsafe { to::model_finalize::<$backend>(model) }
            }

            /// # Safety
            /// Called by a server.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInstanceInitialize(instance: *mut c_void) -> *mut c_void {
                // SAFETY: the server's promise is passed on.
                unsafe { to::instance_initialize::<$backend>(instance) }
            }

            /// # Safety
            /// Called by a server.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInstanceFinalize(instance: *mut c_void) -> *mut c_void {
                // SAFETY: the server's promise is passed on.
                unsafe { to::instance_finalize::<$backend>(instance) }
            }

            /// # Safety
            /// Called by a server.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn TRITONBACKEND_ModelInstanceExecute(
                instance: *mut c_void,
                requests: *mut *mut c_void,
                count: u32,
            ) -> *mut c_void {
                // SAFETY: the server's promise is passed on.
                unsafe { to::execute::<$backend>(instance, requests, count) }
            }
        };
    };
}
