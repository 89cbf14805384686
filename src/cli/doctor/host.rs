//! The host: kernel and io_uring, cores, pages, memory, limits of the process, GPUs.
//!
//! `tuning/check` examines more knobs of a host and measures; here are those that a first start depends on.

use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};

use super::access::{Need, User};
use super::report::{Area, Level, Report};
use crate::cli::check::place;
use crate::cli::options::{IoEngine, ServeOptions};
use nereid_gpu::Gpus;
use nereid_shard::placement::memory_granted_bytes;
use nereid_shard::probe::Probe;

/// The first kernel with all of io_uring that the server needs (docs/engines.md).
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Bytes of memory that the engine on io_uring must be able to lock, and that leave room for every shard's rings.
const MEMLOCK_MIN: u64 = 512 << 10;
const MEMLOCK_WANTED: u64 = 64 << 20;
/// Descriptors for the connections of one shard, and others.
const NOFILE_WANTED: u64 = 65_536 + 1024;
/// With less memory than this, models of any size hardly fit.
const MEMORY_MIN: u64 = 512 << 20;
/// Bytes of a file of /proc or /sys that are read.
const FILE_BYTES_MAX: u64 = 1 << 20;
const CPUS: &str = "sys/devices/system/cpu";
/// CPUs whose governors are read.
const CPUS_MAX: usize = 4096;

/// Files of /proc and /sys, below any root.
struct HostFiles {
    root: PathBuf,
}

impl HostFiles {
    fn read(&self, path: &str) -> Option<String> {
        use std::io::Read;
        let file = std::fs::File::open(self.root.join(path)).ok()?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.split_whitespace().next()?.parse().ok()
    }
}

pub fn check(report: &mut Report, options: &ServeOptions, user: &User) {
    let files = HostFiles { root: "/".into() };
    kernel(report, &files);
    io_uring(report, &files, options, user);
    cores(report, &files, options);
    governor(report, &files);
    huge_pages(report, &files);
    memory(report, &files, options);
    limits(report, options, user);
    gpus(report, &files, options, user);
}

fn kernel(report: &mut Report, files: &HostFiles) {
    let Some(release) = files.read("proc/sys/kernel/osrelease") else { return };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let what = format!("Linux {release}");
    match version >= KERNEL_MIN {
        true => report.ok(Area::Host, "kernel", what),
        false => report.bad(
            Level::Warning,
            Area::Host,
            "kernel",
            format!("{what}: the io_uring engine needs {}.{}", KERNEL_MIN.0, KERNEL_MIN.1),
            "install a newer kernel; until then the server uses epoll",
        ),
    }
}

fn io_uring(report: &mut Report, files: &HostFiles, options: &ServeOptions, user: &User) {
    if options.io_engine == IoEngine::Epoll {
        return report.ok(Area::Host, "io_uring", "not needed: --io-engine=epoll");
    }
    // The probe runs as the caller; the kernel may have a rule for the other user.
    let group = files.read("proc/sys/kernel/io_uring_group").and_then(|text| text.parse::<u32>().ok());
    let reason = match files.number("proc/sys/kernel/io_uring_disabled") {
        Some(2) if !user.is_caller() => Some("kernel.io_uring_disabled is 2".to_owned()),
        Some(1) if !user.is_caller() && !user.is_root() && !group.is_some_and(|group| user.is_in(group)) => {
            Some(format!("kernel.io_uring_disabled is 1 and {} is not in kernel.io_uring_group", user.name))
        }
        _ => Probe::begin().outcome().err().map(|error| error.to_string()),
    };
    let next = "sysctl kernel.io_uring_disabled=0, a seccomp profile that allows io_uring, or LimitMEMLOCK=; see \
                docs/engines.md";
    match (reason, options.io_engine) {
        (None, _) => report.ok(Area::Host, "io_uring", "works"),
        (Some(reason), IoEngine::IoUring) => {
            report.bad(Level::Problem, Area::Host, "io_uring", format!("--io-engine=io_uring: {reason}"), next);
        }
        (Some(reason), _) => {
            let what = format!("{reason}: the server uses epoll");
            report.bad(Level::Warning, Area::Host, "io_uring", what, next);
        }
    }
}

