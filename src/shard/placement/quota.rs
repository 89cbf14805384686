//! The limits of the process's control groups: processor time, in whole cores, and memory.
//!
//! Of nested groups the tightest counts. Which cores the process may run on is not read here: its affinity already
//! respects cpusets.

use std::fs;
use std::path::Path;

use super::cgroup::{Interface, groups};

/// Whole cores' worth of time, at least 1; `None` without a limit. `root` is `/`.
pub(super) fn cores(root: &Path) -> Option<usize> {
    let groups = groups(root, "cpu").into_iter();
    let tightest = groups.filter_map(|(interface, group)| limit(interface, &group)).min_by(f64::total_cmp)?;
    // Rounded down: not more than the group grants.
    Some((tightest as usize).max(1))
}

/// Bytes of memory; `None` without a limit. `root` is `/`.
pub(super) fn memory_bytes(root: &Path) -> Option<u64> {
    let bytes = groups(root, "memory").into_iter().filter_map(|(interface, group)| {
        let file = match interface {
            Interface::V2 => "memory.max",
            Interface::V1 => "memory.limit_in_bytes",
        };
        // `max`, and for version 1 a number beyond all memory: no limit.
        fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
    });
    bytes.min()
}

/// What one group grants, in cores.
pub(super) fn limit(interface: Interface, group: &Path) -> Option<f64> {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok();
    let (quota, period) = match interface {
        Interface::V2 => {
            let text = read("cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
        }
        Interface::V1 => {
            let number = |file: &str| read(file)?.trim().parse::<f64>().ok();
            (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
        }
    };
    // -1 or `max`: no limit.
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A host that goes away with the test.
    pub struct Host(pub PathBuf);

    impl Host {
        pub fn new(files: &[(&str, &str)]) -> Host {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let root = std::env::temp_dir().join(format!("nereid-cgroup-{}-{number}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Host(root)
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const V2: &str = "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "30 20 0:25 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      31 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    fn cores_on(membership: &str, mounts: &str, files: &[(&str, &str)]) -> Option<usize> {
        let mut all = vec![("proc/self/cgroup", membership), ("proc/self/mountinfo", mounts)];
        all.extend(files);
        let host = Host::new(&all);
        cores(&host.0)
    }

    #[test]
    fn the_tightest_of_nested_groups_counts() {
        let in_pod = "0::/kubepods/pod1/box\n";
        let file = |group: &str| format!("sys/fs/cgroup/{group}cpu.max");
        let (pods, pod, own) = (file("kubepods/"), file("kubepods/pod1/"), file("kubepods/pod1/box/"));
        let of = |limits: [&str; 3]| cores_on(in_pod, V2, &[(&pods, limits[0]), (&pod, limits[1]), (&own, limits[2])]);
        assert_eq!(of(["max 100000\n", "max 100000\n", "max 100000\n"]), None);
        assert_eq!(of(["max 100000\n", "400000 100000\n", "max 100000\n"]), Some(4), "the group in the middle");
        assert_eq!(of(["800000 100000\n", "400000 100000\n", "250000 100000\n"]), Some(2), "rounded down");
        assert_eq!(of(["50000 50000\n", "400000 100000\n", "400000 100000\n"]), Some(1), "the outermost");
        assert_eq!(of(["max 100000\n", "max 100000\n", "10000 100000\n"]), Some(1), "at least one");
        assert_eq!(of(["nonsense", "-5 0\n", "0 100000\n"]), None, "files without a number set no limit");
    }

    #[test]
    fn both_versions_of_the_interface_are_read() {
        let membership = "12:cpu,cpuacct:/docker/box\n11:memory:/docker/box\n0::/\n";
        let group = "sys/fs/cgroup/cpu,cpuacct/docker/";
        let (outer, quota, period) = (
            format!("{group}cpu.cfs_quota_us"),
            format!("{group}box/cpu.cfs_quota_us"),
            format!("{group}box/cpu.cfs_period_us"),
        );
        let files = [(outer.as_str(), "-1\n"), (quota.as_str(), "300000\n"), (period.as_str(), "100000\n")];
        assert_eq!(cores_on(membership, V1, &files), Some(3));
        let side_by_side = format!("{V1}{V2}");
        let more = [files[0], files[1], files[2], ("sys/fs/cgroup/cpu.max", "200000 100000\n")];
        assert_eq!(cores_on(membership, &side_by_side, &more), Some(2));
        assert_eq!(cores_on("11:memory:/docker/box\n", V1, &files), None, "another controller");
    }

    #[test]
    fn a_container_sees_its_own_group_only() {
        let mounted = "30 20 0:25 /docker/box /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
        let here = |group: &str| {
            let files = [
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000"),
                ("sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "100000"),
                ("sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "50000"),
            ];
            cores_on(&format!("4:cpu:{group}\n"), mounted, &files)
        };
        assert_eq!(here("/docker/box"), Some(3));
        assert_eq!(here("/docker/box/inner"), Some(2));
        assert_eq!(here("/docker/other"), Some(3), "not below what is mounted");
        assert_eq!(here("/../elsewhere"), Some(3), "outside of its namespace");
    }

    #[test]
    fn the_tightest_group_bounds_the_memory() {
        let of = |membership: &str, mounts: &str, files: &[(&str, &str)]| {
            let all = [("proc/self/cgroup", membership), ("proc/self/mountinfo", mounts)];
            let host = Host::new(&[&all, files].concat());
            memory_bytes(&host.0)
        };
        let files = [("sys/fs/cgroup/a/memory.max", "3000\n"), ("sys/fs/cgroup/a/b/memory.max", "max\n")];
        assert_eq!(of("0::/a/b\n", V2, &files), Some(3000));
        assert_eq!(of("0::/other\n", V2, &files), None);
        let files = [("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n")];
        assert_eq!(of("7:memory:/a\n4:cpu:/b\n", V1, &files), Some(5000));
    }

    #[test]
    fn a_host_without_groups_has_no_limit() {
        assert_eq!(cores_on("", "", &[]), None);
        assert_eq!(cores(Path::new("/nowhere/at/all")), None);
    }
}
