//! The devices that the server uses, and their operations that are independent of an instance.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tracing::{error, info, warn};

use super::buffer::{DeviceBuffer, DeviceSlice};
use super::cuda;
use super::driver::{
    self, Description, DeviceAddress, Driver, DriverError, EventHandle, EventOptions, Program, StreamHandle,
};
use super::kernel::Kernel;
use super::memory::{AllocationSource, DeviceMemory};
use super::pinned::PinnedPool;
use super::regions::{DeviceRegions, DeviceTarget};
use super::settings::Settings;
#[cfg(any(test, feature = "simulated"))]
use super::simulated;
use super::stream::Stream;
use nereid_memory::{Slice, Target};

/// The environment variable of a server that uses no GPU (contract/cli.md section 4).
const CPU_ONLY: &str = "TRITON_SERVER_CPU_ONLY";
/// The variable that makes a server use simulated devices, in a build that has them (`simulated`).
pub const SIMULATED: &str = "NEREID_SIMULATED_GPUS";
/// Whether this build can simulate devices.
pub const CAN_SIMULATE: bool = cfg!(any(test, feature = "simulated"));

/// The driver of the simulated devices that the environment requests; `Ok(None)` if it requests none.
fn made_up() -> Result<Option<Arc<dyn Driver>>, String> {
    let Some(text) = std::env::var_os(SIMULATED).filter(|text| !text.is_empty()) else { return Ok(None) };
    #[cfg(any(test, feature = "simulated"))]
    return simulated::parse(&text).map(Some);
    #[cfg(not(any(test, feature = "simulated")))]
    Err(format!(
        "{SIMULATED} is set ({}), and this build cannot make any up: build it with --features simulated-gpus",
        text.display()
    ))
}

/// All devices of the server. There is always one value of it; without a driver it is empty.
#[derive(Default)]
pub struct Gpus {
    driver: Option<Arc<dyn Driver>>,
    devices: Vec<Gpu>,
    min_compute_capability: f64,
    is_simulated: bool,
    pinned: PinnedPool,
    regions: DeviceRegions,
}

impl Gpus {
    /// The devices of this host: the stand-in's if the environment requests them, else those of CUDA's driver.
    pub fn discover(settings: &Settings) -> Arc<Gpus> {
        if std::env::var_os(CPU_ONLY).is_some() {
            return Arc::default();
        }
        let simulated = match made_up() {
            Ok(simulated) => simulated,
            Err(text) => {
                error!("there are no simulated GPUs: {text}");
                return Arc::default();
            }
        };
        let is_simulated = simulated.is_some();
        match simulated.or_else(cuda::open) {
            Some(driver) => Arc::new(Gpus { is_simulated, ..Gpus::of(driver, settings) }),
            None => Arc::default(),
        }
    }

    /// The devices of `driver` that have at least the configured compute capability.
    pub fn with(driver: Arc<dyn Driver>, settings: &Settings) -> Arc<Gpus> {
        Arc::new(Gpus::of(driver, settings))
    }

    fn of(driver: Arc<dyn Driver>, settings: &Settings) -> Gpus {
        let found = (0..driver.device_count()).filter_map(|ordinal| match driver.describe(ordinal) {
            Ok(description) if description.capability() + 1e-6 < settings.min_compute_capability => {
                let (name, has) = (&description.name, description.capability());
                let least = settings.min_compute_capability;
                warn!(
                    "GPU {ordinal} ({name}) is not used: its compute capability is {has:.1}, \
                     at least {least:.1} is required"
                );
                None
            }
            Ok(description) => Some(Gpu::new(Arc::clone(&driver), ordinal, description, settings)),
            Err(error) => {
                warn!("GPU {ordinal} is not used: {error}");
                None
            }
        });
        let devices: Vec<Gpu> = found.collect();
        if settings.enable_peer_access {
            connect(&devices);
        }
        // Only where there is a device to use it, and with the context of the first.
        let pinned = devices.first().map_or_else(PinnedPool::default, |first| {
            if let Err(error) = first.enter() {
                warn!("GPU {first} cannot be entered: {error}");
            }
            let pinned = PinnedPool::new(Arc::clone(&driver), settings.pinned_pool_bytes);
            pinned.prepare();
            pinned
        });
        for gpu in &devices {
            let Description { name, memory_bytes, pci_address, .. } = gpu.description();
            let capability = gpu.description().capability();
            info!("GPU {gpu}: {name} at {pci_address}, compute capability {capability:.1}, {memory_bytes} bytes");
        }
        Gpus {
            driver: Some(driver),
            devices,
            min_compute_capability: settings.min_compute_capability,
            is_simulated: false,
            pinned,
            regions: DeviceRegions::default(),
        }
    }

