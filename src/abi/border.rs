//! The border to C: what every exported function does at its start and end.
//!
//! Errors and panics become `TRITONSERVER_Error`, pointers are checked before they are used, and every object that C
//! owns is given out and taken back here.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::handle_registry;
use super::server::Error;
use nereid_request::Status;

/// Runs the body of an exported function: errors and panics become `TRITONSERVER_Error`, success is NULL.
pub(super) fn entry(body: impl FnOnce() -> Result<(), Status>) -> *mut Error {
    match handle_registry::is_on() {
        false => ended(body),
        true => handle_registry::within(body, ended),
    }
}

/// The same for functions that return no error: on an error or panic they return `otherwise`.
pub(super) fn entry_or<T>(otherwise: T, body: impl FnOnce() -> Result<T, Status>) -> T {
    let run = |body| catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Status::internal("")));
    let outcome = match handle_registry::is_on() {
        false => run(body),
        true => handle_registry::within(body, run),
    };
    outcome.unwrap_or(otherwise)
}

fn ended(body: impl FnOnce() -> Result<(), Status>) -> *mut Error {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(status)) => Error::into_raw(status),
        Err(_) => Error::into_raw(Status::internal("the server failed inside a call of its C interface")),
    }
}

pub(super) fn null(what: &str) -> Status {
    Status::invalid(format!("{what} must not be NULL"))
}

/// Writes a result of a call through a pointer of the caller.
///
/// # Safety
/// `to` is NULL or valid for writing a `T`.
pub(super) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(null("the pointer for the result"));
    }
    // SAFETY: not null, and by contract writable.
    unsafe { to.write(value) };
    Ok(())
}

/// The same, where NULL means that the caller does not request the result.
///
/// # Safety
/// `to` is NULL or valid for writing a `T`.
pub(super) unsafe fn put_if_requested<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null and by contract writable.
        unsafe { to.write(value) }
    }
}

/// # Safety
/// `text` is NULL or a C string that outlives the returned reference.
pub(super) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a CStr, Status> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and by contract a C string.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// The same for a text that has to be UTF-8.
///
/// # Safety
/// `text` is NULL or a C string that outlives the returned reference.
pub(super) unsafe fn utf8<'a>(given: *const c_char, what: &str) -> Result<&'a str, Status> {
    // SAFETY: `given` is NULL or a C string: this function requires it of its caller.
    let given = unsafe { text(given, what)? };
    given.to_str().map_err(|_| Status::invalid(format!("{what} is not UTF-8: '{}'", given.to_string_lossy())))
}

/// # Safety
/// `handle` is NULL or points to a live `T` that is not written to while the reference is used.
pub(super) unsafe fn deref<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Status> {
    if handle.is_null() {
        return Err(null(what));
    }
    if handle_registry::is_on() {
        handle_registry::check(handle, what)?;
    }
    // SAFETY: not null, and by contract valid.
    Ok(unsafe { &*handle })
}

/// The same, where NULL means that the caller gives none.
///
/// # Safety
/// `handle` is NULL or points to a live `T` that is not written to while the reference is used.
pub(super) unsafe fn deref_optional<'a, T>(handle: *const T, what: &str) -> Result<Option<&'a T>, Status> {
    if handle.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and by contract valid.
    unsafe { deref(handle, what) }.map(Some)
}

/// # Safety
/// `handle` is NULL or points to a live `T` that only this call uses.
pub(super) unsafe fn deref_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T, Status> {
    if handle.is_null() {
        return Err(null(what));
    }
    if handle_registry::is_on() {
        handle_registry::check(handle, what)?;
    }
    // SAFETY: not null, and by contract valid and exclusive.
    Ok(unsafe { &mut *handle })
}

/// Gives an object to C, until [`take`] gets it back.
pub(super) fn give<T>(value: T) -> *mut T {
    let at = Box::into_raw(Box::new(value));
    if handle_registry::is_on() {
        handle_registry::given(at);
    }
    at
}

/// Gives C an object that is part of `owner`, or lives as long as it.
pub(super) fn lend<T, O>(at: *const T, owner: *const O) -> *const T {
    handle_registry::lend(at, owner)
}

/// Takes back what [`give`] gave to C.
///
/// # Safety
/// `handle` is NULL or came from [`give`], and is not used afterwards.
pub(super) unsafe fn take<T>(handle: *mut T, what: &str) -> Result<Box<T>, Status> {
    if handle.is_null() {
        return Err(null(what));
    }
    if handle_registry::is_on() {
        // SAFETY: `handle` is NULL or an object that the caller gives back: this function requires it of its caller.
        return unsafe { handle_registry::take(handle, what) };
    }
    // SAFETY: by contract a box from `give` that its holder gives up.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Gives C a reference of an `Arc` that others hold too, until [`take_shared`] gets it back.
pub(super) fn give_shared<T>(object: Arc<T>) -> *const T {
    let at = Arc::into_raw(object);
    if handle_registry::is_on() {
        handle_registry::given(at);
    }
    at
}

/// Takes back what [`give_shared`] gave to C.
///
/// # Safety
/// `handle` is NULL or came from [`give_shared`], and is not used afterwards.
pub(super) unsafe fn take_shared<T>(handle: *const T, what: &str) -> Result<Arc<T>, Status> {
    if handle.is_null() {
        return Err(null(what));
    }
    if handle_registry::is_on() {
        handle_registry::give_back(handle, what)?;
    }
    // SAFETY: by contract a reference from `give_shared` that its holder gives up.
    Ok(unsafe { Arc::from_raw(handle) })
}
