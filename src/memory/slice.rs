//! The [`Slice`]: a shared, immutable run of bytes and the owner that keeps it alive.

use std::any::Any;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use super::block::{self, Header};

enum Owner {
    Static,
    Block(NonNull<Header>),
    /// A runtime's output buffer, a mapped region: its `Drop` is the release route back to its owner.
    Foreign(Arc<dyn Any + Send + Sync>),
}

/// Bytes that are no longer written. Cloning shares them.
pub struct Slice {
    at: *const u8,
    len: usize,
    owner: Owner,
}

// SAFETY: the bytes are immutable while any slice lives and every owner is safe to drop on any thread.
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
        let bytes = &self[range];
        part.at = bytes.as_ptr();
        part.len = bytes.len();
        part
    }

    /// Drops the first `n` bytes from view.
    pub fn advance(&mut self, n: usize) {
        let rest = &self[n..];
        (self.at, self.len) = (rest.as_ptr(), rest.len());
    }

    /// True if the bytes belong to an owner that may need them back: a runtime, a mapped region.
    pub fn is_foreign(&self) -> bool {
        matches!(self.owner, Owner::Foreign(_))
    }

    /// True if the bytes lie in a region of shared memory, where their client may change them.
    pub fn is_in_region(&self) -> bool {
        match &self.owner {
            Owner::Foreign(owner) => owner.is::<super::Region>(),
            Owner::Static | Owner::Block(_) => false,
        }
    }

    /// True if a caller inside the process lent the bytes for the time of a request, and waits to get them back.
    pub fn is_lent(&self) -> bool {
        self.foreign_owner::<super::ReleaseGuard>().is_some()
    }

    /// The owner of the bytes, if they are foreign and it has that type.
    pub fn foreign_owner<T: Any>(&self) -> Option<&T> {
        match &self.owner {
            Owner::Foreign(owner) => owner.downcast_ref(),
            Owner::Static | Owner::Block(_) => None,
        }
    }

    /// The pool that its memory is charged to, so that what is made of the bytes is charged like them; `None`: it is
    /// no pool's.
    pub fn pool(&self) -> Option<super::Pool> {
        match &self.owner {
            Owner::Block(header) => block::account(header).map(super::Pool::of_account),
            Owner::Static | Owner::Foreign(_) => None,
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

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: every constructor demands that these bytes are readable while the owner lives.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
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
