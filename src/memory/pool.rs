//! Blocks by size class, bounded in what they hold and in what is out.
//!
//! The free lists are lock-free and shared by all threads, because the last holder of a buffer may be a shard, a
//! worker or a plug-in's own thread. Every loop here is bounded: a miss allocates, a full list frees.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use super::BlockMut;
use super::block::{self, Header};

/// Smallest block that is handed out, in bytes.
const SMALLEST: usize = 512;
/// Largest block that is kept for reuse; larger ones are counted but freed at once.
const LARGEST_KEPT: usize = 64 << 20;
const CLASSES: usize = (LARGEST_KEPT / SMALLEST).trailing_zeros() as usize + 1;
/// Bytes that one size class may keep.
const KEPT_PER_CLASS: usize = 64 << 20;

/// The pool's bound is reached: nothing was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes were asked for, but only {left} of the server's {limit} bytes for request data are free")]
pub struct Exhausted {
    pub asked: usize,
    pub left: usize,
    pub limit: usize,
}

/// Memory of a special kind for the larger blocks of a pool: such as devices reach by themselves.
///
/// # Safety
/// Of the implementation: what is taken is initialised, aligned to [`super::ALIGNMENT`], and nobody else's until it is
/// given back.
pub unsafe trait Source: Send + Sync {
    /// `None`: there is none left. Never waits for long: it may be a shard that asks.
    fn take(&self, size: usize) -> Option<NonNull<u8>>;

    /// # Safety
    /// `at` was taken with this size, and is not used again.
    unsafe fn give(&self, at: NonNull<u8>, size: usize);
}

/// Smallest block in bytes that comes from a source.
const SOURCED_FROM: usize = 64 * 1024;

struct Free(NonNull<Header>);
// SAFETY: a block on a free list has no other owner.
unsafe impl Send for Free {}

pub(super) struct Shared {
    free: [ArrayQueue<Free>; CLASSES],
    /// Fewest free blocks of each class since the last trim: that many were of no use.
    idle: [AtomicUsize; CLASSES],
    /// Capacity in bytes of all blocks that are out.
    out: AtomicUsize,
    limit: usize,
    source: Option<Arc<dyn Source>>,
}

/// A cheap handle; clones share the same blocks.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

fn class_of(len: usize) -> usize {
    (len.max(SMALLEST).next_power_of_two() / SMALLEST).trailing_zeros() as usize
}

impl Pool {
    /// A pool whose blocks may hold `limit` bytes in all while they are in use.
    pub fn new(limit: usize) -> Pool {
        Pool::backed(limit, None)
    }

    /// The same; larger blocks come from `source` while it has memory.
    pub fn backed(limit: usize, source: Option<Arc<dyn Source>>) -> Pool {
        let free = std::array::from_fn(|class| ArrayQueue::new((KEPT_PER_CLASS / (SMALLEST << class)).clamp(1, 4096)));
        let idle = std::array::from_fn(|_| AtomicUsize::new(0));
        Pool(Arc::new(Shared { free, idle, out: AtomicUsize::new(0), limit, source }))
    }

    /// A window of `len` bytes, initialised with unspecified values, aligned to [`super::ALIGNMENT`].
    pub fn get(&self, len: usize) -> Result<BlockMut, Exhausted> {
        let shared = &*self.0;
        let kept = len <= LARGEST_KEPT;
        // A length that nothing could hold is as good as one beyond the limit.
        let capacity =
            if kept { SMALLEST << class_of(len) } else { len.checked_next_multiple_of(4096).unwrap_or(usize::MAX) };
        if capacity > shared.limit {
            let out = shared.out.load(Ordering::Relaxed);
            return Err(Exhausted { asked: len, left: shared.limit.saturating_sub(out), limit: shared.limit });
        }
        let out = shared.out.fetch_add(capacity, Ordering::Relaxed);
        if out.saturating_add(capacity) > shared.limit {
            shared.out.fetch_sub(capacity, Ordering::Relaxed);
            return Err(Exhausted { asked: len, left: shared.limit.saturating_sub(out), limit: shared.limit });
        }
        let header = match kept.then(|| shared.pop(class_of(len))).flatten() {
            Some(free) => free.0,
            None => shared.allocate(capacity),
        };
        // SAFETY: the block is fresh or from a free list: nobody else knows it, and it holds at least `len` bytes.
        Ok(unsafe { BlockMut::new(header, len, Some(Arc::clone(&self.0))) })
    }

    /// Gives blocks back to the system that nobody needed since the last call. To be called now and then.
    pub fn trim(&self) {
        for (class, idle) in self.0.idle.iter().enumerate() {
            let unused = idle.swap(usize::MAX, Ordering::Relaxed).min(self.0.free[class].len());
            for _ in 0..unused {
                let Some(Free(header)) = self.0.free[class].pop() else { break };
                // SAFETY: free blocks have no other owner.
                unsafe { block::free(header) }
            }
        }
    }