fn cores(report: &mut Report, files: &HostFiles, options: &ServeOptions) {
    let (cores, placement) = match place(options) {
        Ok(placed) => placed,
        Err(error) => {
            let next = "name cores that this process may use, or leave --io-cores out";
            return report.bad(Level::Problem, Area::Host, "cores", error, next);
        }
    };
    let shards: Vec<usize> = placement.shards.iter().flatten().copied().collect();
    let quota =
        if cores.quota < cores.cpus.len() { format!(" with a quota of {}", cores.quota) } else { String::new() };
    let what = format!("cores: {}{quota}; I/O threads: {}", cores.cpus.len(), placement.shards.len());
    if shards.is_empty() {
        return report.ok(Area::Host, "cores", format!("{what}, bound to no core"));
    }
    let isolated = cpu_list(&files.read(&format!("{CPUS}/isolated")).unwrap_or_default());
    let missing: Vec<usize> = shards.iter().copied().filter(|cpu| !isolated.contains(cpu)).collect();
    match missing.is_empty() {
        true => report.ok(Area::Host, "cores", format!("{what} on isolated cores {shards:?}")),
        false => report.bad(
            Level::Warning,
            Area::Host,
            "cores",
            format!("{what} on cores {shards:?}, where other programs may run as well"),
            "for lowest latency isolate them (isolcpus=); tuning/check says how and what it brings",
        ),
    }
}

/// The CPUs of a list such as `0-3,8`; what is none is left out.
fn cpu_list(text: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend((first..=last).take(CPUS_MAX));
        }
    }
    cpus
}

