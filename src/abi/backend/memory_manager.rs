//! `TRITONBACKEND_MemoryManager*`: memory that a backend takes from the server.
//!
//! Plain memory comes from the pool that holds requests and responses, pinned memory and memory of devices from the
//! pools of `--pinned-memory-pool-byte-size` and `--cuda-memory-pool-byte-size`. Where pinned memory has run out, as it
//! has without a driver, plain memory does not take its place (contract/c_api.md section 5).

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::border::{deref, entry, null, put};
use crate::abi::server::Error;
use nereid_gpu::{DeviceBuffer, Gpus, PinnedBuffer};
use nereid_memory::{Heap, Pool};
use nereid_request::{MemoryType, Status};

/// `TRITONBACKEND_MemoryManager`: records every allocation that was not freed, and frees the rest when it is dropped.
pub struct MemoryManager {
    heap: Heap,
    gpus: Arc<Gpus>,
    /// Keyed by the address of the first byte.
    pinned: Mutex<HashMap<usize, PinnedBuffer>>,
    /// Keyed by device and address.
    on_devices: Mutex<HashMap<(i64, u64), DeviceBuffer>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryManager {
    pub fn new(pool: Pool, gpus: Arc<Gpus>) -> MemoryManager {
        MemoryManager { heap: Heap::new(pool), gpus, pinned: Mutex::default(), on_devices: Mutex::default() }
    }

    fn allocate(&self, memory_type: u32, id: i64, len: usize) -> Result<*mut c_void, Status> {
        match MemoryType::from_number(memory_type) {
            Some(MemoryType::Cpu) => {
                let at = self.heap.allocate(len).map_err(|error| {
                    tracing::error!("a backend's allocation of {len} bytes failed: {error}");
                    Status::unavailable("CPU memory allocation failed")
                });
                Ok(at?.cast())
            }
            Some(MemoryType::CpuPinned) => self.allocate_pinned(len),
            Some(MemoryType::Gpu) => self.allocate_on_device(id, len),
            None => Err(Status::invalid(format!("unknown memory type {memory_type}"))),
        }
    }

    fn allocate_pinned(&self, len: usize) -> Result<*mut c_void, Status> {
        let (_, total) = self.gpus.pinned().usage();
        let text = match total {
            0 => "failed to allocate pinned system memory: no pinned memory pool",
            _ => "failed to allocate pinned system memory",
        };
        // Also an allocation of 0 bytes gets an address of its own.
        let mut buffer = self.gpus.pinned().take(len.max(1)).ok_or_else(|| Status::unavailable(text))?;
        let at = buffer.as_mut_ptr();
        lock(&self.pinned).insert(at.addr(), buffer);
        Ok(at.cast())
    }

    fn allocate_on_device(&self, id: i64, len: usize) -> Result<*mut c_void, Status> {
        if !self.gpus.is_supported() {
            return Err(Status::unsupported("GPU memory allocation not supported"));
        }
        let gpu = i32::try_from(id).ok().and_then(|id| self.gpus.get(id));
        let gpu = gpu.ok_or_else(|| Status::invalid(format!("the server uses no GPU {id}")))?;
        let failed = |error| Status::unavailable(format!("failed to allocate {len} bytes of GPU {id}: {error}"));
        let buffer = gpu.allocate(len.max(1)).map_err(failed)?;
        let at = buffer.address();
        lock(&self.on_devices).insert((id, at.0), buffer);
        let at = usize::try_from(at.0).map_err(|_| Status::internal("an address of a device is none of this host"))?;
        Ok(std::ptr::with_exposed_provenance_mut(at))
    }

    /// The number and the bytes of all allocations in use, of all kinds of memory.
    pub fn in_use(&self) -> (usize, usize) {
        let (mut count, mut bytes) = self.heap.in_use();
        let (pinned, on_devices) = (lock(&self.pinned), lock(&self.on_devices));
        let lens = pinned.values().map(|buffer| buffer.len()).chain(on_devices.values().map(DeviceBuffer::len));
        lens.for_each(|len| (count, bytes) = (count + 1, bytes + len));
        (count, bytes)
    }

    /// Returns false if this manager did not allocate it as memory of that kind, or has freed it already.
    fn free(&self, kind: MemoryType, id: i64, at: *mut c_void) -> bool {
        match kind {
            MemoryType::Cpu => self.heap.free(at.cast()),
            MemoryType::CpuPinned => {
                let buffer = lock(&self.pinned).remove(&at.addr());
                buffer.is_some()
            }
            MemoryType::Gpu => {
                let buffer = lock(&self.on_devices).remove(&(id, at.addr() as u64));
                buffer.is_some()
            }
        }
    }
}

impl std::fmt::Debug for MemoryManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pinned, on_devices) = (lock(&self.pinned).len(), lock(&self.on_devices).len());
        write!(f, "MemoryManager({:?}, {pinned} pinned, {on_devices} on devices)", self.heap)
    }
}

/// # Safety
/// The manager's backend is live and the pointer writable. The memory belongs to the caller until it frees it, at the
/// latest when it is finalised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_MemoryManagerAllocate(
    manager: *const MemoryManager,
    buffer: *mut *mut c_void,
    memory_type: u32,
    memory_type_id: i64,
    byte_size: u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `manager` is NULL or live: this function requires it of its caller.
        let manager = unsafe { deref(manager, "manager")? };
        if buffer.is_null() {
            return Err(null("buffer"));
        }
        let len = usize::try_from(byte_size).unwrap_or(usize::MAX);
        // SAFETY: `buffer` is NULL or writable: this function requires it of its caller.
        unsafe { put(buffer, manager.allocate(memory_type, memory_type_id, len)?) }
    })
}

/// # Safety
/// The manager's backend is live; the memory is not used afterwards, unless this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_MemoryManagerFree(
    manager: *const MemoryManager,
    buffer: *mut c_void,
    memory_type: u32,
    memory_type_id: i64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `manager` is NULL or live: this function requires it of its caller.
        let manager = unsafe { deref(manager, "manager")? };
        let kind = MemoryType::from_number(memory_type);
        let kind = kind.ok_or_else(|| Status::invalid(format!("unknown memory type {memory_type}")))?;
        // As with C's `free`.
        if buffer.is_null() {
            return Ok(());
        }
        if !manager.free(kind, memory_type_id, buffer) {
            let name = ["CPU", "CPU_PINNED", "GPU"][kind as usize];
            let text = format!("the buffer was not allocated by this memory manager as {name} memory, or is free");
            return Err(Status::invalid(text));
        }
        Ok(())
    })
}
