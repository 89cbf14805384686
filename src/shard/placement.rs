//! Which cores the shards run on, and which are left to the workers.
//!
//! A shard per four cores by default, and one below that. With fewer than four cores no thread is pinned and none
//! spins, because every thread may have to share its core with the thread that it waits for. A CPU quota counts like
//! missing cores: spinning would burn the quota that the model needs.

mod cgroup;
mod quota;
mod usage;

use std::io;
use std::path::Path;
use std::str::FromStr;

use super::engine::sys;
use nereid_queue::Spin;

pub use usage::{CpuUse, MemoryUse, cpu_use, memory_use};

/// From this many cores on, shards have cores of their own.
const PIN_FROM: usize = 4;
/// Cores for each shard by default.
const CORES_PER_SHARD: usize = 4;

/// The value of `--io-cores`: a number of shards, or the cores that they run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IoCores {
    Count(usize),
    /// Ascending, without repetition. A single core is written as a range: `3-3`.
    List(Vec<usize>),
}

/// The cores of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// Cores that the process may run on, ascending.
    pub cpus: Vec<usize>,
    /// Whole cores' worth of time that it may use, from its cgroup's quota; at most the number of `cpus`.
    pub quota: usize,
}

/// Where everything runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The core of each shard; `None` leaves it to the scheduler.
    pub shards: Vec<Option<usize>>,
    /// The cores of the workers, as a set; empty leaves it to the scheduler.
    pub workers: Vec<usize>,
    /// How long a thread may spin before it parks; 0: not at all.
    pub spin_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("'{0}' is neither a number of cores nor a list like 0,2-3")]
    Malformed(String),
    #[error("at least one core is needed for I/O")]
    None,
    #[error("{requested} I/O cores were asked for, but this process may only use {have}")]
    TooMany { requested: usize, have: usize },
    #[error("core {cpu} was asked for, but this process may only use {have:?}")]
    NotOurs { cpu: usize, have: Vec<usize> },
}

/// Why no thread spins although `--spin-us` requests it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSpin {
    #[error("I/O and models share their cores (--io-cores can part them)")]
    Shared,
    #[error("this process may not use its cores all the time (a CPU quota)")]
    Rationed,
}

impl FromStr for IoCores {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<IoCores, PlacementError> {
        let malformed = || PlacementError::Malformed(text.to_owned());
        // `parse` alone would accept a sign.
        let number = |part: &str| match part.trim() {
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse::<usize>().map_err(|_| malformed())
            }
            _ => Err(malformed()),
        };
        if !text.contains([',', '-']) {
            return match number(text)? {
                0 => Err(PlacementError::None),
                count => Ok(IoCores::Count(count)),
            };
        }
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            // Far more than any machine has, and a bound for what a typing error may cost.
            if first > last || last > 1 << 16 {
                return Err(malformed());
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(IoCores::List(cpus))
    }
}

/// Bytes of memory that the control groups of this process grant it; `None` without a limit.
pub fn memory_granted_bytes() -> Option<u64> {
    quota::memory_bytes(Path::new("/"))
}

impl Cores {
    /// The cores of this process: its affinity, which respects its cpuset, and the quotas of its control groups.
    pub fn of_this_process() -> io::Result<Cores> {
        let cpus = sys::affinity()?;
        let quota = quota::cores(Path::new("/")).unwrap_or(cpus.len());
        Ok(Cores { quota: quota.clamp(1, cpus.len().max(1)), cpus })
    }

    fn place(&self, wanted: Option<&IoCores>) -> Result<Placement, PlacementError> {
        let count = match wanted {
            Some(IoCores::List(list)) => return self.place_on(list),
            Some(IoCores::Count(0)) => return Err(PlacementError::None),
            Some(IoCores::Count(count)) if *count > self.cpus.len() => {
                return Err(PlacementError::TooMany { requested: *count, have: self.cpus.len() });
            }
            Some(IoCores::Count(count)) => *count,
            None => (self.quota / CORES_PER_SHARD).max(1),
        };
        // The workers need cores to run the models: shards on every core share them with the workers.
        if self.quota < PIN_FROM || count >= self.cpus.len() {
            return Ok(Placement { shards: vec![None; count], workers: Vec::new(), spin_ns: 0 });
        }
        self.place_on(self.cpus.get(..count).unwrap_or(&self.cpus))
    }

