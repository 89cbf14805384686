//! Memory and CPU time of a process with all that it started, out of /proc.

use std::collections::BTreeMap;
use std::fs;

/// The kernel's unit of CPU times in /proc, for every architecture of Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// Processes of a machine that are looked at.
const PROCESSES_MAX: usize = 1 << 17;

/// What a process and its descendants have.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    pub rss_bytes: u64,
    /// Of processes that live; those that have ended count where their parent waited for them.
    pub cpu_seconds: f64,
    pub processes: usize,
}

/// Of one process: its parent, its CPU time in ticks with that of ended children.
fn facts(stat: &str) -> Option<(u32, u64)> {
    // The name is in parentheses, and may contain any.
    let rest = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    Some((u32::try_from(number(1)?).ok()?, ticks))
}

fn resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

pub fn usage(pid: u32) -> Usage {
    let mut parents: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().take(PROCESSES_MAX);
    for entry in entries {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let stat = fs::read_to_string(format!("/proc/{id}/stat"));
        if let Some(facts) = stat.ok().as_deref().and_then(facts) {
            parents.insert(id, facts);
        }
    }
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(parents.iter().filter(|(id, facts)| facts.0 == parent && **id != parent).map(|(id, _)| *id));
        at += 1;
    }
    let mut usage = Usage::default();
    for id in &family {
        let Some((_, ticks)) = parents.get(id) else { continue };
        usage.processes += 1;
        usage.cpu_seconds += *ticks as f64 / TICKS_PER_SECOND;
        usage.rss_bytes += fs::read_to_string(format!("/proc/{id}/status")).map_or(0, |status| resident(&status));
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let stat = "7 (a (b) c) S 3 7 7 0 -1 4194304 1 2 3 4 100 50 20 30 20 0 1 0 5";
        assert_eq!(facts(stat), Some((3, 200)));
        assert_eq!((facts(""), facts("7 (x")), (None, None));
        assert_eq!(resident("Name:\tx\nVmRSS:\t   12 kB\n"), 12 << 10);
        assert_eq!(resident(""), 0);
    }

    #[test]
    fn this_process_has_memory() {
        let usage = usage(std::process::id());
        assert!(usage.rss_bytes > 0 && usage.processes >= 1);
        assert_eq!(super::usage(u32::MAX).processes, 0);
    }
}
