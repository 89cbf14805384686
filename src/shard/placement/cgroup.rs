//! The control groups that the process is in, and where their files lie.
//!
//! Groups are nested, and each may limit what is in it. Version 1 and version 2 of the interface may be mounted side by
//! side, under any path, and in a container often only from the container's own group downwards.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The directories of all groups that limit `controller` for this process. `root` is `/`.
pub(super) fn groups(root: &Path, controller: &str) -> Vec<(Interface, PathBuf)> {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let (membership, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mounts: Vec<Mount> = mounts.lines().filter_map(|line| Mount::parse(line, controller)).collect();
    let memberships = membership.lines().filter_map(|line| Membership::parse(line, controller));
    let mut groups = Vec::new();
    for member in memberships {
        for mount in &mounts {
            groups.extend(member.groups(root, mount).into_iter().map(|group| (member.interface, group)));
        }
    }
    groups
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interface {
    V1,
    V2,
}

/// The mount point of one hierarchy of groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    interface: Interface,
    /// The group that lies at the mount point.
    group: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// A line of proc(5) mountinfo: `36 35 98:0 <group> <point> <options> … - <type> <source> <super options>`.
    fn parse(line: &str, controller: &str) -> Option<Mount> {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let interface = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => Interface::V2,
            ("cgroup", options) if options.split(',').any(|option| option == controller) => Interface::V1,
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
    fn parse<'a>(line: &'a str, controller: &str) -> Option<Membership<'a>> {
        let mut parts = line.splitn(3, ':');
        let interface = match (parts.next()?, parts.next()?) {
            ("0", "") => Interface::V2,
            (_, controllers) if controllers.split(',').any(|other| other == controller) => Interface::V1,
            _ => return None,
        };
        Some(Membership { interface, group: Path::new(parts.next()?) })
    }

    /// The process's group and those around it, up to the mount point.
    fn groups(&self, root: &Path, mount: &Mount) -> Vec<PathBuf> {
        if self.interface != mount.interface {
            return Vec::new();
        }
        let below = |path: &Path| path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let point = root.join(below(&mount.point) as PathBuf);
        // For a group outside of what is mounted, only the mount point can be read.
        let inside = self.group.strip_prefix(&mount.group).map_or_else(|_| PathBuf::new(), below);
        let group = point.join(inside);
        group.ancestors().take_while(|group| group.starts_with(&point)).map(Path::to_path_buf).collect()
    }
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
    use super::*;

    #[test]
    fn mount_points_may_hold_blanks() {
        let mount = Mount::parse("1 2 0:3 /a\\040b /m\\134n\\011o rw master:1 - cgroup2 none rw", "cpu").unwrap();
        let (group, point) = (PathBuf::from("/a b"), PathBuf::from("/m\\n\to"));
        assert_eq!(mount, Mount { interface: Interface::V2, group, point });
        for line in ["", "1 2 0:3 / /sys rw - sysfs sysfs rw", "1 2 - cgroup2 none rw", "1 2 0:3 / /x rw"] {
            assert_eq!(Mount::parse(line, "cpu"), None, "{line}");
        }
    }
}
