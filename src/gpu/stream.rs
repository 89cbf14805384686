//! Streams and events of a device, which are destroyed when they are dropped.

use std::time::Duration;

use super::device::Gpu;
use super::driver::{self, Access, Argument, DeviceAddress, EventHandle, EventOptions, Extent, StreamHandle};
use super::kernel::Kernel;

/// A queue of work of one device: its work runs in order, concurrently with that of other streams.
pub struct Stream {
    gpu: Gpu,
    handle: StreamHandle,
}

/// A point in a stream.
pub struct Event {
    gpu: Gpu,
    handle: EventHandle,
}

impl Stream {
    pub(super) fn new(gpu: &Gpu) -> driver::Result<Stream> {
        let handle = gpu.record_if_failed(gpu.driver().create_stream(gpu.ordinal()))?;
        Ok(Stream { gpu: gpu.clone(), handle })
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// The `CUstream`, for libraries that enqueue by themselves.
    pub fn as_ptr(&self) -> *mut std::ffi::c_void {
        self.gpu.driver().stream_pointer(self.handle)
    }

    /// An event of this stream's device.
    pub fn event(&self, options: EventOptions) -> driver::Result<Event> {
        let handle = self.gpu.record_if_failed(self.gpu.driver().create_event(self.gpu.ordinal(), options))?;
        Ok(Event { gpu: self.gpu.clone(), handle })
    }

    /// Records the event: it covers all work that is in the stream by now.
    pub fn record(&self, event: &Event) -> driver::Result<()> {
        self.gpu.record_if_failed(self.gpu.driver().record(self.gpu.ordinal(), event.handle, self.handle))
    }

    /// Work enqueued from now on waits for the event, on the device.
    pub fn wait(&self, event: &Event) -> driver::Result<()> {
        self.gpu.record_if_failed(self.gpu.driver().wait(self.gpu.ordinal(), self.handle, event.handle))
    }

    /// # Safety
    /// As [`Driver::copy_in`](driver::Driver::copy_in); so for all below.
    pub unsafe fn copy_in(&self, to: DeviceAddress, from: *const u8, len: usize) -> driver::Result<()> {
        // SAFETY: both ranges stay valid until the work is complete: this function requires that of its caller.
        self.gpu.record_if_failed(unsafe { self.gpu.driver().copy_in(self.gpu.ordinal(), self.handle, to, from, len) })
    }

    /// # Safety
    /// See [`copy_in`](Stream::copy_in).
    pub unsafe fn copy_out(&self, to: *mut u8, from: DeviceAddress, len: usize) -> driver::Result<()> {
        // SAFETY: both ranges stay valid until the work is complete: this function requires that of its caller.
        self.gpu.record_if_failed(unsafe { self.gpu.driver().copy_out(self.gpu.ordinal(), self.handle, to, from, len) })
    }

    /// # Safety
    /// See [`copy_in`](Stream::copy_in).
    pub unsafe fn copy_across(
        &self,
        to: (usize, DeviceAddress),
        from: (usize, DeviceAddress),
        len: usize,
    ) -> driver::Result<()> {
        // SAFETY: both ranges stay valid until the work is complete: this function requires that of its caller.
        self.gpu
            .record_if_failed(unsafe { self.gpu.driver().copy_across(self.gpu.ordinal(), self.handle, to, from, len) })
    }

    /// # Safety
    /// As [`Driver::launch`](driver::Driver::launch).
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        extent: Extent,
        arguments: &[Argument],
        accesses: &[Access],
    ) -> driver::Result<()> {
        let (driver, ordinal) = (self.gpu.driver(), self.gpu.ordinal());
        // SAFETY: what the arguments name stays valid until the work is complete: this function requires that of its
        // caller.
        let launched = unsafe { driver.launch(ordinal, self.handle, kernel.handle(), extent, arguments, accesses) };
        self.gpu.record_if_failed(launched)
    }
}

impl Event {
    /// True if all work that it covers is complete. An error of that work is returned here.
    pub fn is_complete(&self) -> driver::Result<bool> {
        self.gpu.record_if_failed(self.gpu.driver().query(self.gpu.ordinal(), self.handle))
    }

    /// Blocks until the work that it covers is complete.
    pub fn synchronize(&self) -> driver::Result<()> {
        self.gpu.record_if_failed(self.gpu.driver().synchronize(self.gpu.ordinal(), self.handle))
    }

    /// Time between this event and a later one; both complete and timed.
    pub fn elapsed_until(&self, later: &Event) -> driver::Result<Duration> {
        self.gpu.record_if_failed(self.gpu.driver().elapsed(self.gpu.ordinal(), self.handle, later.handle))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: no other code has the handle.
        unsafe { self.gpu.driver().destroy_stream(self.gpu.ordinal(), self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: no other code has the handle.
        unsafe { self.gpu.driver().destroy_event(self.gpu.ordinal(), self.handle) }
    }
}
