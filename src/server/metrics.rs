//! The metrics page of a server: what it is made from, and the families of the server itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::{error, warn};

use super::options::Options;
use super::{build_facts, load};
use crate::api::Facts;
use crate::repository::{Lifecycle, ModelMap};
use nereid_memory::Pool;
use nereid_model_config::normalize::ENSEMBLE_PLATFORM;
use nereid_observe::exemplars::{Exemplars, ModelExemplars};
use nereid_observe::log::{self, Logger};
use nereid_observe::metrics::{
    CallbackMetric, EngineMetrics, HostGauges, MetricError, MetricsConfig, ModelSample, PageFormat, Registry,
    process_metrics, render,
};
use nereid_observe::panics::ThreadKind;
use nereid_observe::statistics::{DeviceReading, Distributions, Snapshot};
use nereid_observe::trace::{self, Traces};
use nereid_queue::waits;
use nereid_request::RefusalReason;
use nereid_scheduler::ServedModel;

/// Labels of the build, by which a dashboard maps a series to its server.
const BUILD: [(&str, &str); 5] = [
    ("version", env!("CARGO_PKG_VERSION")),
    ("triton_version", build_facts::TRITON_VERSION),
    ("revision", build_facts::REVISION),
    ("target", build_facts::TARGET),
    ("profile", build_facts::PROFILE),
];

/// A metric, or why there is none.
type Made = Result<CallbackMetric, MetricError>;

/// The families of the server and of its process; they are shown as long as the handles live.
pub fn server_metrics(
    metrics: &Registry,
    facts: &Arc<Facts>,
    pool: &Pool,
    lifecycle: &Arc<Lifecycle>,
) -> Vec<CallbackMetric> {
    let all = general_metrics(metrics, facts, pool)
        .into_iter()
        .chain([ready_metric(metrics, facts, lifecycle)])
        .chain(process_metrics(metrics))
        .chain(trace_metrics(metrics, &facts.settings.traces));
    all.filter_map(|made| made.map_err(|error| warn!("a metric is left out: {error}")).ok()).collect()
}

fn trace_metrics(metrics: &Registry, traces: &Arc<Traces>) -> [Made; 3] {
    let count = |name: &str, help: &str, read: fn(&trace::Counts) -> u64| {
        let counts = Arc::clone(traces.counts());
        metrics.counter(name, help, &[], move || read(&counts))
    };
    [
        count("nereid_traces_completed", "Traces of requests that are complete", |counts| {
            counts.completed.load(Ordering::Relaxed)
        }),
        count("nereid_traces_dropped", "Traces or spans that could not be written or sent", |counts| {
            counts.dropped.load(Ordering::Relaxed)
        }),
        count("nereid_trace_entries_cut", "Entries left out of traces that had too many", |counts| {
            counts.cut.load(Ordering::Relaxed)
        }),
    ]
}

/// What the readiness route answers, but for checks of instances, which take too long for a page.
fn ready_metric(metrics: &Registry, facts: &Arc<Facts>, lifecycle: &Arc<Lifecycle>) -> Made {
    let (facts, lifecycle) = (Arc::clone(facts), Arc::clone(lifecycle));
    metrics.gauge("nereid_ready", "1 while the server is ready, else 0", &[], move || {
        if facts.is_ready(&lifecycle.map()).unwrap_or(false) { 1.0 } else { 0.0 }
    })
}

/// Our own families beside Triton's.
fn general_metrics(metrics: &Registry, facts: &Arc<Facts>, pool: &Pool) -> Vec<Made> {
    let (facts, pool, watched) = (Arc::clone(facts), pool.clone(), Arc::clone(facts));
    let (of_shards, of_connections) = (Arc::clone(&facts), Arc::clone(&facts));
    let bytes_max = pool.limit() as f64;
    let audit = watched.settings.records.audit.clone();
    let recorder = watched.settings.records.requests.clone();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let gauges = [
        metrics.counter("nereid_audit_records_dropped", "Records of the audit log that are lost", &[], move || {
            audit.as_ref().map_or(0, |audit| audit.dropped())
        }),
        metrics.counter("nereid_stale_deliveries", "Answers that came after their client had left", &[], move || {
            facts.stale_deliveries.load(Ordering::Relaxed)
        }),
        metrics.counter("nereid_log_messages_dropped", "Log messages that could not be written", &[], || {
            log::installed().map_or(0, Logger::dropped)
        }),
        // A gauge of 1 with labels by which a dashboard maps a series to its server.
        metrics.gauge(
            "nereid_build_info",
            "The program that answers, and the release whose contract it keeps",
            &BUILD,
            || 1.0,
        ),
        metrics.gauge("nereid_start_time_seconds", "Start of the server since 1970 in seconds", &[], move || started),
        metrics.gauge("nereid_shards", "I/O threads", &[], move || of_shards.shard_load.shards() as f64),
        metrics.gauge("nereid_connections", "Open connections of clients, of all ports", &[], move || {
            of_connections.shard_load.connections() as f64
        }),
        metrics.gauge("nereid_shards_stuck", "I/O threads that do not go on", &[], move || {
            watched.stuck_shards.load(Ordering::Relaxed) as f64
        }),
        metrics.gauge("nereid_pool_bytes_in_use", "Bytes of request and response data held now", &[], move || {
            pool.bytes_in_use() as f64
        }),
        metrics.gauge("nereid_pool_bytes_limit", "Bytes that this data may have", &[], move || bytes_max),
    ];
    let panics = ThreadKind::ALL.map(|kind| {
        let help = "Panics, by the kind of thread";
        metrics.counter("nereid_panics_total", help, &[("thread", kind.label())], move || kind.panics())
    });
    let refused = RefusalReason::ALL.map(|reason| {
        let (labels, help) = ([("reason", reason.name())], "Refusals sent to clients that may come again");
        metrics.counter("nereid_refused_requests_total", help, &labels, move || reason.sent())
    });
    let recorded = nereid_recording::Outcome::ALL.map(|outcome| {
        let (labels, help) =
            ([("outcome", outcome.name())], "Requests that were chosen to be recorded, by what became of them");
        let recorder = recorder.clone();
        metrics.counter("nereid_recorded_requests_total", help, &labels, move || {
            recorder.as_ref().map_or(0, |recorder| recorder.count(outcome))
        })
    });
    let of_bytes = recorder.clone();
    let bytes =
        metrics.counter("nereid_recorded_bytes_total", "Bytes of the file of recorded requests", &[], move || {
            of_bytes.as_ref().map_or(0, |recorder| recorder.bytes_written())
        });
    let waits = wait_metrics(metrics).into_iter().flatten();
    gauges.into_iter().chain(recorded).chain([bytes]).chain(panics).chain(refused).chain(waits).collect()
}

