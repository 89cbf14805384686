//! `TRITONBACKEND_Input*`: a plug-in reads an input where it lies.
//!
//! A request may bring data of its own for the instances of one host policy; a call that names another policy, or none,
//! gets the data that all instances share.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};

use super::requests::at;
use crate::abi::border::{deref, entry, lend, put, put_if_requested};
use crate::abi::server::{BufferAttributes, Error};
use nereid_gpu::DeviceRegion;
use nereid_memory::Slice;
use nereid_request::{InputTensor, Place, Status};

/// The name of the requested host policy; NULL is none.
///
/// # Safety
/// `name` is NULL or a C string that outlives the result.
unsafe fn policy<'a>(name: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: not NULL, and by contract a C string.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes())
}

fn pieces<'a>(input: &'a InputTensor, policy: Option<&[u8]>) -> &'a [Slice] {
    policy.map_or(&input.data[..], |policy| input.data_for(policy))
}

/// A buffer of an input as the C functions return it.
struct InputBuffer {
    at: *const c_void,
    len: usize,
    place: Place,
}

/// The number of buffers of an input: one if it lies on a device and has no data for the policy.
fn buffer_count(input: &InputTensor, policy: Option<&[u8]>) -> usize {
    match (pieces(input, policy), input.on_device()) {
        ([], Some(_)) => 1,
        (pieces, _) => pieces.len(),
    }
}

fn find_buffer(input: &InputTensor, policy: Option<&[u8]>, index: u32) -> Result<InputBuffer, Status> {
    let pieces = pieces(input, policy);
    if let ([], Some(slice)) = (pieces, input.on_device()) {
        at(&[slice], index, "buffers of the input")?;
        // The CUDA IPC handle, if the client passed one.
        let passed = input.place(None, 0).cuda_ipc_handle;
        let handle = slice.owner::<DeviceRegion>().map(|region| region.handle().as_ptr().expose_provenance());
        let handle = handle.unwrap_or(passed);
        let place = Place { cuda_ipc_handle: handle, ..Place::of(slice) };
        return Ok(InputBuffer {
            at: std::ptr::with_exposed_provenance(slice.address().0 as usize),
            len: slice.len(),
            place,
        });
    }
    let piece: &Slice = at(pieces, index, "buffers of the input")?;
    Ok(InputBuffer { at: piece.as_ptr().cast(), len: piece.len(), place: input.place(policy, index as usize) })
}

/// # Safety
/// The input belongs to a live request; pointers are writable, or NULL for what is not requested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InputProperties(
    input: *const InputTensor,
    name: *mut *const c_char,
    datatype: *mut u32,
    shape: *mut *const i64,
    dims_count: *mut u32,
    byte_size: *mut u64,
    buffer_count: *mut u32,
) -> *mut Error {
    let to = Properties { name, datatype, shape, dims_count, byte_size, buffer_count };
    // SAFETY: `input` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { to.write(deref(input, "input")?, None) })
}

/// # Safety
/// The input belongs to a live request, `host_policy_name` is NULL or a C string; pointers are writable, or NULL for
/// what is not requested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InputPropertiesForHostPolicy(
    input: *const InputTensor,
    host_policy_name: *const c_char,
    name: *mut *const c_char,
    datatype: *mut u32,
    shape: *mut *const i64,
    dims_count: *mut u32,
    byte_size: *mut u64,
    buffer_count: *mut u32,
) -> *mut Error {
    let to = Properties { name, datatype, shape, dims_count, byte_size, buffer_count };
    // SAFETY: `input` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { to.write(deref(input, "input")?, policy(host_policy_name)) })
}

/// The result pointers for the properties of an input; NULL: not requested.
struct Properties {
    name: *mut *const c_char,
    datatype: *mut u32,
    shape: *mut *const i64,
    dims_count: *mut u32,
    byte_size: *mut u64,
    buffer_count: *mut u32,
}

impl Properties {
    /// # Safety
    /// The pointers are writable or NULL.
    unsafe fn write(self, input: &InputTensor, policy: Option<&[u8]>) -> Result<(), Status> {
        let byte_size = match (pieces(input, policy), input.on_device()) {
            ([], Some(slice)) => slice.len() as u64,
            (pieces, _) => pieces.iter().map(|piece| piece.len() as u64).sum(),
        };
        // Where each batch item is a scalar, the model's shape is not empty: it is the batch dimension.
        let dims = if input.model_shape.is_empty() { &input.shape } else { &input.model_shape };
        // SAFETY: each pointer of `self` is NULL or writable: this function requires that of its caller.
        unsafe {
            put_if_requested(self.name, input.name.as_c_str().as_ptr());
            put_if_requested(self.datatype, input.datatype as u32);
            put_if_requested(self.shape, dims.as_ptr());
            put_if_requested(self.dims_count, dims.len() as u32);
            put_if_requested(self.byte_size, byte_size);
            put_if_requested(self.buffer_count, buffer_count(input, policy) as u32);
        }
        Ok(())
    }
}

