//! Errors of the C interface as exceptions, and texts on their way there and back.

use std::ffi::{CStr, CString, c_char, c_int};

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

use crate::c;

create_exception!(tritonserver, TritonError, PyException, "The base of all errors of the server.");
create_exception!(tritonserver, UnknownError, TritonError, "An error without a kind of its own.");
create_exception!(tritonserver, CancelledError, UnknownError, "The request was cancelled.");
create_exception!(tritonserver, InternalError, TritonError, "An error inside the server, a model or a backend.");
create_exception!(tritonserver, NotFoundError, TritonError, "What was named does not exist.");
create_exception!(tritonserver, InvalidArgumentError, TritonError, "A value is not what it must be.");
create_exception!(tritonserver, UnavailableError, TritonError, "The server cannot do this at present.");
create_exception!(tritonserver, UnsupportedError, TritonError, "The server never does this.");
create_exception!(tritonserver, AlreadyExistsError, TritonError, "What was to be created exists.");

pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("TritonError", py.get_type::<TritonError>())?;
    module.add("UnknownError", py.get_type::<UnknownError>())?;
    module.add("CancelledError", py.get_type::<CancelledError>())?;
    module.add("InternalError", py.get_type::<InternalError>())?;
    module.add("NotFoundError", py.get_type::<NotFoundError>())?;
    module.add("InvalidArgumentError", py.get_type::<InvalidArgumentError>())?;
    module.add("UnavailableError", py.get_type::<UnavailableError>())?;
    module.add("UnsupportedError", py.get_type::<UnsupportedError>())?;
    module.add("AlreadyExistsError", py.get_type::<AlreadyExistsError>())
}

/// `TRITONSERVER_ERROR_INVALID_ARG`.
const INVALID_ARG: c_int = 3;

/// An error of the C interface, before it is an exception.
pub struct Failure {
    code: c_int,
    message: String,
}

impl Failure {
    pub fn is_invalid_argument(&self) -> bool {
        self.code == INVALID_ARG
    }

    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let Failure { code, message } = failure;
        match code {
            1 => InternalError::new_err(message),
            2 => NotFoundError::new_err(message),
            INVALID_ARG => InvalidArgumentError::new_err(message),
            4 => UnavailableError::new_err(message),
            5 => UnsupportedError::new_err(message),
            6 => AlreadyExistsError::new_err(message),
            7 => CancelledError::new_err(message),
            _ => UnknownError::new_err(message),
        }
    }
}

/// Takes an error that a call returned, or NULL, and deletes it.
pub fn check(error: *mut c::Error) -> Result<(), Failure> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a call has returned this error to its caller, so it is live, and nobody else deletes it.
    unsafe {
        let code = c::TRITONSERVER_ErrorCode(error);
        let message = owned(c::TRITONSERVER_ErrorMessage(error));
        c::TRITONSERVER_ErrorDelete(error);
        Err(Failure { code, message })
    }
}

/// Calls a function that returns an error or NULL.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: handles belong to the objects whose methods make the call, and texts, shapes and results to the
        // block around it; so all live through it.
        let error = unsafe { $crate::c::$function($($argument),*) };
        $crate::errors::check(error)
    }};
}
pub(crate) use call;

/// A text for the C interface.
pub fn text(text: &str) -> PyResult<CString> {
    CString::new(text).map_err(|_| PyValueError::new_err(format!("{text:?} contains a NUL character")))
}

/// A text of the C interface; empty for NULL.
///
/// # Safety
/// `text` is NULL or a C string.
pub unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it is a C string: this function requires it of its caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