fn governor(report: &mut Report, files: &HostFiles) {
    let online = cpu_list(&files.read(&format!("{CPUS}/online")).unwrap_or_default());
    let of = |cpu: &usize| files.read(&format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor"));
    let governors: Vec<String> = online.iter().take(CPUS_MAX).filter_map(of).collect();
    let other: Vec<&String> = governors.iter().filter(|governor| *governor != "performance").collect();
    match (governors.is_empty(), other.first()) {
        (true, _) => report.ok(Area::Host, "cpu-governor", "none: a virtual machine, or the firmware decides"),
        (false, None) => report.ok(Area::Host, "cpu-governor", "performance"),
        (false, Some(name)) => report.bad(
            Level::Warning,
            Area::Host,
            "cpu-governor",
            format!("{name} on {} of {} cores: the frequency falls between requests", other.len(), governors.len()),
            "cpupower frequency-set -g performance",
        ),
    }
}

fn huge_pages(report: &mut Report, files: &HostFiles) {
    let base = "sys/kernel/mm/transparent_hugepage";
    let chosen = |name: &str| {
        let text = files.read(&format!("{base}/{name}"))?;
        let value = text.split_once('[')?.1.split_once(']')?.0.to_owned();
        Some(value)
    };
    let Some(enabled) = chosen("enabled") else {
        return report.ok(Area::Host, "huge-pages", "this kernel has no transparent huge pages");
    };
    let defrag = chosen("defrag").unwrap_or_default();
    let what = format!("enabled={enabled}, defrag={defrag}");
    match (enabled.as_str(), defrag.as_str()) {
        ("never", _) => report.bad(
            Level::Warning,
            Area::Host,
            "huge-pages",
            format!("{what}: runtimes that ask for huge pages get none"),
            format!("echo madvise > /{base}/enabled"),
        ),
        (_, "always") => report.bad(
            Level::Warning,
            Area::Host,
            "huge-pages",
            format!("{what}: a page fault may wait until memory is compacted"),
            format!("echo defer+madvise > /{base}/defrag"),
        ),
        _ => report.ok(Area::Host, "huge-pages", what),
    }
}

fn memory(report: &mut Report, files: &HostFiles, options: &ServeOptions) {
    let meminfo = files.read("proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, available) = (kib("MemTotal").map(|kib| kib << 10), kib("MemAvailable").map(|kib| kib << 10));
    // Without a limit some kernels state one beyond all memory.
    let granted = [memory_granted_bytes(), total].into_iter().flatten().min();
    let mib = |bytes: u64| bytes >> 20;
    let limit = match (memory_granted_bytes(), total) {
        (Some(granted), Some(total)) if granted < total => {
            format!("{} MiB granted by the control group, of {} MiB", mib(granted), mib(total))
        }
        (_, Some(total)) => format!("{} MiB, no limit of a control group", mib(total)),
        _ => "unknown".to_owned(),
    };
    let what = format!("{limit}, {} MiB available", available.map_or("?".to_owned(), |bytes| mib(bytes).to_string()));
    let wanted = options.request_memory_byte_size;
    if granted.is_some_and(|granted| wanted > granted) {
        let what = format!("{what}, but --request-memory-byte-size allows requests {} MiB", mib(wanted));
        return report.bad(Level::Problem, Area::Host, "memory", what, "choose less, or leave the flag out");
    }
    match granted.is_some_and(|granted| granted < MEMORY_MIN) || available.is_some_and(|left| left < MEMORY_MIN / 2) {
        true => {
            let next = "raise the limit (MemoryMax=, --memory), or stop other programs";
            report.bad(Level::Warning, Area::Host, "memory", what, next);
        }
        false => report.ok(Area::Host, "memory", what),
    }
}

/// Those of this process: a service has those of its unit.
fn limits(report: &mut Report, options: &ServeOptions, user: &User) {
    let whose = if user.is_caller() { "" } else { " (of this shell; those of a service are in its unit)" };
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let files = getrlimit(Resource::Nofile).current;
    let what = format!("{} open files{whose}", shown(files));
    match files.is_some_and(|files| files < NOFILE_WANTED) {
        true => report.bad(
            Level::Warning,
            Area::Host,
            "open-files",
            format!("{what}: connections beyond it are closed"),
            format!("ulimit -n {NOFILE_WANTED}, or LimitNOFILE={NOFILE_WANTED} in the unit"),
        ),
        false => report.ok(Area::Host, "open-files", what),
    }
    let locked = getrlimit(Resource::Memlock).current;
    let what = format!("{} bytes may be locked{whose}", shown(locked));
    let next = format!("ulimit -l {}, or LimitMEMLOCK={MEMLOCK_WANTED} in the unit", MEMLOCK_WANTED >> 10);
    match locked {
        Some(bytes) if bytes < MEMLOCK_MIN && options.io_engine == IoEngine::IoUring => {
            report.bad(Level::Problem, Area::Host, "locked-memory", format!("{what}: too little for io_uring"), next);
        }
        Some(bytes) if bytes < MEMLOCK_WANTED && options.io_engine != IoEngine::Epoll => {
            let is_too_little = bytes < MEMLOCK_MIN;
            let effect = if is_too_little { "too little for io_uring" } else { "little for many I/O threads" };
            report.bad(Level::Warning, Area::Host, "locked-memory", format!("{what}: {effect}"), next);
        }
        _ => report.ok(Area::Host, "locked-memory", what),
    }
}

fn gpus(report: &mut Report, files: &HostFiles, options: &ServeOptions, user: &User) {
    let driver = files.read("proc/driver/nvidia/version");
    let version = driver.as_deref().and_then(|text| text.lines().next()).map(|line| {
        let number = line.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        number.unwrap_or("of an unknown version").to_owned()
    });
    let found = Gpus::discover(&options.gpu_settings());
    let names: Vec<String> = found.iter().map(|gpu| gpu.description().name.clone()).collect();
    let devices = ["dev/nvidiactl", "dev/nvidia0"].map(|path| files.root.join(path));
    let refused = devices
        .iter()
        .filter(|path| path.exists())
        .find_map(|path| [Need::Read, Need::Write].into_iter().find_map(|need| user.may(path, need).err()));
    match (version, names.is_empty(), refused) {
        (_, false, Some(refused)) | (Some(_), true, Some(refused)) => {
            let next = format!("add {} to the group of the device files", user.name);
            report.bad(Level::Warning, Area::Host, "gpu", refused.text(user), next);
        }
        (version, false, None) => {
            let driver = version.map(|version| format!(", driver {version}")).unwrap_or_default();
            report.ok(Area::Host, "gpu", format!("{}{driver}", names.join(", ")));
        }
        (Some(version), true, None) => report.bad(
            Level::Warning,
            Area::Host,
            "gpu",
            format!("driver {version} is loaded, but no GPU can be used"),
            "nvidia-smi says more; is libcuda.so.1 installed, and does a container have the GPUs (--gpus all)?",
        ),
        (None, true, _) => report.ok(Area::Host, "gpu", "no NVIDIA driver: models run on the CPU"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A host with these files.
    fn host(name: &str, files: &[(&str, &str)]) -> HostFiles {
        let root = std::env::temp_dir().join(format!("nereid-doctor-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        HostFiles { root }
    }

    fn found(check: impl FnOnce(&mut Report)) -> Vec<(String, Level, String)> {
        let mut report = Report::new(&User::of_process());
        check(&mut report);
        report.findings.into_iter().map(|finding| (finding.name, finding.level, finding.what)).collect()
    }

    #[test]
    fn old_kernels_and_saving_governors_are_warnings() {
        let files = host(
            "old",
            &[
                ("proc/sys/kernel/osrelease", "5.15.0-91-generic\n"),
                ("sys/devices/system/cpu/online", "0-1\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
                ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
            ],
        );
        let old = found(|report| {
            kernel(report, &files);
            governor(report, &files);
            huge_pages(report, &files);
        });
        assert_eq!(old.iter().map(|one| one.1).collect::<Vec<_>>(), [Level::Warning; 3], "{old:?}");
        assert!(old[0].2.contains("5.15.0-91-generic: the io_uring engine needs 6.1"), "{old:?}");
        assert!(old[1].2.starts_with("powersave on 1 of 2 cores"), "{old:?}");
        fs::remove_dir_all(&files.root).unwrap();
        let files = host(
            "new",
            &[
                ("proc/sys/kernel/osrelease", "6.12.3\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
                ("sys/kernel/mm/transparent_hugepage/defrag", "always [defer] never\n"),
            ],
        );
        let new = found(|report| {
            kernel(report, &files);
            governor(report, &files);
            huge_pages(report, &files);
        });
        assert!(new.iter().all(|one| one.1 == Level::Ok), "{new:?}");
        fs::remove_dir_all(&files.root).unwrap();
    }

    #[test]
    fn requests_cannot_have_more_memory_than_there_is() {
        let files = host("memory", &[("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 4000000 kB\n")]);
        let options = ServeOptions { request_memory_byte_size: 1 << 50, ..ServeOptions::default() };
        let much = found(|report| memory(report, &files, &options));
        assert_eq!(much[0].1, Level::Problem, "{much:?}");
        let usual = found(|report| memory(report, &files, &ServeOptions::default()));
        assert_ne!(usual[0].1, Level::Problem, "{usual:?}");
        fs::remove_dir_all(&files.root).unwrap();
    }

    #[test]
    fn lists_of_cores() {
        assert_eq!(cpu_list("0-2,5,7-7"), [0, 1, 2, 5, 7]);
        assert_eq!(cpu_list(""), [0; 0]);
        assert_eq!(cpu_list("x,3-1,2"), [2]);
    }
}