/// # Safety
/// The input belongs to a live request; the pointers are writable. The buffer is read only and lives with the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InputBuffer(
    input: *const InputTensor,
    index: u32,
    buffer: *mut *const c_void,
    byte_size: *mut u64,
    memory_type: *mut u32,
    memory_type_id: *mut i64,
) -> *mut Error {
    // SAFETY: `input` is NULL or live, and the other pointers are NULL or writable: this function requires that of its
    // caller.
    entry(|| unsafe {
        put_buffer(deref(input, "input")?, None, index, (buffer, byte_size, memory_type, memory_type_id))
    })
}

/// # Safety
/// The input belongs to a live request, `host_policy_name` is NULL or a C string; the pointers are writable. The buffer
/// is read only and lives with the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InputBufferForHostPolicy(
    input: *const InputTensor,
    host_policy_name: *const c_char,
    index: u32,
    buffer: *mut *const c_void,
    byte_size: *mut u64,
    memory_type: *mut u32,
    memory_type_id: *mut i64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `input` is NULL or live: this function requires it of its caller.
        let (input, policy) = unsafe { (deref(input, "input")?, policy(host_policy_name)) };
        // SAFETY: the four pointers are NULL or writable: this function requires that of its caller.
        unsafe { put_buffer(input, policy, index, (buffer, byte_size, memory_type, memory_type_id)) }
    })
}

/// # Safety
/// The pointers are writable or NULL.
unsafe fn put_buffer(
    input: &InputTensor,
    policy: Option<&[u8]>,
    index: u32,
    (buffer, byte_size, memory_type, memory_type_id): (*mut *const c_void, *mut u64, *mut u32, *mut i64),
) -> Result<(), Status> {
    let InputBuffer { at, len, place } = find_buffer(input, policy, index)?;
    // SAFETY: `buffer`, `byte_size`, `memory_type` and `memory_type_id` are NULL or writable: this function requires
    // that of its caller.
    unsafe {
        put(buffer, at)?;
        put(byte_size, len as u64)?;
        put(memory_type, place.memory_type as u32)?;
        put(memory_type_id, place.memory_type_id)
    }
}

/// # Safety
/// The input belongs to a live request; the pointers are writable. What they get lives with the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_InputBufferAttributes(
    input: *const InputTensor,
    index: u32,
    buffer: *mut *const c_void,
    attributes: *mut *const BufferAttributes,
) -> *mut Error {
    entry(|| {
        // SAFETY: `input` is NULL or live: this function requires it of its caller.
        let input = unsafe { deref(input, "input")? };
        let InputBuffer { at, .. } = find_buffer(input, None, index)?;
        let found = input.attachment.with(|kept| {
            let kept = kept.get_or_insert_with(|| Box::new(all_attributes(input)) as Box<dyn Any + Send>);
            let all = kept.downcast_ref::<Box<[BufferAttributes]>>()?;
            usize::try_from(index).ok().and_then(|index| all.get(index)).map(std::ptr::from_ref)
        });
        let found = found.ok_or_else(|| Status::internal("an input keeps something else than its attributes"))?;
        // SAFETY: `buffer` and `attributes` are NULL or writable: this function requires that of its caller.
        unsafe {
            put(buffer, at)?;
            put(attributes, lend(found, input))
        }
    })
}

/// The attributes of every piece, at an address that does not change while the input lives.
fn all_attributes(input: &InputTensor) -> Box<[BufferAttributes]> {
    let of = |InputBuffer { len, place, .. }: InputBuffer| BufferAttributes {
        memory_type: place.memory_type as u32,
        memory_type_id: place.memory_type_id,
        byte_size: len,
        cuda_ipc_handle: std::ptr::with_exposed_provenance_mut(place.cuda_ipc_handle),
    };
    (0..buffer_count(input, None))
        .filter_map(|at| find_buffer(input, None, u32::try_from(at).ok()?).ok())
        .map(of)
        .collect()
}
