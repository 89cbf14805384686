//! `TRITONBACKEND_State*`: a plug-in hands tensors from one request of a sequence to the next
//! (contract/c_api.md section 5, "State").

use std::any::Any;
use std::ffi::{c_char, c_void};

use super::responses::{BUFFER_BYTES_MAX, DIMS_MAX};
use crate::abi::border::{deref, entry, lend, null, put, text};
use crate::abi::casts::readable_request;
use crate::abi::plugin::executing_model;
use crate::abi::server::{BufferAttributes, Error};
use nereid_request::{DataType, Request, Shape, StateHandle, Status};

/// `TRITONSERVER_MEMORY_CPU`.
const MEMORY_CPU: u32 = 0;

/// # Safety
/// The request is live, `name` a C string, `shape` readable for `dims_count` numbers, `state` writable. The state lives
/// as long as the sequence and at least as long as the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_StateNew(
    state: *mut *const StateHandle,
    request: *const Request,
    name: *const c_char,
    datatype: u32,
    shape: *const i64,
    dims_count: u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: `request` is NULL or a live request, and `name` is NULL or a C string: this function requires that of
        // its caller.
        let (request, name) = unsafe { (readable_request(request)?, text(name, "name")?.to_string_lossy()) };
        if state.is_null() {
            return Err(null("state"));
        }
        let Some(states) = &request.states else {
            let model = executing_model();
            return Err(Status::invalid(format!(
                "unable to add state '{name}'. State configuration is missing for model '{model}'."
            )));
        };
        let datatype = DataType::from_number(datatype)
            .ok_or_else(|| Status::invalid(format!("unknown data type {datatype} for state '{name}'")))?;
        if dims_count > DIMS_MAX {
            return Err(Status::invalid(format!("state '{name}' has {dims_count} dimensions, more than {DIMS_MAX}")));
        }
        if shape.is_null() && dims_count > 0 {
            return Err(null("shape"));
        }
        let dims = match dims_count {
            0 => Shape::new(),
            // SAFETY: not null and by contract readable.
            count => Shape::from_slice(unsafe { std::slice::from_raw_parts(shape, count as usize) }),
        };
        // SAFETY: `state` is NULL or writable: this function requires it of its caller.
        unsafe { put(state, lend(states.handle(&name, datatype, dims)?, request)) }
    })
}

/// # Safety
/// The state is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_StateUpdate(state: *const StateHandle) -> *mut Error {
    // SAFETY: `state` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { deref(state, "state")? }.update())
}

/// # Safety
/// The state is live and the pointers are writable. The buffer may be written until the state is updated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_StateBuffer(
    state: *const StateHandle,
    buffer: *mut *mut c_void,
    byte_size: u64,
    memory_type: *mut u32,
    memory_type_id: *mut i64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `state` is NULL or live: this function requires it of its caller.
        let state = unsafe { deref(state, "state")? };
        let len = usize::try_from(byte_size).ok().filter(|&len| len < BUFFER_BYTES_MAX);
        let len = len.ok_or_else(|| Status::invalid(format!("{byte_size} bytes are too many for a state")))?;
        let at = state.buffer(len)?;
        // SAFETY: `buffer`, `memory_type` and `memory_type_id` are NULL or writable: this function requires that of its
        // caller.
        unsafe {
            put(buffer, if len == 0 { std::ptr::null_mut() } else { at.cast() })?;
            put(memory_type, MEMORY_CPU)?;
            put(memory_type_id, 0)
        }
    })
}

/// # Safety
/// The state is live and the pointer writable. The attributes live as long as the state, and hold the values of the
/// last call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_StateBufferAttributes(
    state: *const StateHandle,
    attributes: *mut *const BufferAttributes,
) -> *mut Error {
    entry(|| {
        // SAFETY: `state` is NULL or live: this function requires it of its caller.
        let state = unsafe { deref(state, "state")? };
        let byte_size = state.byte_size();
        let found = state.attachment(|kept| {
            let kept: &mut Box<dyn Any + Send> = kept.get_or_insert_with(|| Box::new(BufferAttributes::default()));
            let known = kept.downcast_mut::<BufferAttributes>()?;
            known.byte_size = byte_size;
            Some(&raw const *known)
        });
        let found = found.ok_or_else(|| Status::internal("a state keeps something else than its attributes"))?;
        // SAFETY: `attributes` is NULL or writable: this function requires it of its caller.
        unsafe { put(attributes, lend(found, state)) }
    })
}
