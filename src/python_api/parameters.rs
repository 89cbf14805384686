//! `TRITONSERVER_Parameter`: a named value.

use std::ffi::c_void;

use pyo3::exceptions::{PyMemoryError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};

use crate::c;
use crate::errors::text;
use crate::numbers::Number;
use crate::numbers::ParameterType;

#[pyclass(name = "TRITONSERVER_Parameter", module = "tritonserver._c.triton_bindings", frozen)]
pub struct Parameter {
    at: *mut c::Parameter,
    /// The C object borrows them.
    _bytes: Option<Py<PyBytes>>,
}

// SAFETY: the C object does not change between its creation and its deletion.
unsafe impl Send for Parameter {}
// SAFETY: as it does not change, threads may share it.
unsafe impl Sync for Parameter {}

const STRING: i32 = 0;
const INT: i32 = 1;
const BOOL: i32 = 2;
const DOUBLE: i32 = 3;

#[pymethods]
impl Parameter {
    #[new]
    fn new(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Parameter> {
        let name = text(name)?;
        let plain = |kind: i32, value: *const c_void| {
            // SAFETY: `name` is a C string, and `value` is the address of a value of this type; both are copied.
            unsafe { c::TRITONSERVER_ParameterNew(name.as_ptr(), kind, value) }
        };
        let mut bytes = None;
        let at = if let Ok(value) = value.cast::<PyBytes>() {
            let content = value.as_bytes();
            bytes = Some(value.clone().unbind());
            // SAFETY: `name` is a C string that is copied; the bytes do not move, and live as long as this object.
            unsafe { c::TRITONSERVER_ParameterBytesNew(name.as_ptr(), content.as_ptr().cast(), content.len() as u64) }
        } else if let Ok(value) = value.cast::<PyString>() {
            plain(STRING, text(&value.to_cow()?)?.as_ptr().cast())
        } else if let Ok(value) = value.cast::<PyBool>() {
            let value = value.is_true();
            plain(BOOL, (&raw const value).cast())
        } else if value.is_instance_of::<PyInt>() {
            let value: i64 = value.extract()?;
            plain(INT, (&raw const value).cast())
        } else if value.is_instance_of::<PyFloat>() {
            let value: f64 = value.extract()?;
            plain(DOUBLE, (&raw const value).cast())
        } else {
            let given = value.get_type().name()?.to_string();
            return Err(PyTypeError::new_err(format!("the value of {} cannot be {given}", ParameterType::NAME)));
        };
        if at.is_null() {
            return Err(PyMemoryError::new_err("no memory for a parameter"));
        }
        Ok(Parameter { at, _bytes: bytes })
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        // SAFETY: this object owns the C object, and nothing uses it afterwards.
        unsafe { c::TRITONSERVER_ParameterDelete(self.at) };
    }
}

/// The addresses of parameters; the C objects live as long as the Python objects in the list.
pub fn addresses(parameters: &[PyRef<'_, Parameter>]) -> Vec<*const c::Parameter> {
    parameters.iter().map(|parameter| parameter.at.cast_const()).collect()
}
