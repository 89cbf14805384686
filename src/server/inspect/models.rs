//! The models of a snapshot: a row for each version, and the details of one model.

use serde_json::{Map, Value, json};

use super::super::load;
use super::bounded;
use crate::api::InspectQuery;
use crate::repository::{ModelEntry, ModelId, ModelMap, VersionState};
use nereid_model_config::normalize::ENSEMBLE_PLATFORM;
use nereid_model_config::provenance::{Provenance, Source};
use nereid_model_config::spec::TensorSpec;
use nereid_observe::statistics::{Distributions, HistogramReading, PHASES, Snapshot};
use nereid_request::RefusalReason;
use nereid_scheduler::ServedModel;

/// Most rows of models in a snapshot.
const ROWS_MAX: usize = 10_000;
/// Most versions of a model whose details are shown.
const VERSIONS_MAX: usize = 64;
/// Most values of a configuration, and of each list in the details.
const VALUES_MAX: usize = 2000;

/// The phases in the order of the histograms.
const PHASE_NAMES: [&str; PHASES] = ["request", "queue", "compute_input", "compute_infer", "compute_output"];

/// The rows, and how many are left out.
pub fn overview(map: &ModelMap) -> (Vec<Value>, usize) {
    let mut rows = Vec::new();
    let mut left_out = 0usize;
    for (id, entry) in map.iter() {
        if entry.versions.is_empty() {
            match rows.len() < ROWS_MAX {
                true => rows.push(unloaded(id, None, "UNAVAILABLE", &entry.reason)),
                false => left_out += 1,
            }
        }
        for (version, state) in &entry.versions {
            match rows.len() < ROWS_MAX {
                true => rows.push(row(id, *version, state)),
                false => left_out += 1,
            }
        }
    }
    (rows, left_out)
}

fn unloaded(id: &ModelId, version: Option<i64>, state: &str, reason: &str) -> Value {
    json!({
        "name": id.name,
        "namespace": id.namespace,
        "version": version,
        "state": state,
        "reason": bounded(reason),
    })
}

fn row(id: &ModelId, version: i64, state: &VersionState) -> Value {
    let VersionState::Ready(model) = state else {
        return unloaded(id, Some(version), state.name(), state.reason());
    };
    // As the repository index shows a version whose instances are stalled or whose device is lost.
    let (state, reason) = match model.checks.objection() {
        Some(objection) => ("UNAVAILABLE", objection),
        None => ("READY", String::new()),
    };
    let mut row = unloaded(id, Some(version), state, &reason);
    if let Some(members) = row.as_object_mut() {
        let workers = model.checks.workers();
        members.insert("backend".to_owned(), json!(backend(model)));
        members.insert("instances".to_owned(), json!(model.spec.instances.len()));
        members.insert("busy".to_owned(), json!(workers.iter().filter(|(_, count)| count % 2 == 1).count()));
        let (counters, _) = model.statistics.work();
        add_counters(members, model, &counters);
    }
    row
}

fn backend(model: &ServedModel) -> &str {
    let spec = &model.spec;
    if spec.platform == ENSEMBLE_PLATFORM { "ensemble" } else { &spec.backend }
}

fn add_counters(members: &mut Map<String, Value>, model: &ServedModel, counters: &Snapshot) {
    let failures = &counters.failures;
    let refused: Map<String, Value> = RefusalReason::OF_MODEL
        .iter()
        .zip(counters.refused)
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.name().to_owned(), json!(count)))
        .collect();
    let all = json!({
        "success": counters.success.count,
        "failures": {
            "rejected": failures.rejected,
            "canceled": failures.canceled,
            "backend": failures.backend,
            "other": failures.other,
        },
        "refused": refused,
        "queue": counters.pending,
        "running": load::running(model, counters.pending),
        "inferences": counters.inference_count,
        "executions": counters.execution_count,
        "cache_hits": counters.cache_hit.count,
        "last_ms": counters.last_inference_ms,
        // In the order of the phases.
        "ns": [
            counters.success.ns,
            counters.queue.ns,
            counters.compute_input.ns,
            counters.compute_infer.ns,
            counters.compute_output.ns,
        ],
    });
    if let Value::Object(all) = all {
        members.extend(all);
    }
}

