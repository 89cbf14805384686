//! Which cores shards and workers run on.
//!
//! By default a quarter of the process's cores serve connections, one shard where there are fewer than four; workers
//! get
//! the rest. Below four cores nothing is pinned and nobody spins, because a spinner could keep the thread it waits for
//! from running.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// Cores below which nothing is pinned.
const PINNED_FROM: usize = 4;
/// Spinning before a park, where placement allows it.
const SPIN_NS: u64 = 20_000;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("--io-cores must be at least 1")]
    NoShard,
    #[error("--io-cores asks for {asked} shards, but at most {MAX_SHARDS} are possible")]
    TooMany { asked: usize },
}

/// More shards than any machine has cores.
pub const MAX_SHARDS: usize = 1024;

/// Where each thread of the server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// One for each shard: the core it is pinned to.
    shards: Vec<Option<usize>>,
    workers: Vec<usize>,
    cpu_count: usize,
}

impl Placement {
    /// Places `io_cores` shards (`None`: by rule) on the cores that this process may use.
    pub fn plan(io_cores: Option<usize>) -> Result<Placement, PlacementError> {
        Placement::on(&usable_cpus(), cpu_quota(), io_cores)
    }

    fn on(cpus: &[usize], quota: Option<usize>, io_cores: Option<usize>) -> Result<Placement, PlacementError> {
        let usable = quota.map_or(cpus.len(), |quota| quota.min(cpus.len())).max(1);
        let count = io_cores.unwrap_or(if usable < PINNED_FROM { 1 } else { usable / 4 });
        match count {
            0 => return Err(PlacementError::NoShard),
            asked if asked > MAX_SHARDS => return Err(PlacementError::TooMany { asked }),
            _ => {}
        }
        // Pinning needs a core of its own for every shard and one for the workers.
        if usable < PINNED_FROM || count >= usable || cpus.len() <= count {
            return Ok(Placement { shards: vec![None; count], workers: Vec::new(), cpu_count: usable });
        }
        let (shards, workers) = cpus.split_at(count);
        Ok(Placement {
            shards: shards.iter().copied().map(Some).collect(),
            workers: workers.to_vec(),
            cpu_count: usable - count,
        })
    }

    pub fn shards(&self) -> &[Option<usize>] {
        &self.shards
    }

    /// Empty: anywhere.
    pub fn worker_cpus(&self) -> &[usize] {
        &self.workers
    }

    /// CPUs' worth of time that workers have.
    pub fn worker_cpu_count(&self) -> usize {
        self.cpu_count
    }

    /// Nanoseconds that a shard may spin.
    pub fn spin_ns(&self) -> u64 {
        if self.shards.iter().all(Option::is_some) { SPIN_NS } else { 0 }
    }
}

fn usable_cpus() -> Vec<usize> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    ids.into_iter().map(|core| core.id).collect()
}

/// Whole CPUs that the control group grants; `None` without a limit.
fn cpu_quota() -> Option<usize> {
    let v2 = std::fs::read_to_string("/sys/fs/cgroup/cpu.max").ok().and_then(|text| {
        let (quota, period) = text.trim().split_once(' ')?;
        Some((quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?))
    });
    let v1 = || {
        let read = |name| std::fs::read_to_string(format!("/sys/fs/cgroup/cpu/cpu.{name}")).ok();
        Some((read("cfs_quota_us")?.trim().parse().ok()?, read("cfs_period_us")?.trim().parse().ok()?))
    };
    let (quota, period) = v2.or_else(v1)?;
    let cpus = quota.div_ceil(period.max(1));
    usize::try_from(cpus).ok().filter(|cpus| *cpus > 0)
}

/// Connections of each shard: new ones go where there are fewest.
#[derive(Debug)]
pub struct Load(Box<[CachePadded<AtomicUsize>]>);

impl Load {
    pub fn new(shards: usize) -> Load {
        Load((0..shards).map(|_| CachePadded::default()).collect())
    }

    /// The shard with the fewest connections, which are one more now.
    pub fn take_least(&self) -> usize {
        let least = (0..self.0.len()).min_by_key(|&shard| self.of(shard)).unwrap_or(0);
        if let Some(count) = self.0.get(least) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        least
    }

    pub fn removed(&self, shard: usize) {
        if let Some(count) = self.0.get(shard) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn of(&self, shard: usize) -> usize {
        self.0.get(shard).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_pin_nothing() {
        for cpus in [&[0][..], &[0, 1], &[3, 5, 7]] {
            let placement = Placement::on(cpus, None, None).unwrap();
            assert_eq!((placement.shards(), placement.worker_cpus()), (&[None][..], &[][..]));
            assert_eq!((placement.worker_cpu_count(), placement.spin_ns()), (cpus.len(), 0));
        }
        assert_eq!(Placement::on(&[0, 1], None, Some(2)).unwrap().shards(), [None, None]);
    }

    #[test]
    fn larger_machines_give_a_quarter_to_shards() {
        let cpus: Vec<usize> = (8..24).collect();
        let placement = Placement::on(&cpus, None, None).unwrap();
        assert_eq!(placement.shards(), [Some(8), Some(9), Some(10), Some(11)]);
        assert_eq!(placement.worker_cpus(), &cpus[4..]);
        let limited = Placement::on(&cpus, Some(2), None).unwrap();
        assert_eq!((limited.shards(), limited.worker_cpu_count()), (&[None][..], 2));
        assert_eq!(Placement::on(&cpus, None, Some(0)), Err(PlacementError::NoShard));
    }

    #[test]
    fn connections_go_where_there_are_fewest() {
        let load = Load::new(3);
        assert_eq!([load.take_least(), load.take_least(), load.take_least(), load.take_least()], [0, 1, 2, 0]);
        load.removed(1);
        assert_eq!(load.take_least(), 1);
    }
}
