//! Gauges of the machine: CPU, memory and GPUs, read by one polling thread (contract/metrics.md section 2, server
//! gauges).

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::exposition::{Exposition, Kind, Value};
use super::gpu::{Devices, GpuGauges, GpuReader};
use super::nvml::NvmlDevices;
use crate::log::verbose;

/// The values last read; 0 until the first reading.
#[derive(Debug, Default)]
pub struct HostGauges {
    shows_cpu: bool,
    cpu_utilization_bits: AtomicU64,
    memory_total_bytes: AtomicU64,
    memory_used_bytes: AtomicU64,
    pinned_total_bytes: AtomicU64,
    pinned_used_bytes: AtomicU64,
    /// Set once the poller has found devices.
    gpus: OnceLock<GpuGauges>,
}

impl HostGauges {
    /// `shows_cpu` is `--allow-cpu-metrics`, `pinned_bytes` the requested size of the pinned pool.
    pub fn new(shows_cpu: bool, pinned_bytes: u64) -> HostGauges {
        HostGauges { shows_cpu, pinned_total_bytes: AtomicU64::new(pinned_bytes), ..HostGauges::default() }
    }

    pub(super) fn render(&self, exposition: &mut Exposition) {
        // Pinned host memory needs a CUDA driver. Without one Triton, too, has no pool, and shows the configured size.
        let (total, used) = (&self.pinned_total_bytes, &self.pinned_used_bytes);
        for (name, help, bytes) in [
            ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", total),
            ("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", used),
        ] {
            exposition.family(name, help, Kind::Gauge).sample("", Value::Integer(bytes.load(Ordering::Relaxed)));
        }
        if let Some(gpus) = self.gpus.get() {
            gpus.render(exposition);
        }
        if !self.shows_cpu {
            return;
        }
        let utilization = f64::from_bits(self.cpu_utilization_bits.load(Ordering::Relaxed));
        let total = self.memory_total_bytes.load(Ordering::Relaxed);
        let used = self.memory_used_bytes.load(Ordering::Relaxed);
        for (name, help, value) in [
            ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", Value::Real(utilization)),
            ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", Value::Integer(total)),
            ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", Value::Integer(used)),
        ] {
            exposition.family(name, help, Kind::Gauge).sample("", value);
        }
    }

    /// Values that cannot be read or parsed stay as they are.
    fn update(&self, before: &mut Option<CpuTimes>, stat: &str, meminfo: &str) {
        if let Some(now) = CpuTimes::parse(stat) {
            if let Some(utilization) = before.and_then(|before| now.utilization_since(before)) {
                self.cpu_utilization_bits.store(utilization.to_bits(), Ordering::Relaxed);
            }
            *before = Some(now);
        }
        if let Some((total, used)) = parse_memory(meminfo) {
            self.memory_total_bytes.store(total, Ordering::Relaxed);
            self.memory_used_bytes.store(used, Ordering::Relaxed);
        }
    }
}

/// The poller's sources of values that are not in the host's files.
#[derive(Default)]
pub struct Sources {
    pub gpus: GpuSource,
    pub pinned: Option<PinnedUsage>,
}

/// Bytes of pinned memory in use, and all of them.
pub type PinnedUsage = Box<dyn Fn() -> (u64, u64) + Send>;

/// The source of the values of GPUs.
#[derive(Default)]
pub enum GpuSource {
    /// No values of GPUs.
    #[default]
    None,
    /// NVIDIA's management library, if the host has it.
    Nvml,
    These(Box<dyn Devices + Send>),
}

