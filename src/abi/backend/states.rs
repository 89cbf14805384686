//! `TRITONBACKEND_State*`: what a plug-in hands from one request of a sequence to the next (schedulers.md section 3,
//! "Implicit state").
//!
//! The interface has no way to delete a state: it belongs to its request and goes with it.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use crate::abi::server::{Error, deref, deref_mut, entry, null, put, text};
use crate::backend::plugin::executing_model;
use crate::memory::{BlockMut, Slice};
use crate::request::{DataType, Request, Shape, States, Status};

/// `TRITONSERVER_MEMORY_CPU`.
const MEMORY_CPU: u32 = 0;

/// `TRITONBACKEND_State`.
pub struct StateHandle {
    states: Arc<States>,
    name: String,
    datatype: DataType,
    shape: Shape,
    buffer: Option<BlockMut>,
    /// It owns this.
    request: *const Request,
}

// SAFETY: the handle moves with its request, which it points to and which moves between threads itself.
unsafe impl Send for StateHandle {}

/// # Safety
/// The request is live, `name` a C string, `shape` readable for `dims_count` numbers, `state` writable. The state lives
/// with the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_StateNew(
    state: *mut *mut StateHandle,
    request: *const Request,
    name: *const c_char,
    datatype: u32,
    shape: *const i64,
    dims_count: u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: the caller's promise is passed on.
        let (owner, name) = unsafe { (deref(request, "request")?, text(name, "name")?) };
        let name = name.to_string_lossy().into_owned();
        if state.is_null() {
            return Err(null("state"));
        }
        if shape.is_null() && dims_count > 0 {
            return Err(null("shape"));
        }
        let states = owner.states.as_ref().ok_or_else(|| {
            let model = executing_model();
            let text = format!("unable to add state '{name}'. State configuration is missing for model '{model}'.");
            Status::invalid(text)
        })?;
        if states.tensors().iter().all(|state| state.output_name != name) {
            return Err(Status::invalid(format!("state '{name}' is not a valid state name.")));
        }
        let datatype = DataType::from_number(datatype)
            .ok_or_else(|| Status::invalid(format!("unknown data type {datatype} for state '{name}'")))?;
        let shape = match dims_count {
            0 => Shape::new(),
            // SAFETY: not null and by contract readable.
            count => Shape::from_slice(unsafe { std::slice::from_raw_parts(shape, count as usize) }),
        };
        let states = Arc::clone(states);
        let mut handle = Box::new(StateHandle { states, name, datatype, shape, buffer: None, request });
        let at = &raw mut *handle;
        owner.attach(handle);
        // SAFETY: as above.
        unsafe { put(state, at) }
    })
}

/// # Safety
/// The state and its request are live; the pointers are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_StateBuffer(
    state: *mut StateHandle,
    buffer: *mut *mut c_void,
    byte_size: u64,
    memory_type: *mut u32,
    memory_type_id: *mut i64,
) -> *mut Error {
    entry(|| {
        // SAFETY: the caller's promise is passed on.
        let handle = unsafe { deref_mut(state, "state")? };
        let too_large = || Status::invalid(format!("{byte_size} bytes are too many for state '{}'", handle.name));
        let len = usize::try_from(byte_size).ok().filter(|&len| len < super::responses::BUFFER_BYTES_MAX);
        let len = len.ok_or_else(too_large)?;
        if handle.buffer.as_ref().is_none_or(|block| block.len() != len) {
            // SAFETY: the request owns the handle.
            handle.buffer = Some(unsafe { deref(handle.request, "request")? }.allocate(len)?);
        }
        let at = handle.buffer.as_mut().map_or(std::ptr::null_mut(), |block| block.as_mut_ptr().cast());
        // SAFETY: as above.
        unsafe {
            put(buffer, if len == 0 { std::ptr::null_mut() } else { at })?;
            put(memory_type, MEMORY_CPU)?;
            put(memory_type_id, 0)
        }
    })
}

/// Makes the state's buffer the input of the sequence's next request.
///
/// # Safety
/// The state and its request are live; nobody writes to the buffer any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_StateUpdate(state: *mut StateHandle) -> *mut Error {
    entry(|| {
        // SAFETY: the caller's promise is passed on.
        let handle = unsafe { deref_mut(state, "state")? };
        let data = handle.buffer.take().map_or_else(Slice::empty, BlockMut::freeze);
        handle.states.update(&handle.name, handle.datatype, handle.shape.clone(), data)
    })
}
