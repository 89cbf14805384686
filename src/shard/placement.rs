//! Which cores the shards run on, and which are left to the workers.
//!
//! A shard per four cores by default, and one below that. With fewer than four cores no thread is pinned and none
//! spins, because every thread may have to share its core with the thread that it waits for; if an operator requests
//! it, each spins for a small share of its time. A CPU quota counts like missing cores: spinning burns the quota that
//! the model needs.

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
    /// Of its time, what a thread may spin for; 100: there is no bound.
    pub spin_percent: u32,
    /// A thread that spins may keep one from its work that it waits for.
    pub shares_cores: bool,
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

/// Flags about spinning; `None`: as the cores suggest.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpinFlags {
    pub us: Option<u32>,
    pub percent: Option<u32>,
}

/// The process has one core, so no thread spins although a flag requests it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this process may use one core only, which the thread that is waited for needs")]
pub struct OneCore;

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
            return Ok(Placement { shards: vec![None; count], ..Placement::unpinned() });
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
        let shards = list.iter().map(|cpu| Some(*cpu)).collect();
        let shares_cores = workers.is_empty() || self.quota < self.cpus.len();
        Ok(Placement { shards, workers, spin_ns, spin_percent: 100, shares_cores })
    }

    /// Places shards and workers, and sets how long they may spin.
    ///
    /// By default they do from four cores on where shards and workers have cores of their own, all the time. Elsewhere
    /// a thread that spins may keep others from their work, so it does only if an operator requests it, and for a share
    /// of its time.
    pub fn arrange(
        &self,
        wanted: Option<&IoCores>,
        flags: SpinFlags,
    ) -> Result<(Placement, Option<OneCore>), PlacementError> {
        let mut placement = self.place(wanted)?;
        placement.apply(flags);
        let refused = (self.quota <= 1 && flags.request_spins()).then_some(OneCore);
        if self.quota <= 1 {
            placement.spin_ns = 0;
        }
        Ok((placement, refused))
    }
}

impl SpinFlags {
    fn request_spins(self) -> bool {
        let is_none = self.us.is_none() && self.percent.is_none();
        !is_none && self.us != Some(0) && self.percent != Some(0)
    }
}

impl Placement {
    /// One shard, wherever the scheduler puts it: for the library, which runs in a process of an application.
    pub fn unpinned() -> Placement {
        let (spin_ns, spin_percent) = (0, Spin::SHORT_PERCENT);
        Placement { shards: vec![None], workers: Vec::new(), spin_ns, spin_percent, shares_cores: true }
    }

    /// Sets how long threads spin. Where they do not by default, a flag for the share of time requests short spins.
    fn apply(&mut self, flags: SpinFlags) {
        let default_ns = match flags.percent {
            Some(_) if self.spin_ns == 0 => Spin::SHORT_NS,
            _ => self.spin_ns,
        };
        let default_percent = if self.shares_cores { Spin::SHORT_PERCENT } else { 100 };
        self.spin_ns = flags.us.map_or(default_ns, |us| u64::from(us) * 1_000);
        self.spin_percent = flags.percent.unwrap_or(default_percent);
    }

    /// Threads that are not placed here may need the cores of those that spin: these do so only as flags request it.
    pub fn share_cores(&mut self, flags: SpinFlags) {
        (self.spin_ns, self.shares_cores) = (0, true);
        self.apply(flags);
    }

    /// Threads may spin.
    pub fn spins(&self) -> bool {
        self.spin_ns > 0 && self.spin_percent > 0
    }

    /// The permission of a shard to spin.
    pub fn shard_spin(&self) -> Spin {
        self.spin_on(1)
    }

    /// The permission of the workers to spin, in a process with so many cores: one is left to the shards.
    pub fn worker_spin(&self, cores: usize) -> Spin {
        self.spin_on(if self.workers.is_empty() { cores.saturating_sub(1) } else { self.workers.len() })
    }

