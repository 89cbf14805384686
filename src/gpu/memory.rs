//! Memory of one device: a pool that is allocated as a whole, and allocations beside it, kept for reuse.
//!
//! The driver allocates slowly, and waits for the whole device before it frees. So memory is not freed when it is given
//! back, which may happen on a shard, but by the next thread that allocates, and only beyond a bound. No lock that a
//! shard takes is held during a call of the driver.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::{info, warn};

use super::arena::Arena;
use super::driver::{DeviceAddress, Driver, DriverError, Result};

/// Bytes beside the pool that are kept for later allocations of that length.
const RETIRED_BYTES_MAX: usize = 256 << 20;
/// Ranges that are kept so.
const RETIRED_MAX: usize = 1024;
/// Lengths beside the pool are rounded, so that a batch finds the memory of one that was nearly as long: by an eighth,
/// but in steps of no less and no more than these. The driver itself deals in pages of 2 MiB.
const STEP_MIN: usize = 512;
const STEP_MAX: usize = 2 << 20;

/// The origin of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AllocationSource {
    Pool(usize),
    Driver,
}

/// See the [module](self).
pub(super) struct DeviceMemory {
    driver: Arc<dyn Driver>,
    ordinal: usize,
    pool_bytes: usize,
    /// The address of the pool, once it was needed; `None` if there was no memory for it.
    base: OnceLock<Option<DeviceAddress>>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    arena: Option<Arena>,
    /// Given back and not yet freed, the oldest first.
    retired: VecDeque<(DeviceAddress, usize)>,
    retired_bytes: usize,
}

impl DeviceMemory {
    pub fn new(driver: Arc<dyn Driver>, ordinal: usize, pool_bytes: usize) -> DeviceMemory {
        DeviceMemory { driver, ordinal, pool_bytes, base: OnceLock::new(), state: Mutex::default() }
    }

    /// `len` bytes, from the pool while it has some. May wait for the device.
    pub fn take(&self, len: usize) -> Result<(DeviceAddress, AllocationSource)> {
        let base = self.base();
        let (reused, surplus) = {
            let mut state = self.lock();
            if let (Some(base), Some(arena)) = (base, &mut state.arena)
                && let Some(offset) = arena.take(len)
            {
                return Ok((base.offset(offset), AllocationSource::Pool(offset)));
            }
            (state.reuse(rounded(len)), state.surplus())
        };
        self.free(surplus);
        if let Some(at) = reused {
            return Ok((at, AllocationSource::Driver));
        }
        let allocated = match self.driver.allocate(self.ordinal, rounded(len)) {
            Err(error) if error.code == DriverError::OUT_OF_MEMORY => {
                let all = self.lock().all();
                if all.is_empty() {
                    return Err(error);
                }
                self.free(all);
                self.driver.allocate(self.ordinal, rounded(len))
            }
            other => other,
        };
        allocated.map(|at| (at, AllocationSource::Driver))
    }

    /// Takes back what was taken with this length. Never waits for the device.
    pub fn give_back(&self, at: DeviceAddress, len: usize, source: AllocationSource) {
        let mut state = self.lock();
        match source {
            AllocationSource::Pool(offset) => {
                if let Some(arena) = &mut state.arena {
                    arena.give(offset, len);
                }
            }
            AllocationSource::Driver => {
                let len = rounded(len);
                state.retired_bytes += len;
                state.retired.push_back((at, len));
            }
        }
    }

    /// Frees what is kept beyond the bound. For threads that may wait for the device.
    pub fn trim(&self) {
        let surplus = self.lock().surplus();
        self.free(surplus);
    }

    /// True for memory of the pool, which lives as long as the device.
    pub fn is_pooled(&self, at: DeviceAddress) -> bool {
        let base = self.base.get().copied().flatten();
        let offset = base.and_then(|base| at.0.checked_sub(base.0)).and_then(|offset| usize::try_from(offset).ok());
        offset.is_some_and(|offset| offset < self.pool_bytes)
    }

    /// Bytes of the pool that are out, and all of them.
    pub fn pool_usage(&self) -> (usize, usize) {
        self.lock().arena.as_ref().map_or((0, 0), |arena| (arena.used(), arena.len()))
    }

    /// The pool's memory, which the first call allocates. Other threads that need memory wait meanwhile; threads that
    /// give memory back do not.
    fn base(&self) -> Option<DeviceAddress> {
        *self.base.get_or_init(|| {
            if self.pool_bytes == 0 {
                return None;
            }
            match self.driver.allocate(self.ordinal, self.pool_bytes) {
                Ok(base) => {
                    info!("CUDA memory pool is created on device {} with size {}", self.ordinal, self.pool_bytes);
                    self.lock().arena = Some(Arena::new(self.pool_bytes));
                    Some(base)
                }
                Err(error) => {
                    warn!("GPU {} has no memory pool: {error}", self.ordinal);
                    None
                }
            }
        })
    }

