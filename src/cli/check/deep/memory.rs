//! The memory that models take while they are loaded, and that the host has left.
//!
//! A model that needs more memory than there is must not end other processes of the host. So a process that exceeds
//! the limit of a model is stopped, and the largest one when the host has little left. Both are measured from time to
//! time; in between, the processes of a check are those that the kernel ends first ([`volunteer`]).

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;

/// The time between two measurements. A process writes to at most some 100 MiB of new memory meanwhile.
pub const PAUSE: Duration = Duration::from_millis(100);

/// What the host shall keep: this part of its memory, within these bounds.
const RESERVE_DIVISOR: u64 = 20;
const RESERVE_MIN: u64 = 64 << 20;
const RESERVE_MAX: u64 = 2 << 30;

/// Why a process is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    /// It has more bytes than a model may have.
    Limit { used: u64, limit: u64 },
    /// It has more bytes than the host has left, which are few.
    Host { used: u64, available: u64 },
}

/// The memory of the host, or of the control group that limits this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    total: u64,
    available: u64,
}

impl HostMemory {
    pub fn read() -> Option<HostMemory> {
        let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
        let host = HostMemory { total: kib(&meminfo, "MemTotal:")?, available: kib(&meminfo, "MemAvailable:")? };
        let group = own_group().and_then(|group| HostMemory::of_group(&group));
        Some(group.filter(|group| group.available < host.available).unwrap_or(host))
    }

    /// Of a control group of version 2; `None`: it has no limit.
    fn of_group(group: &Path) -> Option<HostMemory> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (total, used) = (number("memory.max")?, number("memory.current")?);
        // Pages of files, which the kernel drops when memory is needed.
        let stat = read("memory.stat").unwrap_or_default();
        let files = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok()).unwrap_or(0);
        Some(HostMemory { total, available: total.saturating_sub(used.saturating_sub(files)) })
    }

    fn is_short(self) -> bool {
        self.available < (self.total / RESERVE_DIVISOR).clamp(RESERVE_MIN, RESERVE_MAX)
    }
}

/// The directory of the control group that this process is in.
fn own_group() -> Option<std::path::PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(name))
}

/// Makes this process, and those that it starts, the ones that the kernel ends first when memory runs out.
pub fn volunteer() {
    // Where it is not allowed, the kernel chooses by size.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
}

/// Which of the processes with so many bytes are to be stopped.
pub fn excesses(used: &[u64], limit: Option<u64>, host: Option<HostMemory>) -> Vec<(usize, Excess)> {
    let limit = limit.unwrap_or(u64::MAX);
    let over = used.iter().enumerate().filter(|(_, used)| **used > limit);
    let mut excesses: Vec<_> = over.map(|(at, used)| (at, Excess::Limit { used: *used, limit })).collect();
    if let (true, Some(host)) = (excesses.is_empty(), host.filter(|host| host.is_short())) {
        let largest = used.iter().enumerate().max_by_key(|(_, used)| **used);
        // Else the memory is with other processes.
        let largest = largest.filter(|(_, used)| **used > host.available);
        excesses.extend(largest.map(|(at, used)| (at, Excess::Host { used: *used, available: host.available })));
    }
    excesses
}

