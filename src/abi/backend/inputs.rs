//! `TRITONBACKEND_Input*`: a plug-in reads an input where it lies.
//!
//! A request may bring data of its own for the instances of one host policy; who asks for a policy without such data,
//! or for none, gets what is there for all.

use std::any::Any;
use std::ffi::{c_char, c_void};

use super::requests::at;
use crate::abi::border::{deref, entry, lend, put, put_if_asked, text};
use crate::abi::server::{BufferAttributes, Error};
use crate::memory::Slice;
use crate::request::{InputTensor, Status};

/// The policy that is asked for; NULL is none.
///
/// # Safety
/// `name` is NULL or a C string that outlives the result.
unsafe fn policy<'a>(name: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise is passed on.
    unsafe { text(name, "host_policy_name") }.ok().map(|name| name.to_bytes())
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
    let policy = std::ptr::null();
    // SAFETY: the caller's promise is passed on.
    unsafe {
        TRITONBACKEND_InputPropertiesForHostPolicy(
            input,
            policy,
            name,
            datatype,
            shape,
            dims_count,
            byte_size,
            buffer_count,
        )
    }
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
    entry(|| {
        // SAFETY: the caller's promise is passed on.
        let input = unsafe { deref(input, "input")? };
        // SAFETY: as above.
        let pieces = pieces(input, unsafe { policy(host_policy_name) });
        // A scalar of each batch item has a shape for the model, too: the batch.
        let dims = if input.model_shape.is_empty() { &input.shape } else { &input.model_shape };
        // SAFETY: as above; NULL means that the caller does not ask.
        unsafe {
            put_if_asked(name, input.name.as_c_str().as_ptr());
            put_if_asked(datatype, input.datatype as u32);
            put_if_asked(shape, dims.as_ptr());
            put_if_asked(dims_count, dims.len() as u32);
            put_if_asked(byte_size, pieces.iter().map(|piece| piece.len() as u64).sum());
            put_if_asked(buffer_count, pieces.len() as u32);
        }
        Ok(())
    })
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
    let policy = std::ptr::null();
    // SAFETY: the caller's promise is passed on.
    unsafe {
        TRITONBACKEND_InputBufferForHostPolicy(input, policy, index, buffer, byte_size, memory_type, memory_type_id)
    }
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
        let piece: &Slice = at(pieces(input, policy), index, "buffers of the input")?;
        let place = input.place(policy, index as usize);
        // SAFETY: as above.
        unsafe {
            put(buffer, piece.as_ptr().cast())?;
            put(byte_size, piece.len() as u64)?;
            put(memory_type, place.memory_type as u32)?;
            put(memory_type_id, place.memory_type_id)
        }
    })
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