/// How the threads of this process wait for work.
fn wait_metrics(metrics: &Registry) -> [[Made; 3]; 2] {
    let threads = [(ThreadKind::Shard, &waits::SHARDS), (ThreadKind::Instance, &waits::INSTANCES)];
    threads.map(|(kind, waits)| {
        let labels = [("thread", kind.label())];
        [
            metrics.counter("nereid_sleeps_total", "Waits in the kernel, by the kind of thread", &labels, move || {
                waits.sleeps()
            }),
            metrics.counter("nereid_wake_ups_total", "Threads woken by others, by their kind", &labels, move || {
                waits.wake_ups()
            }),
            metrics.counter(
                "nereid_spin_nanoseconds_total",
                "Time for which threads polled for work before they slept, by their kind, in nanoseconds",
                &labels,
                move || waits.spun_ns(),
            ),
        ]
    })
}

/// The settings of `--metrics-config`. As in Triton none of them makes the start fail.
pub fn config(options: &Options) -> MetricsConfig {
    let (config, complaints) = MetricsConfig::new(&options.metrics_settings);
    complaints.iter().for_each(|complaint| error!("{complaint}"));
    MetricsConfig { engine: options.engine_metrics, ..config }
}

/// The page, a part for each family. `exemplars`: traced requests, if the format shows them. The last one of the
/// `registries` is that of the process.
pub fn page(
    models: &ModelMap,
    config: &MetricsConfig,
    host: &HostGauges,
    registries: &[&Registry],
    exemplars: Option<&Exemplars>,
    format: PageFormat,
) -> Vec<String> {
    let mut readings: Vec<Reading<'_>> = Vec::new();
    let none: Arc<str> = "".into();
    for model in models.ready() {
        let (snapshot, distributions) = (model.statistics.counters(), model.statistics.distributions());
        // All versions of an ensemble are one series (contract/metrics.md section 1); they follow each other.
        match readings.last_mut() {
            Some(last) if is_ensemble(model) && is_same_model(last.model, model) => {
                last.snapshot.add_families(&snapshot);
                if let (Some(all), Some(distributions)) = (&mut last.distributions, &distributions) {
                    all.add(distributions);
                }
            }
            _ => {
                // Traces do not state the repository.
                let exemplars = exemplars.filter(|_| model.namespace.is_empty());
                let exemplars = exemplars.and_then(|exemplars| exemplars.of(&model.name, model.version)).map(Arc::new);
                let own = exemplars.clone();
                let generation = model.statistics.generation();
                let gpu_uuid = Arc::clone(&none);
                readings.push(Reading { model, gpu_uuid, snapshot, distributions, exemplars: own, generation });
                let of_devices = model.statistics.devices().into_iter();
                readings.extend(of_devices.map(|DeviceReading { uuid, counters, distributions }| Reading {
                    model,
                    gpu_uuid: uuid,
                    snapshot: counters,
                    distributions,
                    exemplars: exemplars.clone(),
                    generation: Arc::clone(&none),
                }));
            }
        }
    }
    let has_engine = config.engine != EngineMetrics::None;
    let samples = readings.iter().map(|Reading { model, gpu_uuid, snapshot, distributions, exemplars, generation }| {
        ModelSample {
            name: &model.name,
            namespace: &model.namespace,
            version: if is_ensemble(model) { 1 } else { model.version },
            gpu_uuid,
            tags: model.spec.config.metric_tags.iter().map(|(key, value)| (&**key, &**value)).collect(),
            snapshot,
            // No other family shows them.
            running: if has_engine { load::running(model, snapshot.pending) } else { 0 },
            distributions: distributions.as_ref(),
            exemplars: exemplars.as_deref(),
            load_duration_secs: model.load_duration_secs,
            generation,
        }
    });
    render(samples, config, host, registries, format)
}

/// What a series of each family is made from.
struct Reading<'a> {
    model: &'a Arc<ServedModel>,
    gpu_uuid: Arc<str>,
    snapshot: Snapshot,
    distributions: Option<Distributions>,
    exemplars: Option<Arc<ModelExemplars>>,
    generation: Arc<str>,
}

fn is_ensemble(model: &ServedModel) -> bool {
    model.spec.platform == ENSEMBLE_PLATFORM
}

fn is_same_model(one: &ServedModel, other: &ServedModel) -> bool {
    one.name == other.name && one.namespace == other.namespace
}
