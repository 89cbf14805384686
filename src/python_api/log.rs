//! The log of the process, and the function of a program that gets its messages.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::c;
use crate::errors::{call, owned, text};
use crate::numbers::LogLevel;
use crate::process::in_callback;

/// The program's function. The library always calls `deliver`, so a function may be replaced while it is called.
static FUNCTION: Mutex<Option<Arc<Py<PyAny>>>> = Mutex::new(None);

/// Replaces the function.
pub fn set_function(function: Option<Arc<Py<PyAny>>>) {
    let before = std::mem::replace(&mut *FUNCTION.lock().unwrap_or_else(PoisonError::into_inner), function);
    // Whatever its end runs, runs without the lock.
    drop(before);
}

/// Hands a message to the function.
///
/// # Safety
/// The texts are C strings or NULL.
pub unsafe extern "C" fn deliver(
    level: c_int,
    filename: *const c_char,
    line: c_int,
    timestamp_us: u64,
    message: *const c_char,
    _userp: *mut c_void,
) {
    let Some(function) = FUNCTION.lock().unwrap_or_else(PoisonError::into_inner).clone() else { return };
    // SAFETY: C strings or NULL: this function requires it of its caller.
    let (filename, message) = unsafe { (owned(filename), owned(message)) };
    let filename =
        Path::new(&filename).file_name().map_or(filename.clone(), |name| name.to_string_lossy().into_owned());
    in_callback(|| {
        // None while the interpreter ends.
        Python::try_attach(|py| {
            let function = function.bind(py);
            let outcome = function.call1((LogLevel(level), filename, line, timestamp_us, message));
            if let Err(error) = outcome {
                // Python reports it through sys.unraisablehook; the code that logged goes on.
                error.write_unraisable(py, Some(function));
            }
        });
    });
}

#[pyfunction]
fn TRITONSERVER_LogIsEnabled(level: LogLevel) -> bool {
    // SAFETY: the function takes any number.
    unsafe { c::TRITONSERVER_LogIsEnabled(level.0) }
}

#[pyfunction]
fn TRITONSERVER_LogMessage(py: Python<'_>, level: LogLevel, filename: &str, line: c_int, msg: &str) -> PyResult<()> {
    let (filename, msg) = (text(filename)?, text(msg)?);
    // The program's function takes the interpreter's lock.
    Ok(py.detach(|| call!(TRITONSERVER_LogMessage(level.0, filename.as_ptr(), line, msg.as_ptr())))?)
}

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(TRITONSERVER_LogIsEnabled, module)?)?;
    module.add_function(wrap_pyfunction!(TRITONSERVER_LogMessage, module)?)
}
