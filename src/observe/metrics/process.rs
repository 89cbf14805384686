//! Metrics of the server's process, under the names that Prometheus's client libraries give them, so that dashboards
//! and alerts for any process hold for this one.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::registry::{CallbackMetric, MetricError, Registry};

/// Ticks of a second in files of /proc: USER_HZ, which is 100 on each architecture that the server runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// The families of the process. They are read from /proc with each page.
pub fn process_metrics(registry: &Registry) -> Vec<Result<CallbackMetric, MetricError>> {
    let started = start_time(&read("stat"), &fs::read_to_string("/proc/stat").unwrap_or_default());
    let gauge = |name: &str, help: &str, value: fn() -> f64| registry.gauge(name, help, &[], value);
    let mut metrics = vec![
        registry.real_counter("process_cpu_seconds_total", "CPU time of the process in seconds", &[], cpu_seconds),
        gauge("process_max_fds", "File descriptors that the process may open", || {
            // Without a limit there is no number.
            getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |limit| limit as f64)
        }),
        gauge("process_open_fds", "File descriptors that are open", || {
            // The one that lists them is not counted.
            fs::read_dir("/proc/self/fd").map_or(0.0, |open| open.count().saturating_sub(1) as f64)
        }),
        gauge("process_resident_memory_bytes", "Memory of the process in RAM", || bytes(&read("status"), "VmRSS:")),
        gauge("process_virtual_memory_bytes", "Address space of the process", || bytes(&read("status"), "VmSize:")),
    ];
    if let Some(started) = started {
        let help = "Start of the process since 1970 in seconds";
        metrics.push(registry.gauge("process_start_time_seconds", help, &[], move || started));
    }
    metrics
}

fn read(file: &str) -> String {
    fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default()
}

/// From /proc and not by `clock_gettime`: rustix searches the kernel's own code for it, which valgrind hides.
fn cpu_seconds() -> f64 {
    cpu_ticks(&read("stat")).map_or(0.0, |ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// From `/proc/self/stat`, fields 14 and 15: the time in user mode and in the kernel.
fn cpu_ticks(own: &str) -> Option<u64> {
    let (_, fields) = own.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some(times.next()??.saturating_add(times.next()??))
}

/// From `/proc/self/status`, whose unit is kB (proc_pid_status(5)).
fn bytes(status: &str, field: &str) -> f64 {
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.split_ascii_whitespace().next()?.parse().ok());
    value.map_or(0.0, |kib: u64| kib.saturating_mul(1024) as f64)
}

/// From `/proc/self/stat`, field 22, which counts from the boot, and the time of the boot in `/proc/stat`.
fn start_time(own: &str, host: &str) -> Option<f64> {
    // The name of the program stands in parentheses and may hold anything.
    let (_, fields) = own.rsplit_once(')')?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let boot: u64 = host.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot as f64 + ticks as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_are_read() {
        assert_eq!(bytes("Name:\tx\nVmSize:\t   12 kB\nVmRSS:\t 3 kB\n", "VmRSS:"), 3072.0);
        assert_eq!(bytes("VmRSS: many kB", "VmRSS:"), 0.0);
        let own = "7 (a) b (c) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 3 0 250 1000 20";
        assert_eq!((cpu_ticks(own), cpu_ticks("7 (a) S 1"), cpu_ticks("")), (Some(19), None, None));
        assert_eq!(start_time(own, "cpu 1 2\nbtime 1000\n"), Some(1002.5));
        for (own, host) in [("", "btime 1"), (own, ""), (own, "btime x"), ("7 (a) S 1", "btime 1")] {
            assert_eq!(start_time(own, host), None);
        }
    }

    #[test]
    fn this_process_has_all_of_them() {
        let registry = Registry::default();
        let metrics = process_metrics(&registry);
        assert!(metrics.len() == 6 && metrics.iter().all(Result::is_ok));
        for (name, least) in [
            ("process_cpu_seconds_total", f64::MIN_POSITIVE),
            ("process_max_fds", 3.0),
            ("process_open_fds", 3.0),
            ("process_resident_memory_bytes", 4096.0),
            ("process_start_time_seconds", 1.6e9),
            ("process_virtual_memory_bytes", 4096.0),
        ] {
            let mut values = Vec::new();
            registry.read(name, |_, value| values.push(value));
            assert!(matches!(values[..], [value] if value >= least), "{name} {values:?}");
        }
    }
}
