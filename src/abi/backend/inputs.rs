//! `TRITONBACKEND_Input*`: a plug-in reads an input where it lies.
//!
//! A request may bring data of its own for the instances of one host policy; who asks for a policy without such data,
//! or for none, gets what is there for all.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};

use super::requests::at;
use crate::abi::border::{deref, entry, lend, put, put_if_asked};
use crate::abi::server::{BufferAttributes, Error};
use crate::memory::Slice;
use crate::request::{InputTensor, Status};

/// The policy that is asked for; NULL is none.
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

/// # Safety
/// The input belongs to a live request; pointers are writable, or NULL for what is not asked.
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
    // SAFETY: the caller's promise is passed on.
    entry(|| unsafe { to.tell(deref(input, "input")?, None) })
}

/// # Safety
/// The input belongs to a live request, `host_policy_name` is NULL or a C string; pointers are writable, or NULL for
/// what is not asked.
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
    // SAFETY: the caller's promise is passed on.
    entry(|| unsafe { to.tell(deref(input, "input")?, policy(host_policy_name)) })
}

/// Where the properties of an input are asked for; NULL is not asked.
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
    unsafe fn tell(self, input: &InputTensor, policy: Option<&[u8]>) -> Result<(), Status> {
        let pieces = pieces(input, policy);
        // A scalar of each batch item has a shape for the model, too: the batch.
        let dims = if input.model_shape.is_empty() { &input.shape } else { &input.model_shape };
        // SAFETY: by contract.
        unsafe {
            put_if_asked(self.name, input.name.as_c_str().as_ptr());
            put_if_asked(self.datatype, input.datatype as u32);
            put_if_asked(self.shape, dims.as_ptr());
            put_if_asked(self.dims_count, dims.len() as u32);
            put_if_asked(self.byte_size, pieces.iter().map(|piece| piece.len() as u64).sum());
            put_if_asked(self.buffer_count, pieces.len() as u32);
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
    // SAFETY: the caller's promise is passed on.
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
        // SAFETY: the caller's promise is passed on.
        let (input, policy) = unsafe { (deref(input, "input")?, policy(host_policy_name)) };
        // SAFETY: as above.
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
    let piece: &Slice = at(pieces(input, policy), index, "buffers of the input")?;
    let place = input.place(policy, index as usize);
    // SAFETY: by contract.
    unsafe {
        put(buffer, piece.as_ptr().cast())?;
        put(byte_size, piece.len() as u64)?;
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
        // SAFETY: the caller's promise is passed on.
        let input = unsafe { deref(input, "input")? };
        let piece: &Slice = at(&input.data, index, "buffers of the input")?;
        let found = input.kept.with(|kept| {
            let kept = kept.get_or_insert_with(|| Box::new(all_attributes(input)) as Box<dyn Any + Send>);
            let all = kept.downcast_ref::<Box<[BufferAttributes]>>()?;
            usize::try_from(index).ok().and_then(|index| all.get(index)).map(std::ptr::from_ref)
        });
        let found = found.ok_or_else(|| Status::internal("an input keeps something else than its attributes"))?;
        // SAFETY: as above.
        unsafe {
            put(buffer, piece.as_ptr().cast())?;
            put(attributes, lend(found, input))
        }
    })
}

/// Of every piece, in one place that does not move as long as the input lives.
fn all_attributes(input: &InputTensor) -> Box<[BufferAttributes]> {
    let of = |(at, piece): (usize, &Slice)| {
        let place = input.place(None, at);
        BufferAttributes {
            memory_type: place.memory_type as u32,
            memory_type_id: place.memory_type_id,
            byte_size: piece.len(),
            cuda_ipc_handle: std::ptr::without_provenance_mut(place.cuda_ipc_handle),
        }
    };
    input.data.iter().enumerate().map(of).collect()
}
