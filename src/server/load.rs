//! Reads the counters of the models for the server's load reports, and for the engine metrics.

use std::sync::Arc;

use super::options::{Options, Orca};
use crate::repository::Lifecycle;
use nereid_clock::now_ns;
use nereid_model_config::normalize::ENSEMBLE_PLATFORM;
use nereid_observe::load::{ModelReading, Monitor, Reading};
use nereid_observe::metrics::{ModelCache, Registry};
use nereid_scheduler::ServedModel;
use nereid_shard::placement;
use nereid_wire::inference::model_config::SchedulingChoice;

/// The source of the load reports of all shards, where a flag does not switch them off. `metrics`: those of backends.
pub fn monitor(options: &Options, lifecycle: &Arc<Lifecycle>, metrics: &Arc<Registry>) -> Option<Arc<Monitor>> {
    let cores = placement::Cores::of_this_process().map_or(1, |cores| cores.cpus.len());
    let (lifecycle, metrics) = (Arc::clone(lifecycle), Arc::clone(metrics));
    let read = move || {
        let mut models: Vec<ModelReading> = lifecycle.map().ready().map(|model| read_model(model)).collect();
        models.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        Reading {
            at_ns: now_ns(),
            models,
            cpu: placement::cpu_use(cores).map(|cpu| (cpu.used_ns, cpu.cores)),
            memory: placement::memory_use().map(|memory| (memory.used_bytes, memory.limit_bytes)),
            cache: ModelCache::newest(&metrics).in_use(),
        }
    };
    (options.orca != Orca::Off).then(|| Arc::new(Monitor::new(Box::new(read))))
}

fn read_model(model: &ServedModel) -> ModelReading {
    let (counters, executed_ns) = model.statistics.work();
    let failures = &counters.failures;
    let refused = counters.refused.iter().copied().fold(0, u64::saturating_add);
    let failed = [failures.rejected, failures.backend, failures.other, refused];
    let steps = match &model.spec.config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) if model.spec.platform == ENSEMBLE_PLATFORM => {
            ensemble.step.len() as u64
        }
        _ => 0,
    };
    ModelReading {
        key: format!("{}\0{}\0{}", model.namespace, model.name, model.version),
        executed_ns,
        executions: model.checks.executions(),
        pending: counters.pending,
        succeeded: counters.success.count,
        failed: failed.into_iter().fold(0, u64::saturating_add),
        steps,
    }
}

/// Requests that a model has and that do not wait: those of clients, and at least one for each instance that executes
/// (requests of ensembles and of Python models are not counted otherwise).
pub fn running(model: &ServedModel, pending: u64) -> u64 {
    let requests = (model.load.requests() as u64).saturating_sub(pending);
    let executing = model.checks.executions().iter().filter(|count| *count % 2 == 1).count();
    requests.max(executing as u64)
}
