//! Pools of blocks by size class, with bounds on the bytes on their free lists and on the bytes in use.
//!
//! The free lists are lock-free and shared by all threads, because the last holder of a buffer may be a shard, a
//! worker or a plug-in's own thread. Every loop here is bounded: a miss allocates, a full list frees.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use super::BlockMut;
use super::account::{Account, Bound, Exhausted, Peer};
use super::block::{self, Header};
use super::unmapper::Unmapper;

/// Smallest block that is handed out, in bytes.
const SMALLEST: usize = 512;
/// Largest block that is kept for reuse; larger ones are counted but freed at once.
const LARGEST_KEPT: usize = 64 << 20;
const CLASSES: usize = (LARGEST_KEPT / SMALLEST).trailing_zeros() as usize + 1;
/// Bytes that one size class may keep.
const KEPT_PER_CLASS: usize = 64 << 20;
/// Part of the limit that all free lists together may keep.
const KEPT_SHARE: usize = 4;
/// Bytes for which a peer's announcement suffices: memory for more is taken as the announced bytes arrive.
pub const TRUSTED_BYTES: usize = 64 * 1024;

/// Memory of a special kind for the larger blocks of a pool, for example memory that devices access directly.
///
/// # Safety
/// Of the implementation: what is taken is initialised, aligned to [`super::ALIGNMENT`], and used by no other code
/// until it is given back.
pub unsafe trait BlockSource: Send + Sync {
    /// `None` if there is none left. Never waits for long: the caller may be a shard.
    fn take(&self, size: usize) -> Option<NonNull<u8>>;

    /// # Safety
    /// `at` was taken with this size, and is not used again.
    unsafe fn give(&self, at: NonNull<u8>, size: usize);
}

/// Smallest block in bytes that comes from a source.
const SOURCED_FROM: usize = 64 * 1024;

struct FreeBlock(NonNull<Header>);
// SAFETY: a block on a free list has no other owner.
unsafe impl Send for FreeBlock {}

pub(super) struct PoolCore {
    free: [ArrayQueue<FreeBlock>; CLASSES],
    /// Fewest free blocks of each class since the last trim: that many were not needed.
    idle: [AtomicUsize; CLASSES],
    /// Capacity in bytes of all blocks in use, and of everything else that is charged.
    out: AtomicUsize,
    /// Capacity in bytes of all existing blocks, those on the free lists included.
    held: AtomicUsize,
    limit: usize,
    source: Option<Arc<dyn BlockSource>>,
    /// Unmaps large blocks; without it, the threads that drop them unmap them.
    unmapper: Option<Unmapper>,
}

/// A cheap handle; clones share the same blocks and are charged to the same account.
#[derive(Clone)]
pub struct Pool(Arc<Account>);

fn class_of(len: usize) -> usize {
    (len.max(SMALLEST).next_power_of_two() / SMALLEST).trailing_zeros() as usize
}

/// Bytes of the block for a length. A length that overflows counts as one beyond any limit.
fn capacity_of(len: usize) -> usize {
    match len <= LARGEST_KEPT {
        true => SMALLEST << class_of(len),
        false => len.checked_next_multiple_of(4096).unwrap_or(usize::MAX),
    }
}

impl Pool {
    /// A pool whose blocks may hold `limit` bytes in all while they are in use.
    pub fn new(limit: usize) -> Pool {
        Pool::of(limit, None, None)
    }

    /// The same for a server: larger blocks come from `source` while it has memory, and a thread of the pool unmaps
    /// large ones. The error is that of its start.
    pub fn of_server(limit: usize, source: Option<Arc<dyn BlockSource>>) -> io::Result<Pool> {
        Ok(Pool::of(limit, source, Some(Unmapper::start()?)))
    }

