//! The CPU time and memory that a process has used so far, from /proc.

use std::collections::BTreeMap;
use std::fs;

/// The kernel reports in hundredths of a second whatever its own tick is.
const TICK_NS: u64 = 10_000_000;

#[derive(Clone, Default)]
pub struct Usage {
    pub user_ns: u64,
    pub system_ns: u64,
    /// CPU time by threads of one kind: the shards, the workers of a model.
    pub threads_ns: BTreeMap<String, u64>,
    /// Times that a thread went to sleep.
    pub sleeps: u64,
    pub resident_kib: u64,
    /// Time that the process's cores were busy, with whatever.
    pub cores_busy_ns: u64,
    /// Time that the hypervisor kept those cores for others.
    pub cores_stolen_ns: u64,
}

impl Usage {
    pub fn of(pid: u32, cores: &[usize]) -> Result<Usage, String> {
        let mut usage = Usage::default();
        let (user_ns, system_ns) = ticks(&format!("/proc/{pid}/stat"))?;
        (usage.user_ns, usage.system_ns) = (user_ns, system_ns);
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| format!("threads of {pid}: {error}"))?;
        for task in tasks.flatten() {
            let path = task.path();
            let file = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
            // Nanoseconds where the kernel keeps scheduler statistics, else ticks.
            let run_ns = match file("schedstat").split_whitespace().next().and_then(|ns| ns.parse().ok()) {
                Some(ns) => ns,
                None => ticks(&path.join("stat").to_string_lossy()).map_or(0, |(user, system)| user + system),
            };
            *usage.threads_ns.entry(kind_of(file("comm").trim())).or_default() += run_ns;
            usage.sleeps += field(&file("status"), "voluntary_ctxt_switches:");
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
        usage.resident_kib = field(&status, "VmRSS:");
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        for core in cores {
            let (busy_ns, stolen_ns) = core_times(&stat, *core);
            usage.cores_busy_ns += busy_ns;
            usage.cores_stolen_ns += stolen_ns;
        }
        Ok(usage)
    }

    /// CPU time of all threads, as exact as the kernel reports it.
    pub fn cpu_ns(&self) -> u64 {
        self.threads_ns.values().sum()
    }

    /// The usage since `before`; memory is the present value.
    pub fn since(&self, before: &Usage) -> Usage {
        let threads_ns = self.threads_ns.iter().map(|(kind, ns)| {
            let earlier = before.threads_ns.get(kind).copied().unwrap_or(0);
            (kind.clone(), ns.saturating_sub(earlier))
        });
        Usage {
            user_ns: self.user_ns.saturating_sub(before.user_ns),
            system_ns: self.system_ns.saturating_sub(before.system_ns),
            threads_ns: threads_ns.collect(),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            resident_kib: self.resident_kib,
            cores_busy_ns: self.cores_busy_ns.saturating_sub(before.cores_busy_ns),
            cores_stolen_ns: self.cores_stolen_ns.saturating_sub(before.cores_stolen_ns),
        }
    }
}

/// Every process that `pid` started, and those that these started.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

/// CPU time of the calling thread.
pub fn of_this_thread_ns() -> u64 {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    schedstat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Threads that differ in a number only are of one kind.
fn kind_of(name: &str) -> String {
    name.trim_end_matches(|c: char| c.is_ascii_digit() || "-_:#. ".contains(c)).to_owned()
}

/// utime and stime, fields 14 and 15; the name before them may hold blanks and parentheses.
fn ticks(path: &str) -> Result<(u64, u64), String> {
    let stat = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let behind_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let mut fields = behind_name.split_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    match (fields.next(), fields.next()) {
        (Some(user), Some(system)) => Ok((user * TICK_NS, system * TICK_NS)),
        _ => Err(format!("{path} has no times")),
    }
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Busy and stolen time of a core by /proc/stat: user nice system idle iowait irq softirq steal.
fn core_times(stat: &str, core: usize) -> (u64, u64) {
    let name = format!("cpu{core} ");
    let Some(line) = stat.lines().find_map(|line| line.strip_prefix(name.as_str())) else { return (0, 0) };
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let sum = |places: &[usize]| places.iter().filter_map(|&place| ticks.get(place)).sum::<u64>() * TICK_NS;
    (sum(&[0, 1, 2, 5, 6]), sum(&[7]))
}
