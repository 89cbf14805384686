//! The extension module of the Python packages `tritonserver` and `tritonfrontend`: classes over the C interface, which
//! is called in `libtritonserver.so`, never by way of the server's crates.
//!
//! Python code above it (`python/tritonserver`) defines the numbers and the in-process API. Calls that wait, take a
//! lock of the server or may log run without the interpreter's lock, because the server's threads take that lock for
//! callbacks.

#![allow(unsafe_code)]
// Functions have the names that programs call.
#![allow(non_snake_case)]

mod allocation;
mod c;
mod delivery;
mod dlpack;
mod errors;
mod frontends;
mod log;
mod messages;
mod metrics;
mod numbers;
mod options;
mod parameters;
mod process;
mod requests;
mod responses;
mod server;
mod traces;

use pyo3::prelude::*;

/// Native part of `tritonserver._c`.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::add_to(module)?;
    numbers::add_to(module)?;
    log::add_to(module)?;
    dlpack::add_to(module)?;
    process::add_to(module)?;
    module.add_class::<parameters::Parameter>()?;
    module.add_class::<allocation::BufferAttributes>()?;
    module.add_class::<allocation::ResponseAllocator>()?;
    module.add_class::<messages::Message>()?;
    module.add_class::<messages::Metrics>()?;
    module.add_class::<traces::InferenceTrace>()?;
    module.add_class::<requests::InferenceRequest>()?;
    module.add_class::<responses::InferenceResponse>()?;
    module.add_class::<options::ServerOptions>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<frontends::Frontend>()?;
    module.add_class::<metrics::MetricFamily>()?;
    module.add_class::<metrics::Metric>()
}