    fn of(limit: usize, source: Option<Arc<dyn BlockSource>>, unmapper: Option<Unmapper>) -> Pool {
        let free = std::array::from_fn(|class| ArrayQueue::new((KEPT_PER_CLASS / (SMALLEST << class)).clamp(1, 4096)));
        let idle = std::array::from_fn(|_| AtomicUsize::new(0));
        let (out, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Pool(Account::of_server(Arc::new(PoolCore { free, idle, out, held, limit, source, unmapper })))
    }

    pub(super) fn of_account(account: &Arc<Account>) -> Pool {
        Pool(Arc::clone(account))
    }

    /// The same blocks, of which this handle and its clones may have `limit` bytes out, and all handles with the same
    /// `peer` as many as that has.
    pub fn share(&self, limit: usize, peer: Option<Arc<Peer>>) -> Pool {
        Pool(Account::of_connection(Arc::clone(self.0.pool()), limit, peer))
    }

    /// True if both are charged to the same account.
    pub fn is(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A window of `len` bytes, initialised with unspecified values, aligned to [`super::ALIGNMENT`].
    pub fn get(&self, len: usize) -> Result<BlockMut, Exhausted> {
        let (shared, capacity) = (self.0.pool(), capacity_of(len));
        self.0.charge(capacity, len)?;
        let kept = (len <= LARGEST_KEPT).then(|| shared.pop(class_of(len))).flatten();
        let Some(header) = kept.map(|free| free.0).or_else(|| shared.allocate(capacity)) else {
            self.0.release(capacity);
            return Err(Exhausted::of_system(len));
        };
        // SAFETY: the block is fresh or from a free list: no other code has it, and it holds at least `len` bytes.
        Ok(unsafe { BlockMut::new(header, len, Some(Arc::clone(&self.0))) })
    }

    /// The same without a check of the bound, for lengths that are the server's own: replies that must not fail get
    /// memory, and it counts. The process ends where the system has no memory.
    pub fn get_anyway(&self, len: usize) -> BlockMut {
        if let Ok(block) = self.get(len) {
            return block;
        }
        let (shared, capacity) = (self.0.pool(), capacity_of(len));
        let kept = (len <= LARGEST_KEPT).then(|| shared.pop(class_of(len))).flatten();
        let Some(header) = kept.map(|free| free.0).or_else(|| shared.allocate(capacity)) else {
            return BlockMut::unpooled(len);
        };
        self.0.charge_anyway(capacity);
        // SAFETY: the block is fresh or from a free list: no other code has it, and it holds at least `len` bytes.
        unsafe { BlockMut::new(header, len, Some(Arc::clone(&self.0))) }
    }

    /// An error where the server's bound is reached: a caller of [`Pool::get_anyway`] stops there.
    pub fn check(&self) -> Result<(), Exhausted> {
        let (shared, out) = (self.0.pool(), self.bytes_in_use());
        if out > shared.limit {
            return Err(Exhausted {
                requested: out - shared.limit,
                left: 0,
                limit: shared.limit,
                bound: Bound::Server,
            });
        }
        Ok(())
    }

    /// Room for the beginning of `announced` bytes that have not arrived. For more than [`TRUSTED_BYTES`], the whole is
    /// taken only from memory that lies ready: else the window is shorter, and [`Pool::grow`] makes it longer as the
    /// bytes come.
    pub fn begin(&self, announced: usize) -> Result<BlockMut, Exhausted> {
        match self.ready(announced) {
            Some(block) => Ok(block),
            None => self.get(announced.min(TRUSTED_BYTES)),
        }
    }

    /// A window of `len` bytes, longer than [`TRUSTED_BYTES`], for which no memory of the system is needed.
    fn ready(&self, len: usize) -> Option<BlockMut> {
        if !(TRUSTED_BYTES + 1..=LARGEST_KEPT).contains(&len) {
            return None;
        }
        let (shared, capacity) = (self.0.pool(), capacity_of(len));
        if shared.free[class_of(len)].is_empty() || self.0.charge(capacity, len).is_err() {
            return None;
        }
        let Some(FreeBlock(header)) = shared.pop(class_of(len)) else {
            self.0.release(capacity);
            return None;
        };
        // SAFETY: the block is from a free list: no other code has it, and it holds at least `len` bytes.
        Some(unsafe { BlockMut::new(header, len, Some(Arc::clone(&self.0))) })
    }

    /// Makes room for `needed` bytes in a block that is to hold `announced` in the end: four times its present size, so
    /// that few bytes are moved often, and in proportion to what has arrived. The contents of the window stay; the
    /// window becomes as long as the room for the announced bytes.
    pub fn grow(&self, block: &mut BlockMut, needed: usize, announced: usize) -> Result<(), Exhausted> {
        let announced = announced.max(needed);
        if needed > block.capacity() {
            let wanted = block.capacity().saturating_mul(4).min(announced).max(needed);
            match self.ready(announced) {
                Some(whole) => move_into(block, whole),
                None if self.enlarge(block, wanted) => {}
                None => move_into(block, self.get(wanted).or_else(|_| self.get(needed))?),
            }
        }
        block.set_len(block.capacity().min(announced));
        Ok(())
    }

    /// Makes a block larger in place, if that can be done and is within the bounds. Its window stays.
    pub fn enlarge(&self, block: &mut BlockMut, wanted: usize) -> bool {
        let (old, new) = (block.capacity(), capacity_of(wanted));
        if new <= old || !block.account().is_some_and(|account| Arc::ptr_eq(account, &self.0)) {
            return false;
        }
        let more = new - old;
        if self.0.charge(more, more).is_err() {
            return false;
        }
        let shared = self.0.pool();
        shared.make_room(more);
        if block.enlarge(new) {
            shared.held.fetch_add(more, Ordering::Relaxed);
            return true;
        }
        self.0.release(more);
        false
    }

    /// Charges `bytes` that lie elsewhere, for as long as the answer lives.
    pub fn hold(&self, bytes: usize) -> Result<Charge, Exhausted> {
        self.0.charge(bytes, bytes)?;
        Ok(Charge { account: Arc::clone(&self.0), bytes })
    }

    /// A counter of bytes that lie in memory charged elsewhere, such as answers that wait for this connection. They
    /// count for the connection and its client; the server's budget has them already.
    pub fn tally(&self) -> ShareTally {
        ShareTally { account: Arc::clone(&self.0), bytes: 0 }
    }

    /// Gives the blocks back to the system that were not needed since the last call. The server calls it at intervals.
    pub fn trim(&self) {
        let shared = self.0.pool();
        for (class, idle) in shared.idle.iter().enumerate() {
            let unused = idle.swap(usize::MAX, Ordering::Relaxed).min(shared.free[class].len());
            shared.shed(class, unused);
        }
    }

    /// Bytes of blocks that are in use now.
    pub fn bytes_in_use(&self) -> usize {
        self.0.pool().out.load(Ordering::Relaxed)
    }

    /// Bytes that may be in use at a time.
    pub fn limit(&self) -> usize {
        self.0.pool().limit
    }

    /// Bytes that this handle and its clones may have out at a time.
    pub fn share_bytes(&self) -> usize {
        self.0.limit().min(self.limit())
    }
}

/// Copies what is in `block` to the front of `larger`, which takes its place.
fn move_into(block: &mut BlockMut, mut larger: BlockMut) {
    larger.set_len(larger.capacity());
    if let Some(front) = larger.get_mut(..block.len()) {
        front.copy_from_slice(block);
    }
    *block = larger;
}

/// Bytes that are charged to a pool though they lie elsewhere.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

/// Bytes that count against the share of a connection though they are not charged to it.
#[derive(Debug)]
pub struct ShareTally {
    account: Arc<Account>,
    bytes: usize,
}

impl ShareTally {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts `bytes` in place of what was counted, even beyond the share: then the connection is given nothing more.
    pub fn set(&mut self, bytes: usize) {
        self.account.recount(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for ShareTally {
    #[inline]
    fn drop(&mut self) {
        self.account.recount(self.bytes, 0);
    }
}

impl Charge {
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        self.account.release(self.bytes);
    }
}

impl PoolCore {
    /// Counts `bytes` as in use, or returns how many are left.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), usize> {
        if bytes > self.limit {
            return Err(self.limit.saturating_sub(self.out.load(Ordering::Relaxed)));
        }
        let out = self.out.fetch_add(bytes, Ordering::Relaxed);
        if out.saturating_add(bytes) > self.limit {
            self.out.fetch_sub(bytes, Ordering::Relaxed);
            return Err(self.limit.saturating_sub(out));
        }
        Ok(())
    }

    pub(super) fn charge_anyway(&self, bytes: usize) {
        self.out.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn release(&self, bytes: usize) {
        self.out.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// A fresh block. Where the system has no memory for it, what lies on the free lists goes back first.
    fn allocate(&self, capacity: usize) -> Option<NonNull<Header>> {
        self.make_room(capacity);
        let source = self.source.as_ref().filter(|_| capacity >= SOURCED_FROM);
        let header = source
            .and_then(|source| block::allocate_from(source, capacity))
            .or_else(|| block::allocate(capacity))
            .or_else(|| {
                self.shed_all();
                block::allocate(capacity)
            });
        if header.is_some() {
            self.held.fetch_add(capacity, Ordering::Relaxed);
        }
        header
    }

    /// Frees blocks on the free lists, the largest first, until `more` bytes fit within the limit beside those that are
    /// left.
    fn make_room(&self, more: usize) {
        for class in (0..CLASSES).rev() {
            let too_many = || self.held.load(Ordering::Relaxed).saturating_add(more) > self.limit;
            while too_many() && self.shed(class, 1) {}
        }
    }

    fn shed_all(&self) {
        for class in 0..CLASSES {
            self.shed(class, usize::MAX);
        }
    }

    /// Gives up to `count` free blocks of a class back to the system. False: there was none.
    fn shed(&self, class: usize, count: usize) -> bool {
        let count = count.min(self.free[class].len());
        let mut some = false;
        for _ in 0..count {
            let Some(FreeBlock(header)) = self.free[class].pop() else { break };
            self.held.fetch_sub(SMALLEST << class, Ordering::Relaxed);
            // SAFETY: free blocks have no other owner.
            unsafe { block::free(header, self.unmapper.as_ref()) }
            some = true;
        }
        some
    }

    fn pop(&self, class: usize) -> Option<FreeBlock> {
        let free = self.free[class].pop();
        self.idle[class].fetch_min(self.free[class].len(), Ordering::Relaxed);
        free
    }

    /// # Safety
    /// The caller owns the block alone; it came from [`Pool::get`] of this pool and has this `capacity`.
    pub(super) unsafe fn put_back(&self, header: NonNull<Header>, capacity: usize) {
        let kept = self.held.load(Ordering::Relaxed).saturating_sub(self.out.load(Ordering::Relaxed));
        let refused = match capacity <= LARGEST_KEPT && kept <= self.limit / KEPT_SHARE {
            true => self.free[class_of(capacity)].push(FreeBlock(header)).err(),
            false => Some(FreeBlock(header)),
        };
        if let Some(FreeBlock(header)) = refused {
            self.held.fetch_sub(capacity, Ordering::Relaxed);
            // SAFETY: the list did not take it, so we are still the only owner.
            unsafe { block::free(header, self.unmapper.as_ref()) }
        }
    }
}

impl Drop for PoolCore {
    fn drop(&mut self) {
        self.shed_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::ALIGNMENT;

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
        assert_eq!((error.requested, error.left), (5 << 20, 4 << 20));
        assert_eq!(pool.get(usize::MAX).unwrap_err().requested, usize::MAX);
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
        assert_eq!(pool.0.pool().free[class].len(), 10, "all were needed since the start");
        drop(take(3));
        pool.trim();
        assert_eq!(pool.0.pool().free[class].len(), 3, "seven were not needed since");
        pool.trim();
        assert_eq!(pool.0.pool().free[class].len(), 0);
    }

    /// One piece of memory, given to one holder at a time.
    struct Single {
        at: NonNull<u8>,
        size: usize,
        is_out: AtomicBool,
    }

    // SAFETY: the memory is leaked, and the flag gives it to one holder at a time.
    unsafe impl Send for Single {}
    // SAFETY: the memory is leaked, and the flag gives it to one holder at a time.
    unsafe impl Sync for Single {}

    // SAFETY: it is initialised, aligned, and the flag gives it to one holder at a time.
    unsafe impl BlockSource for Single {
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
        let pool = Pool::of(8 << 20, Some(single.clone()), None);
        let is_there =
            |block: &BlockMut| (at.as_ptr().addr()..at.as_ptr().addr() + size).contains(&block.as_ptr().addr());
        let (small, large, other) = (pool.get(1000).unwrap(), pool.get(100_000).unwrap(), pool.get(100_000).unwrap());
        assert_eq!([&small, &large, &other].map(is_there), [false, true, false]);
        assert!(large.as_ptr().addr().is_multiple_of(ALIGNMENT));
        drop((small, large.freeze(), other));
        assert!(single.is_out.load(Ordering::Acquire), "it is kept for the next block");
        pool.trim();
        pool.trim();
        assert!(!single.is_out.load(Ordering::Acquire), "it was not needed");
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
