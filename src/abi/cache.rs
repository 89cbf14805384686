//! `TRITONCACHE_*`: response caches as shared libraries (contract/c_api.md section 7).
//!
//! A response goes to the library as one buffer in the server's own encoding, which is validated when it comes back.
//! Only threads of the cache call the library, because it could stall a shard.

mod entry;
mod library;

use super::border::{deref, deref_mut, deref_optional, entry as body, put};
use super::server::{BufferAttributes, Error};
use nereid_request::Status;

use entry::INCOMPLETE;
pub use entry::{AllocatorHandle, EntryHandle};
pub use library::{REQUIRED, find, open};

use std::ffi::c_void;

/// Version of the cache interface: major, minor.
pub const CACHE_API_VERSION: (u32, u32) = (0, 1);

/// # Safety
/// The pointers are writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONCACHE_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut Error {
    // SAFETY: `major` and `minor` are NULL or writable: this function requires that of its caller.
    body(|| unsafe { put(major, CACHE_API_VERSION.0).and_then(|()| put(minor, CACHE_API_VERSION.1)) })
}

/// # Safety
/// The entry is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONCACHE_CacheEntryBufferCount(entry: *const EntryHandle, count: *mut usize) -> *mut Error {
    body(|| {
        if entry.is_null() {
            return Err(Status::invalid("entry was nullptr"));
        }
        // SAFETY: `entry` is NULL or live: this function requires it of its caller.
        let entry = unsafe { deref(entry, "entry")? };
        // SAFETY: `count` is NULL or writable: this function requires it of its caller.
        unsafe { put(count, entry.buffer_count()) }
    })
}

/// Offers a buffer that the cache holds to an entry that is being looked up.
///
/// # Safety
/// The handles are live; the buffer is readable until `TRITONCACHE_Copy` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONCACHE_CacheEntryAddBuffer(
    entry: *const EntryHandle,
    base: *mut c_void,
    buffer_attributes: *const BufferAttributes,
) -> *mut Error {
    body(|| {
        if entry.is_null() || buffer_attributes.is_null() {
            return Err(Status::invalid(INCOMPLETE));
        }
        // SAFETY: `entry` and `buffer_attributes` are NULL or live: this function requires that of its caller.
        let (entry, attributes) = unsafe { (deref(entry, "entry")?, deref(buffer_attributes, "buffer_attributes")?) };
        entry.add(base, attributes)
    })
}

/// # Safety
/// The handles are live and the pointer writable; the attributes are used by this call only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONCACHE_CacheEntryGetBuffer(
    entry: *const EntryHandle,
    index: usize,
    base: *mut *mut c_void,
    buffer_attributes: *mut BufferAttributes,
) -> *mut Error {
    body(|| {
        if entry.is_null() || base.is_null() || buffer_attributes.is_null() {
            return Err(Status::invalid(INCOMPLETE));
        }
        // SAFETY: `entry` is NULL or live; `buffer_attributes` is NULL or live, and used by this call alone: this
        // function requires that of its caller.
        let (entry, into) = unsafe { (deref(entry, "entry")?, deref_mut(buffer_attributes, "buffer_attributes")?) };
        let (found, attributes) = entry.get(index)?;
        // SAFETY: `base` is NULL or writable: this function requires it of its caller.
        unsafe { put(base, found)? };
        *into = attributes;
        Ok(())
    })
}

/// Replaces the address of an entry's buffer. Attributes may be NULL: the buffer keeps its own.
///
/// # Safety
/// The handles are live; the new address has as much room as the buffer, until `TRITONCACHE_Copy` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONCACHE_CacheEntrySetBuffer(
    entry: *const EntryHandle,
    index: usize,
    new_base: *mut c_void,
    buffer_attributes: *const BufferAttributes,
) -> *mut Error {
    body(|| {
        if entry.is_null() || new_base.is_null() {
            return Err(Status::invalid(INCOMPLETE));
        }
        // SAFETY: the caller's promise is passed on; without attributes the present ones stay.
        let (entry, attributes) =
            unsafe { (deref(entry, "entry")?, deref_optional(buffer_attributes, "buffer_attributes")?) };
        entry.set(index, new_base, attributes)
    })
}

/// Copies the content of an entry: to the buffers that the cache set, or from the buffers that it added.
///
/// # Safety
/// The handles are live, and so are the buffers of the entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONCACHE_Copy(allocator: *const AllocatorHandle, entry: *const EntryHandle) -> *mut Error {
    body(|| {
        if allocator.is_null() || entry.is_null() {
            return Err(Status::invalid("allocator or entry was nullptr"));
        }
        // SAFETY: `allocator` and `entry` are NULL or live: this function requires that of its caller.
        let (allocator, target) = unsafe { (deref(allocator, "allocator")?, deref(entry, "entry")?) };
        if !allocator.is_of(entry) {
            return Err(Status::invalid("the allocator belongs to another entry"));
        }
        // SAFETY: by contract the buffers that the cache set or added can be used with the attributes that it passed.
        unsafe { target.copy() }
    })
}