/// The bytes of each process, with all processes that it has started, if a measurement is needed: there is a limit, or
/// the host has little left.
pub fn used(roots: &[Pid], limit: Option<u64>, host: Option<HostMemory>) -> Option<Vec<u64>> {
    if limit.is_none() && !host.is_some_and(HostMemory::is_short) {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let processes = processes.filter_map(|number| Some((number, Process::read(number)?))).collect();
    Some(roots.iter().map(|root| sum(root.as_raw_nonzero().get(), &processes)).collect())
}

struct Process {
    parent: i32,
    bytes: u64,
}

impl Process {
    fn read(number: i32) -> Option<Process> {
        Process::of_status(&fs::read_to_string(format!("/proc/{number}/status")).ok()?)
    }

    /// Memory that is the process's own or shared with others, in RAM or swapped out. Not pages of files: the kernel
    /// drops these when memory is needed.
    fn of_status(status: &str) -> Option<Process> {
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        let parts = ["RssAnon:", "RssShmem:", "VmSwap:"];
        Some(Process { parent, bytes: parts.iter().filter_map(|name| kib(status, name)).sum() })
    }
}

fn sum(root: i32, processes: &HashMap<i32, Process>) -> u64 {
    let is_below = |number: i32| {
        let ancestors = std::iter::successors(Some(number), |number| Some(processes.get(number)?.parent));
        // Processes end and numbers are reused while they are read, so that there may be a circle.
        ancestors.take(processes.len()).any(|number| number == root)
    };
    processes.iter().filter(|(number, _)| is_below(**number)).map(|(_, process)| process.bytes).sum()
}

/// The bytes of a line `<name> <number> kB`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let number = text.lines().find_map(|line| line.strip_prefix(name))?;
    number.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn host(total: u64, available: u64) -> Option<HostMemory> {
        Some(HostMemory { total: total * MIB, available: available * MIB })
    }

    #[test]
    fn processes_beyond_the_limit_are_stopped_and_else_the_largest_when_little_is_left() {
        let used = [10, 300, 200].map(|used| used * MIB);
        let limit = |limit: u64| Excess::Limit { used: 300 * MIB, limit: limit * MIB };
        assert_eq!(excesses(&used, Some(250 * MIB), host(1000, 900)), [(1, limit(250))]);
        assert_eq!(excesses(&used, Some(300 * MIB), host(1000, 900)), []);
        assert_eq!(excesses(&used, Some(250 * MIB), host(1000, 1)), [(1, limit(250))], "one that explains the other");
        let short = Excess::Host { used: 300 * MIB, available: 63 * MIB };
        assert_eq!(excesses(&used, None, host(1000, 63)), [(1, short)]);
        assert_eq!(excesses(&used, None, host(1000, 64)), []);
        assert_eq!(excesses(&used, None, host(100_000, 2049)), []);
        assert_eq!(excesses(&[10 * MIB], None, host(1000, 20)), [], "others have it");
        assert_eq!(excesses(&used, None, None), []);
        assert_eq!(excesses(&[], Some(0), host(1000, 0)), []);
    }

    #[test]
    fn descendants_count() {
        let process = |parent, bytes| Process { parent, bytes };
        let processes = [
            (1, process(0, 1)),
            (2, process(1, 10)),
            (3, process(2, 100)),
            (4, process(3, 1000)),
            (5, process(1, 10_000)),
            (6, process(7, 100_000)),
            (7, process(6, 1_000_000)),
        ];
        let processes = processes.into_iter().collect();
        assert_eq!([2, 5, 9].map(|root| sum(root, &processes)), [1110, 10_000, 0]);
    }

    #[test]
    fn the_memory_of_a_process_and_of_the_host_is_read() {
        let status =
            "Name:\tx\nPPid:\t7\nVmRSS:\t  90 kB\nRssAnon:\t      20 kB\nRssFile:\t 60 kB\nRssShmem:\t  10 kB\n";
        let process = Process::of_status(status).unwrap();
        assert_eq!((process.parent, process.bytes), (7, 30 << 10));
        let kernel = Process::of_status("Name:\tk\nPPid:\t2\n").unwrap();
        assert_eq!((kernel.parent, kernel.bytes), (2, 0));
        let memory = HostMemory::read().expect("Linux reports its memory");
        assert!(memory.available > 0 && memory.available <= memory.total, "{memory:?}");
        let own = rustix::process::getpid();
        assert_eq!(used(&[own], None, host(1000, 900)), None, "not needed");
        let ballast = std::hint::black_box(vec![1u8; 64 << 20]);
        let measured = used(&[own], Some(1), None).unwrap();
        assert!(measured[0] > ballast.len() as u64, "{measured:?}");
    }

    #[test]
    fn the_limit_of_a_control_group_is_that_of_the_host() {
        let group = nereid_backend::scratch::Scratch::new("memory-group");
        assert_eq!(HostMemory::of_group(&group.path("")), None);
        group.write("memory.max", b"max\n");
        group.write("memory.current", b"1000\n");
        assert_eq!(HostMemory::of_group(&group.path("")), None);
        group.write("memory.max", b"5000\n");
        let limited = |available| Some(HostMemory { total: 5000, available });
        assert_eq!(HostMemory::of_group(&group.path("")), limited(4000));
        group.write("memory.stat", b"anon 1\ninactive_file 300\n");
        assert_eq!(HostMemory::of_group(&group.path("")), limited(4300));
    }
}
