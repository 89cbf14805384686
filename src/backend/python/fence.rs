//! The memory fence of a worker: pure Python has none, and on CPUs that reorder memory accesses a worker needs one
//! between a position of a stream and the bytes that the position announces.
//!
//! The system call of a doorbell orders the accesses of a reader that was woken by it. But both sides also read
//! positions without a doorbell: the worker before it sleeps, the instance while it polls. x86 keeps loads in order
//! and stores in order, so that nothing is needed there. On other CPUs the worker gets this library, one function of
//! a few instructions, and calls it through ctypes (`wire.py`).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// True if a load may be reordered with a later load or store, or a store with a later store.
pub const IS_NEEDED: bool = cfg!(not(any(target_arch = "x86_64", target_arch = "x86")));

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fence.so"));

/// A descriptor of the library, which is written to memory once for the process.
pub fn library() -> io::Result<OwnedFd> {
    static WRITTEN: Mutex<Option<OwnedFd>> = Mutex::new(None);
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = &*written {
        return library.try_clone();
    }
    let memory = memfd_create("nereid-fence", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    file.write_all(LIBRARY)?;
    let memory = OwnedFd::from(file);
    fcntl_add_seals(&memory, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    written.insert(memory).try_clone()
}
