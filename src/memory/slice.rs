//! The [`Slice`]: a shared run of bytes and the owner that keeps it alive.
//!
//! Most are no longer written. Those in memory that another process shares may change at any time, so no reference to
//! them is ever made: they are copied from, passed on by their address, or read as a snapshot.

use std::any::Any;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use super::block::{self, Header};
use super::regions::Region;
use super::segment::SliceOwner;
use super::shared_bytes::{SharedBytes, Snapshot};

enum Owner {
    Static,
    Block(NonNull<Header>),
    /// A runtime's output buffer: its `Drop` is the release route back to its owner.
    Foreign(Arc<dyn Any + Send + Sync>),
    /// Memory that a client may write to.
    Region(Arc<Region>, Snapshot),
    /// Memory that a worker may write to.
    Segment(Arc<SliceOwner>, Snapshot),
}

/// Bytes that this process no longer writes. Cloning shares them.
///
/// To dereference a slice of memory that another process shares copies all of it, once: what was checked is what is
/// used. A reader on a path that counts takes [`Slice::copy_to`] or the address instead.
pub struct Slice {
    at: *const u8,
    len: usize,
    owner: Owner,
}

// SAFETY: the bytes are immutable while any slice lives, or are read by copying only, and every owner is safe to drop
// on any thread.
unsafe impl Send for Slice {}
// SAFETY: as above; `&Slice` only reads.
unsafe impl Sync for Slice {}

impl Slice {
    pub const fn empty() -> Slice {
        Slice::from_static(&[])
    }

    pub const fn from_static(bytes: &'static [u8]) -> Slice {
        Slice { at: bytes.as_ptr(), len: bytes.len(), owner: Owner::Static }
    }

    /// Copies `bytes` into a block of its own, outside any pool.
    pub fn copy_of(bytes: &[u8]) -> Slice {
        let mut block = super::BlockMut::unpooled(bytes.len());
        block.copy_from_slice(bytes);
        block.freeze()
    }

    /// # Safety
    /// One reference of `header` moves into the slice; `at..at + len` lies in that block and is no longer written.
    pub(super) unsafe fn from_block(header: NonNull<Header>, at: *const u8, len: usize) -> Slice {
        Slice { at, len, owner: Owner::Block(header) }
    }

    /// Bytes that belong to something else, which is dropped with the last slice.
    ///
    /// # Safety
    /// `at..at + len` is readable, and written by no thread that is not synchronised with the readers, until `owner` is
    /// dropped. `at` is not null unless `len` is 0.
    pub unsafe fn foreign(at: *const u8, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Slice {
        let at = if len == 0 { NonNull::dangling().as_ptr() } else { at };
        Slice { at, len, owner: Owner::Foreign(owner) }
    }

    /// Bytes of a region, which its client may change at any time.
    ///
    /// # Safety
    /// `at..at + len` lies in the region's mapping.
    pub(super) unsafe fn in_region(at: *const u8, len: usize, region: Arc<Region>) -> Slice {
        Slice { at, len, owner: Owner::Region(region, Snapshot::default()) }
    }

    /// Bytes of a segment, which the worker that maps it may change at any time.
    ///
    /// # Safety
    /// `at..at + len` lies in the segment that `owner` keeps.
    pub(super) unsafe fn in_segment(at: *const u8, len: usize, owner: Arc<SliceOwner>) -> Slice {
        Slice { at, len, owner: Owner::Segment(owner, Snapshot::default()) }
    }

    /// A slice of a vector, as a runtime's output is one of foreign memory; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn foreign_vec(bytes: &Arc<Vec<u8>>) -> Slice {
        // SAFETY: the slice holds the vector, and a shared vector is not written.
        unsafe { Slice::foreign(bytes.as_ptr(), bytes.len(), Arc::clone(bytes) as Arc<_>) }
    }

    /// A window on the same bytes.
    ///
    /// # Panics
    /// If the range does not lie in the slice: callers check lengths that come from a peer first.
    pub fn window(&self, range: Range<usize>) -> Slice {
        let mut part = self.clone();
        part.narrow(range);
        part
    }

