//! `TRITONSERVER_InferenceResponse`: what a model answered, with the memory of its outputs.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::c;
use crate::errors::{call, check, owned};
use crate::numbers::{DataType, MemoryType, ParameterType};
use crate::server::ServerHandle;

/// A response of the C interface. It holds its server, which must outlive it.
pub struct ResponseHandle {
    at: *mut c::Response,
    server: Arc<ServerHandle>,
}

// SAFETY: a response does not change after it was delivered, and may be read and deleted on any thread.
unsafe impl Send for ResponseHandle {}
// SAFETY: as it does not change, threads may share it.
unsafe impl Sync for ResponseHandle {}

impl ResponseHandle {
    /// Takes the response over.
    pub fn owning(at: *mut c::Response, server: Arc<ServerHandle>) -> ResponseHandle {
        ResponseHandle { at, server }
    }
}

impl Drop for ResponseHandle {
    fn drop(&mut self) {
        if self.server.origin().is_here() {
            // SAFETY: this object owns the C object, and nothing uses it afterwards.
            drop(check(unsafe { c::TRITONSERVER_InferenceResponseDelete(self.at) }));
        }
    }
}

#[pyclass(name = "TRITONSERVER_InferenceResponse", module = "tritonserver._c.triton_bindings", frozen, weakref)]
pub struct InferenceResponse(pub ResponseHandle);

type OutputOf = (String, DataType, Py<PyTuple>, usize, usize, MemoryType, i64);

#[pymethods]
impl InferenceResponse {
    /// Raises the error that the response consists of, if it is one.
    fn throw_if_response_error(&self) -> PyResult<()> {
        // SAFETY: the response is live. The error that the call returns is the caller's to delete.
        Ok(check(unsafe { c::TRITONSERVER_InferenceResponseError(self.0.at) })?)
    }

    /// Name and version of the model.
    #[getter]
    fn model(&self) -> PyResult<(String, i64)> {
        let (mut name, mut version) = (null(), 0);
        call!(TRITONSERVER_InferenceResponseModel(self.0.at, &mut name, &mut version))?;
        // SAFETY: the call has set a C string that lives as long as the response.
        Ok((unsafe { owned(name) }, version))
    }

    #[getter]
    fn id(&self) -> PyResult<String> {
        let mut id = null();
        call!(TRITONSERVER_InferenceResponseId(self.0.at, &mut id))?;
        // SAFETY: the call has set a C string that lives as long as the response.
        Ok(unsafe { owned(id) })
    }

    #[getter]
    fn parameter_count(&self) -> PyResult<u32> {
        let mut count = 0;
        call!(TRITONSERVER_InferenceResponseParameterCount(self.0.at, &mut count))?;
        Ok(count)
    }

    /// Name, type and value of a parameter.
    fn parameter(&self, py: Python<'_>, index: u32) -> PyResult<(String, ParameterType, Py<PyAny>)> {
        let (mut name, mut kind, mut value): (_, c_int, *const c_void) = (null(), 0, null());
        call!(TRITONSERVER_InferenceResponseParameter(self.0.at, index, &mut name, &mut kind, &mut value))?;
        // SAFETY: the call has set a C string that lives as long as the response.
        let name = unsafe { owned(name) };
        // SAFETY: the address is that of a value of the type, which lives as long as the response.
        let value = unsafe {
            match kind {
                0 => owned(value.cast()).into_pyobject(py)?.into_any().unbind(),
                1 => value.cast::<i64>().read().into_pyobject(py)?.into_any().unbind(),
                2 => value.cast::<bool>().read().into_pyobject(py)?.to_owned().into_any().unbind(),
                3 => value.cast::<f64>().read().into_pyobject(py)?.into_any().unbind(),
                // The interface gives no size of bytes.
                _ => PyBytes::new(py, &[]).into_any().unbind(),
            }
        };
        Ok((name, ParameterType(kind), value))
    }

    #[getter]
    fn output_count(&self) -> PyResult<u32> {
        let mut count = 0;
        call!(TRITONSERVER_InferenceResponseOutputCount(self.0.at, &mut count))?;
        Ok(count)
    }

    /// Name, type, shape, address, size, kind of memory and device of an output.
    fn output(&self, py: Python<'_>, index: u32) -> PyResult<OutputOf> {
        let (mut name, mut datatype, mut shape, mut dims) = (null(), 0, null(), 0);
        let (mut base, mut size, mut kind, mut device, mut userp) = (null(), 0, 0, 0, null_mut());
        call!(TRITONSERVER_InferenceResponseOutput(
            self.0.at,
            index,
            &mut name,
            &mut datatype,
            &mut shape,
            &mut dims,
            &mut base,
            &mut size,
            &mut kind,
            &mut device,
            &mut userp,
        ))?;
        let shape = match usize::try_from(dims) {
            // SAFETY: the call has set the address of so many numbers, which live as long as the response.
            Ok(dims) if dims > 0 => PyTuple::new(py, unsafe { std::slice::from_raw_parts::<i64>(shape, dims) })?,
            _ => PyTuple::empty(py),
        };
        // SAFETY: the call has set a C string that lives as long as the response.
        let name = unsafe { owned(name) };
        Ok((name, DataType(datatype), shape.unbind(), base.addr(), size, MemoryType(kind), device))
    }

    /// The label of a class; empty without one.
    fn output_classification_label(&self, index: u32, class_index: usize) -> PyResult<String> {
        let mut label = null();
        call!(TRITONSERVER_InferenceResponseOutputClassificationLabel(self.0.at, index, class_index, &mut label))?;
        // SAFETY: the call has set NULL or a C string that lives as long as the response.
        Ok(unsafe { owned(label) })
    }
}
