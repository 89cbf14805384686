//! `TRITONBACKEND_Response*` and `TRITONBACKEND_Output*`: a plug-in writes into the server's own response.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::factories::factory_of;
use crate::abi::border::{deref, deref_mut, entry, give, lend, null, put, put_if_requested, take, text};
use crate::abi::casts::{self, Either};
use crate::abi::handles::{FactoryHandle, OutputHandle, OutputMemory, ResponseHandle};
use crate::abi::server::responses::OutputHead;
use crate::abi::server::{BufferAttributes, Error};
use nereid_memory::{ForeignMemory, Target};
use nereid_request::shared::OutputDestination;
use nereid_request::{
    DataType, MemoryType, OutputQuery, OutputTensor, Place, Request, Shape, Status, Text, Value, element_count,
    format_shape,
};

/// `TRITONSERVER_RESPONSE_COMPLETE_FINAL`.
pub(super) const FINAL: u32 = 1;
/// Far beyond any machine's memory, and small enough that sums do not overflow.
pub(super) const BUFFER_BYTES_MAX: usize = usize::MAX >> 8;
/// A larger number is taken for a mistake of the plug-in.
pub(super) const DIMS_MAX: u32 = 1024;

/// # Safety
/// The request is live and the pointer writable. The response belongs to the caller until it is sent or deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseNew(
    response: *mut *mut ResponseHandle,
    request: *const Request,
) -> *mut Error {
    entry(|| {
        let made = match casts::request(request) {
            // SAFETY: `request` is NULL or live: this function requires it of its caller.
            Either::Backend(request) => ResponseHandle::from(unsafe { deref(request.cast_const(), "request")? }),
            // SAFETY: `request` is NULL or a live request: this function requires it of its caller.
            Either::Application(_) => ResponseHandle::from(&unsafe { factory_of(request)? } as &FactoryHandle),
        };
        if response.is_null() {
            return Err(null("response"));
        }
        // SAFETY: `response` is NULL or writable: this function requires it of its caller.
        unsafe { put(response, give(made)) }
    })
}

/// # Safety
/// The response belongs to the caller, was not sent, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseDelete(response: *mut ResponseHandle) -> *mut Error {
    entry(|| match casts::response(response) {
        // SAFETY: the caller gives the response up.
        Either::Backend(at) => unsafe { take(at, "response") }.map(drop),
        // SAFETY: `at` is NULL or an object that the caller gives back: this function requires it of its caller.
        Either::Application(at) => unsafe { take(at, "response") }.map(drop),
    })
}

/// A response under construction by a backend, which can still be changed.
///
/// # Safety
/// The handle is NULL or that of a live response that only this call uses.
unsafe fn under_construction<'a>(response: *mut ResponseHandle) -> Result<&'a mut ResponseHandle, Status> {
    match casts::response(response) {
        // SAFETY: `at` is NULL or live, and used by this call alone: this function requires it of its caller.
        Either::Backend(at) => unsafe { deref_mut(at, "response") },
        Either::Application(at) => {
            // SAFETY: `at` is NULL or live: this function requires it of its caller.
            unsafe { deref(at.cast_const(), "response")? };
            Err(Status::invalid("the response was sent: it can be read and deleted, and nothing else"))
        }
    }
}

/// Exports the setters of response parameters.
macro_rules! set_parameter {
    ($($function:ident($from:ty) = |$it:ident| $value:expr;)*) => {$(
        /// # Safety
        /// The response belongs to the caller; texts are C strings.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(
            response: *mut ResponseHandle,
            name: *const c_char,
            $it: $from,
        ) -> *mut Error {
            entry(|| {
                // SAFETY: `at` is NULL or live, and used by this call alone; `name` is NULL or a C string: this
                // function requires that of its caller.
                let (parameters, name) = unsafe {
                    let parameters = match casts::response(response) {
                        Either::Backend(at) => &mut deref_mut(at, "response")?.response.parameters,
                        Either::Application(at) => deref_mut(at, "response")?.parameters_mut(),
                    };
                    (parameters, text(name, "name")?)
                };
                parameters.push(Text::new(name.to_bytes()), $value);
                Ok(())
            })
        }
    )*};
}

