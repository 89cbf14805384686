//! The memory of running versions as it was measured around their loads, for budgets and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::models::{ModelId, ModelMap, VersionState};
use super::super::residency::Usage;
use super::super::residency::measure::{Reading, children, process_bytes};
use super::super::version::RunningVersion;
use super::lock;
use nereid_gpu::Gpus;
use nereid_observe::metrics::{CallbackMetric, Registry};
use nereid_request::Status;

const FAMILY: &str = "nereid_model_memory_bytes";
const HELP: &str = "Memory of a model, measured around its load, with its processes";

/// See the [module](self).
#[derive(Default)]
pub struct Measured {
    versions: Mutex<BTreeMap<(ModelId, i64), Version>>,
    registry: Registry,
}

struct Version {
    /// Of this process and of devices.
    usage: Usage,
    /// The titles of the version's processes, if it has any.
    titles: Vec<String>,
    processes: Arc<AtomicU64>,
    _gauges: Vec<CallbackMetric>,
}

impl Version {
    fn whole(&self) -> Usage {
        let mut usage = self.usage.clone();
        usage.host = usage.host.saturating_add(self.processes.load(Ordering::Relaxed));
        usage
    }

    fn measure_processes(&self, children: &BTreeMap<String, Vec<u32>>) {
        let ids = self.titles.iter().filter_map(|title| children.get(title)).flatten();
        self.processes.store(ids.map(|id| process_bytes(*id)).fold(0, u64::saturating_add), Ordering::Relaxed);
    }
}

impl Measured {
    /// Loads a version, and measures it. No other load may run meanwhile.
    pub fn load(
        &self,
        (id, version): (&ModelId, i64),
        gpus: &Gpus,
        load: impl FnOnce() -> Result<RunningVersion, Status>,
    ) -> Result<RunningVersion, Status> {
        let before = Reading::now(gpus);
        let running = load()?;
        let usage = Reading::now(gpus).since(&before);
        // Its gauges have the same labels.
        lock(&self.versions).remove(&(id.clone(), version));
        let processes = Arc::new(AtomicU64::new(0));
        let (host, shown) = (usage.host, Arc::clone(&processes));
        let number = version.to_string();
        let gauge = |kind: &str, read: Box<dyn Fn() -> f64 + Send + Sync>| {
            self.registry.gauge(FAMILY, HELP, &[("model", &id.name), ("version", &number), ("kind", kind)], read)
        };
        let mut gauges =
            vec![gauge("host", Box::new(move || host.saturating_add(shown.load(Ordering::Relaxed)) as f64))];
        for (device, bytes) in usage.devices.clone() {
            gauges.push(gauge(&format!("device_{device}"), Box::new(move || bytes as f64)));
        }
        let gauges = gauges.into_iter().filter_map(Result::ok).collect();
        let version_usage = Version { usage, titles: running.instance_names(), processes, _gauges: gauges };
        version_usage.measure_processes(&children());
        lock(&self.versions).insert((id.clone(), version), version_usage);
        Ok(running)
    }

    /// Of the gauges.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What a version held when it was measured last.
    pub fn usage(&self, id: &ModelId, version: i64) -> Usage {
        lock(&self.versions).get(&(id.clone(), version)).map(Version::whole).unwrap_or_default()
    }

    /// Measures the processes of all versions again.
    pub fn measure_processes(&self) {
        let children = children();
        lock(&self.versions).values().for_each(|version| version.measure_processes(&children));
    }

    /// Forgets versions that are gone with their memory.
    pub fn forget_gone(&self, map: &ModelMap) {
        let is_there = |id: &ModelId, version: i64| {
            let state = map.get(id).and_then(|entry| entry.versions.get(&version));
            state.is_some_and(|state| !matches!(state, VersionState::Unavailable(_)))
        };
        lock(&self.versions).retain(|(id, version), _| is_there(id, *version));
    }
}