    /// True if there is a driver.
    pub fn is_supported(&self) -> bool {
        self.driver.is_some()
    }

    /// True if they are the stand-in's, which other libraries cannot use.
    pub fn is_simulated(&self) -> bool {
        self.is_simulated
    }

    /// The least compute capability of the devices that are used.
    pub fn min_compute_capability(&self) -> f64 {
        self.min_compute_capability
    }

    pub fn driver(&self) -> Option<&Arc<dyn Driver>> {
        self.driver.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Gpu> {
        self.devices.iter()
    }

    pub fn get(&self, ordinal: i32) -> Option<&Gpu> {
        let ordinal = usize::try_from(ordinal).ok()?;
        self.devices.iter().find(|gpu| gpu.ordinal() == ordinal)
    }

    /// The numbers of the devices.
    pub fn ids(&self) -> BTreeSet<i32> {
        self.devices.iter().map(Gpu::id).collect()
    }

    pub fn pinned(&self) -> &PinnedPool {
        &self.pinned
    }

    /// CUDA memory that clients have registered.
    pub fn regions(&self) -> &DeviceRegions {
        &self.regions
    }

    /// The error that broke a device for this process, if one is broken.
    pub fn failure(&self) -> Option<String> {
        self.devices.iter().find_map(|gpu| gpu.failure().map(|text| format!("GPU {gpu}: {text}")))
    }
}

impl std::fmt::Debug for Gpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.devices).finish()
    }
}

/// Enables access between devices; where there is none, copies pass through the host.
fn connect(devices: &[Gpu]) {
    for gpu in devices {
        for peer in devices.iter().filter(|peer| peer.ordinal() != gpu.ordinal()) {
            match gpu.shared.driver.enable_peer_access(gpu.ordinal(), peer.ordinal()) {
                Ok(true) => {}
                Ok(false) => info!("GPU {gpu} cannot reach the memory of GPU {peer}"),
                Err(error) => warn!("GPU {gpu} does not reach the memory of GPU {peer}: {error}"),
            }
        }
    }
}

/// One device. Clones are the same.
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<GpuCore>,
}

struct GpuCore {
    driver: Arc<dyn Driver>,
    ordinal: usize,
    description: Description,
    memory: DeviceMemory,
    load_limit: Option<f64>,
    /// The idle service streams, for copies that the caller waits for. Each copy has a stream to itself: copies of
    /// different clients do not wait for each other.
    services: Mutex<Vec<ServiceStream>>,
    failure: OnceLock<String>,
}

/// A stream whose work its user waits for. Handles only: a [`Stream`] would hold the device that holds it.
#[derive(Clone, Copy)]
struct ServiceStream {
    stream: StreamHandle,
    done: EventHandle,
}

/// How often a query is repeated that fails with an error of the call, not of the device. The copy may still run
/// meanwhile, and its memory is borrowed: after that many attempts the process ends.
const SETTLING_ATTEMPTS: u32 = 2_000;
const SETTLING_PAUSE: Duration = Duration::from_millis(1);

impl Gpu {
    fn new(driver: Arc<dyn Driver>, ordinal: usize, description: Description, settings: &Settings) -> Gpu {
        let pool_bytes = usize::try_from(settings.memory_pool_of(ordinal)).unwrap_or(usize::MAX);
        let memory = DeviceMemory::new(Arc::clone(&driver), ordinal, pool_bytes);
        let shared = GpuCore {
            driver,
            ordinal,
            description,
            memory,
            load_limit: i32::try_from(ordinal).ok().and_then(|id| settings.load_limits.get(&id)).copied(),
            services: Mutex::default(),
            failure: OnceLock::new(),
        };
        Gpu { shared: Arc::new(shared) }
    }

    pub fn ordinal(&self) -> usize {
        self.shared.ordinal
    }

    /// The ordinal in the form of configurations.
    pub fn id(&self) -> i32 {
        i32::try_from(self.shared.ordinal).unwrap_or(i32::MAX)
    }

