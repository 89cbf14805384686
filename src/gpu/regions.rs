//! CUDA memory that clients have registered: allocations of other processes, opened by their handles.
//!
//! Regions of both kinds live by the same rules (see [`nereid_memory::regions`]): while a request uses one it stays
//! listed, and it is closed after the last slice or target of it. Closing may wait for a device, so that it is left to
//! the thread that maps and unmaps regions of the host.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::DeviceSlice;
use super::device::{Gpu, Gpus};
use super::driver::{DeviceAddress, IpcHandle};
use nereid_memory::WindowError;
use nereid_memory::regions::{JobThread, REGIONS_MAX, TEXT_BYTES_MAX, Unregistered, Uses, range_in};

/// One registration.
pub struct DeviceRegion {
    name: Box<[u8]>,
    device_id: i64,
    gpu: Gpu,
    at: DeviceAddress,
    byte_size: usize,
    /// The handle that its client gave.
    handle: IpcHandle,
    uses: Uses,
    job_thread: JobThread,
}

impl DeviceRegion {
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    pub fn device_id(&self) -> i64 {
        self.device_id
    }

    pub fn byte_size(&self) -> usize {
        self.byte_size
    }

    /// The handle that its client gave for the allocation.
    pub fn handle(&self) -> &IpcHandle {
        &self.handle
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// `offset..offset + len` as a tensor's bytes; `None` if there is no such range.
    pub fn slice(self: &Arc<Self>, offset: usize, len: usize) -> Option<DeviceSlice> {
        let at = self.start(offset, len)?;
        // SAFETY: the range lies in the opened allocation, which the region holds. Writes of its client meanwhile are
        // its own risk: they change numbers, nothing else.
        Some(unsafe { DeviceSlice::foreign(self.gpu.clone(), at, len, Arc::clone(self) as Arc<_>) })
    }

    /// `offset..offset + len` as the target of an output; `None` if there is no such range.
    pub fn target(self: &Arc<Self>, offset: usize, len: usize) -> Option<DeviceTarget> {
        let at = self.start(offset, len)?;
        Some(DeviceTarget { gpu: self.gpu.clone(), at, len, owner: Arc::clone(self) as Arc<_> })
    }

    fn start(&self, offset: usize, len: usize) -> Option<DeviceAddress> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.byte_size);
        is_inside.then(|| self.at.offset(offset))
    }
}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        let (gpu, at, name) = (self.gpu.clone(), self.at, std::mem::take(&mut self.name));
        self.job_thread.run(move || {
            // SAFETY: slices and targets hold the region, and code that enqueues work on them holds those until it is
            // complete.
            let closed = unsafe { gpu.driver().ipc_close(gpu.ordinal(), at) };
            if let Err(error) = gpu.record_if_failed(closed) {
                let name = String::from_utf8_lossy(&name);
                tracing::warn!("CUDA shared memory region '{name}': failed to close CUDA IPC handle: {error}");
            }
        });
    }
}

impl std::fmt::Debug for DeviceRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = String::from_utf8_lossy(&self.name);
        write!(f, "DeviceRegion({name}, {} bytes on GPU {})", self.byte_size, self.gpu)
    }
}

/// The use of a region by a request.
pub struct DeviceRegionUse {
    region: Arc<DeviceRegion>,
    table: Arc<DeviceRegionTable>,
    is_over: AtomicBool,
}

impl DeviceRegionUse {
    pub fn region(&self) -> &Arc<DeviceRegion> {
        &self.region
    }

    /// A part of the region as an input's bytes.
    pub fn slice(&self, offset: u64, byte_size: u64) -> Result<DeviceSlice, WindowError> {
        let (offset, len) = range_in(self.region.byte_size as u64, offset, byte_size)?;
        self.region.slice(offset, len).ok_or(WindowError::Size)
    }

    /// A part of the region as the target of an output.
    pub fn target(&self, offset: u64, byte_size: u64) -> Result<DeviceTarget, WindowError> {
        let (offset, len) = range_in(self.region.byte_size as u64, offset, byte_size)?;
        self.region.target(offset, len).ok_or(WindowError::Size)
    }

    /// Called when the request is answered: the region may go, though it stays open for slices that still point into
    /// it.
    pub fn end(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) && self.region.uses.end() {
            self.table.remove(&self.region);
        }
    }
}

impl Drop for DeviceRegionUse {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for DeviceRegionUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DeviceRegionUse").field(&self.region).finish()
    }
}

/// The memory of a device to which a client directs an output.
#[derive(Clone)]
pub struct DeviceTarget {
    gpu: Gpu,
    at: DeviceAddress,
    len: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

impl DeviceTarget {
    /// # Safety
    /// `at..at + len` is memory of `gpu` that only this target's holders write, until `owner` is dropped.
    pub unsafe fn foreign(gpu: Gpu, at: DeviceAddress, len: usize, owner: Arc<dyn Any + Send + Sync>) -> DeviceTarget {
        DeviceTarget { gpu, at, len, owner }
    }

    /// The memory of a slice as a target, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_slice(slice: &DeviceSlice) -> DeviceTarget {
        let (gpu, at, len) = (slice.gpu().clone(), slice.address(), slice.len());
        DeviceTarget { gpu, at, len, owner: Arc::new(slice.clone()) }
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

    /// `len` bytes from `from` on, or as many as there are.
    pub fn part(&self, from: usize, len: usize) -> DeviceTarget {
        let from = from.min(self.len);
        let len = len.min(self.len - from);
        DeviceTarget { at: self.at.offset(from), len, ..self.clone() }
    }

