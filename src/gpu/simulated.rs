//! A stand-in for a driver, on host memory, which keeps an order only where the caller requires one.
//!
//! It exists so that every path of a device is tested where there is none. It is no emulator of a GPU: kernels are
//! functions of the host. It is strict about order and memory:
//!
//! - Each device has a thread that does the work of all its streams. Any operation that no stream and no event holds
//!   back may be the next; a seed chooses, and delays each for a while. So unordered work does run in every order.
//! - The destination of an operation holds poison until the operation is complete, and so does memory that was just
//!   allocated.
//! - Two accesses to the same bytes, one of which writes, that no stream, no event, and no query of an event by the
//!   host puts in an order, are a *violation*, even where their result happened to be right. So are memory that is
//!   freed, was never allocated, or is too short; memory that is freed while work may still use it; handles that are
//!   destroyed; and calls that are not allowed while a graph is recorded.
//! - A violation is logged as an error, kept ([`Simulated::violations`]), and breaks the device as an illegal address
//!   breaks a real one: every later call fails.
//!
//! The threads of the host count as one: what one of them has seen complete, all have. How they synchronise with each
//! other cannot be seen from here. Neither can accesses of the host to its own memory; the poison reveals those.

mod calls;
mod engine;
mod fault;
mod foreign;
mod graph;
mod launches;
mod memory;
mod order;
mod random;
mod spec;
#[cfg(test)]
mod tests;
mod work;
mod world;

use std::ffi::OsStr;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::device::SIMULATED as ENVIRONMENT;
use super::driver::Driver;
pub use memory::POISON;
pub use spec::{Fault, Spec};
use world::World;

/// The devices that the variable [`ENVIRONMENT`] requests: their number, then settings, all separated by `;`.
///
/// | setting | of | default |
/// |---|---|---|
/// | `capability=8.0` | the devices' compute capability | 8.0 |
/// | `memory=1073741824` | bytes of each device | 1 GiB |
/// | `seed=7` | all choices | 1 |
/// | `delay-us=200` | the longest delay of an operation, in microseconds | 50 |
/// | `fail=700@50` | the 50th launch fails with `CUresult` 700 | none fails |
/// | `peers=no` | devices do not reach each other's memory | `yes` |
/// | `numa=0,1` | NUMA node by device; the last one is also that of all further devices | unknown |
pub fn parse(text: &OsStr) -> Result<Arc<dyn Driver>, String> {
    let text = text.to_str().ok_or_else(|| format!("{ENVIRONMENT} is not UTF-8"))?;
    let spec = Spec::parse(text).map_err(|error| format!("{ENVIRONMENT}: {error}"))?;
    Ok(Arc::new(Simulated::new(spec)))
}

/// See the [module](self).
pub struct Simulated {
    shared: Arc<SimulatedCore>,
    engines: Vec<JoinHandle<()>>,
}

struct SimulatedCore {
    world: Mutex<World>,
    /// There may be work for a device.
    work: Condvar,
    /// An operation is complete.
    done: Condvar,
}

/// Calls of the driver by kind; calls that a graph records count too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub copies_in: u64,
    pub copies_out: u64,
    pub copies_across: u64,
    pub fills: u64,
    pub kernels: u64,
    pub graphs: u64,
    pub streams: u64,
}

impl Simulated {
    pub fn new(spec: Spec) -> Simulated {
        let devices = spec.devices;
        let world = Mutex::new(World::new(spec));
        let shared = Arc::new(SimulatedCore { world, work: Condvar::new(), done: Condvar::new() });
        let engines = (0..devices).filter_map(|device| {
            let own = Arc::clone(&shared);
            let name = format!("simulated-gpu-{device}");
            let started = std::thread::Builder::new().name(name).spawn(move || engine::run(&own, device));
            let failed = |error| shared.lock().violate("cuInit", Some(device), &format!("there is no thread: {error}"));
            started.map_err(failed).ok()
        });
        let engines = engines.collect();
        Simulated { shared, engines }
    }

    /// The first violations: calls that no correct program makes.
    pub fn violations(&self) -> Vec<String> {
        self.shared.lock().violations.clone()
    }

    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// The `launches`th launch from now on fails, see [`Fault`].
    pub fn fail_after(&self, launches: u64, code: i32) {
        let mut world = self.shared.lock();
        world.fault = Some(Fault { code, launch: world.launches.saturating_add(launches) });
    }

    /// No operation begins until the returned [`Hold`] is dropped.
    pub fn hold(&self) -> Hold<'_> {
        self.shared.lock().holds += 1;
        Hold { shared: &self.shared }
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.work.notify_all();
        for engine in self.engines.drain(..) {
            let _ = engine.join();
        }
    }
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Simulated({} devices)", self.engines.len())
    }
}

/// See [`Simulated::hold`].
pub struct Hold<'a> {
    shared: &'a SimulatedCore,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.shared.lock().holds -= 1;
        self.shared.work.notify_all();
    }
}

impl SimulatedCore {
    /// Poisoning is ignored: no call leaves the world half changed.
    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