/// The thread that keeps [`HostGauges`] up to date until it is dropped.
#[derive(Debug)]
pub struct HostPoller {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl HostPoller {
    /// Reads every half of `interval` (`--metrics-interval-ms`), for the first time after one such wait. The thread
    /// itself searches for GPUs, because drivers take long.
    pub fn start(gauges: Arc<HostGauges>, interval: Duration, sources: Sources) -> io::Result<HostPoller> {
        let pause = (interval / 2).max(Duration::from_millis(1));
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let poll = move || {
            let mut before = CpuTimes::parse(&read("/proc/stat"));
            let mut gpus = find_gpus(sources.gpus, &gauges);
            if !gauges.shows_cpu && gpus.is_none() && sources.pinned.is_none() {
                return;
            }
            loop {
                let (flag, wake) = &*stopped;
                let flag = flag.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = wake.wait_timeout_while(flag, pause, |stop| !*stop);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    return;
                }
                // Values whose reading panics stay as they are.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    if gauges.shows_cpu {
                        gauges.update(&mut before, &read("/proc/stat"), &read("/proc/meminfo"));
                    }
                    if let Some(usage) = &sources.pinned {
                        let (used, total) = usage();
                        gauges.pinned_used_bytes.store(used, Ordering::Relaxed);
                        gauges.pinned_total_bytes.store(total, Ordering::Relaxed);
                    }
                    if let (Some(reader), Some(shown)) = (&mut gpus, gauges.gpus.get()) {
                        reader.read(shown);
                    }
                }));
            }
        };
        let thread = std::thread::Builder::new().name("host-poller".to_owned()).spawn(poll)?;
        Ok(HostPoller { stop, thread: Some(thread) })
    }
}

impl Drop for HostPoller {
    fn drop(&mut self) {
        let (flag, wake) = &*self.stop;
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn find_gpus(source: GpuSource, gauges: &HostGauges) -> Option<GpuReader<Box<dyn Devices>>> {
    let devices: Box<dyn Devices> = match source {
        GpuSource::None => return None,
        GpuSource::These(devices) => devices,
        GpuSource::Nvml => {
            let opened = NvmlDevices::open().map_err(|error| verbose!(1, "there are no metrics of GPUs: {error}"));
            Box::new(opened.ok()?)
        }
    };
    let (mut reader, shown) = GpuReader::new(devices)?;
    reader.begin();
    gauges.gpus.set(shown).ok()?;
    Some(reader)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Ticks since boot over all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    idle: u64,
}

impl CpuTimes {
    /// From the `cpu ` line of /proc/stat: user nice system idle iowait irq softirq steal (proc_stat(5)).
    fn parse(stat: &str) -> Option<CpuTimes> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
        let mut next = || fields.next().flatten();
        let (user, nice, system, idle, iowait) = (next()?, next()?, next()?, next()?, next()?);
        let (irq, softirq, steal) = (next()?, next()?, next()?);
        let sum = |parts: &[u64]| parts.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
        Some(CpuTimes { busy: sum(&[user, nice, system, irq, softirq, steal]), idle: sum(&[idle, iowait]) })
    }

    /// `None` where no time has passed. Some kernels let iowait run backwards: differences stop at 0.
    fn utilization_since(self, before: CpuTimes) -> Option<f64> {
        let busy = self.busy.saturating_sub(before.busy) as f64;
        let idle = self.idle.saturating_sub(before.idle) as f64;
        (busy + idle > 0.0).then(|| busy / (busy + idle))
    }
}

/// Total and used bytes from /proc/meminfo, which counts in KiB.
fn parse_memory(meminfo: &str) -> Option<(u64, u64)> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let (total, available) = (bytes("MemTotal")?, bytes("MemAvailable")?);
    Some((total, total.saturating_sub(available)))
}

#[cfg(test)]
mod tests {
    use super::super::gpu::Field;
    use super::*;

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree:         1 kB\nMemAvailable:    400 kB\n";

    fn values(gauges: &HostGauges) -> (f64, u64, u64) {
        (
            f64::from_bits(gauges.cpu_utilization_bits.load(Ordering::Relaxed)),
            gauges.memory_total_bytes.load(Ordering::Relaxed),
            gauges.memory_used_bytes.load(Ordering::Relaxed),
        )
    }

