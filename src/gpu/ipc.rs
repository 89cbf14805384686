//! Memory of devices between processes: allocations exported to another process, and imported from one.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use super::buffer::DeviceSlice;
use super::device::Gpu;
use super::driver::{self, DeviceAddress, DriverError, IpcHandle};
use nereid_memory::regions::JobThread;

/// What another process needs to open a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The handle of the allocation around it.
    pub handle: IpcHandle,
    /// The tensor's offset in the allocation.
    pub offset: usize,
    /// The allocation lives as long as the server.
    pub lasts: bool,
}

impl DeviceSlice {
    /// Returns how another process opens the memory. Memory imported from another process cannot be exported: that is
    /// an error.
    pub fn export(&self) -> driver::Result<Exported> {
        let (gpu, at) = (self.gpu(), self.address());
        let (driver, ordinal) = (gpu.driver(), gpu.ordinal());
        let (base, _) = gpu.record_if_failed(driver.allocation_of(ordinal, at))?;
        let handle = gpu.record_if_failed(driver.ipc_export(ordinal, base))?;
        let offset = usize::try_from(at.0.saturating_sub(base.0)).unwrap_or(usize::MAX);
        Ok(Exported { handle, offset, lasts: gpu.is_pooled(at) })
    }
}

/// Runs a job that may wait for a device on a background thread, for callers that must not wait; one job at a time.
pub fn run_in_background(job: impl FnOnce() + Send + 'static) {
    job_thread().run(job);
}

fn job_thread() -> &'static JobThread {
    static JOBS: LazyLock<JobThread> = LazyLock::new(JobThread::default);
    &JOBS
}

/// An allocation of another process. The thread of [`run_in_background`] closes it after the last slice of it.
#[derive(Debug)]
pub struct Imported {
    gpu: Gpu,
    base: DeviceAddress,
    len: usize,
}

impl Imported {
    /// Opens an allocation that another process has exported on `gpu`. May block.
    pub fn open(gpu: &Gpu, handle: &IpcHandle) -> driver::Result<Arc<Imported>> {
        // Started here and not by the thread that drops the last slice, which may have a core to itself.
        let _ = job_thread().start();
        let (driver, ordinal) = (gpu.driver(), gpu.ordinal());
        let base = gpu.record_if_failed(driver.ipc_open(ordinal, handle))?;
        // From here on it is closed in every case.
        let mut imported = Imported { gpu: gpu.clone(), base, len: 0 };
        let (begin, len) = gpu.record_if_failed(driver.allocation_of(ordinal, base))?;
        let before = usize::try_from(base.0.saturating_sub(begin.0)).unwrap_or(usize::MAX);
        imported.len = len.saturating_sub(before);
        Ok(Arc::new(imported))
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// `offset..offset + len` as a tensor's bytes, kept by `owner` beside the allocation itself. Its process has
    /// completed the work that writes them.
    pub fn slice(
        self: &Arc<Self>,
        offset: usize,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> driver::Result<DeviceSlice> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let text = format!("{len} bytes from {offset} on do not lie in an allocation of {} bytes", self.len);
            let name = "CUDA_ERROR_INVALID_VALUE".to_owned();
            return Err(DriverError { call: "cuIpcOpenMemHandle", code: DriverError::INVALID_VALUE, name, text });
        }
        // In this order, so that an owner that holds the allocation as well is the last to drop it.
        let owner = Arc::new((Arc::clone(self), owner));
        // SAFETY: the range lies in the allocation, which the owner keeps open. Writes of its process meanwhile change
        // numbers, nothing else.
        Ok(unsafe { DeviceSlice::foreign(self.gpu.clone(), self.base.offset(offset), len, owner) })
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let (gpu, base) = (self.gpu.clone(), self.base);
        run_in_background(move || {
            // SAFETY: slices hold it, and code that enqueues work on them holds those until it is complete.
            let closed = unsafe { gpu.driver().ipc_close(gpu.ordinal(), base) };
            if let Err(error) = gpu.record_if_failed(closed) {
                tracing::warn!("memory of another process on GPU {gpu} is not closed: {error}");
            }
        });
    }
}
