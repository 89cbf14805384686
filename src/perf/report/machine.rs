//! The machine that the client ran on, as far as it explains a figure.

use std::fs;

/// Facts that the kernel reports; empty where it does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub is_virtual: bool,
    pub kernel: String,
    pub governor: String,
    pub memory_mib: u64,
    /// Over 1, 5 and 15 minutes, when the run began.
    pub load_average: String,
}

impl Machine {
    pub fn here() -> Machine {
        let cpu = read("/proc/cpuinfo");
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        let memory = read("/proc/meminfo");
        let memory_kib = memory.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
        Machine {
            cpu: model.trim_start_matches(['\t', ' ', ':']).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            is_virtual: cpu.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").trim().to_owned(),
            memory_mib: memory_kib >> 10,
            load_average: read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" "),
        }
    }

    /// In a line.
    pub fn line(&self) -> String {
        let cpu = if self.cpu.is_empty() { "an unknown processor" } else { &self.cpu };
        let mut line = format!("{cpu}, {} cores", self.cores);
        if self.is_virtual {
            line.push_str(" of a virtual machine");
        }
        line.push_str(&format!(", Linux {}", self.kernel));
        if !self.governor.is_empty() {
            line.push_str(&format!(", governor {}", self.governor));
        }
        line.push_str(&format!(", load {}", self.load_average));
        line
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
