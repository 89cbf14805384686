//! How much processor time the process's control groups grant it, in whole cores.
//!
//! Groups are nested, and each may limit what is in it: the tightest counts. Version 1 and version 2 of the interface
//! may be mounted side by side, under any path, and in a container often only from the container's own group
//! downwards. Which cores the process may run on is not read here: its affinity already respects cpusets.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Whole cores' worth of time, at least 1; `None` without a limit. `root` is `/`.
pub(super) fn cores(root: &Path) -> Option<usize> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    let tightest = membership
        .lines()
        .filter_map(Membership::parse)
        .flat_map(|group| mounts.iter().filter_map(move |mount| group.tightest(root, mount)))
        .min_by(f64::total_cmp)?;
    // Not more than is granted: half a core more is not a core.
    Some((tightest as usize).max(1))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interface {
    V1,
    V2,
}

/// Where the groups of one hierarchy can be seen.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    interface: Interface,
    /// The group that lies at the mount point.
    group: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// A line of proc(5) mountinfo: `36 35 98:0 <group> <point> <options> … - <type> <source> <super options>`.
    fn parse(line: &str) -> Option<Mount> {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let interface = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => Interface::V2,
            ("cgroup", options) if options.split(',').any(|option| option == "cpu") => Interface::V1,
            _ => return None,
        };
        let mut place = place.split(' ').skip(3);
        Some(Mount { interface, group: unescaped(place.next()?), point: unescaped(place.next()?) })
    }
}

/// The group that the process is in.
struct Membership<'a> {
    interface: Interface,
    group: &'a Path,
}

impl Membership<'_> {
    /// A line of proc(5) cgroup: `<hierarchy>:<controllers>:<group>`; version 2 names no controllers.
    fn parse(line: &str) -> Option<Membership<'_>> {
        let mut parts = line.splitn(3, ':');
        let interface = match (parts.next()?, parts.next()?) {
            ("0", "") => Interface::V2,
            (_, controllers) if controllers.split(',').any(|controller| controller == "cpu") => Interface::V1,
            _ => return None,
        };
        Some(Membership { interface, group: Path::new(parts.next()?) })
    }

    /// The tightest limit, in cores, from the process's group up to the mount point.
    fn tightest(&self, root: &Path, mount: &Mount) -> Option<f64> {
        if self.interface != mount.interface {
            return None;
        }
        let below = |path: &Path| path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let point = root.join(below(&mount.point) as PathBuf);
        // Outside of what is mounted, there is only the mount point to look at.
        let inside = self.group.strip_prefix(&mount.group).map_or_else(|_| PathBuf::new(), below);
        let group = point.join(inside);
        let groups = group.ancestors().take_while(|group| group.starts_with(&point));
        groups.filter_map(|group| limit(self.interface, group)).min_by(f64::total_cmp)
    }
}

/// What one group grants, in cores.
fn limit(interface: Interface, group: &Path) -> Option<f64> {
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

/// mountinfo writes blanks, tabs, newlines and backslashes as `\` and three octal digits.
fn unescaped(path: &str) -> PathBuf {
    let mut text = path.to_owned();
    for (escape, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(escape, plain);
    }
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A host that goes away with the test.
    struct Host(PathBuf);

    impl Host {
        fn new(files: &[(&str, &str)]) -> Host {
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
        assert_eq!(of(["nonsense", "-5 0\n", "0 100000\n"]), None, "what says nothing limits nothing");
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
    fn mount_points_may_hold_blanks() {
        let mount = Mount::parse("1 2 0:3 /a\\040b /m\\134n\\011o rw master:1 - cgroup2 none rw").unwrap();
        let (group, point) = (PathBuf::from("/a b"), PathBuf::from("/m\\n\to"));
        assert_eq!(mount, Mount { interface: Interface::V2, group, point });
        for line in ["", "1 2 0:3 / /sys rw - sysfs sysfs rw", "1 2 - cgroup2 none rw", "1 2 0:3 / /x rw"] {
            assert_eq!(Mount::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_host_without_groups_has_no_limit() {
        assert_eq!(cores_on("", "", &[]), None);
        assert_eq!(cores(Path::new("/nowhere/at/all")), None);
    }
}