    fn free(&self, ranges: Vec<DeviceAddress>) {
        for at in ranges {
            // SAFETY: only buffers whose work is complete are given back, and each is here once.
            if let Err(error) = unsafe { self.driver.free(self.ordinal, at) } {
                warn!("GPU {}: {error}", self.ordinal);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    fn reuse(&mut self, len: usize) -> Option<DeviceAddress> {
        let place = self.retired.iter().position(|(_, kept)| *kept == len)?;
        let (at, len) = self.retired.remove(place)?;
        self.retired_bytes -= len;
        Some(at)
    }

    fn all(&mut self) -> Vec<DeviceAddress> {
        self.retired_bytes = 0;
        self.retired.drain(..).map(|(at, _)| at).collect()
    }

    /// The ranges beyond the bounds, the oldest first.
    fn surplus(&mut self) -> Vec<DeviceAddress> {
        let mut surplus = Vec::new();
        while self.retired_bytes > RETIRED_BYTES_MAX || self.retired.len() > RETIRED_MAX {
            let Some((at, len)) = self.retired.pop_front() else { break };
            self.retired_bytes -= len;
            surplus.push(at);
        }
        surplus
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        let retired = state.retired.into_iter().map(|(at, _)| at);
        for at in retired.chain(self.base.take().flatten()) {
            // SAFETY: every buffer holds the device, so that none is left. A device that is lost frees nothing.
            let _ = unsafe { self.driver.free(self.ordinal, at) };
        }
    }
}

fn rounded(len: usize) -> usize {
    let len = len.max(1);
    let step = (1usize << len.ilog2().saturating_sub(3)).clamp(STEP_MIN, STEP_MAX);
    len.checked_next_multiple_of(step).unwrap_or(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{Simulated, Spec};

    const POOL: usize = 1 << 20;

    fn memory(memory_bytes: u64) -> (Arc<Simulated>, DeviceMemory) {
        let simulated = Arc::new(Simulated::new(Spec { memory_bytes, ..Spec::prompt(1, 1) }));
        let memory = DeviceMemory::new(simulated.clone(), 0, POOL);
        (simulated, memory)
    }

    fn free_bytes(simulated: &Simulated) -> u64 {
        simulated.memory(0).unwrap().0
    }

    #[test]
    fn lengths_are_rounded_by_an_eighth_at_most() {
        for (len, expected) in [
            (0, 512),
            (1, 512),
            (513, 1024),
            (5000, 5120),
            (1 << 20, 1 << 20),
            (1_048_577, 1_179_648),
            (1 << 30, 1 << 30),
        ] {
            assert_eq!(rounded(len), expected, "{len}");
            assert_eq!(rounded(expected), expected);
        }
        assert_eq!((rounded((1 << 30) + 1), rounded(usize::MAX)), ((1 << 30) + STEP_MAX, usize::MAX));
        for shift in 12..40 {
            let len = (1usize << shift) + 1;
            assert!(rounded(len) <= len + len / 8 + 1, "{len}");
        }
    }

    #[test]
    fn the_pool_comes_first_and_the_driver_when_it_is_used_up() {
        let (simulated, memory) = memory(16 << 20);
        assert_eq!((memory.pool_usage(), free_bytes(&simulated)), ((0, 0), 16 << 20), "not before it is needed");
        let (one, source) = memory.take(1000).unwrap();
        assert_eq!(
            (source, memory.pool_usage(), free_bytes(&simulated)),
            (AllocationSource::Pool(0), (1024, POOL), 15 << 20)
        );
        let (two, beside) = memory.take(POOL).unwrap();
        assert_eq!((beside, free_bytes(&simulated)), (AllocationSource::Driver, 14 << 20));
        assert!(memory.is_pooled(one) && !memory.is_pooled(two));
        memory.give_back(one, 1000, source);
        memory.give_back(two, POOL, beside);
        assert_eq!((memory.pool_usage(), free_bytes(&simulated)), ((0, POOL), 14 << 20), "it is kept");
        let (three, whole) = memory.take(POOL).unwrap();
        let (four, again) = memory.take(POOL - 1).unwrap();
        assert_eq!((three, whole), (one, AllocationSource::Pool(0)));
        assert_eq!((four, again), (two, AllocationSource::Driver), "for an allocation of nearly that length");
        memory.give_back(three, POOL, whole);
        memory.give_back(four, POOL - 1, again);
        drop(memory);
        assert_eq!((free_bytes(&simulated), simulated.violations()), (16 << 20, vec![]));
    }

    #[test]
    fn what_is_kept_has_bounds_and_goes_when_memory_is_short() {
        let (simulated, memory) = memory(4 << 30);
        let page = |number: usize| POOL + number * (256 << 10);
        for number in 0..RETIRED_MAX {
            let (at, source) = memory.take(page(number % 8 + 1)).unwrap();
            assert_eq!(source, AllocationSource::Driver);
            memory.give_back(at, page(number % 8 + 1), source);
        }
        assert_eq!(memory.lock().retired.len(), 8, "each length is kept once");
        let many: Vec<DeviceAddress> = (0..300).map(|_| memory.take(POOL + 1).unwrap().0).collect();
        many.into_iter().for_each(|at| memory.give_back(at, POOL + 1, AllocationSource::Driver));
        assert!(memory.lock().retired_bytes > RETIRED_BYTES_MAX);
        memory.trim();
        let kept = memory.lock().retired_bytes;
        assert!(kept <= RETIRED_BYTES_MAX && kept > RETIRED_BYTES_MAX - (4 << 20), "{kept}");
        assert_eq!(free_bytes(&simulated), (4 << 30) - (POOL + kept) as u64);

        // All memory but the kept ranges: now they have to be freed.
        let rest = free_bytes(&simulated) as usize + (64 << 20);
        let (at, source) = memory.take(rest).unwrap();
        assert_eq!(memory.lock().retired.len(), 0);
        assert_eq!(memory.take(rest).unwrap_err().code, DriverError::OUT_OF_MEMORY);
        memory.give_back(at, rest, source);
        assert_eq!(simulated.violations(), Vec::<String>::new());
    }

    #[test]
    fn without_memory_for_a_pool_the_driver_allocates_each_time() {
        let (simulated, memory) = memory(64 << 10);
        let (at, source) = memory.take(1).unwrap();
        assert_eq!((source, memory.pool_usage(), memory.is_pooled(at)), (AllocationSource::Driver, (0, 0), false));
        memory.give_back(at, 1, source);
        assert_eq!(simulated.violations(), Vec::<String>::new());
    }
}
