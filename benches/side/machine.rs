//! The machine as far as it explains a figure, and the cores of server and client.

use std::{fs, io};

use rustix::thread::{CpuSet, sched_setaffinity};

/// The cores of server and client. Empty lists: there is one core only, and no thread is pinned.
pub struct Placement {
    pub server: Vec<usize>,
    pub client: Vec<usize>,
}

/// The client gets the last core of the process's set, the server the first ones of the others.
pub fn place(server_cores: usize) -> Result<Placement, String> {
    let allowed = allowed_cores()?;
    match allowed.split_last() {
        Some((client, others)) if !others.is_empty() => {
            let server = others.iter().copied().take(server_cores).collect();
            Ok(Placement { server, client: vec![*client] })
        }
        _ => Ok(Placement { server: Vec::new(), client: Vec::new() }),
    }
}

/// Restricts the calling thread, and all that it starts from now on, to `cores`. An empty list leaves it as it is.
pub fn pin_this_thread(cores: &[usize]) -> Result<(), String> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).map_err(|error| format!("cannot pin to {cores:?}: {error}"))
}

fn allowed_cores() -> Result<Vec<usize>, String> {
    let cores = core_affinity::get_core_ids().ok_or_else(|| format!("affinity: {}", io::Error::last_os_error()))?;
    Ok(cores.into_iter().map(|core| core.id).collect())
}

/// Lines that describe the machine.
pub fn describe(placement: &Placement) -> Vec<String> {
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let virtual_machine = cpuinfo.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let memory = read("/proc/meminfo");
    let memory_kib = memory.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    let pinning = match placement.server.is_empty() {
        true => "one core for all: nothing is pinned, and the client competes with the server".to_owned(),
        false => format!("server on core {:?}, client on core {:?}", placement.server, placement.client),
    };
    vec![
        format!(
            "machine: {}, {cores} cores{}, {} GiB, governor {}",
            model.trim_start_matches(['\t', ' ', ':']),
            if virtual_machine { " of a virtual machine" } else { "" },
            memory_kib >> 20,
            if governor.is_empty() { "not readable" } else { governor.trim() },
        ),
        format!("kernel: Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        format!("pinning: {pinning}"),
    ]
}

/// Load averages over 1, 5 and 15 minutes.
pub fn load_average() -> String {
    read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
