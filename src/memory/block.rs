//! One allocation of the pool, and the exclusive window on it that a writer holds.
//!
//! A block is a reference-counted header followed by its data. [`BlockMut`] is the only writer of its window;
//! [`BlockMut::split_to`] hands the written front part out as a shared [`Slice`] and keeps the rest, so that one block
//! serves many small messages without a copy.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use super::account::{Account, Exhausted};
use super::pool::BlockSource;
use super::unmapper::Unmapper;
use super::{ALIGNMENT, Slice};

/// Lies directly before the data of a block; its own alignment makes the data aligned.
#[repr(C, align(64))]
pub(super) struct Header {
    refs: AtomicUsize,
    /// Bytes of data behind the header.
    capacity: usize,
    /// What the block is charged to; its pool takes the block back.
    pool: Option<Arc<Account>>,
    /// The source of the memory, if it is not the system's.
    source: Option<Arc<dyn BlockSource>>,
}

const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == ALIGNMENT && align_of::<Header>() == ALIGNMENT);

/// `None`: more than any system can hold.
fn layout(capacity: usize) -> Option<Layout> {
    Layout::from_size_align(HEADER.checked_add(capacity)?, ALIGNMENT).ok()
}

/// From this capacity on, blocks are mapped: the allocator would zero every page at once to align it, the kernel zeroes
/// those that are used when they are used.
const MAPPED_FROM: usize = 256 * 1024;

/// Allocates a zeroed block with one reference. `None`: the system has no memory for it.
pub(super) fn allocate(capacity: usize) -> Option<NonNull<Header>> {
    let layout = layout(capacity)?;
    let at = if capacity < MAPPED_FROM {
        // SAFETY: the layout has a non-zero size, because it contains the header.
        unsafe { alloc_zeroed(layout) }
    } else {
        map(layout.size())
    };
    let header = NonNull::new(at.cast::<Header>())?;
    // SAFETY: freshly allocated with the size and alignment of a header; no other code has the address.
    unsafe { header.write(Header { refs: AtomicUsize::new(1), capacity, pool: None, source: None }) };
    Some(header)
}

/// Makes a mapped block larger without a copy: the kernel moves its pages where there is room for more. `None`: the
/// block is as it was, because it is not mapped or the system has no memory.
///
/// # Safety
/// The caller has the only reference and the only window of the block, and `capacity` is larger than it has.
unsafe fn enlarge(header: NonNull<Header>, capacity: usize) -> Option<NonNull<Header>> {
    // SAFETY: the caller's reference keeps the header alive.
    let (old, is_sourced) = unsafe { (header.as_ref().capacity, header.as_ref().source.is_some()) };
    if old < MAPPED_FROM || is_sourced {
        return None;
    }
    let (from, to) = (layout(old)?.size(), layout(capacity)?.size());
    // SAFETY: the mapping has this size, and no other reference points into it, so it may move.
    let at = unsafe { libc::mremap(header.as_ptr().cast(), from, to, libc::MREMAP_MAYMOVE) };
    if at == libc::MAP_FAILED {
        return None;
    }
    let mut header = NonNull::new(at.cast::<Header>())?;
    // SAFETY: the header lies where its mapping lies now, and is the caller's alone.
    unsafe { header.as_mut() }.capacity = capacity;
    Some(header)
}

/// The same in the memory of `source`, if it has some left; what is in it is unspecified.
pub(super) fn allocate_from(source: &Arc<dyn BlockSource>, capacity: usize) -> Option<NonNull<Header>> {
    let size = layout(capacity)?.size();
    let header = source.take(size)?.cast::<Header>();
    if !header.as_ptr().addr().is_multiple_of(ALIGNMENT) {
        // SAFETY: it was taken with this size a moment ago, and no other code has the address.
        unsafe { source.give(header.cast(), size) };
        return None;
    }
    let source = Some(Arc::clone(source));
    // SAFETY: freshly taken with the size and alignment of a header; no other code has the address.
    unsafe { header.write(Header { refs: AtomicUsize::new(1), capacity, pool: None, source }) };
    Some(header)
}