    pub fn description(&self) -> &Description {
        &self.shared.description
    }

    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.shared.driver
    }

    pub fn is_same(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// What broke the device, after which nothing on it succeeds in this process.
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Records an error that breaks the device. Every result of the driver passes here.
    pub(super) fn record_if_failed<T>(&self, result: driver::Result<T>) -> driver::Result<T> {
        if let Err(error) = &result
            && error.is_sticky()
            && self.shared.failure.set(error.to_string()).is_ok()
        {
            error!("GPU {self} is lost to this process: {error}");
        }
        result
    }

    /// Records an error of the device that a library reported.
    pub fn record_failure(&self, error: &DriverError) {
        let _ = self.record_if_failed::<()>(Err(error.clone()));
    }

    /// Free and total bytes, all processes counted.
    pub fn memory(&self) -> driver::Result<(u64, u64)> {
        self.record_if_failed(self.shared.driver.memory(self.ordinal()))
    }

    /// True if more of its memory is in use, by all processes, than `--model-load-gpu-limit` allows for the load of a
    /// model.
    pub fn is_over_load_limit(&self) -> driver::Result<bool> {
        let Some(limit) = self.shared.load_limit else { return Ok(false) };
        let (free, total) = self.memory()?;
        Ok(total.saturating_sub(free) as f64 > total as f64 * limit)
    }

    /// Makes the device current on this thread, for libraries that use the current device.
    pub fn enter(&self) -> driver::Result<()> {
        self.record_if_failed(self.shared.driver.enter(self.ordinal()))
    }

    pub fn stream(&self) -> driver::Result<Stream> {
        Stream::new(self)
    }

    /// The program as a kernel of this device.
    pub fn kernel(&self, program: &'static Program) -> driver::Result<Kernel> {
        Kernel::load(self, program)
    }

    /// `len` bytes of the device, from the pool while it has some. May wait for the device.
    pub fn allocate(&self, len: usize) -> driver::Result<DeviceBuffer> {
        let (at, source) = self.record_if_failed(self.shared.memory.take(len))?;
        Ok(DeviceBuffer::new(self.clone(), at, len, source))
    }

    /// Takes back what was allocated. Never waits for the device: it may be a shard that drops the last tensor.
    pub(super) fn give_back(&self, at: DeviceAddress, len: usize, source: AllocationSource) {
        self.shared.memory.give_back(at, len, source);
    }

    /// Memory of the pool is there for as long as the device.
    pub(super) fn is_pooled(&self, at: DeviceAddress) -> bool {
        self.shared.memory.is_pooled(at)
    }

    /// Bytes of the pool that are out, and all of them.
    pub fn pool_usage(&self) -> (usize, usize) {
        self.shared.memory.pool_usage()
    }

    /// Copies a tensor to the host, and waits for it.
    ///
    /// # Panics
    /// If the lengths differ, or the tensor is on another device.
    pub fn fetch(&self, from: &DeviceSlice, to: &mut [u8]) -> driver::Result<()> {
        assert!(from.gpu().is_same(self) && from.len() == to.len(), "as many bytes as there are on this device");
        if to.is_empty() {
            return Ok(());
        }
        self.at_once(|driver, stream| {
            // SAFETY: both are borrowed until the copy is complete, and a slice is complete.
            unsafe { driver.copy_out(self.ordinal(), stream, to.as_mut_ptr(), from.address(), to.len()) }
        })
    }

    /// The same for memory that is set aside for an output: its client may write to it meanwhile.
    ///
    /// # Panics
    /// If the slice is on another device or has another length.
    pub fn fetch_into(&self, from: &DeviceSlice, to: &mut Target) -> driver::Result<()> {
        assert!(from.gpu().is_same(self) && from.len() == to.len(), "as many bytes as there are on this device");
        if to.is_empty() {
            return Ok(());
        }
        self.at_once(|driver, stream| {
            // SAFETY: both are borrowed until the copy is complete, and a slice is complete.
            unsafe { driver.copy_out(self.ordinal(), stream, to.as_mut_ptr(), from.address(), to.len()) }
        })
    }

    /// Copies bytes of the host to the device, and waits for it.
    pub fn put(&self, from: &[u8]) -> driver::Result<DeviceSlice> {
        let buffer = self.allocate(from.len())?;
        if !from.is_empty() {
            self.at_once(|driver, stream| {
                // SAFETY: the buffer is new, and both live until the copy is complete.
                unsafe { driver.copy_in(self.ordinal(), stream, buffer.address(), from.as_ptr(), from.len()) }
            })?;
        }
        Ok(buffer.freeze())
    }

    /// Copies bytes of the host to a client's target, and waits for it.
    ///
    /// # Panics
    /// If the target is shorter, or on another device.
    pub fn put_at(&self, to: &DeviceTarget, from: &[u8]) -> driver::Result<()> {
        assert!(to.gpu().is_same(self) && from.len() <= to.len(), "a target on this device, long enough");
        if from.is_empty() {
            return Ok(());
        }
        self.at_once(|driver, stream| {
            // SAFETY: the target is the caller's alone, and both live until the copy is complete.
            unsafe { driver.copy_in(self.ordinal(), stream, to.address(), from.as_ptr(), from.len()) }
        })
    }

    /// The same of a slice, which another process may write to meanwhile.
    ///
    /// # Panics
    /// If the target is shorter, or on another device.
    pub fn put_slice_at(&self, to: &DeviceTarget, from: &Slice) -> driver::Result<()> {
        assert!(to.gpu().is_same(self) && from.len() <= to.len(), "a target on this device, long enough");
        if from.is_empty() {
            return Ok(());
        }
        self.at_once(|driver, stream| {
            // SAFETY: the target is the caller's alone, and both live until the copy is complete.
            unsafe { driver.copy_in(self.ordinal(), stream, to.address(), from.as_ptr(), from.len()) }
        })
    }

    /// Copies a tensor, of this device or another one, to a client's target, and waits for it.
    ///
    /// # Panics
    /// If the target is shorter, or on another device.
    pub fn copy_to(&self, to: &DeviceTarget, from: &DeviceSlice) -> driver::Result<()> {
        assert!(to.gpu().is_same(self) && from.len() <= to.len(), "a target on this device, long enough");
        if from.is_empty() {
            return Ok(());
        }
        self.at_once(|driver, stream| {
            let target = (self.ordinal(), to.address());
            let source = (from.gpu().ordinal(), from.address());
            // SAFETY: the target is the caller's alone, a slice is complete, and both live until the copy is complete.
            unsafe { driver.copy_across(self.ordinal(), stream, target, source, from.len()) }
        })
    }

    /// Copies a tensor of another device to this one, and waits for it.
    pub fn copy_here(&self, from: &DeviceSlice) -> driver::Result<DeviceSlice> {
        let buffer = self.allocate(from.len())?;
        if !from.is_empty() {
            self.at_once(|driver, stream| {
                let source = (from.gpu().ordinal(), from.address());
                // SAFETY: the buffer is new, a slice is complete, and both live until the copy is complete.
                unsafe {
                    driver.copy_across(self.ordinal(), stream, (self.ordinal(), buffer.address()), source, from.len())
                }
            })?;
        }
        Ok(buffer.freeze())
    }

    /// Enqueues work on a service stream and waits for it. After an error of the device itself no work on it runs any
    /// more.
    fn at_once(&self, enqueue: impl FnOnce(&dyn Driver, StreamHandle) -> driver::Result<()>) -> driver::Result<()> {
        let driver = &*self.shared.driver;
        self.shared.memory.trim();
        let idle = lock(&self.shared.services).pop();
        let service = match idle {
            Some(service) => service,
            None => self.record_if_failed(self.start_service())?,
        };
        let enqueued = enqueue(driver, service.stream);
        let settled = self.settle(service);
        lock(&self.shared.services).push(service);
        self.record_if_failed(settled.and(enqueued))
    }

    fn start_service(&self) -> driver::Result<ServiceStream> {
        let (driver, ordinal) = (&*self.shared.driver, self.ordinal());
        let stream = driver.create_stream(ordinal)?;
        match driver.create_event(ordinal, EventOptions { sleeps: true, is_timed: false }) {
            Ok(done) => Ok(ServiceStream { stream, done }),
            Err(error) => {
                // SAFETY: no other code has the handle.
                unsafe { driver.destroy_stream(ordinal, stream) };
                Err(error)
            }
        }
    }

    /// Waits until the work in the service stream is complete. That work uses borrowed memory: this does not return
    /// before, and ends the process where the driver never reports the end.
    fn settle(&self, ServiceStream { stream, done }: ServiceStream) -> driver::Result<()> {
        let (driver, ordinal) = (&*self.shared.driver, self.ordinal());
        for attempt in 1.. {
            let settled = driver.record(ordinal, done, stream).and_then(|()| driver.synchronize(ordinal, done));
            match settled {
                Err(error) if error.ends_work() => return Err(error),
                Err(error) if attempt == 1 => warn!("GPU {self} cannot report whether a copy is complete: {error}"),
                Err(error) if attempt >= SETTLING_ATTEMPTS => {
                    error!("GPU {self} did not report whether a copy is complete, and its memory is in use: {error}");
                    std::process::abort();
                }
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
            std::thread::sleep(SETTLING_PAUSE);
        }
        unreachable!("the loop returns, or the process ends")
    }
}

impl Drop for GpuCore {
    fn drop(&mut self) {
        let services = std::mem::take(self.services.get_mut().unwrap_or_else(PoisonError::into_inner));
        for ServiceStream { stream, done } in services {
            // SAFETY: their users waited for the end of the work.
            unsafe {
                self.driver.destroy_event(self.ordinal, done);
                self.driver.destroy_stream(self.ordinal, stream);
            }
        }
    }
}

impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.shared.ordinal)
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({}, {})", self.shared.ordinal, self.shared.description.name)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
