//! Pinned memory of the host, which devices read and write directly, from one pool of `--pinned-memory-pool-byte-size`.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{info, warn};

use super::arena::Arena;
use super::driver::Driver;
use nereid_memory::{BlockSource, Slice};

/// The pool. Clones are the same; the default one is always empty.
#[derive(Clone, Default)]
pub struct PinnedPool {
    shared: Option<Arc<PinnedCore>>,
}

struct PinnedCore {
    driver: Arc<dyn Driver>,
    total: usize,
    state: Mutex<PinnedArena>,
}

/// The arena of the pool. Its memory is allocated with the first use, because pinning takes long.
#[derive(Default)]
struct PinnedArena {
    has_tried: bool,
    /// The address as a number: parts of the memory are used by their holders alone.
    base: usize,
    arena: Option<Arena>,
}

impl PinnedPool {
    pub fn new(driver: Arc<dyn Driver>, bytes: u64) -> PinnedPool {
        let total = usize::try_from(bytes).unwrap_or(usize::MAX);
        let shared = PinnedCore { driver, total, state: Mutex::default() };
        PinnedPool { shared: (total > 0).then(|| Arc::new(shared)) }
    }

    /// `len` bytes of unspecified contents; `None` if there are none left.
    pub fn take(&self, len: usize) -> Option<PinnedBuffer> {
        let shared = self.shared.as_ref()?;
        let (at, offset) = shared.take_range(len)?;
        Some(PinnedBuffer { pool: Arc::clone(shared), offset, at, len })
    }

    /// Allocates the memory now, because the first use may be on a shard.
    pub fn prepare(&self) {
        drop(self.take(1));
    }

    /// The pool as a source of larger blocks for another pool, so that received bytes lie where devices read them.
    pub fn source(&self) -> Option<Arc<dyn BlockSource>> {
        self.shared.clone().map(|shared| shared as Arc<dyn BlockSource>)
    }

    /// The same for memory that may be held for long: no more than a part of the pool in all.
    pub fn lend(&self, len: usize) -> Option<PinnedBuffer> {
        self.shared.as_ref().filter(|shared| shared.has_room_to_lend(len))?;
        self.take(len)
    }

    /// True if the bytes lie in the pool, so that devices access them directly.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        self.holds_range(bytes.as_ptr().addr(), bytes.len())
    }

    /// The same of a slice.
    pub fn holds_slice(&self, slice: &Slice) -> bool {
        self.holds_range(slice.as_ptr().addr(), slice.len())
    }

    fn holds_range(&self, at: usize, range_len: usize) -> bool {
        let Some(shared) = &self.shared else { return false };
        let state = lock(&shared.state);
        let (from, len) = (state.base, state.arena.as_ref().map_or(0, Arena::len));
        len > 0 && at >= from && at.checked_add(range_len).is_some_and(|end| end <= from + len)
    }

    /// Bytes in use, and all bytes of the pool (`nv_pinned_memory_pool_…`).
    pub fn usage(&self) -> (u64, u64) {
        let Some(shared) = &self.shared else { return (0, 0) };
        let used = lock(&shared.state).arena.as_ref().map_or(0, Arena::used);
        (used as u64, shared.total as u64)
    }
}

impl PinnedCore {
    /// A range of the pool: its address and its offset.
    fn take_range(&self, len: usize) -> Option<(*mut u8, usize)> {
        let mut state = lock(&self.state);
        if !state.has_tried {
            state.has_tried = true;
            match self.driver.allocate_pinned(self.total) {
                Ok(base) => {
                    info!("Pinned memory pool is created at '{base:p}' with size {}", self.total);
                    (state.base, state.arena) = (base.expose_provenance(), Some(Arena::new(self.total)));
                }
                Err(error) => warn!("there is no pool of pinned memory: {error}"),
            }
        }
        let base = state.base;
        let offset = state.arena.as_mut()?.take(len)?;
        Some((std::ptr::with_exposed_provenance_mut(base + offset), offset))
    }

    fn has_room_to_lend(&self, len: usize) -> bool {
        let used = lock(&self.state).arena.as_ref().map_or(0, Arena::used);
        used.saturating_add(len) <= self.total / LENT_PART
    }

    fn give_range(&self, offset: usize, len: usize) {
        if let Some(arena) = &mut lock(&self.state).arena {
            arena.give(offset, len);
        }
    }
}

/// One in this many bytes of the pool may be lent to other pools and clients: waiting requests and answers must not use
/// up the staging memory.
const LENT_PART: usize = 2;

// SAFETY: the memory is whole pages of the driver's, ranges begin at multiples of more than the alignment and do not
// overlap. The lock is held for a few steps, except when the memory is allocated, which `prepare` does before.
unsafe impl BlockSource for PinnedCore {
    fn take(&self, size: usize) -> Option<NonNull<u8>> {
        if !self.has_room_to_lend(size) {
            return None;
        }
        NonNull::new(self.take_range(size)?.0)
    }

    unsafe fn give(&self, at: NonNull<u8>, size: usize) {
        let base = lock(&self.state).base;
        self.give_range(at.as_ptr().addr() - base, size);
    }
}

impl Drop for PinnedCore {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.arena.is_some() {
            // SAFETY: every buffer holds the pool, so that none is left.
            let freed = unsafe { self.driver.free_pinned(std::ptr::with_exposed_provenance_mut(state.base)) };
            if let Err(error) = freed {
                warn!("the pool of pinned memory is not freed: {error}");
            }
        }
    }
}

/// Pinned bytes that are this holder's alone; work that is under way may use them, see
/// [`DeviceBuffer`](super::DeviceBuffer).
pub struct PinnedBuffer {
    pool: Arc<PinnedCore>,
    offset: usize,
    at: *mut u8,
    len: usize,
}

// SAFETY: an address range has no ties to a thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: `&PinnedBuffer` only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Makes a tensor of the buffer, which is no longer written; it goes back to the pool with the tensor.
    pub fn freeze(self) -> Slice {
        let (at, len) = (self.at, self.len);
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(self);
        // SAFETY: the range is the buffer's until the owner is dropped, and it is no longer written.
        unsafe { Slice::foreign(at, len, owner) }
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is this buffer's, inside the pool, which it holds.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        self.pool.give_range(self.offset, self.len);
    }
}

impl std::fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBuffer({} bytes)", self.len)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