    /// Drops the first `n` bytes from view.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, n: usize) {
        self.narrow(n..self.len);
    }

    fn narrow(&mut self, range: Range<usize>) {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "no range {start}..{end} in a slice of {} bytes", self.len);
        (self.at, self.len) = (self.at.wrapping_add(start), end - start);
        match &mut self.owner {
            // It is that of the former range.
            Owner::Region(_, snapshot) | Owner::Segment(_, snapshot) => *snapshot = Snapshot::default(),
            Owner::Static | Owner::Block(_) | Owner::Foreign(_) => {}
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes lie, for a reader outside the language: a model's runtime, a system call, a device.
    pub fn as_ptr(&self) -> *const u8 {
        self.at
    }

    /// Fills `to` with the bytes from `from` on, and returns how many there were for it.
    pub fn copy_to(&self, from: usize, to: &mut [u8]) -> usize {
        match self.shared() {
            Some(shared) => shared.copy_to(from, to),
            None => {
                let rest = self.get(from..).unwrap_or_default();
                let len = rest.len().min(to.len());
                to[..len].copy_from_slice(&rest[..len]);
                len
            }
        }
    }

    /// Appends a copy of the bytes.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        match self.shared() {
            Some(shared) => shared.append_to(bytes),
            None => bytes.extend_from_slice(self),
        }
    }

    /// The same bytes where no other process can change them: a copy where they are shared with one.
    pub fn stable(&self) -> Slice {
        match self.shared() {
            Some(_) => {
                let mut block = super::BlockMut::unpooled(self.len);
                self.copy_to(0, &mut block);
                block.freeze()
            }
            None => self.clone(),
        }
    }

    /// The bytes, if another process may write to them.
    pub fn shared(&self) -> Option<SharedBytes<'_>> {
        match &self.owner {
            // SAFETY: both constructors demand that the bytes lie in memory that the owner keeps mapped.
            Owner::Region(..) | Owner::Segment(..) => Some(unsafe { SharedBytes::new(self.at, self.len) }),
            Owner::Static | Owner::Block(_) | Owner::Foreign(_) => None,
        }
    }

    /// True if the bytes belong to an owner that may need them back: a runtime, a mapped region.
    pub fn is_foreign(&self) -> bool {
        matches!(self.owner, Owner::Foreign(_) | Owner::Region(..) | Owner::Segment(..))
    }

    /// True if the bytes lie in a region of shared memory, where their client may change them.
    pub fn is_in_region(&self) -> bool {
        matches!(self.owner, Owner::Region(..))
    }

    /// True if a caller inside the process lent the bytes for the time of a request, and waits to get them back.
    pub fn is_lent(&self) -> bool {
        self.foreign_owner::<super::ReleaseGuard>().is_some()
    }

    /// The owner of the bytes, if they are foreign and it has that type.
    pub fn foreign_owner<T: Any>(&self) -> Option<&T> {
        match &self.owner {
            Owner::Foreign(owner) => owner.downcast_ref(),
            Owner::Static | Owner::Block(_) | Owner::Region(..) | Owner::Segment(..) => None,
        }
    }

    /// The pool that its memory is charged to, so that what is made of the bytes is charged like them; `None`: it is
    /// no pool's.
    pub fn pool(&self) -> Option<super::Pool> {
        match &self.owner {
            Owner::Block(header) => block::account(header).map(super::Pool::of_account),
            Owner::Static | Owner::Foreign(_) | Owner::Region(..) | Owner::Segment(..) => None,
        }
    }

    /// Bytes of memory that live as long as the slice: those of its whole block. `usize::MAX`: they belong to another
    /// owner, and nothing is known of them.
    pub fn kept_bytes(&self) -> usize {
        match &self.owner {
            Owner::Static => 0,
            Owner::Block(header) => block::capacity(header),
            Owner::Foreign(_) | Owner::Region(..) | Owner::Segment(..) => usize::MAX,
        }
    }

    /// True if the first byte is aligned to `alignment` (a power of two).
    pub fn is_aligned_to(&self, alignment: usize) -> bool {
        (self.at as usize) & (alignment - 1) == 0
    }

    /// True if both are the same bytes at the same place: nothing was copied between them.
    pub fn same_memory(&self, other: &Slice) -> bool {
        std::ptr::eq(self.at, other.at) && self.len == other.len
    }
}