/// The details of every version of the models with this name; null if there is none.
pub fn detail(map: &ModelMap, name: &str, query: &InspectQuery) -> Value {
    let named: Vec<(&ModelId, &ModelEntry)> = map.of_name(name).collect();
    if named.is_empty() {
        return Value::Null;
    }
    let versions = named.iter().flat_map(|(id, entry)| entry.versions.iter().map(move |version| (id, version)));
    let versions = versions.take(VERSIONS_MAX).map(|(id, (version, state))| {
        let mut shown = row(id, *version, state);
        if let (VersionState::Ready(model), Some(members)) = (state, shown.as_object_mut()) {
            add_details(members, model, query);
        }
        shown
    });
    json!({ "name": name, "versions": versions.collect::<Vec<_>>(), "config_header": query.config_header })
}

fn add_details(members: &mut Map<String, Value>, model: &ServedModel, query: &InspectQuery) {
    let snapshot = model.statistics.snapshot();
    let batches = snapshot.batch_stats.iter().take(VALUES_MAX).map(|batch| {
        let times = [batch.compute_input, batch.compute_infer, batch.compute_output];
        json!({ "size": batch.batch_size, "count": batch.compute_infer.count, "ns": times.map(|time| time.ns) })
    });
    let workers = model.checks.workers().into_iter().take(VALUES_MAX);
    let workers = workers.map(|(names, count)| json!({ "names": &*names, "executions": count }));
    let memory = snapshot.memory_usage.iter().take(VALUES_MAX);
    let memory = memory.map(|usage| json!({ "kind": usage.kind.name(), "id": usage.id, "bytes": usage.byte_size }));
    let details = json!({
        "max_batch_size": model.spec.max_batch_size,
        "load_seconds": model.load_duration_secs,
        "generation": &*model.statistics.generation(),
        "batches": batches.collect::<Vec<_>>(),
        "workers": workers.collect::<Vec<_>>(),
        "memory": memory.collect::<Vec<_>>(),
        "histograms": histograms(model),
        "inputs": model.spec.inputs.iter().take(VALUES_MAX).map(tensor).collect::<Vec<_>>(),
        "outputs": model.spec.outputs.iter().take(VALUES_MAX).map(tensor).collect::<Vec<_>>(),
    });
    if let Value::Object(details) = details {
        members.extend(details);
    }
    if query.shows_config {
        let config = model.provenance.as_deref().map(config).unwrap_or_default();
        members.insert("config".to_owned(), Value::Array(config));
    }
}

fn tensor(tensor: &TensorSpec) -> Value {
    json!({ "name": tensor.name, "datatype": tensor.datatype, "dims": tensor.dims, "optional": tensor.optional })
}

/// The histogram of each phase, on whatever device; null where none are configured.
fn histograms(model: &ServedModel) -> Value {
    let mut all: Option<Distributions> = model.statistics.distributions();
    for device in model.statistics.devices() {
        if let (Some(all), Some(of_device)) = (&mut all, &device.distributions) {
            all.add(of_device);
        }
    }
    let Some(phases) = all.and_then(|all| all.phases) else { return Value::Null };
    let shown = |phase: &HistogramReading| json!({ "bounds": &phase.bounds[..], "counts": phase.counts });
    let named = PHASE_NAMES.iter().zip(&phases).map(|(name, phase)| ((*name).to_owned(), shown(phase)));
    Value::Object(named.collect())
}

/// The values of the configuration, each with its source.
fn config(provenance: &Provenance) -> Vec<Value> {
    let file = provenance.file.as_deref().unwrap_or_default();
    let fields = provenance.fields.iter().take(VALUES_MAX).map(|field| {
        let source = match field.source {
            Source::File(place) => format!("{file}:{}:{}", place.field.line, place.field.column),
            Source::Override => "override".to_owned(),
            Source::ModelFile => "model file".to_owned(),
            Source::Default("") => "default".to_owned(),
            Source::Default(rule) => format!("default: {rule}"),
        };
        json!({ "path": field.path, "value": bounded(&field.value), "source": source })
    });
    fields.collect()
}
