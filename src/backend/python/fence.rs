//! The memory fence of a worker, which pure Python has not: a library of one function of a few instructions, which the
//! worker calls through ctypes (`wire.py`).
//!
//! Every CPU needs it where a side writes one word and then reads another that the other side writes: before it sleeps
//! (its bell word, then the stream), and after a frame (the position, then the bell word of the reader). A CPU may read
//! before its own write is visible, also x86, and then both sides miss what the other one wrote.
//!
//! CPUs that also reorder other accesses need it between a position of a stream and the bytes that the position
//! announces, because both sides read positions without a doorbell: the worker before it sleeps, the instance while it
//! polls. x86 keeps loads in order and stores in order, so that nothing is needed there.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// True if a load may be reordered with a later load or store, or a store with a later store: then a worker calls the
/// fence at every position too.
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