    /// The target as a slice, for when all work that writes it is complete.
    pub fn freeze(self) -> DeviceSlice {
        let DeviceTarget { gpu, at, len, owner } = self;
        // SAFETY: the owner keeps the range, as it did for the target.
        unsafe { DeviceSlice::foreign(gpu, at, len, owner) }
    }
}

impl std::fmt::Debug for DeviceTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceTarget({} bytes on GPU {})", self.len, self.gpu)
    }
}

/// Why an allocation is not registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    /// Its name has more than [`TEXT_BYTES_MAX`] bytes.
    LongName,
    /// A region of that name exists.
    Exists,
    /// The server does not use that device.
    NoDevice,
    /// The driver does not open the handle, or cannot find the allocation that it opened.
    InvalidArgs(String),
    /// The size that the client states exceeds the allocation.
    TooLong,
    TooMany,
}

/// Regions that are listed before the lock is released and taken again.
const LISTED_AT_ONCE: usize = 64;

#[derive(Default)]
struct DeviceRegionTable(Mutex<BTreeMap<Box<[u8]>, Arc<DeviceRegion>>>);

impl DeviceRegionTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<[u8]>, Arc<DeviceRegion>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes this region off the list; another one may have its name by now.
    fn remove(&self, region: &Arc<DeviceRegion>) -> Option<Arc<DeviceRegion>> {
        let mut regions = self.lock();
        let is_this = regions.get(&region.name).is_some_and(|listed| Arc::ptr_eq(listed, region));
        if is_this { regions.remove(&region.name) } else { None }
    }
}

/// An allocation as its client describes it.
#[derive(Debug, Clone, Copy)]
pub struct IpcAllocation<'a> {
    pub handle: &'a IpcHandle,
    pub device_id: i64,
    pub byte_size: u64,
}

/// All registered regions of CUDA memory. One value for the process.
#[derive(Default)]
pub struct DeviceRegions {
    table: Arc<DeviceRegionTable>,
}

impl DeviceRegions {
    /// Opens another process's allocation under a name that no other region has; `job_thread` closes it. May block, so
    /// shards must not call it.
    pub fn register(
        &self,
        gpus: &Gpus,
        job_thread: &JobThread,
        name: &[u8],
        lent: IpcAllocation<'_>,
    ) -> Result<(), OpenError> {
        if name.len() > TEXT_BYTES_MAX {
            return Err(OpenError::LongName);
        }
        {
            let regions = self.table.lock();
            if regions.contains_key(name) {
                return Err(OpenError::Exists);
            }
            if regions.len() >= REGIONS_MAX {
                return Err(OpenError::TooMany);
            }
            // Opening takes long, and lookups must not wait for it.
        }
        let IpcAllocation { handle, device_id, byte_size } = lent;
        let gpu = i32::try_from(device_id).ok().and_then(|id| gpus.get(id)).ok_or(OpenError::NoDevice)?.clone();
        let (driver, ordinal) = (gpu.driver(), gpu.ordinal());
        // Triton's log text.
        let failed = |what, error: &super::DriverError| OpenError::InvalidArgs(format!("{what}: {error}"));
        let opened = gpu.record_if_failed(driver.ipc_open(ordinal, handle));
        let at = opened.map_err(|error| failed("failed to open CUDA IPC handle", &error))?;
        let byte_size = usize::try_from(byte_size).unwrap_or(usize::MAX);
        // From here on it is closed whatever happens.
        let region = Arc::new(DeviceRegion {
            name: name.into(),
            device_id,
            gpu: gpu.clone(),
            at,
            byte_size,
            handle: *handle,
            uses: Uses::default(),
            job_thread: job_thread.clone(),
        });
        let found = gpu.record_if_failed(driver.allocation_of(ordinal, at));
        let (base, len) = found.map_err(|error| failed("Failed to get CUDA address range", &error))?;
        let before = usize::try_from(at.0.saturating_sub(base.0)).unwrap_or(usize::MAX);
        if byte_size > len.saturating_sub(before) {
            return Err(OpenError::TooLong);
        }
        let mut regions = self.table.lock();
        // Another thread may have registered it meanwhile.
        if regions.contains_key(name) {
            drop(regions);
            return Err(OpenError::Exists);
        }
        regions.insert(name.into(), region);
        Ok(())
    }

    /// Unregisters a region, at once or with its last use; a missing one is no error. Shards must not call it.
    pub fn unregister(&self, name: &[u8]) -> Unregistered {
        let Some(region) = self.find(name) else { return Unregistered::Now };
        if !region.uses.mark() {
            return Unregistered::WithLastUse;
        }
        drop(self.table.remove(&region));
        Unregistered::Now
    }

    /// Begins a use of a region; `None` if there is none of that name.
    pub fn get(&self, name: &[u8]) -> Option<DeviceRegionUse> {
        let region = self.table.lock().get(name).filter(|region| region.uses.begin()).cloned()?;
        Some(DeviceRegionUse { region, table: Arc::clone(&self.table), is_over: AtomicBool::new(false) })
    }

    /// The region of that name, without a use of it, for status requests.
    pub fn find(&self, name: &[u8]) -> Option<Arc<DeviceRegion>> {
        self.table.lock().get(name).cloned()
    }

    /// All regions in the order of their names.
    pub fn list(&self) -> Vec<Arc<DeviceRegion>> {
        let mut listed: Vec<Arc<DeviceRegion>> = Vec::new();
        loop {
            let from = listed.last().map_or(Bound::Unbounded, |last| Bound::Excluded(&*last.name));
            let regions = self.table.lock();
            let next: Vec<Arc<DeviceRegion>> = regions
                .range::<[u8], _>((from, Bound::Unbounded))
                .take(LISTED_AT_ONCE)
                .map(|(_, one)| Arc::clone(one))
                .collect();
            drop(regions);
            if next.is_empty() {
                return listed;
            }
            listed.extend(next);
        }
    }

    pub fn len(&self) -> usize {
        self.table.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