set_parameter! {
    // SAFETY: `value` is NULL or a C string: this function requires it of its caller.
    TRITONBACKEND_ResponseSetStringParameter(*const c_char) = |value| {
        // SAFETY: by contract a C string or NULL.
        Value::String(Text::new(unsafe { text(value, "value")? }.to_bytes()))
    };
    TRITONBACKEND_ResponseSetIntParameter(i64) = |value| Value::Int(value);
    TRITONBACKEND_ResponseSetBoolParameter(bool) = |value| Value::Bool(value);
    TRITONBACKEND_ResponseSetDoubleParameter(f64) = |value| Value::Double(value);
}

/// # Safety
/// The response belongs to the caller; `name` is a C string, `shape` readable for `dims_count` numbers, `output`
/// writable. The output lives with the response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseOutput(
    response: *mut ResponseHandle,
    output: *mut *mut OutputHandle,
    name: *const c_char,
    datatype: u32,
    shape: *const i64,
    dims_count: u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: `name` is NULL or a C string: this function requires it of its caller.
        let (handle, name) = unsafe { (under_construction(response)?, text(name, "name")?) };
        let datatype = DataType::from_number(datatype).ok_or_else(|| {
            Status::invalid(format!("unknown data type {datatype} for output '{}'", name.to_string_lossy()))
        })?;
        if output.is_null() {
            return Err(null("output"));
        }
        if dims_count > DIMS_MAX {
            let name = name.to_string_lossy();
            return Err(Status::invalid(format!("output '{name}' has {dims_count} dimensions, more than {DIMS_MAX}")));
        }
        if shape.is_null() && dims_count > 0 {
            return Err(null("shape"));
        }
        let dims = match dims_count {
            0 => Shape::new(),
            // SAFETY: not null and by contract readable.
            count => Shape::from_slice(unsafe { std::slice::from_raw_parts(shape, count as usize) }),
        };
        let tensor = OutputTensor {
            name: Text::new(name.to_bytes()),
            datatype,
            shape: dims,
            data: smallvec![],
            index: 0,
            on_device: None,
        };
        let response: *const ResponseHandle = handle;
        let attributes = BufferAttributes::default();
        handle.outputs.push(Box::new(OutputHandle { tensor, buffer: None, has_buffer: false, attributes, response }));
        let last = handle.outputs.last_mut().map_or(std::ptr::null_mut(), |output| &raw mut **output);
        lend(last, response);
        // SAFETY: `output` is NULL or writable: this function requires it of its caller.
        unsafe { put(output, last) }
    })
}

/// # Safety
/// The output belongs to a response of the caller; the pointers are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_OutputBuffer(
    output: *mut OutputHandle,
    buffer: *mut *mut c_void,
    byte_size: u64,
    memory_type: *mut u32,
    memory_type_id: *mut i64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `output` is NULL or live, and used by this call alone: this function requires it of its caller.
        let output = unsafe { deref_mut(output, "output")? };
        if output.has_buffer {
            let text = format!("allocated buffer for output '{}' already exists", output.tensor.name);
            return Err(Status::already_exists(text));
        }
        // No allocation is larger than `isize::MAX`; the pool's arithmetic relies on it.
        let len = isize::try_from(byte_size).ok().and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|&len| len < BUFFER_BYTES_MAX).ok_or_else(|| {
            Status::invalid(format!("{byte_size} bytes are too many for output '{}'", output.tensor.name))
        })?;
        // SAFETY: the output belongs to its response, which the caller still owns.
        let response = unsafe { deref(output.response, "response")? };
        // SAFETY: the caller's promise is passed on: both pointers hold the preference before the result is written to
        // them.
        let place = unsafe { place_at(memory_type, memory_type_id)? };
        if buffer.is_null() {
            return Err(null("buffer"));
        }
        let name = output.tensor.name.as_bytes();
        let is_begun = response.response.is_begun;
        let query = OutputQuery { name, byte_size: len, place, is_begun, is_aligned: false };
        let mut memory = memory_for(response, &query)?;
        let at = if len == 0 { std::ptr::null_mut() } else { memory.as_mut_ptr() };
        let (kind, id) = memory.place();
        output.buffer = Some(memory);
        output.has_buffer = true;
        output.attributes.byte_size = len;
        (output.attributes.memory_type, output.attributes.memory_type_id) = (kind, id);
        // SAFETY: `buffer`, `memory_type` and `memory_type_id` are NULL or writable: this function requires that of its
        // caller.
        unsafe {
            put(buffer, at)?;
            put(memory_type, kind)?;
            put(memory_type_id, id)
        }
    })
}

