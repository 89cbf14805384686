//! `TRITONBACKEND_Request*`: a plug-in reads the server's own request.

use std::ffi::{c_char, c_void};

use super::responses::place_at;
use crate::abi::border::{deref, entry, lend, put, take, text};
use crate::abi::casts::{self, Either, readable_request};
use crate::abi::handle_registry;
use crate::abi::plugin::note_release;
use crate::abi::server::inference::preferred_place;
use crate::abi::server::requests::InferenceRequest;
use crate::abi::server::{Error, parameter_pointer};
use nereid_request::{CorrelationId, InputTensor, NOT_RESCHEDULED, Parameter, Request, Status};

/// `TRITONSERVER_REQUEST_RELEASE_ALL`, `_RESCHEDULE`.
const RELEASE_ALL: u32 = 1;
const RELEASE_RESCHEDULE: u32 = 2;

fn out_of_range(what: &str, index: u32, count: usize) -> Status {
    Status::invalid(format!("out of bounds index {index}: request has {count} {what}"))
}

pub(super) fn at<'a, T>(list: &'a [T], index: u32, what: &str) -> Result<&'a T, Status> {
    let found = usize::try_from(index).ok().and_then(|index| list.get(index));
    found.ok_or_else(|| out_of_range(what, index, list.len()))
}

/// Exports functions `(request, out) -> error`.
macro_rules! getters {
    ($($name:ident($out:ty) = |$it:ident| $value:expr;)*) => {$(
        /// # Safety
        /// The request is live and the result pointer writable; texts live as long as the request.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(request: *const Request, out: *mut $out) -> *mut Error {
            entry(|| {
                // SAFETY: `request` is NULL or a live request: this function requires it of its caller.
                let $it = unsafe { readable_request(request)? };
                let value: Result<$out, Status> = $value;
                // SAFETY: `out` is NULL or writable: this function requires it of its caller.
                unsafe { put(out, value?) }
            })
        }
    )*};
}

getters! {
    TRITONBACKEND_RequestId(*const c_char) = |request| Ok(request.id.as_c_str().as_ptr());
    TRITONBACKEND_RequestFlags(u32) = |request| Ok(request.flags);
    TRITONBACKEND_InferenceRequestTimeoutMicroseconds(u64) = |request| Ok(request.queueing.timeout_us);
    TRITONBACKEND_RequestParameterCount(u32) = |request| Ok(request.parameters.len() as u32);
    TRITONBACKEND_RequestInputCount(u32) = |request| Ok(request.inputs.len() as u32);
    TRITONBACKEND_RequestOutputCount(u32) = |request| Ok(request.outputs.len() as u32);
    TRITONBACKEND_RequestCorrelationId(u64) = |request| match &request.correlation_id {
        CorrelationId::None => Ok(0),
        CorrelationId::Number(id) => Ok(*id),
        CorrelationId::Text(_) => {
            Err(Status::invalid(format!("{}correlation ID in request is not an unsigned int", request.log_id())))
        }
    };
    TRITONBACKEND_RequestCorrelationIdString(*const c_char) = |request| match &request.correlation_id {
        CorrelationId::Text(id) => Ok(id.as_c_str().as_ptr()),
        CorrelationId::None | CorrelationId::Number(_) => {
            Err(Status::invalid(format!("{}correlation ID in request is not a string", request.log_id())))
        }
    };
}

/// # Safety
/// The request is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestIsCancelled(
    request: *const Request,
    is_cancelled: *mut bool,
) -> *mut Error {
    entry(|| {
        let value = match casts::request(request) {
            // SAFETY: `given` is NULL or live: this function requires it of its caller.
            Either::Application(given) => unsafe { deref(given.cast_const(), "request")? }.is_cancelled()?,
            // SAFETY: as for the other.
            Either::Backend(request) => unsafe { deref(request.cast_const(), "request")? }.admission().is_cancelled(),
        };
        // SAFETY: `is_cancelled` is NULL or writable: this function requires it of its caller.
        unsafe { put(is_cancelled, value) }
    })
}

/// # Safety
/// The request is live and the pointers writable; what they get lives as long as the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestParameter(
    request: *const Request,
    index: u32,
    key: *mut *const c_char,
    kind: *mut u32,
    value: *mut *const c_void,
) -> *mut Error {
    entry(|| {
        // SAFETY: `request` is NULL or a live request: this function requires it of its caller.
        let request = unsafe { readable_request(request)? };
        let found = usize::try_from(index).ok().and_then(|index| request.parameters.get(index));
        let Some(Parameter { name, value: given }) = found else {
            return Err(out_of_range("parameters", index, request.parameters.len()));
        };
        let (number, pointer) = parameter_pointer(given);
        // SAFETY: `key`, `kind` and `value` are NULL or writable: this function requires that of its caller.
        unsafe {
            put(key, name.as_c_str().as_ptr())?;
            put(kind, number)?;
            put(value, pointer)
        }
    })
}

