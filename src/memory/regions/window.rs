//! A part of a region: where a tensor is read from, or written to.
//!
//! Its client may change the bytes at any time. A reader here checks what follows from them each time it reads them, or
//! reads a copy.

use std::any::Any;
use std::sync::Arc;

use super::Region;
use crate::Slice;

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
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&self.region) as Arc<_>;
        // SAFETY: the window lies in the mapping, which the region keeps. Memory that other processes share cannot be
        // kept from being written: no reader relies on a byte to keep its value.
        unsafe { Slice::foreign(self.start(), self.len, owner) }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the window lies in the mapping, which the region keeps. Memory that other processes share cannot be
        // kept from being written: no reader relies on a byte to keep its value.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the mapping is writable.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }

    /// Writes `bytes` from `at` on, which may lie in the same region. What does not fit is left out.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let len = bytes.len().min(self.len.saturating_sub(at));
        if len > 0 {
            // The compiler takes the bytes of a slice as unwritten, and turned this into a copy of ranges that are
            // apart.
            let from = std::hint::black_box(bytes.as_ptr());
            // SAFETY: `at + len` lies in the window, and `copy` takes ranges that overlap.
            unsafe { std::ptr::copy(from, self.start().add(at), len) }
        }
    }
}
