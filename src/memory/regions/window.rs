//! A part of a region: where a tensor is read from, or written to.
//!
//! Its client may change the bytes at any time: they are copied, or passed on by their address, and no reference to
//! them is made.

use std::sync::Arc;

use super::Region;
use crate::{SharedBytes, Slice};

/// Why a request cannot have what it names (contract/http.md section 4, "Request use"); the texts lack the region's
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error("Invalid offset")]
    Offset,
    #[error("Invalid offset + byte size")]
    Size,
    #[error(
        "Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value ({})",
        u64::MAX
    )]
    Overflow { offset: u64, byte_size: u64 },
}

/// Offset and length of what is named of a region of `size` bytes, whatever its kind.
pub fn range_in(size: u64, offset: u64, byte_size: u64) -> Result<(usize, usize), WindowError> {
    if offset >= size {
        return Err(WindowError::Offset);
    }
    let end = offset.checked_add(byte_size).ok_or(WindowError::Overflow { offset, byte_size })?;
    match (usize::try_from(offset), usize::try_from(byte_size)) {
        (Ok(offset), Ok(len)) if end <= size => Ok((offset, len)),
        _ => Err(WindowError::Size),
    }
}

#[derive(Debug, Clone)]
pub struct Window {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl Window {
    pub(super) fn of(region: &Arc<Region>, offset: u64, byte_size: u64) -> Result<Window, WindowError> {
        let (offset, len) = range_in(region.byte_size() as u64, offset, byte_size)?;
        Ok(Window { region: Arc::clone(region), offset, len })
    }

    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` bytes, or as many as there are.
    pub fn prefix(mut self, len: usize) -> Window {
        self.len = self.len.min(len);
        self
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.start()
    }

    fn start(&self) -> *mut u8 {
        // Made only with an offset that lies in the region.
        self.region.mapping.start().wrapping_add(self.offset)
    }

    /// The bytes as a tensor's data; they keep the region mapped.
    pub fn slice(&self) -> Slice {
        // SAFETY: the window lies in the mapping.
        unsafe { Slice::in_region(self.start(), self.len, Arc::clone(&self.region)) }
    }

    /// The bytes, which are read by copying them.
    pub fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the window lies in the mapping, which the region keeps.
        unsafe { SharedBytes::new(self.start(), self.len) }
    }

    /// The address to write to, for a writer outside the language.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start()
    }

    /// Writes `bytes` from `at` on. What does not fit is left out.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let len = bytes.len().min(self.len.saturating_sub(at));
        if len > 0 {
            // SAFETY: `at + len` lies in the window, which no reference points into.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start().add(at), len) }
        }
    }

    /// The same with the bytes of a slice, which may lie in the same region.
    pub fn write_slice(&self, at: usize, slice: &Slice) {
        let len = slice.len().min(self.len.saturating_sub(at));
        if len > 0 {
            // SAFETY: the slice keeps what it points to, `at + len` lies in the window, and `copy` takes ranges that
            // overlap.
            unsafe { std::ptr::copy(slice.as_ptr(), self.start().add(at), len) }
        }
    }
}
