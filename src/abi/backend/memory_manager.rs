//! `TRITONBACKEND_MemoryManager*`: memory that a backend takes from the server.
//!
//! Plain memory comes from the pool that holds requests and responses. Pinned memory needs a CUDA runtime; without one
//! its pool is empty, and as the interface demands plain memory does not take its place (c_api.md section 5).

use std::ffi::c_void;

use crate::abi::border::{deref, entry, null, put};
use crate::abi::server::Error;
use crate::memory::Heap;
use crate::request::{MemoryType, Status};

/// Refuses what this host has none of.
fn check(memory_type: u32) -> Result<(), Status> {
    match MemoryType::from_number(memory_type) {
        Some(MemoryType::Cpu) => Ok(()),
        Some(MemoryType::CpuPinned) => {
            Err(Status::unavailable("failed to allocate pinned system memory: no pinned memory pool"))
        }
        Some(MemoryType::Gpu) => Err(Status::unsupported("GPU memory is not supported: the server uses no GPU")),
        None => Err(Status::invalid(format!("unknown memory type {memory_type}"))),
    }
}

/// # Safety
/// The manager's backend is live and the pointer writable. The memory belongs to the caller until it frees it, at the
/// latest when it is finalised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_MemoryManagerAllocate(
    manager: *const Heap,
    buffer: *mut *mut c_void,
    memory_type: u32,
    _memory_type_id: i64,
    byte_size: u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: the caller's promise is passed on.
        let heap = unsafe { deref(manager, "manager")? };
        if buffer.is_null() {
            return Err(null("buffer"));
        }
        check(memory_type)?;
        let len = usize::try_from(byte_size).unwrap_or(usize::MAX);
        // SAFETY: as above.
        unsafe { put(buffer, heap.allocate(len)?.cast()) }
    })
}

/// # Safety
/// The manager's backend is live; the memory is not used afterwards, unless this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_MemoryManagerFree(
    manager: *const Heap,
    buffer: *mut c_void,
    memory_type: u32,
    _memory_type_id: i64,
) -> *mut Error {
    entry(|| {
        // SAFETY: the caller's promise is passed on.
        let heap = unsafe { deref(manager, "manager")? };
        let kind = MemoryType::from_number(memory_type);
        let kind = kind.ok_or_else(|| Status::invalid(format!("unknown memory type {memory_type}")))?;
        // As of C's free.
        if buffer.is_null() {
            return Ok(());
        }
        if kind != MemoryType::Cpu || !heap.free(buffer.cast()) {
            let name = ["CPU", "CPU_PINNED", "GPU"][kind as usize];
            let text = format!("the buffer was not allocated by this memory manager as {name} memory, or is free");
            return Err(Status::invalid(text));
        }
        Ok(())
    })
}