/// Reads slices, one behind the other, by copying.
#[derive(Debug)]
pub struct SliceReader<'a> {
    slices: &'a [Slice],
    at: usize,
}

impl<'a> SliceReader<'a> {
    pub fn new(slices: &'a [Slice]) -> SliceReader<'a> {
        SliceReader { slices, at: 0 }
    }

    /// Fills `to` with the next bytes, and returns how many there were for it.
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some((first, rest)) = self.slices.split_first() {
            let copied = first.copy_to(self.at, &mut to[filled..]);
            (filled, self.at) = (filled + copied, self.at + copied);
            if self.at < first.len() {
                break;
            }
            (self.slices, self.at) = (rest, 0);
        }
        filled
    }
}

impl Deref for Slice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::Region(_, snapshot) | Owner::Segment(_, snapshot) => snapshot.of(self.shared()),
            // SAFETY: every other constructor demands that these bytes are readable, and not written, while the owner
            // lives.
            Owner::Static | Owner::Block(_) | Owner::Foreign(_) => unsafe {
                std::slice::from_raw_parts(self.at, self.len)
            },
        }
    }
}

impl Clone for Slice {
    fn clone(&self) -> Slice {
        let owner = match &self.owner {
            Owner::Static => Owner::Static,
            Owner::Block(header) => {
                block::retain(*header);
                Owner::Block(*header)
            }
            Owner::Foreign(owner) => Owner::Foreign(Arc::clone(owner)),
            Owner::Region(region, _) => Owner::Region(Arc::clone(region), Snapshot::default()),
            Owner::Segment(owner, _) => Owner::Segment(Arc::clone(owner), Snapshot::default()),
        };
        Slice { at: self.at, len: self.len, owner }
    }
}

impl Drop for Slice {
    #[inline]
    fn drop(&mut self) {
        if let Owner::Block(header) = self.owner {
            // SAFETY: this slice owns one reference of the block and is gone now.
            unsafe { block::release(header) }
        }
    }
}

impl Default for Slice {
    fn default() -> Slice {
        Slice::empty()
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({} bytes)", self.len)
    }
}

impl PartialEq<[u8]> for Slice {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockMut;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn splitting_and_freezing_share_one_block() {
        let mut block = BlockMut::unpooled(8);
        block.copy_from_slice(b"abcdefgh");
        let front = block.split_to(3);
        block[0] = b'D';
        let back = block.freeze();
        assert_eq!((&*front, &*back), (&b"abc"[..], &b"Defgh"[..]));
        assert_eq!(&*back.window(1..3), b"ef");
        assert!(back.same_memory(&back.clone()));
        assert_eq!(
            [front.kept_bytes(), back.window(1..3).kept_bytes(), Slice::from_static(b"x").kept_bytes()],
            [8, 8, 0]
        );
    }

    #[test]
    fn a_reader_goes_from_slice_to_slice() {
        let slices = [&b"abc"[..], b"", b"defgh"].map(Slice::copy_of);
        let mut reader = SliceReader::new(&slices);
        let (mut four, mut rest) = ([0; 4], [0; 9]);
        assert_eq!((reader.read(&mut four), &four), (4, b"abcd"));
        assert_eq!((reader.read(&mut []), reader.read(&mut rest), &rest), (0, 4, b"efgh\0\0\0\0\0"));
        assert_eq!(reader.read(&mut rest), 0);
        assert_eq!(SliceReader::new(&[]).read(&mut rest), 0);
    }

    #[test]
    fn a_foreign_owner_is_released_with_the_last_slice() {
        static GONE: AtomicBool = AtomicBool::new(false);
        struct Owner(#[allow(dead_code)] Vec<u8>);
        impl Drop for Owner {
            fn drop(&mut self) {
                GONE.store(true, Ordering::SeqCst);
            }
        }
        let owner = Owner(vec![7; 16]);
        let at = owner.0.as_ptr();
        // SAFETY: the vector is neither written nor moved until its owner is dropped.
        let slice = unsafe { Slice::foreign(at, 16, Arc::new(owner)) };
        let part = slice.window(4..8);
        drop(slice);
        assert!(!GONE.load(Ordering::SeqCst));
        assert_eq!(&*part, &[7; 4]);
        drop(part);
        assert!(GONE.load(Ordering::SeqCst));
    }
}
