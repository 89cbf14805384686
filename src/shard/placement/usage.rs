//! How much of its processor time and of its memory this process, or the container that it runs in, uses.
//!
//! Where a control group sets a limit, the group's own use counts, because everything in it shares the limit. Without a
//! limit it is the use of the innermost group, compared with the whole machine.

use std::fs;
use std::path::Path;

use super::cgroup::{Interface, groups};
use super::quota::limit;

/// Clock ticks a second in proc(5) stat: the kernel's ABI fixes it on the machines that the server is built for.
const TICK_NS: u64 = 10_000_000;

/// The processor time that was used so far, and the cores that may be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuUse {
    pub used_ns: u64,
    pub cores: f64,
}

/// Bytes of memory in use, without what the kernel would give back at once, and bytes that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    pub used_bytes: u64,
    pub limit_bytes: u64,
}

/// `cores`: those of this process where no group has a quota.
pub fn cpu_use(cores: usize) -> Option<CpuUse> {
    cpu_use_on(Path::new("/"), cores)
}

pub fn memory_use() -> Option<MemoryUse> {
    memory_use_on(Path::new("/"))
}

fn cpu_use_on(root: &Path, cores: usize) -> Option<CpuUse> {
    let mut groups = groups(root, "cpu");
    groups.extend(super::cgroup::groups(root, "cpuacct").into_iter().filter(|group| group.0 == Interface::V1));
    let limited = groups.iter().filter_map(|(interface, group)| Some((limit(*interface, group)?, *interface, group)));
    let tightest = limited.min_by(|one, other| one.0.total_cmp(&other.0));
    if let Some((quota, interface, group)) = tightest
        && let Some(used_ns) = cpu_ns(interface, group)
    {
        return Some(CpuUse { used_ns, cores: quota });
    }
    let own = groups.iter().find_map(|(interface, group)| cpu_ns(*interface, group));
    Some(CpuUse { used_ns: own.or_else(|| process_ns(root))?, cores: cores.max(1) as f64 })
}

fn cpu_ns(interface: Interface, group: &Path) -> Option<u64> {
    match interface {
        Interface::V2 => {
            let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
            field(&text, "usage_usec").map(|us| us.saturating_mul(1000))
        }
        Interface::V1 => number(&group.join("cpuacct.usage")),
    }
}

/// User and system time of this process: fields 14 and 15 of proc(5) stat, counted behind the name, which may hold
/// blanks and parentheses.
fn process_ns(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/self/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user.saturating_add(system).saturating_mul(TICK_NS))
}

fn memory_use_on(root: &Path) -> Option<MemoryUse> {
    let (total, available) = machine(root)?;
    let limited = groups(root, "memory").into_iter().filter_map(|(interface, group)| {
        let (limit, used) = match interface {
            Interface::V2 => ("memory.max", "memory.current"),
            Interface::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        };
        // `max`, and for version 1 a number beyond all memory: no limit.
        let limit_bytes = number(&group.join(limit)).filter(|limit| *limit < total)?;
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let cached = field(&stat, "total_inactive_file").or_else(|| field(&stat, "inactive_file")).unwrap_or(0);
        let used_bytes = number(&group.join(used))?.saturating_sub(cached);
        Some(MemoryUse { used_bytes, limit_bytes })
    });
    let machine = MemoryUse { used_bytes: total.saturating_sub(available), limit_bytes: total };
    Some(limited.min_by_key(|group| group.limit_bytes).unwrap_or(machine))
}

/// All memory of the machine, and what is available of it, in bytes.
fn machine(root: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = |name: &str| field(&text, name).map(|kib| kib.saturating_mul(1024));
    Some((kib("MemTotal:").filter(|total| *total > 0)?, kib("MemAvailable:")?))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number behind a name, in a text with one name and number a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let found = text.lines().find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '\t'])));
    found?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::quota::tests::Host;
    use super::*;

    const V2: &str = "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "30 20 0:25 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      31 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:\t600 kB\n");
    const STAT: (&str, &str) = ("proc/self/stat", "7 (a) b) S 1 1 1 0 -1 0 0 0 0 0 20 5 0 0 20 0 1 0 9\n");

    fn host(membership: &str, mounts: &str, files: &[(&str, &str)]) -> Host {
        let mut all = vec![("proc/self/cgroup", membership), ("proc/self/mountinfo", mounts), MEMINFO, STAT];
        all.extend(files);
        Host::new(&all)
    }

    #[test]
    fn the_group_that_limits_is_the_one_that_is_read() {
        let files = [
            ("sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/pod/cpu.stat", "usage_usec 7000\nuser_usec 1\n"),
            ("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/pod/box/cpu.stat", "usage_usec 5\n"),
            ("sys/fs/cgroup/pod/memory.max", "512000\n"),
            ("sys/fs/cgroup/pod/memory.current", "300000\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 44000\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
        ];
        let host = host("0::/pod/box\n", V2, &files);
        assert_eq!(cpu_use_on(&host.0, 8), Some(CpuUse { used_ns: 7_000_000, cores: 1.5 }));
        assert_eq!(memory_use_on(&host.0), Some(MemoryUse { used_bytes: 256_000, limit_bytes: 512_000 }));
    }

    #[test]
    fn without_a_limit_it_is_the_own_group_of_all_cores() {
        let host = host("0::/box\n", V2, &[("sys/fs/cgroup/box/cpu.stat", "usage_usec 9\n")]);
        assert_eq!(cpu_use_on(&host.0, 4), Some(CpuUse { used_ns: 9_000, cores: 4.0 }));
        let machine = MemoryUse { used_bytes: 400 * 1024, limit_bytes: 1000 * 1024 };
        assert_eq!(memory_use_on(&host.0), Some(machine));
    }

    #[test]
    fn the_first_version_of_the_interface_is_read() {
        let files = [
            ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/box/cpuacct.usage", "123456789\n"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "500000\n"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "100000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let host = host("12:cpu,cpuacct:/box\n11:memory:/box\n", V1, &files);
        assert_eq!(cpu_use_on(&host.0, 4), Some(CpuUse { used_ns: 123_456_789, cores: 0.5 }));
        assert_eq!(memory_use_on(&host.0), Some(MemoryUse { used_bytes: 100_000, limit_bytes: 500_000 }));
    }

    #[test]
    fn without_groups_it_is_the_process() {
        let host = host("", "", &[]);
        assert_eq!(cpu_use_on(&host.0, 2), Some(CpuUse { used_ns: 25 * TICK_NS, cores: 2.0 }));
        let empty = Host::new(&[("proc/other", "")]);
        assert_eq!((cpu_use_on(&empty.0, 2), memory_use_on(&empty.0)), (None, None));
    }
}
