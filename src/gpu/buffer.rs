//! Memory of a device: a buffer that one holder fills, and the tensor that it becomes.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use super::device::Gpu;
use super::driver::DeviceAddress;
use super::memory::AllocationSource;

/// Bytes of a device that are this holder's alone. Work that is under way may use them, so that a buffer must not be
/// dropped before that work is complete: [`Flight`](super::Flight) ensures it.
pub struct DeviceBuffer {
    gpu: Gpu,
    at: DeviceAddress,
    len: usize,
    source: AllocationSource,
}

impl DeviceBuffer {
    pub(super) fn new(gpu: Gpu, at: DeviceAddress, len: usize, source: AllocationSource) -> DeviceBuffer {
        DeviceBuffer { gpu, at, len, source }
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub fn address(&self) -> DeviceAddress {
        self.at
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes a tensor of bytes that another library filled.
    ///
    /// # Safety
    /// Nothing writes it any more, and all that did is complete.
    pub unsafe fn into_slice(self) -> DeviceSlice {
        self.freeze()
    }

    /// Makes a tensor of the buffer, which is no longer written: all work that wrote it is complete.
    pub(super) fn freeze(self) -> DeviceSlice {
        let (gpu, at, len) = (self.gpu.clone(), self.at, self.len);
        DeviceSlice { gpu, at, len, owner: Arc::new(self) }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.gpu.give_back(self.at, self.len, self.source);
    }
}

impl std::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBuffer({} bytes on GPU {})", self.len, self.gpu)
    }
}

/// Bytes of a device that are complete and no longer written. Cloning shares them. Code that enqueues work that reads
/// them keeps a clone until that work is complete.
#[derive(Clone)]
pub struct DeviceSlice {
    gpu: Gpu,
    at: DeviceAddress,
    len: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

impl DeviceSlice {
    /// Bytes that belong to something else, which is dropped with the last slice.
    ///
    /// # Safety
    /// `at..at + len` is memory of `gpu` that stays valid until `owner` is dropped. All work that writes it is
    /// complete, except for what another process does at its own risk.
    pub unsafe fn foreign(gpu: Gpu, at: DeviceAddress, len: usize, owner: Arc<dyn Any + Send + Sync>) -> DeviceSlice {
        DeviceSlice { gpu, at, len, owner }
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub fn address(&self) -> DeviceAddress {
        self.at
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The owner of the bytes, if it is of type `T`.
    pub fn owner<T: Any>(&self) -> Option<&T> {
        self.owner.downcast_ref()
    }

    /// A window on the same bytes.
    ///
    /// # Panics
    /// If the range does not lie in the slice: callers check lengths that come from a peer first.
    pub fn window(&self, range: Range<usize>) -> DeviceSlice {
        assert!(range.start <= range.end && range.end <= self.len, "a range inside");
        DeviceSlice { at: self.at.offset(range.start), len: range.len(), ..self.clone() }
    }

    /// True if both are the same bytes at the same place: nothing was copied between them.
    pub fn same_memory(&self, other: &DeviceSlice) -> bool {
        self.at == other.at && self.len == other.len
    }
}

impl std::fmt::Debug for DeviceSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceSlice({} bytes on GPU {})", self.len, self.gpu)
    }
}
