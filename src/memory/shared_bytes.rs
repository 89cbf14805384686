//! Bytes that another process may write to at any time, with no lock between it and this one.
//!
//! No reference to them is made: the compiler may read what a reference points to twice, or later than the code says,
//! so that a check holds for one value and its use meets another. [`SharedBytes`] copies, and what is checked and used
//! is the copy.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A range of shared memory, mapped for `'a`. Each read copies, and sees what the bytes are then.
#[derive(Debug, Clone, Copy)]
pub struct SharedBytes<'a> {
    at: *const u8,
    len: usize,
    mapping: PhantomData<&'a ()>,
}

impl SharedBytes<'_> {
    /// # Safety
    /// `at..at + len` is mapped, and can be read, for as long as the value lives.
    pub(super) unsafe fn new(at: *const u8, len: usize) -> Self {
        SharedBytes { at, len, mapping: PhantomData }
    }

    /// Fills `to` with the bytes from `from` on, and returns how many there were for it.
    pub fn copy_to(self, from: usize, to: &mut [u8]) -> usize {
        let len = to.len().min(self.len.saturating_sub(from));
        if len > 0 {
            // SAFETY: the source lies in the mapping. The target is memory of this process alone, so they are apart.
            unsafe { std::ptr::copy_nonoverlapping(self.at.add(from), to.as_mut_ptr(), len) }
        }
        len
    }

    /// A copy of all bytes.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends a copy of all bytes.
    pub fn append_to(self, bytes: &mut Vec<u8>) {
        bytes.reserve(self.len);
        // SAFETY: as above; the target is the vector's spare capacity, whose first bytes are initialised then.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at, bytes.as_mut_ptr().add(bytes.len()), self.len);
            bytes.set_len(bytes.len() + self.len);
        }
    }
}

/// A copy of shared bytes, made when they are first read as a slice: all who read that slice read the same.
#[derive(Default)]
pub(super) struct Snapshot(AtomicPtr<Box<[u8]>>);

impl Snapshot {
    /// The copy, made of `shared` if there is none yet. One thread's copy is kept if several make one at once.
    #[cold]
    pub fn of(&self, shared: Option<SharedBytes<'_>>) -> &[u8] {
        let mut kept = self.0.load(Ordering::Acquire);
        if kept.is_null() {
            let bytes = shared.map(SharedBytes::to_vec).unwrap_or_default();
            let made = Box::into_raw(Box::new(bytes.into_boxed_slice()));
            match self.0.compare_exchange(kept, made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => kept = made,
                Err(other) => {
                    // SAFETY: made above, and seen by no other code.
                    drop(unsafe { Box::from_raw(made) });
                    kept = other;
                }
            }
        }
        // SAFETY: what is kept is not null, comes from a box, and is neither written nor freed before `self` is gone.
        unsafe { &*kept }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let kept = *self.0.get_mut();
        if !kept.is_null() {
            // SAFETY: it comes from a box, and whoever borrowed it borrowed `self`.
            drop(unsafe { Box::from_raw(kept) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_ends_where_the_bytes_end() {
        let bytes = *b"abcdef";
        // SAFETY: the array outlives the value.
        let shared = unsafe { SharedBytes::new(bytes.as_ptr(), bytes.len()) };
        let mut to = [b'.'; 4];
        assert_eq!((shared.copy_to(1, &mut to), &to), (4, b"bcde"));
        let mut to = [b'.'; 4];
        assert_eq!((shared.copy_to(4, &mut to), &to), (2, b"ef.."));
        assert_eq!((shared.copy_to(6, &mut to), shared.copy_to(usize::MAX, &mut to)), (0, 0));
        let mut all = b">".to_vec();
        shared.append_to(&mut all);
        assert_eq!(all, b">abcdef");
    }

    #[test]
    fn threads_that_take_a_snapshot_at_once_read_one() {
        for round in 0..if cfg!(miri) { 5 } else { 200 } {
            let bytes = [round as u8; 64];
            let snapshot = Snapshot::default();
            let taken = || {
                // SAFETY: the array outlives the value.
                let shared = unsafe { SharedBytes::new(bytes.as_ptr(), bytes.len()) };
                snapshot.of(Some(shared)).as_ptr().addr()
            };
            let (one, two) = std::thread::scope(|scope| {
                let other = scope.spawn(taken);
                (taken(), other.join().unwrap())
            });
            assert_eq!(one, two);
            assert_eq!(snapshot.of(None), &bytes[..]);
        }
    }
}