    /// Bytes of blocks that are in use now.
    pub fn bytes_in_use(&self) -> usize {
        self.0.out.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn allocate(&self, capacity: usize) -> NonNull<Header> {
        let source = self.source.as_ref().filter(|_| capacity >= SOURCED_FROM);
        source.and_then(|source| block::allocate_from(source, capacity)).unwrap_or_else(|| block::allocate(capacity))
    }

    fn pop(&self, class: usize) -> Option<Free> {
        let free = self.free[class].pop();
        self.idle[class].fetch_min(self.free[class].len(), Ordering::Relaxed);
        free
    }

    /// # Safety
    /// The caller owns the block alone; it came from [`Pool::get`] of this pool and has this `capacity`.
    pub(super) unsafe fn put_back(&self, header: NonNull<Header>, capacity: usize) {
        self.out.fetch_sub(capacity, Ordering::Relaxed);
        let refused = match capacity <= LARGEST_KEPT {
            true => self.free[class_of(capacity)].push(Free(header)).err(),
            false => Some(Free(header)),
        };
        if let Some(Free(header)) = refused {
            // SAFETY: the list did not take it, so we are still the only owner.
            unsafe { block::free(header) }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for list in &self.free {
            while let Some(Free(header)) = list.pop() {
                // SAFETY: free blocks have no other owner.
                unsafe { block::free(header) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::memory::ALIGNMENT;

    #[test]
    fn blocks_are_aligned_reused_and_bounded() {
        let pool = Pool::new(4 << 20);
        let first = pool.get(600_000).unwrap();
        let at = first.as_ptr();
        assert!(at.addr().is_multiple_of(ALIGNMENT));
        assert_eq!(pool.bytes_in_use(), 1 << 20);
        let shared = first.freeze();
        let window = shared.window(10..20);
        drop(shared);
        assert_eq!(pool.bytes_in_use(), 1 << 20, "a window keeps its block");
        drop(window);
        assert_eq!(pool.bytes_in_use(), 0);
        assert_eq!(pool.get(700_000).unwrap().as_ptr(), at, "the same block serves again");
        let error = pool.get(5 << 20).unwrap_err();
        assert_eq!((error.asked, error.left), (5 << 20, 4 << 20));
        assert_eq!(pool.get(usize::MAX).unwrap_err().asked, usize::MAX);
    }

    #[test]
    fn every_length_fits_its_class() {
        let pool = Pool::new(1 << 30);
        for len in [0, 1, 511, 512, 513, 4095, 65_536, 65_537, LARGEST_KEPT, LARGEST_KEPT + 1] {
            assert_eq!(pool.get(len).unwrap().len(), len);
        }
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn what_was_of_no_use_goes_back_to_the_system() {
        let pool = Pool::new(1 << 30);
        let take = |n: usize| (0..n).map(|_| pool.get(1000).unwrap()).collect::<Vec<_>>();
        let class = class_of(1000);
        drop(take(10));
        pool.trim();
        assert_eq!(pool.0.free[class].len(), 10, "all were needed since the start");
        drop(take(3));
        pool.trim();
        assert_eq!(pool.0.free[class].len(), 3, "seven were not needed since");
        pool.trim();
        assert_eq!(pool.0.free[class].len(), 0);
    }

    /// One piece of memory, given to one holder at a time.
    struct Single {
        at: NonNull<u8>,
        size: usize,
        is_out: AtomicBool,
    }

    // SAFETY: the memory is leaked, and the flag gives it to one holder at a time.
    unsafe impl Send for Single {}
    // SAFETY: as above.
    unsafe impl Sync for Single {}

    // SAFETY: it is initialised, aligned, and the flag keeps it from anybody else.
    unsafe impl Source for Single {
        fn take(&self, size: usize) -> Option<NonNull<u8>> {
            (size <= self.size && !self.is_out.swap(true, Ordering::AcqRel)).then_some(self.at)
        }

        unsafe fn give(&self, at: NonNull<u8>, _size: usize) {
            assert_eq!(at, self.at);
            assert!(self.is_out.swap(false, Ordering::AcqRel), "it was out");
        }
    }

    #[test]
    fn larger_blocks_come_from_the_source_while_it_has_memory() {
        let size = 1 << 20;
        let room = vec![7u8; size + ALIGNMENT].leak();
        let skip = room.as_ptr().align_offset(ALIGNMENT);
        let at = NonNull::from(&mut room[skip..]).cast::<u8>();
        let single = Arc::new(Single { at, size, is_out: AtomicBool::new(false) });
        let pool = Pool::backed(8 << 20, Some(single.clone()));
        let is_there =
            |block: &BlockMut| (at.as_ptr().addr()..at.as_ptr().addr() + size).contains(&block.as_ptr().addr());
        let (small, large, other) = (pool.get(1000).unwrap(), pool.get(100_000).unwrap(), pool.get(100_000).unwrap());
        assert_eq!([&small, &large, &other].map(is_there), [false, true, false]);
        assert!(large.as_ptr().addr().is_multiple_of(ALIGNMENT));
        drop((small, large.freeze(), other));
        assert!(single.is_out.load(Ordering::Acquire), "it is kept for the next block");
        pool.trim();
        pool.trim();
        assert!(!single.is_out.load(Ordering::Acquire), "nobody needed it");
        let again = pool.get(100_000).unwrap();
        assert!(is_there(&again));
        drop((again, pool));
        assert!(!single.is_out.load(Ordering::Acquire), "the pool is gone");
    }

    #[test]
    fn blocks_come_back_from_other_threads() {
        let pool = Pool::new(1 << 20);
        let block = pool.get(1000).unwrap();
        std::thread::spawn(move || drop(block.freeze())).join().unwrap();
        assert_eq!(pool.bytes_in_use(), 0);
    }
}
