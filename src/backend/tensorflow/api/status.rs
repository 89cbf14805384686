//! Errors of the library.

use std::ffi::CStr;
use std::ptr::NonNull;

use super::functions;
use super::library::Runtime;

/// An error with TensorFlow's own text (contract/frameworks.md section 5, "execution").
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TensorFlowError(pub String);

impl From<TensorFlowError> for nereid_request::Status {
    fn from(error: TensorFlowError) -> nereid_request::Status {
        nereid_request::Status::internal(error.0)
    }
}

/// A place where calls of the library leave their result.
pub struct CallStatus {
    runtime: &'static Runtime,
    at: NonNull<functions::Status>,
}

impl CallStatus {
    pub fn new(runtime: &'static Runtime) -> Result<CallStatus, TensorFlowError> {
        // SAFETY: the function takes nothing and returns a new object or null.
        let at = unsafe { (runtime.functions.TF_NewStatus)() };
        Ok(CallStatus { runtime, at: created(at)? })
    }

    pub fn as_ptr(&self) -> *mut functions::Status {
        self.at.as_ptr()
    }

    /// The result of the call that was given this status last.
    pub fn check(&self) -> Result<(), TensorFlowError> {
        // SAFETY: this object owns a live status, and the call only reads it.
        if unsafe { (self.runtime.functions.TF_GetCode)(self.at.as_ptr()) } == 0 {
            return Ok(());
        }
        // SAFETY: the status is live; the text belongs to it and ends with a NUL.
        let text = unsafe { text_of((self.runtime.functions.TF_Message)(self.at.as_ptr())) };
        Err(TensorFlowError(text))
    }
}

impl Drop for CallStatus {
    fn drop(&mut self) {
        // SAFETY: created by TF_NewStatus in `new` and deleted once.
        unsafe { (self.runtime.functions.TF_DeleteStatus)(self.at.as_ptr()) }
    }
}

/// The object that the library made; it returns null only without memory.
pub fn created<T>(at: *mut T) -> Result<NonNull<T>, TensorFlowError> {
    NonNull::new(at).ok_or_else(|| TensorFlowError("TensorFlow has no memory for an object".to_owned()))
}

/// A copy of a text of the library; empty for null.
///
/// # Safety
/// `at` is null or NUL-terminated.
pub unsafe fn text_of(at: *const std::ffi::c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: not null, so the caller promises that it ends with a NUL.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}