    fn place_on(&self, list: &[usize]) -> Result<Placement, PlacementError> {
        if list.is_empty() {
            return Err(PlacementError::None);
        }
        if let Some(&cpu) = list.iter().find(|cpu| !self.cpus.contains(cpu)) {
            return Err(PlacementError::NotOurs { cpu, have: self.cpus.clone() });
        }
        let workers: Vec<usize> = self.cpus.iter().copied().filter(|cpu| !list.contains(cpu)).collect();
        let spins = self.quota >= PIN_FROM && self.quota == self.cpus.len() && !workers.is_empty();
        let spin_ns = if spins { Spin::BUDGET_NS } else { 0 };
        Ok(Placement { shards: list.iter().map(|cpu| Some(*cpu)).collect(), workers, spin_ns })
    }

    /// Places shards and workers, and sets how long they may spin: for `spin_us` if the placement allows it. An
    /// operator may request to spin on fewer cores than the default needs, but where shards and workers share a core,
    /// or a quota limits their time, a spinning thread keeps others from their work.
    pub fn arrange(
        &self,
        wanted: Option<&IoCores>,
        spin_us: Option<u32>,
    ) -> Result<(Placement, Option<NoSpin>), PlacementError> {
        let placement = self.place(wanted)?;
        let are_apart = !placement.workers.is_empty() && placement.shards.iter().all(Option::is_some);
        let (spin_ns, refused) = match spin_us {
            None => (placement.spin_ns, None),
            Some(0) => (0, None),
            Some(_) if !are_apart => (0, Some(NoSpin::Shared)),
            Some(_) if self.quota < self.cpus.len() => (0, Some(NoSpin::Rationed)),
            Some(spin_us) => (u64::from(spin_us) * 1_000, None),
        };
        Ok((Placement { spin_ns, ..placement }, refused))
    }
}

