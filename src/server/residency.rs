//! Metrics of models that are loaded and unloaded by use.

use std::sync::Arc;

use tracing::warn;

use crate::repository::{EvictionReason, Lifecycle};
use nereid_observe::metrics::{CallbackMetric, MetricError, Registry};

/// None without loads on demand.
pub fn metrics(metrics: &Registry, lifecycle: &Arc<Lifecycle>) -> Vec<CallbackMetric> {
    let Some(demand) = lifecycle.demand() else { return Vec::new() };
    let (loads, reloads, waiting) = (Arc::clone(demand), Arc::clone(demand), Arc::clone(demand));
    let residents = Arc::downgrade(lifecycle);
    let mut all = vec![
        metrics.counter(
            "nereid_model_loads_on_demand_total",
            "Loads of models because requests or schedules wanted them",
            &[],
            move || loads.loads(),
        ),
        metrics.counter(
            "nereid_model_reloads_total",
            "Loads of models within a minute after they had to make room",
            &[],
            move || reloads.reloads(),
        ),
        metrics.gauge("nereid_models_resident", "Models with a version that serves", &[], move || {
            residents.upgrade().map_or(0.0, |lifecycle| lifecycle.resident_count() as f64)
        }),
        metrics.gauge("nereid_model_load_waiting", "Requests that wait for the load of their model", &[], move || {
            waiting.waiting() as f64
        }),
    ];
    all.extend(EvictionReason::ALL.map(|reason| {
        let (demand, labels) = (Arc::clone(demand), [("reason", reason.name())]);
        let help = "Models that were unloaded until a request comes for them";
        metrics.counter("nereid_model_evictions_total", help, &labels, move || demand.evictions(reason))
    }));
    let keep = |metric: Result<_, MetricError>| metric.map_err(|error| warn!("a metric is left out: {error}")).ok();
    all.into_iter().filter_map(keep).collect()
}
