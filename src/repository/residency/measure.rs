//! How much memory a model holds: what its load added to the process and to devices, and its own processes.
//!
//! Only one load at a time is measured (`lifecycle::operation`). Requests that are served meanwhile allocate too, which
//! makes a figure inexact by what they keep.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::Usage;
use nereid_gpu::Gpus;
use nereid_memory::allocated_bytes;
use nereid_observe::statistics::{MemoryKind, MemoryUse};

/// Bytes of the argument list of a process that are read.
const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;

/// The memory of the process and of devices at one moment.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    allocated: u64,
    /// Resident pages of mapped files.
    mapped: u64,
    devices: BTreeMap<i32, u64>,
}

impl Reading {
    pub fn now(gpus: &Gpus) -> Reading {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let devices = gpus.iter().filter_map(|gpu| {
            let (free, total) = gpu.memory().ok()?;
            Some((gpu.id(), total.saturating_sub(free)))
        });
        Reading {
            allocated: allocated_bytes().unwrap_or_else(|| kib(&status, "RssAnon:")),
            mapped: kib(&status, "RssFile:"),
            devices: devices.collect(),
        }
    }

    /// What was added since `before`.
    pub fn since(&self, before: &Reading) -> Usage {
        let devices = self.devices.iter().map(|(device, used)| {
            let before = before.devices.get(device).copied().unwrap_or(*used);
            (*device, used.saturating_sub(before))
        });
        Usage {
            host: self.allocated.saturating_sub(before.allocated) + self.mapped.saturating_sub(before.mapped),
            devices: devices.filter(|(_, bytes)| *bytes > 0).collect(),
        }
    }
}

/// What a backend has reported takes the place of what was measured of the same memory.
pub fn with_reports(mut measured: Usage, reports: &[MemoryUse]) -> Usage {
    let host = reports.iter().filter(|one| one.kind != MemoryKind::Gpu).map(|one| one.byte_size);
    measured.host = measured.host.max(host.fold(0, u64::saturating_add));
    for one in reports.iter().filter(|one| one.kind == MemoryKind::Gpu && one.byte_size > 0) {
        if let Ok(device) = i32::try_from(one.id) {
            measured.devices.insert(device, one.byte_size);
        }
    }
    measured
}

/// The child processes of this one whose last argument is their title, by title: those of Python models.
pub fn children() -> BTreeMap<String, Vec<u32>> {
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let own: BTreeSet<u32> = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>())
        .collect();
    for id in own {
        let Ok(mut arguments) = fs::read(format!("/proc/{id}/cmdline")) else { continue };
        arguments.truncate(ARGUMENTS_BYTES_MAX);
        let words = arguments.strip_suffix(b"\0").unwrap_or(&arguments);
        let title = words.rsplit(|byte| *byte == 0).next().unwrap_or_default();
        found.entry(String::from_utf8_lossy(title).into_owned()).or_default().push(id);
    }
    found
}

/// The part of the memory that is the process's own: shared pages count by the number of those that share them.
pub fn process_bytes(id: u32) -> u64 {
    let rollup = Path::new("/proc").join(id.to_string()).join("smaps_rollup");
    fs::read_to_string(rollup).map_or(0, |text| kib(&text, "Pss:"))
}

/// The bytes of a line `<name>  <number> kB`.
fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number =
        line.and_then(|rest| rest.split_ascii_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    number.unwrap_or_default().saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_between_two_readings_is_measured() {
        let gpus = Gpus::default();
        let before = Reading::now(&gpus);
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        let usage = Reading::now(&gpus).since(&before);
        drop(block);
        assert!(usage.host >= 32 << 20 && usage.devices.is_empty(), "{usage:?}");
    }

    #[test]
    fn readings_subtract_by_device_and_never_below_zero() {
        let reading = |allocated, mapped, devices: &[(i32, u64)]| Reading {
            allocated,
            mapped,
            devices: devices.iter().copied().collect(),
        };
        let usage = reading(10, 7, &[(0, 5), (1, 9), (2, 4)]).since(&reading(4, 9, &[(0, 6), (1, 2)]));
        assert_eq!(usage, Usage { host: 6, devices: [(1, 7)].into() });
    }

    #[test]
    fn reports_of_a_backend_count() {
        let of = |kind, id, byte_size| MemoryUse { kind, id, byte_size };
        let measured = Usage { host: 100, devices: [(0, 5)].into() };
        let reports = [of(MemoryKind::Cpu, 0, 60), of(MemoryKind::CpuPinned, 0, 50), of(MemoryKind::Gpu, 0, 3)];
        assert_eq!(with_reports(measured.clone(), &reports), Usage { host: 110, devices: [(0, 3)].into() });
        assert_eq!(with_reports(measured.clone(), &[]), measured);
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text = "Name:\tx\nRssAnon:\t     12 kB\nPss:   3 kB\n";
        assert_eq!((kib(text, "RssAnon:"), kib(text, "Pss:"), kib(text, "RssFile:")), (12 << 10, 3 << 10, 0));
        assert!(process_bytes(std::process::id()) > 0);
    }
}