impl Placement {
    /// One shard, wherever the scheduler puts it: for the library, which runs in a process of an application.
    pub fn unpinned() -> Placement {
        Placement { shards: vec![None], workers: Vec::new(), spin_ns: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(count: usize, quota: usize) -> Cores {
        Cores { cpus: (0..count).collect(), quota }
    }

    #[test]
    fn io_cores_are_a_count_or_a_list() {
        let parse = |text: &str| text.parse::<IoCores>();
        assert_eq!(parse("3"), Ok(IoCores::Count(3)));
        assert_eq!(parse("0,2-3"), Ok(IoCores::List(vec![0, 2, 3])));
        assert_eq!(parse("5-5"), Ok(IoCores::List(vec![5])));
        assert_eq!(parse("4, 1-2 ,2"), Ok(IoCores::List(vec![1, 2, 4])));
        assert_eq!(parse("0"), Err(PlacementError::None));
        for text in ["", "x", "-1", "1-", "3-1", "1,,2", "1-2-3", "+1", "1,+2", "99999999999999999999", "0-99999999"] {
            assert_eq!(parse(text), Err(PlacementError::Malformed(text.into())), "{text}");
        }
    }

    #[test]
    fn small_hosts_are_left_alone() {
        for count in 1..PIN_FROM {
            assert_eq!(cores(count, count).place(None), Ok(Placement::unpinned()));
        }
        let two = cores(2, 2).place(Some(&IoCores::Count(2))).unwrap();
        assert_eq!((two.shards, two.spin_ns), (vec![None, None], 0));
        assert_eq!(cores(16, 2).place(None), Ok(Placement::unpinned()), "a quota of two is two cores");
    }

    #[test]
    fn large_hosts_give_a_quarter() {
        let sixteen = cores(16, 16).place(None).unwrap();
        assert_eq!(sixteen.shards, [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(sixteen.workers, (4..16).collect::<Vec<_>>());
        assert_eq!(sixteen.spin_ns, Spin::BUDGET_NS);
        assert_eq!(cores(7, 7).place(None).unwrap().shards, [Some(0)]);
        let limited = cores(64, 8).place(None).unwrap();
        assert_eq!((limited.shards.len(), limited.spin_ns), (2, 0), "spinning would burn the quota");
        let odd = Cores { cpus: vec![3, 8, 9, 20], quota: 4 }.place(None).unwrap();
        assert_eq!((odd.shards, odd.workers), (vec![Some(3)], vec![8, 9, 20]));
    }

    #[test]
    fn requested_cores_are_given_or_refused() {
        let listed = cores(8, 8).place(Some(&IoCores::List(vec![2, 5]))).unwrap();
        assert_eq!((listed.shards, listed.workers), (vec![Some(2), Some(5)], vec![0, 1, 3, 4, 6, 7]));
        let all = cores(4, 4).place(Some(&IoCores::Count(4))).unwrap();
        assert_eq!((all.shards, all.workers, all.spin_ns), (vec![None; 4], vec![], 0), "workers share them");
        let pinned = cores(2, 2).place(Some(&IoCores::List(vec![1]))).unwrap();
        assert_eq!((pinned.shards, pinned.workers, pinned.spin_ns), (vec![Some(1)], vec![0], 0));
        let error = cores(4, 4).place(Some(&IoCores::List(vec![1, 9]))).unwrap_err();
        assert_eq!(error, PlacementError::NotOurs { cpu: 9, have: vec![0, 1, 2, 3] });
        let error = cores(4, 4).place(Some(&IoCores::Count(5))).unwrap_err();
        assert_eq!(error, PlacementError::TooMany { requested: 5, have: 4 });
        assert_eq!(cores(4, 4).place(Some(&IoCores::Count(0))), Err(PlacementError::None));
        assert_eq!(cores(4, 4).place(Some(&IoCores::List(vec![]))), Err(PlacementError::None));
    }

    #[test]
    fn a_spin_time_is_granted_where_no_core_is_shared() {
        let spins = |cores: &Cores, io: IoCores, spin_us| {
            let (placement, refused) = cores.arrange(Some(&io), spin_us).unwrap();
            (placement.spin_ns, refused)
        };
        let first = || IoCores::List(vec![0]);
        assert_eq!(spins(&cores(8, 8), first(), None), (Spin::BUDGET_NS, None));
        assert_eq!(spins(&cores(2, 2), first(), None), (0, None));
        assert_eq!(spins(&cores(2, 2), first(), Some(20)), (20_000, None), "fewer cores than the rule requires");
        assert_eq!(spins(&cores(8, 8), first(), Some(0)), (0, None));
        assert_eq!(spins(&cores(2, 2), IoCores::Count(1), Some(20)), (0, Some(NoSpin::Shared)));
        assert_eq!(spins(&cores(4, 4), IoCores::Count(4), Some(20)), (0, Some(NoSpin::Shared)));
        assert_eq!(spins(&cores(2, 2), IoCores::List(vec![0, 1]), Some(20)), (0, Some(NoSpin::Shared)));
        assert_eq!(spins(&cores(8, 4), first(), Some(20)), (0, Some(NoSpin::Rationed)));
        assert_eq!(spins(&cores(8, 4), first(), Some(0)), (0, None));
    }

    #[test]
    fn threads_are_bound_to_their_cores() {
        let ours = Cores::of_this_process().unwrap();
        assert!(!ours.cpus.is_empty() && (1..=ours.cpus.len()).contains(&ours.quota));
        let last = *ours.cpus.last().unwrap();
        let bound = std::thread::spawn(move || {
            sys::bind_to(last).unwrap();
            let child = std::thread::spawn(|| sys::affinity().unwrap()).join().unwrap();
            (sys::affinity().unwrap(), child)
        });
        assert_eq!(bound.join().unwrap(), (vec![last], vec![last]));
        assert_eq!(sys::affinity().unwrap(), ours.cpus, "other threads are not");
        assert_eq!(sys::bind_to(usize::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