/// Memory for an output: of a device if the plug-in requests it and the receiver of the response accepts it there, else
/// of the host.
fn memory_for(response: &ResponseHandle, query: &OutputQuery<'_>) -> Result<OutputMemory, Status> {
    let place = query.place;
    let gpus = response.gpus.as_ref().filter(|_| query.byte_size > 0);
    if let Some(gpus) = gpus.filter(|_| place.memory_type == MemoryType::Gpu) {
        match response.factory.destination_of_query(query)? {
            OutputDestination::At(target) => return Ok(OutputMemory::At(target)),
            OutputDestination::OnDevice => {
                let gpu = i32::try_from(place.memory_type_id).ok().and_then(|id| gpus.get(id));
                // Where no device memory is left, the host's replaces it.
                if let Some(buffer) = gpu.and_then(|gpu| gpu.allocate(query.byte_size).ok()) {
                    return Ok(OutputMemory::OnDevice(buffer));
                }
            }
            OutputDestination::OnHost => {}
        }
    }
    let target = response.factory.allocate_for_query(query)?;
    let pinned = gpus.filter(|_| place.memory_type == MemoryType::CpuPinned && matches!(target, Target::Block(_)));
    let Some(mut buffer) = pinned.and_then(|gpus| gpus.pinned().take(query.byte_size)) else {
        return Ok(OutputMemory::Host(target));
    };
    let (at, len) = (buffer.as_mut_ptr(), query.byte_size);
    // SAFETY: the buffer is its owner's alone, and of this length.
    let given = unsafe { ForeignMemory::new(at, len, (MemoryType::CpuPinned as u32, 0), Arc::new(buffer)) };
    Ok(OutputMemory::Host(Target::Foreign(given)))
}

/// The place that a plug-in prefers for memory; a kind that does not exist is no preference.
///
/// # Safety
/// The pointers are NULL or readable.
pub(super) unsafe fn place_at(memory_type: *const u32, memory_type_id: *const i64) -> Result<Place, Status> {
    // SAFETY: both pointers are NULL or readable: this function requires that of its caller.
    let (kind, id) = unsafe { (memory_type.as_ref(), memory_type_id.as_ref()) };
    let (kind, id) = (*kind.ok_or_else(|| null("memory_type"))?, *id.ok_or_else(|| null("memory_type_id"))?);
    Ok(MemoryType::from_number(kind).map_or_else(Place::default, |memory_type| Place {
        memory_type,
        memory_type_id: id,
        cuda_ipc_handle: 0,
    }))
}

/// # Safety
/// The output belongs to a response of the caller and the pointer is writable. The attributes live as long as the
/// output; before there is a buffer they hold defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_OutputBufferAttributes(
    output: *const OutputHandle,
    attributes: *mut *const BufferAttributes,
) -> *mut Error {
    // SAFETY: `output` is NULL or live, and `attributes` is NULL or writable: this function requires that of its
    // caller.
    entry(|| unsafe {
        let found = &raw const deref(output, "output")?.attributes;
        put(attributes, lend(found, output))
    })
}

/// # Safety
/// The response belongs to the caller; the pointers are writable or NULL, and what they get lives with the response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InferenceResponseOutput(
    response: *const ResponseHandle,
    index: u32,
    name: *mut *const c_char,
    datatype: *mut u32,
    shape: *mut *const i64,
    dim_count: *mut u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `response` is NULL or a live response: this function requires it of its caller.
        let heads = unsafe { heads(response)? };
        let found = usize::try_from(index).ok().and_then(|index| heads.get(index)).ok_or_else(|| {
            Status::invalid(format!("out of bounds index {index}: response has {} outputs", heads.len()))
        })?;
        // SAFETY: `name` is NULL or writable: this function requires it of its caller.
        unsafe {
            put_if_requested(name, found.name.as_c_str().as_ptr());
            describe(found, datatype, shape, dim_count);
        }
        Ok(())
    })
}

