//! Where a worker's thread may run and where its memory lies: the host policy, limited to the cores that the process
//! may use.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::warn;

use crate::{HostPolicies, HostPolicy};
use nereid_memory::numa;
use nereid_request::Status;

const SYSFS: &str = "/sys";

/// Runs `job` on the calling thread, which may run on `cpus` only meanwhile; empty: unchanged. Threads that the job
/// starts inherit that.
pub fn confined<T>(cpus: &[usize], job: impl FnOnce() -> T) -> T {
    struct Restore(CpuSet);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Err(error) = sched_setaffinity(None, &self.0) {
                warn!("a thread stays confined to the cores of workers: {error}");
            }
        }
    }
    let _restore = match sched_getaffinity(None) {
        Ok(before) if !cpus.is_empty() => sched_setaffinity(None, &set_of(cpus)).is_ok().then(|| Restore(before)),
        _ => None,
    };
    job()
}

/// Whether instances run on `worker_cpus` only, under any of the policies. A policy that cannot be applied makes no
/// instance.
pub fn all_within(policies: &HostPolicies, worker_cpus: &[usize]) -> bool {
    let is_within =
        |policy| Confinement::of(policy, worker_cpus, None).map_or(true, |bounds| bounds.is_within(worker_cpus));
    policies.iter().all(is_within)
}

/// The bounds of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Confinement {
    policy: String,
    /// Ascending; empty: all cores of the process.
    cpus: Vec<usize>,
    numa_node: Option<usize>,
    /// Whether the operator requested it, so that it must succeed.
    is_asked_for: bool,
}

impl Confinement {
    /// The bounds of `policy` on this machine; without any, those of `worker_cpus` that are on the node `near` which
    /// the instance works, or all of them.
    pub fn of(policy: &HostPolicy, worker_cpus: &[usize], near: Option<usize>) -> Result<Confinement, Status> {
        if !policy.is_placement() {
            return Ok(Confinement::among(policy, worker_cpus, near, Path::new(SYSFS)));
        }
        let ours = core_affinity::get_core_ids().ok_or_else(|| {
            let error = std::io::Error::last_os_error();
            Status::internal(format!("cannot read the cores of this process: {error}"))
        })?;
        let ours: Vec<usize> = ours.into_iter().map(|core| core.id).collect();
        Confinement::on(policy, &ours, Path::new(SYSFS))
    }

    /// The cores of a policy without any. Unless workers have cores of their own, there is no choice among them.
    fn among(policy: &HostPolicy, worker_cpus: &[usize], near: Option<usize>, sysfs: &Path) -> Confinement {
        let mut bounds = Confinement {
            policy: policy.name.clone(),
            cpus: worker_cpus.to_vec(),
            numa_node: None,
            is_asked_for: false,
        };
        let Some(node) = near else { return bounds };
        let of_node = cpus_of_node(sysfs, node).unwrap_or_default();
        let cpus: Vec<usize> = worker_cpus.iter().copied().filter(|cpu| of_node.contains(cpu)).collect();
        if !cpus.is_empty() {
            (bounds.cpus, bounds.numa_node) = (cpus, Some(node));
        }
        bounds
    }

    fn on(policy: &HostPolicy, ours: &[usize], sysfs: &Path) -> Result<Confinement, Status> {
        let name = &policy.name;
        let mut cpus = ours.to_vec();
        if let Some(node) = policy.numa_node {
            let of_node = cpus_of_node(sysfs, node).map_err(|error| {
                Status::invalid(format!("host policy '{name}': NUMA node {node} is not on this host: {error}"))
            })?;
            cpus.retain(|cpu| of_node.contains(cpu));
            if cpus.is_empty() {
                return Err(Status::invalid(format!(
                    "host policy '{name}': this process may not use any core of NUMA node {node}"
                )));
            }
        }
        if let Some(asked) = &policy.cpu_cores {
            cpus.retain(|cpu| asked.contains(cpu));
            if cpus.is_empty() {
                let asked = policy.settings.get("cpu-cores").map_or("", String::as_str);
                let of_node = policy.numa_node.map(|node| format!(" of NUMA node {node}")).unwrap_or_default();
                return Err(Status::invalid(format!(
                    "host policy '{name}': none of the cores '{asked}' is one{of_node} that this process may use"
                )));
            }
        }
        Ok(Confinement { policy: name.clone(), cpus, numa_node: policy.numa_node, is_asked_for: true })
    }

    /// Whether it keeps a thread on `cpus`, a list that is not empty.
    pub fn is_within(&self, cpus: &[usize]) -> bool {
        !self.cpus.is_empty() && self.cpus.iter().all(|cpu| cpus.contains(cpu))
    }

    /// Confines the calling thread, and the threads that it starts from now on.
    pub fn apply(&self) -> Result<(), Status> {
        let name = &self.policy;
        match self.numa_node {
            Some(node) if self.is_asked_for => numa::bind_this_thread(node).map_err(|error| {
                Status::internal(format!("host policy '{name}': cannot bind memory to NUMA node {node}: {error}"))
            })?,
            Some(node) => {
                if let Err(error) = numa::draw_this_thread(node) {
                    warn!("the memory of an instance is not drawn to NUMA node {node}: {error}");
                }
            }
            None => {}
        }
        if self.cpus.is_empty() {
            return Ok(());
        }
        match sched_setaffinity(None, &set_of(&self.cpus)) {
            Ok(()) => Ok(()),
            Err(error) if self.is_asked_for => {
                Err(Status::internal(format!("host policy '{name}': cannot bind the thread to its cores: {error}")))
            }
            Err(error) => {
                warn!("an instance cannot be confined to the cores of workers: {error}");
                Ok(())
            }
        }
    }
}

/// Numbers beyond the kernel's set are left out.
fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    set
}

/// The cores of a node as the kernel lists them: `0-3,8`; a node with memory only has none.
fn cpus_of_node(sysfs: &Path, node: usize) -> Result<Vec<usize>, String> {
    let path = sysfs.join(format!("devices/system/node/node{node}/cpulist"));
    let text = std::fs::read_to_string(&path).map_err(|error| format!("'{}': {error}", path.display()))?;
    let malformed = || format!("'{}' holds '{}'", path.display(), text.trim());
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.parse().map_err(|_| malformed())?;
        let last: usize = last.parse().map_err(|_| malformed())?;
        if last >= CpuSet::MAX_CPU {
            return Err(malformed());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests;
