//! `TRITONSERVER_BufferAttributes*`: where a buffer lies and how large it is.

use std::ffi::c_void;

use super::Error;
use crate::abi::border::{deref, deref_mut, entry, give, null, put, take};
use nereid_request::Status;

/// `TRITONSERVER_BufferAttributes`.
#[derive(Debug)]
pub struct BufferAttributes {
    /// `TRITONSERVER_MemoryType`: CPU 0, CPU_PINNED 1, GPU 2.
    pub memory_type: u32,
    pub memory_type_id: i64,
    pub byte_size: usize,
    /// The caller's handle, never dereferenced.
    pub cuda_ipc_handle: *mut c_void,
}

// SAFETY: the server never dereferences the handle.
unsafe impl Send for BufferAttributes {}

impl Default for BufferAttributes {
    fn default() -> BufferAttributes {
        BufferAttributes { memory_type: 0, memory_type_id: 0, byte_size: 0, cuda_ipc_handle: std::ptr::null_mut() }
    }
}

/// # Safety
/// The pointer is writable. The attributes belong to the caller until it deletes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_BufferAttributesNew(attributes: *mut *mut BufferAttributes) -> *mut Error {
    entry(|| {
        if attributes.is_null() {
            return Err(null("buffer_attributes"));
        }
        // SAFETY: `attributes` is NULL or writable: this function requires it of its caller.
        unsafe { put(attributes, give(BufferAttributes::default())) }
    })
}

/// # Safety
/// The attributes came from `TRITONSERVER_BufferAttributesNew` and are not used afterwards, or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_BufferAttributesDelete(attributes: *mut BufferAttributes) -> *mut Error {
    if attributes.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: `attributes` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(attributes, "buffer_attributes") }.map(drop))
}

/// Exports `(attributes, value) -> error`, which set a field.
macro_rules! setters {
    ($($name:ident($type:ty) = |$attributes:ident, $value:ident| $set:expr;)*) => {$(
        /// # Safety
        /// The attributes are live and used by this call only.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(attributes: *mut BufferAttributes, $value: $type) -> *mut Error {
            entry(|| {
                // SAFETY: `attributes` is NULL or live, and used by this call alone: this function requires it of its
                // caller.
                let $attributes = unsafe { deref_mut(attributes, "buffer_attributes")? };
                $set
            })
        }
    )*};
}

/// Exports `(attributes, out) -> error`, which read a field.
macro_rules! getters {
    ($($name:ident($type:ty) = |$attributes:ident| $value:expr;)*) => {$(
        /// # Safety
        /// The attributes are live and the result pointer writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(attributes: *const BufferAttributes, out: *mut $type) -> *mut Error {
            entry(|| {
                // SAFETY: `attributes` is NULL or live: this function requires it of its caller.
                let $attributes = unsafe { deref(attributes, "buffer_attributes")? };
                // SAFETY: `out` is NULL or writable: this function requires it of its caller.
                unsafe { put(out, $value) }
            })
        }
    )*};
}

setters! {
    TRITONSERVER_BufferAttributesSetMemoryType(u32) = |attributes, value| {
        if value > 2 {
            return Err(Status::invalid(format!("unknown memory type {value}")));
        }
        attributes.memory_type = value;
        Ok(())
    };
    TRITONSERVER_BufferAttributesSetMemoryTypeId(i64) = |attributes, value| {
        attributes.memory_type_id = value;
        Ok(())
    };
    TRITONSERVER_BufferAttributesSetByteSize(usize) = |attributes, value| {
        attributes.byte_size = value;
        Ok(())
    };
    TRITONSERVER_BufferAttributesSetCudaIpcHandle(*mut c_void) = |attributes, value| {
        attributes.cuda_ipc_handle = value;
        Ok(())
    };
}

getters! {
    TRITONSERVER_BufferAttributesMemoryType(u32) = |attributes| attributes.memory_type;
    TRITONSERVER_BufferAttributesMemoryTypeId(i64) = |attributes| attributes.memory_type_id;
    TRITONSERVER_BufferAttributesByteSize(usize) = |attributes| attributes.byte_size;
    TRITONSERVER_BufferAttributesCudaIpcHandle(*mut c_void) = |attributes| attributes.cuda_ipc_handle;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_what_was_set() {
        let mut attributes = std::ptr::null_mut();
        // SAFETY: every pointer is that of a live variable.
        unsafe {
            assert!(TRITONSERVER_BufferAttributesNew(&raw mut attributes).is_null());
            let (mut kind, mut id, mut size, mut handle) = (9, 9, 9, std::ptr::dangling_mut());
            let read = |kind: &mut u32, id: &mut i64, size: &mut usize, handle: &mut *mut c_void| {
                assert!(TRITONSERVER_BufferAttributesMemoryType(attributes, kind).is_null());
                assert!(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, id).is_null());
                assert!(TRITONSERVER_BufferAttributesByteSize(attributes, size).is_null());
                assert!(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, handle).is_null());
            };
            read(&mut kind, &mut id, &mut size, &mut handle);
            assert_eq!((kind, id, size, handle), (0, 0, 0, std::ptr::null_mut()));
            assert!(TRITONSERVER_BufferAttributesSetMemoryType(attributes, 1).is_null());
            assert!(TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes, 2).is_null());
            assert!(TRITONSERVER_BufferAttributesSetByteSize(attributes, 3).is_null());
            assert!(
                TRITONSERVER_BufferAttributesSetCudaIpcHandle(attributes, std::ptr::without_provenance_mut(4))
                    .is_null()
            );
            read(&mut kind, &mut id, &mut size, &mut handle);
            assert_eq!((kind, id, size, handle.addr()), (1, 2, 3, 4));
            let error = TRITONSERVER_BufferAttributesSetMemoryType(attributes, 3);
            assert_eq!((*error).status(), Status::invalid("unknown memory type 3"));
            super::super::TRITONSERVER_ErrorDelete(error);
            assert!(TRITONSERVER_BufferAttributesDelete(attributes).is_null());
            assert!(TRITONSERVER_BufferAttributesDelete(std::ptr::null_mut()).is_null());
        }
    }
}