/// # Safety
/// The response belongs to the caller, `name` is a C string; the pointers are writable or NULL, and what they get lives
/// with the response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InferenceResponseOutputByName(
    response: *const ResponseHandle,
    name: *const c_char,
    datatype: *mut u32,
    shape: *mut *const i64,
    dim_count: *mut u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `name` is NULL or a C string: this function requires it of its caller.
        let (heads, name) = unsafe { (heads(response)?, text(name, "name")?) };
        let found = heads.iter().find(|head| head.name.as_bytes() == name.to_bytes());
        let unknown = || Status::not_found(format!("response has no output '{}'", name.to_string_lossy()));
        // SAFETY: the three pointers are NULL or writable: this function requires that of its caller.
        unsafe { describe(found.ok_or_else(unknown)?, datatype, shape, dim_count) };
        Ok(())
    })
}

/// The outputs of a response, under construction or sent.
///
/// # Safety
/// The handle is NULL or of a live response.
unsafe fn heads<'a>(response: *const ResponseHandle) -> Result<SmallVec<[OutputHead<'a>; 8]>, Status> {
    match casts::response(response) {
        Either::Backend(at) => {
            // SAFETY: `at` is NULL or live: this function requires it of its caller.
            let tensors = unsafe { deref(at.cast_const(), "response")? }.outputs.iter().map(|output| &output.tensor);
            let head = |tensor: &'a OutputTensor| OutputHead {
                name: &tensor.name,
                datatype: tensor.datatype,
                shape: &tensor.shape,
            };
            Ok(tensors.map(head).collect())
        }
        // SAFETY: `at` is NULL or live: this function requires it of its caller.
        Either::Application(at) => Ok(unsafe { deref(at.cast_const(), "response")? }.heads().collect()),
    }
}

/// # Safety
/// The pointers are writable or NULL.
unsafe fn describe(head: &OutputHead<'_>, datatype: *mut u32, shape: *mut *const i64, dim_count: *mut u64) {
    // SAFETY: `datatype`, `shape` and `dim_count` are NULL or writable: this function requires that of its caller.
    unsafe {
        put_if_requested(datatype, head.datatype as u32);
        put_if_requested(shape, head.shape.as_ptr());
        put_if_requested(dim_count, head.shape.len() as u64);
    }
}

/// Checks that size and shape agree: clients read as many bytes as the shape implies, and would misread the next
/// tensor.
fn check_size(output: &OutputTensor) -> Result<(), Status> {
    let size = output.datatype.byte_size();
    let count = element_count(&output.shape).and_then(|count| usize::try_from(count).ok());
    let expected = count.and_then(|count| count.checked_mul(size));
    // Strings carry their lengths in their bytes (datatype size 0), so only a tensor without elements has no bytes.
    let fits = if size == 0 { count.is_some() } else { expected == Some(output.byte_size()) };
    if fits {
        return Ok(());
    }
    let (name, shape, bytes) = (&output.name, format_shape(&output.shape), output.byte_size());
    Err(Status::internal(format!("output '{name}' has {bytes} bytes, which do not fit its shape {shape}")))
}

/// # Safety
/// The response belongs to the caller and is not used afterwards; the error, if any, stays the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ResponseSend(
    response: *mut ResponseHandle,
    flags: u32,
    error: *const Error,
) -> *mut Error {
    entry(|| {
        let failure = match error.is_null() {
            true => None,
            // SAFETY: not null, and by contract a live error.
            false => Some(unsafe { deref(error, "error")? }.status()),
        };
        // SAFETY: `response` is NULL or a live response: this function requires it of its caller.
        unsafe { under_construction(response)? };
        // SAFETY: the caller gives the response up.
        let ResponseHandle { factory, mut response, outputs, shapes, .. } = *unsafe { take(response, "response")? };
        match failure {
            Some(failure) => response.error = Some(failure),
            None => {
                for output in outputs {
                    let OutputHandle { mut tensor, buffer, .. } = *output;
                    if let Some(memory) = buffer {
                        // SAFETY: by contract a plug-in sends a response after the writes to its outputs have
                        // completed.
                        unsafe { memory.freeze_into(&mut tensor) };
                    }
                    response.error = response.error.take().or_else(|| check_size(&tensor).err());
                    if let Some(shapes) = &shapes {
                        shapes.turn(&mut tensor);
                    }
                    response.outputs.push(tensor);
                }
            }
        }
        factory.send(response, flags & FINAL != 0);
        Ok(())
    })
}
