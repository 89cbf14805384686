//! Gives large mappings back to the system on a thread of its own: the kernel takes milliseconds to free their pages,
//! which no shard has.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

/// From this size on the thread does it. The kernel frees less in a few tens of microseconds.
const LARGE_BYTES: usize = 1 << 20;
/// Bytes that may wait for the thread. Beyond them the calling thread unmaps, so that memory does not pile up.
const WAITING_MAX_BYTES: usize = 512 << 20;

/// The handle of the thread, which ends with it.
pub(super) struct Unmapper {
    waiting_bytes: Arc<AtomicUsize>,
    /// `None` while it is dropped.
    sender: Option<Sender<Mapping>>,
    thread: Option<JoinHandle<()>>,
}

/// Pages that are no longer used.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the maker of a mapping gives up its pages, so that they are the holder's alone on every thread.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the pages are this value's alone, by the contract of `unmap`, and this is its end.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

impl Unmapper {
    /// Starts the thread. It gets the cores of the calling one, so that this is no thread that has a core to itself.
    pub fn start() -> io::Result<Unmapper> {
        let (sender, receiver) = channel::<Mapping>();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let waiting = Arc::clone(&waiting_bytes);
        let unmap_all = move || {
            for mapping in receiver {
                waiting.fetch_sub(mapping.len, Ordering::Relaxed);
                drop(mapping);
            }
        };
        let thread = Builder::new().name("memory".to_owned()).spawn(unmap_all)?;
        Ok(Unmapper { waiting_bytes, sender: Some(sender), thread: Some(thread) })
    }

    /// Unmaps `len` bytes from `at` on: here if they are few, else on the thread.
    ///
    /// # Safety
    /// They are a whole mapping, no other reference points into it, and it is not used again.
    pub unsafe fn unmap(&self, at: NonNull<u8>, len: usize) {
        let mapping = Mapping { at, len };
        let Some(sender) = self.sender.as_ref().filter(|_| len >= LARGE_BYTES) else { return };
        if self.waiting_bytes.fetch_add(len, Ordering::Relaxed).saturating_add(len) > WAITING_MAX_BYTES {
            self.waiting_bytes.fetch_sub(len, Ordering::Relaxed);
            return;
        }
        // A mapping that comes back is dropped here.
        let _ = sender.send(mapping);
    }
}

impl Drop for Unmapper {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and its result is not used.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::Pool;

    /// A mapping of its own that `/proc/self/maps` shows by name.
    fn mapped(name: &CStr, len: usize) -> NonNull<u8> {
        // SAFETY: a mapping of a new file at an address of the kernel's choice touches no memory of ours.
        let at = unsafe {
            let file = libc::memfd_create(name.as_ptr(), 0);
            assert!(file >= 0 && libc::ftruncate(file, len as libc::off_t) == 0);
            let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file, 0);
            libc::close(file);
            at
        };
        NonNull::new(at.cast()).unwrap()
    }

    fn is_mapped(name: &CStr) -> bool {
        std::fs::read_to_string("/proc/self/maps").unwrap().contains(name.to_str().unwrap())
    }

    #[test]
    fn nothing_stays_mapped_that_was_given() {
        let (small, large) = (c"unmapped-here", c"unmapped-by-the-thread");
        let unmapper = Unmapper::start().unwrap();
        let (few, many) = (mapped(small, LARGE_BYTES / 2), mapped(large, LARGE_BYTES));
        assert!(is_mapped(small) && is_mapped(large));
        // SAFETY: mapped above and not used again.
        unsafe { unmapper.unmap(few, LARGE_BYTES / 2) };
        assert!(!is_mapped(small), "few pages are unmapped at once");
        // SAFETY: mapped above and not used again.
        unsafe { unmapper.unmap(many, LARGE_BYTES) };
        drop(unmapper);
        assert!(!is_mapped(large), "the thread ends when it has unmapped everything");
    }

    #[test]
    fn blocks_of_a_server_come_and_go() {
        let pool = Pool::of_server(1 << 30, None).unwrap();
        for round in 0..20 {
            let blocks: Vec<_> = (0..4).map(|_| pool.get(100 << 20).unwrap()).collect();
            assert!(blocks.iter().all(|block| block.len() == 100 << 20), "round {round}");
        }
        assert_eq!(pool.bytes_in_use(), 0);
    }
}
