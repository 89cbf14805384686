//! Memory that an output is written to: a block of the pool, the window that its client has set aside for it, or memory
//! from an application's allocator.
//!
//! It is written, and not read: a window's client may write to it at the same time, so that no reference to it is made.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{BlockMut, Slice, Window};

#[derive(Debug)]
pub enum Target {
    Block(BlockMut),
    Window(Window),
    Foreign(ForeignMemory),
}

impl Target {
    /// Ends writing: the bytes become a tensor's.
    pub fn freeze(self) -> Slice {
        match self {
            Target::Block(block) => block.freeze(),
            Target::Window(window) => window.slice(),
            Target::Foreign(given) => given.freeze(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Target::Block(block) => block.len(),
            Target::Window(window) => window.len(),
            Target::Foreign(given) => given.len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address to write to, for a writer outside the language.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Target::Block(block) => block.as_mut_ptr(),
            Target::Window(window) => window.as_mut_ptr(),
            Target::Foreign(given) => given.at.as_ptr(),
        }
    }

    pub fn as_ptr(&self) -> *const u8 {
        match self {
            Target::Block(block) => block.as_ptr(),
            Target::Window(window) => window.as_ptr(),
            Target::Foreign(given) => given.at.as_ptr(),
        }
    }

    pub fn is_aligned_to(&self, alignment: usize) -> bool {
        self.as_ptr().addr().is_multiple_of(alignment.max(1))
    }

    /// Writes `bytes` from `at` on; false if they do not fit there: then no byte is written.
    #[must_use]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        if at.checked_add(bytes.len()).is_none_or(|end| end > self.len()) {
            return false;
        }
        match self {
            Target::Window(window) => window.write(at, bytes),
            Target::Block(_) | Target::Foreign(_) => {
                self.write_with(|whole| whole[at..at + bytes.len()].copy_from_slice(bytes));
            }
        }
        true
    }

    /// Lets `write` fill the bytes; those of a window by way of a buffer, which begins with zeros.
    pub fn write_with<R>(&mut self, write: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            Target::Block(block) => write(block),
            // SAFETY: no other code accesses it until it is frozen, by the contract of `ForeignMemory::new`.
            Target::Foreign(given) => write(unsafe { std::slice::from_raw_parts_mut(given.at.as_ptr(), given.len) }),
            Target::Window(window) => {
                let mut buffer = vec![0; window.len()];
                let result = write(&mut buffer);
                window.write(0, &buffer);
                result
            }
        }
    }

    /// Memory type and its id, as `TRITONSERVER_MemoryType` counts: memory that is not foreign is plain memory.
    pub fn place(&self) -> (u32, i64) {
        match self {
            Target::Block(_) | Target::Window(_) => (0, 0),
            Target::Foreign(given) => given.place,
        }
    }
}

impl From<BlockMut> for Target {
    fn from(block: BlockMut) -> Target {
        Target::Block(block)
    }
}

/// Memory of an application or runtime, which goes back with its owner.
pub struct ForeignMemory {
    at: NonNull<u8>,
    len: usize,
    place: (u32, i64),
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory is this value's alone until it is frozen, and its owner may be dropped by any thread.
unsafe impl Send for ForeignMemory {}
// SAFETY: `&ForeignMemory` only reads.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// # Safety
    /// `at..at + len` can be read and written by the CPU, and is accessed by no other code, until `owner` is dropped.
    /// `at` may be NULL if `len` is 0. No larger than half the address space.
    pub unsafe fn new(at: *mut u8, len: usize, place: (u32, i64), owner: Arc<dyn Any + Send + Sync>) -> ForeignMemory {
        let (at, len) = NonNull::new(at).map_or((NonNull::dangling(), 0), |at| (at, len));
        ForeignMemory { at, len, place, owner }
    }

    fn freeze(self) -> Slice {
        // SAFETY: by the contract of `new`; it is no longer written.
        unsafe { Slice::foreign(self.at.as_ptr(), self.len, self.owner) }
    }
}

impl std::fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForeignMemory({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Owner(Vec<u8>);

    #[test]
    fn what_is_written_to_given_memory_is_there_and_owned() {
        let mut bytes = vec![0u8; 4];
        let at = bytes.as_mut_ptr();
        // SAFETY: the vector's bytes stay where they are and are accessed by no other code until the owner is gone.
        let given = unsafe { ForeignMemory::new(at, 4, (1, 7), Arc::new(Owner(bytes))) };
        let mut target = Target::Foreign(given);
        assert!(target.write(0, b"w.rd") && target.write(1, b"o"));
        assert!(!target.write(1, b"word") && !target.write(usize::MAX, b"d"));
        assert_eq!((target.place(), target.len()), ((1, 7), 4));
        let slice = target.freeze();
        assert_eq!(slice.foreign_owner::<Owner>().map(|owner| &owner.0[..]), Some(&b"word"[..]));
        assert!(slice.foreign_owner::<u8>().is_none());
        // SAFETY: no byte at all.
        let empty = unsafe { ForeignMemory::new(std::ptr::null_mut(), 9, (0, 0), Arc::new(())) };
        assert!(Target::Foreign(empty).is_empty());
    }
}