    fn spin_on(&self, cores: usize) -> Spin {
        let make = if self.shares_cores { Spin::on_shared_cores } else { Spin::limited };
        make(self.spin_ns, cores, self.spin_percent)
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
    fn no_thread_spins_on_shared_cores_unless_a_flag_requests_it() {
        let spins = |cores: &Cores, io: IoCores, us, percent| {
            let (placement, refused) = cores.arrange(Some(&io), SpinFlags { us, percent }).unwrap();
            assert!(refused.is_none() && placement.shares_cores);
            (placement.spin_ns / 1_000, placement.spin_percent)
        };
        assert_eq!((Spin::SHORT_NS, Spin::SHORT_PERCENT), (20_000, 5));
        let shared = [
            (cores(2, 2), IoCores::Count(1)),
            (cores(3, 3), IoCores::Count(1)),
            (cores(4, 4), IoCores::Count(4)),
            (cores(2, 2), IoCores::List(vec![0, 1])),
            // Quotas.
            (cores(16, 2), IoCores::Count(1)),
            (cores(8, 4), IoCores::List(vec![0])),
        ];
        for (cores, io) in shared {
            let spins = |us, percent| spins(&cores, io.clone(), us, percent);
            assert_eq!(spins(None, None).0, 0, "{cores:?} {io:?}");
            assert_eq!(spins(Some(30), None), (30, 5));
            assert_eq!(spins(None, Some(7)), (20, 7));
            assert_eq!(spins(Some(30), Some(7)), (30, 7));
            assert_eq!(spins(None, Some(100)), (20, 100));
            assert_eq!(spins(Some(0), Some(7)).0, 0);
            assert_eq!(spins(None, Some(0)).1, 0);
        }
    }

    #[test]
    fn threads_with_cores_of_their_own_spin_from_four_on_or_as_flags_say() {
        let spins = |count, us, percent| {
            let io = IoCores::List(vec![0]);
            let (placement, refused) = cores(count, count).arrange(Some(&io), SpinFlags { us, percent }).unwrap();
            assert!(refused.is_none() && !placement.shares_cores);
            (placement.spin_ns / 1_000, placement.spin_percent)
        };
        assert_eq!(Spin::BUDGET_NS, 50_000);
        assert_eq!(spins(8, None, None), (50, 100));
        assert_eq!(spins(8, Some(0), None).0, 0);
        assert_eq!(spins(8, None, Some(30)), (50, 30));
        assert_eq!(spins(2, None, None).0, 0);
        assert_eq!(spins(2, Some(30), None), (30, 100), "fewer cores than the rule requires");
        assert_eq!(spins(2, None, Some(30)), (20, 30));
    }

    /// The thread that one waits for needs the only core.
    #[test]
    fn no_thread_spins_on_one_core() {
        let spins = |cores: &Cores, us, percent| {
            let (placement, refused) = cores.arrange(None, SpinFlags { us, percent }).unwrap();
            assert!(!placement.spins());
            refused
        };
        assert_eq!(spins(&cores(1, 1), None, None), None);
        assert_eq!(spins(&cores(4, 1), Some(30), None), Some(OneCore));
        assert_eq!(spins(&cores(1, 1), None, Some(5)), Some(OneCore));
        assert_eq!(spins(&cores(1, 1), Some(0), Some(5)), None);
        assert_eq!(spins(&cores(1, 1), Some(30), Some(0)), None);
    }

    /// A host policy puts instances on the core of a shard.
    #[test]
    fn cores_that_come_to_be_shared_are_spun_on_as_flags_request_it() {
        let shared = |us, percent| {
            let flags = SpinFlags { us, percent };
            let mut placement = cores(8, 8).arrange(None, flags).unwrap().0;
            assert!(!placement.shares_cores);
            placement.share_cores(flags);
            assert!(placement.shares_cores && placement.shard_spin().is_on_shared_cores() == placement.spins());
            (placement.spin_ns / 1_000, placement.spin_percent)
        };
        assert_eq!(shared(None, None).0, 0);
        assert_eq!((shared(Some(30), None), shared(None, Some(100))), ((30, 5), (20, 100)));
    }

    #[test]
    fn workers_leave_a_core_to_the_shards() {
        let placed = |count, percent| cores(count, count).arrange(None, SpinFlags { us: None, percent }).unwrap().0;
        let all_enter = |spin: Spin| std::iter::from_fn(|| spin.enter().map(std::mem::forget)).count();
        assert_eq!(all_enter(placed(8, None).worker_spin(8)), 6);
        assert_eq!(all_enter(placed(2, None).worker_spin(2)), 0);
        assert_eq!(all_enter(placed(3, Some(5)).worker_spin(3)), 2);
        assert_eq!(all_enter(placed(1, Some(5)).worker_spin(1)), 0);
        assert!(placed(8, None).worker_spin(8).is_unbounded() && placed(8, None).shard_spin().is_unbounded());
        assert!(!Placement::unpinned().shard_spin().is_allowed());
    }

    /// Instances of such a placement may spin wherever they run, and their Python processes never.
    #[test]
    fn shared_cores_are_shared_whatever_share_of_time_is_granted() {
        let flags = SpinFlags { us: None, percent: Some(100) };
        let placement = cores(2, 2).arrange(None, flags).unwrap().0;
        for spin in [placement.worker_spin(2), placement.shard_spin()] {
            assert!(spin.is_allowed() && spin.is_on_shared_cores() && !spin.is_unbounded());
        }
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