/// # Safety
/// The request is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestInputName(
    request: *const Request,
    index: u32,
    name: *mut *const c_char,
) -> *mut Error {
    // SAFETY: `name` is NULL or writable: this function requires it of its caller.
    entry(|| unsafe {
        let input = at(&readable_request(request)?.inputs, index, "inputs")?;
        put(name, input.name.as_c_str().as_ptr())
    })
}

/// # Safety
/// The request is live, `name` a C string, the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestInput(
    request: *const Request,
    name: *const c_char,
    input: *mut *const InputTensor,
) -> *mut Error {
    entry(|| {
        // SAFETY: `request` is NULL or a live request, and `name` is NULL or a C string: this function requires that of
        // its caller.
        let (request, name) = unsafe { (readable_request(request)?, text(name, "name")?) };
        let found = request.input(name.to_bytes());
        if found.is_none() {
            // SAFETY: as above. Backends check it instead of the error.
            unsafe { put(input, std::ptr::null()) }?;
        }
        let found = found.ok_or_else(|| {
            let (id, name) = (request.log_id(), name.to_string_lossy());
            Status::invalid(format!("{id}unknown request input name {name}"))
        })?;
        // SAFETY: `input` is NULL or writable: this function requires it of its caller.
        unsafe { put(input, lend(found, request)) }
    })
}

/// # Safety
/// The request is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestInputByIndex(
    request: *const Request,
    index: u32,
    input: *mut *const InputTensor,
) -> *mut Error {
    // SAFETY: `input` is NULL or writable, and `request` is NULL or a live request: this function requires that of its
    // caller.
    entry(|| unsafe { put(input, lend(at(&readable_request(request)?.inputs, index, "inputs")?, request)) })
}

/// # Safety
/// The request is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestOutputName(
    request: *const Request,
    index: u32,
    name: *mut *const c_char,
) -> *mut Error {
    // SAFETY: `name` is NULL or writable: this function requires it of its caller.
    entry(|| unsafe {
        let output = at(&readable_request(request)?.outputs, index, "requested outputs")?;
        put(name, output.name.as_c_str().as_ptr())
    })
}

/// The preferred memory for an output: an application's allocator chooses it; for network clients it is plain memory.
///
/// # Safety
/// The request is live, `name` a C string or NULL, `byte_size` readable or NULL, the other pointers readable and
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestOutputBufferProperties(
    request: *const Request,
    name: *const c_char,
    byte_size: *mut usize,
    memory_type: *mut u32,
    memory_type_id: *mut i64,
) -> *mut Error {
    // SAFETY: `name` is NULL or a C string; `request` is NULL or live; `memory_type` and `memory_type_id` are NULL or
    // writable: this function requires that of its caller.
    entry(|| unsafe {
        let wanted = place_at(memory_type, memory_type_id)?;
        let name = (!name.is_null()).then(|| text(name, "name")).transpose()?;
        let query = (name, byte_size.as_ref().copied());
        let place = match casts::request(request) {
            Either::Application(given) => {
                preferred_place(deref(given.cast_const(), "request")?.description(), query, wanted)?
            }
            Either::Backend(request) => {
                deref(request.cast_const(), "request")?.completion().preferred_place(query, wanted)?
            }
        };
        put(memory_type, place.memory_type as u32)?;
        put(memory_type_id, place.memory_type_id)
    })
}

/// # Safety
/// The plug-in got the request with an execution and does not use it afterwards, unless this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_RequestRelease(request: *mut Request, flags: u32) -> *mut Error {
    entry(|| {
        if let Either::Application(given) = casts::request(request) {
            // SAFETY: `given` is NULL or live: this function requires it of its caller.
            unsafe { deref(given.cast_const(), "request")? };
            return match flags {
                // SAFETY: as above; whoever releases a request does not edit it meanwhile.
                RELEASE_ALL => unsafe { InferenceRequest::release(given, flags) },
                RELEASE_RESCHEDULE => Err(Status::invalid(NOT_RESCHEDULED)),
                _ => Err(Status::invalid(format!("unknown request release flags {flags}"))),
            };
        }
        // SAFETY: `request` is NULL or live: this function requires it of its caller.
        unsafe { deref(request.cast_const(), "request")? };
        match flags {
            RELEASE_ALL => {}
            RELEASE_RESCHEDULE => {
                // SAFETY: the plug-in owns the request until now and gives it up here, unless this fails.
                let owned = unsafe { Box::from_raw(request) };
                return match owned.reschedule() {
                    Ok(()) => {
                        handle_registry::reclaim(request);
                        note_release(request);
                        Ok(())
                    }
                    Err((status, refused)) => {
                        // The address is unchanged: the request still belongs to the plug-in.
                        let _ = Box::into_raw(refused);
                        Err(status)
                    }
                };
            }
            _ => return Err(Status::invalid(format!("unknown request release flags {flags}"))),
        }
        // SAFETY: the plug-in owns the request until now and gives it up here.
        let owned = unsafe { take(request, "request")? };
        note_release(request);
        drop(owned);
        Ok(())
    })
}