    #[test]
    fn utilization_is_the_busy_part_between_two_readings() {
        let gauges = HostGauges::new(true, 0);
        let mut before = None;
        gauges.update(&mut before, "cpu  10 1 2 100 7 1 1 1 0 0\ncpu0 1 1 1\n", "");
        assert_eq!(values(&gauges), (0.0, 0, 0), "one reading is no difference");
        gauges.update(&mut before, "cpu  20 2 3 170 17 2 2 5 9 9\n", MEMINFO);
        // 10 + 1 + 1 + 1 + 1 + 4 busy, 70 + 10 idle
        assert_eq!(values(&gauges), (18.0 / 98.0, 1_024_000, 614_400));
        gauges.update(&mut before, "cpu  20 2 3 170 17 2 2 5\n", MEMINFO);
        assert_eq!(values(&gauges).0, 18.0 / 98.0, "no tick has passed");
        gauges.update(&mut before, "cpu  30 2 3 160 17 2 2 5\n", MEMINFO);
        assert_eq!(values(&gauges).0, 1.0, "time that runs backwards counts as none");
    }

    #[test]
    fn what_cannot_be_read_changes_nothing() {
        let gauges = HostGauges::new(true, 0);
        let mut before = CpuTimes::parse("cpu 1 1 1 1 1 1 1 1");
        assert!(before.is_some());
        gauges.update(&mut before, "cpu 2 2 2 2 2 2 2 2", MEMINFO);
        let seen = values(&gauges);
        let max = u64::MAX;
        for stat in
            ["", "cpu", "cpu ", "cpu 1 2 3", "cpu 1 2 3 4 5 6 7 x", "cpu0 1 2 3 4 5 6 7 8", "cpu -1 2 3 4 5 6 7 8"]
        {
            gauges.update(&mut before, stat, "MemTotal: x kB\n");
            gauges.update(&mut before, stat, &format!("MemTotal: {max} kB\nMemAvailable: 1 kB"));
            gauges.update(&mut before, stat, "MemTotal: 5 kB\n");
        }
        assert_eq!(values(&gauges), seen);
        assert_eq!(CpuTimes::parse(&format!("cpu {max} {max} 3 4 5 6 7 8")).unwrap().busy, max);
    }

    #[test]
    fn more_available_than_total_is_nothing_used() {
        assert_eq!(parse_memory("MemTotal: 1 kB\nMemAvailable: 2 kB\n"), Some((1024, 0)));
    }

    /// The thread reads this machine's files; the loop ends when it has, however long that takes.
    #[test]
    fn the_poller_reads_and_ends() {
        let gauges = Arc::new(HostGauges::new(true, 0));
        let sources = Sources { gpus: GpuSource::Nvml, pinned: Some(Box::new(|| (5, 7))) };
        let poller = HostPoller::start(Arc::clone(&gauges), Duration::ZERO, sources).unwrap();
        while values(&gauges).1 == 0 {
            std::thread::yield_now();
        }
        let (utilization, total, used) = values(&gauges);
        assert!((0.0..=1.0).contains(&utilization) && used <= total);
        let pinned = || [&gauges.pinned_used_bytes, &gauges.pinned_total_bytes].map(|it| it.load(Ordering::Relaxed));
        while pinned() != [5, 7] {
            std::thread::yield_now();
        }
        drop(poller);
        assert_eq!(Arc::strong_count(&gauges), 1, "the thread is gone");
        // Devices of another source are read as well.
        struct One;
        impl Devices for One {
            fn uuids(&self) -> Vec<String> {
                vec!["GPU-1".to_owned()]
            }
            fn read(&self, _device: usize, _field: Field) -> Result<u64, String> {
                Ok(3)
            }
        }
        let other = Arc::new(HostGauges::new(false, 0));
        let sources = Sources { gpus: GpuSource::These(Box::new(One)), pinned: None };
        let poller = HostPoller::start(Arc::clone(&other), Duration::ZERO, sources).unwrap();
        let page = || {
            let mut exposition = Exposition::default();
            other.render(&mut exposition);
            exposition.into_text()
        };
        while !page().contains("nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-1\"} 3\n") {
            std::thread::yield_now();
        }
        drop(poller);
        let idle = HostPoller::start(gauges, Duration::from_secs(1_000_000), Sources::default()).unwrap();
        drop(idle);
    }
}