/// Gives the memory of a block back to the allocator, or to the system by way of `unmapper`.
///
/// # Safety
/// `header` came from [`allocate`], there is no reference to the block, and it is not used again.
pub(super) unsafe fn free(header: NonNull<Header>, unmapper: Option<&Unmapper>) {
    // SAFETY: the caller owns the block alone, so reading and dropping its header is exclusive.
    unsafe {
        let capacity = header.as_ref().capacity;
        let layout = Layout::from_size_align_unchecked(HEADER + capacity, ALIGNMENT);
        let source = (*header.as_ptr()).source.take();
        header.drop_in_place();
        if let Some(source) = source {
            source.give(header.cast(), layout.size());
        } else if capacity < MAPPED_FROM {
            dealloc(header.as_ptr().cast(), layout);
        } else if let Some(unmapper) = unmapper {
            unmapper.unmap(header.cast(), layout.size());
        } else {
            libc::munmap(header.as_ptr().cast(), layout.size());
        }
    }
}

/// Fresh zero pages, or NULL.
fn map(size: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED { std::ptr::null_mut() } else { at.cast() }
}

/// What a block is charged to, for as long as the borrowed reference to it lives.
pub(super) fn account(header: &NonNull<Header>) -> Option<&Arc<Account>> {
    // SAFETY: a holder of a reference to the header holds a reference of the block; the field changes only where the
    // block has one owner.
    unsafe { header.as_ref() }.pool.as_ref()
}

/// Bytes of the block, for as long as the borrowed reference to it lives.
pub(super) fn capacity(header: &NonNull<Header>) -> usize {
    // SAFETY: as in `account`.
    unsafe { header.as_ref() }.capacity
}

pub(super) fn data(header: NonNull<Header>) -> *mut u8 {
    header.as_ptr().wrapping_add(1).cast()
}

pub(super) fn retain(header: NonNull<Header>) {
    // SAFETY: the caller holds a reference, so the header is alive.
    unsafe { header.as_ref() }.refs.fetch_add(1, Ordering::Relaxed);
}

/// Drops one reference; the last one returns the block to its pool.
///
/// # Safety
/// The caller owns one reference and does not use the block afterwards.
pub(super) unsafe fn release(header: NonNull<Header>) {
    // SAFETY: the caller's reference keeps the header alive up to the decrement.
    let refs = unsafe { &header.as_ref().refs };
    // The holder of the only reference need not count it down: no other thread can add one.
    if refs.load(Ordering::Acquire) != 1 {
        if refs.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
    }
    // SAFETY: that was the last reference, so this thread owns the block alone.
    unsafe {
        match (*header.as_ptr()).pool.take() {
            Some(pool) => pool.put_back(header, (*header.as_ptr()).capacity),
            None => free(header, None),
        }
    }
}

/// The only writer of a window of a block.
#[derive(Debug)]
pub struct BlockMut {
    header: NonNull<Header>,
    start: usize,
    /// Bytes of the window; `Deref` shows exactly these.
    len: usize,
    /// End of what this window may still grow into.
    end: usize,
}

// SAFETY: a window is exclusive, and the header's only shared state is atomic.
unsafe impl Send for BlockMut {}
// SAFETY: `&BlockMut` only allows reads of bytes that no other code writes.
unsafe impl Sync for BlockMut {}

impl BlockMut {
    /// Takes over the single reference of `header` and makes it a window of `len` bytes that belongs to `pool`.
    ///
    /// # Safety
    /// The caller owns the block alone and `len` is at most its capacity.
    pub(super) unsafe fn new(header: NonNull<Header>, len: usize, pool: Option<Arc<Account>>) -> BlockMut {
        // SAFETY: by contract no other code can reach the header now.
        let end = unsafe {
            let header = &mut *header.as_ptr();
            *header.refs.get_mut() = 1;
            header.pool = pool;
            header.capacity
        };
        debug_assert!(len <= end);
        BlockMut { header, start: 0, len, end }
    }

    /// A block that belongs to no pool; for tests and for the rare places without a pool. Its length is the server's
    /// own and never comes from a peer: the process ends where there is no memory.
    pub fn unpooled(len: usize) -> BlockMut {
        let Some(header) = allocate(len) else {
            handle_alloc_error(layout(len).unwrap_or(Layout::new::<Header>()));
        };
        // SAFETY: `allocate` hands out a block that only this code has, with at least `len` bytes.
        unsafe { BlockMut::new(header, len, None) }
    }

    /// The same for a length that came from a peer, where there is no pool.
    pub fn try_unpooled(len: usize) -> Result<BlockMut, Exhausted> {
        let header = allocate(len).ok_or(Exhausted::of_system(len))?;
        // SAFETY: `allocate` hands out a block that only this code has, with at least `len` bytes.
        Ok(unsafe { BlockMut::new(header, len, None) })
    }

    /// Makes room for `capacity` bytes without a copy, which only the whole of a mapped block can do. False: nothing
    /// has changed.
    pub(super) fn enlarge(&mut self, capacity: usize) -> bool {
        // SAFETY: a window owns a reference, so the header is alive.
        let refs = unsafe { &self.header.as_ref().refs };
        if self.start > 0 || refs.load(Ordering::Acquire) != 1 || capacity <= self.end {
            return false;
        }
        // SAFETY: the one reference is this window's, and `&mut self` makes it the only user.
        let Some(header) = (unsafe { enlarge(self.header, capacity) }) else { return false };
        (self.header, self.end) = (header, capacity);
        true
    }

    /// What the block is charged to; nothing, if it belongs to no pool.
    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        account(&self.header)
    }

    /// Bytes that this window can hold in all.
    pub fn capacity(&self) -> usize {
        self.end - self.start
    }

    /// Bytes that can still be appended.
    pub fn spare(&self) -> usize {
        self.end - self.start - self.len
    }

    /// Makes the window `len` bytes long. Bytes that appear by growing are initialised, with unspecified values.
    ///
    /// # Panics
    /// If `len` exceeds the capacity: a mistake of the caller, never of a peer.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "window of {} cannot hold {len} bytes", self.capacity());
        self.len = len;
    }

    /// Appends as much of `bytes` as fits and returns how much that was.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.spare());
        let at = self.len;
        self.len += taken;
        self[at..].copy_from_slice(&bytes[..taken]);
        taken
    }

    /// The same with the bytes of `slice` from `from` on, at most `len` of them.
    pub fn append_slice(&mut self, slice: &Slice, from: usize, len: usize) -> usize {
        let room = len.min(self.spare()).min(slice.len().saturating_sub(from));
        let at = self.len;
        self.len += room;
        slice.copy_to(from, &mut self[at..])
    }

    /// Hands out the first `at` bytes as a shared slice; this window keeps what lies behind them.
    pub fn split_to(&mut self, at: usize) -> Slice {
        assert!(at <= self.len, "cannot split {at} bytes off {}", self.len);
        retain(self.header);
        // SAFETY: the reference was just added, and from here on no code writes to `start..start + at`.
        let front = unsafe { Slice::from_block(self.header, data(self.header).wrapping_add(self.start), at) };
        self.start += at;
        self.len -= at;
        front
    }

    /// Gives up the first `n` bytes.
    pub fn skip(&mut self, n: usize) {
        assert!(n <= self.len, "cannot skip {n} bytes of {}", self.len);
        self.start += n;
        self.len -= n;
    }

    /// Gives up the right to write: the window becomes shared.
    pub fn freeze(self) -> Slice {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the window's reference moves into the slice; `this` is not dropped.
        unsafe { Slice::from_block(this.header, data(this.header).wrapping_add(this.start), this.len) }
    }
}

impl Deref for BlockMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the window lies inside the block, is initialised (zeroed at birth), and only we may write to it.
        unsafe { std::slice::from_raw_parts(data(self.header).add(self.start), self.len) }
    }
}

impl DerefMut for BlockMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only view.
        unsafe { std::slice::from_raw_parts_mut(data(self.header).add(self.start), self.len) }
    }
}

impl Drop for BlockMut {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: every window owns one reference, which ends here.
        unsafe { release(self.header) }
    }
}
