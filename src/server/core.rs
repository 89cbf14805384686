//! The parts of the server that run with or without ports: models and their life cycle, metrics, traces and their
//! reports.
//!
//! The program adds shards to it; an application that links the server uses it as it is (contract/c_api.md section 4).

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::{error, info, warn};

use super::access::Access;
use super::options::{HeaderPattern, ModelControl, Options};
use super::{Failure, Libraries, budget, clouds, devices, drain, load, openai, tables};
use crate::api::{self, Facts, Probes, ServerState};
use crate::repository::agents::Agents;
use crate::repository::store::{self, Store};
use crate::repository::{self, ControlMode, Lifecycle, ModelMap};
use nereid_backend::instance::{self, StallWatch};
use nereid_backend::{Host, HostPolicies};
use nereid_gpu::Gpus;
use nereid_memory::Pool;
use nereid_model_config::normalize::ENSEMBLE_PLATFORM;
use nereid_observe::audit::AuditLog;
use nereid_observe::log::{self, Logger};
use nereid_observe::metrics::{HostGauges, HostPoller, MetricsConfig, ModelSample, Registry, render};
use nereid_observe::panics::ThreadKind;
use nereid_observe::statistics::{DeviceReading, Distributions, Snapshot};
use nereid_observe::trace::{self, Traces};
use nereid_queue::Spin;
use nereid_request::{RefusalReason, Status};
use nereid_scheduler::{Cache, Limiter, RateLimiter, ResourceLimit, ServedModel, Services, delayed_until};
use nereid_shard::placement::{Cores, Placement};

/// Time limit at the end of the server for writing or sending traces, and the same for the audit log.
const TRACE_PATIENCE: Duration = Duration::from_secs(4);

/// See the [module](self).
pub struct Core {
    pub options: Options,
    pub placement: Placement,
    pub lifecycle: Arc<Lifecycle>,
    pub facts: Arc<Facts>,
    pub pool: Pool,
    /// Custom metrics, shared by the process.
    pub metrics: Arc<Registry>,
    own_metrics: Registry,
    pub traces: Arc<Traces>,
    /// Access to it from inside the process.
    pub access: Arc<Access>,
    metrics_config: MetricsConfig,
    host: Arc<HostGauges>,
    /// The repositories cannot be read, and `--exit-on-error` is off.
    pub has_failed: bool,
    _host_poller: Option<HostPoller>,
    /// Metrics that live as long as the server.
    _kept_metrics: Vec<Box<dyn Any + Send + Sync>>,
}

/// Who may do what, and where that is recorded. Both are opened before models are loaded, which may take minutes.
#[derive(Default)]
pub struct Guard {
    pub access: Arc<api::Access>,
    pub audit: Option<Arc<AuditLog>>,
}

impl Core {
    /// Opens everything and loads the start-up models.
    pub fn start(options: &Options, libraries: &Libraries, guard: Guard) -> Result<Arc<Core>, Failure> {
        let cores = cores()?;
        let arranged = cores.arrange(options.io_cores.as_ref(), options.spin_us);
        let (placement, no_spin) = arranged.map_err(|error| Failure::Start(error.to_string()))?;
        if let Some(why) = no_spin {
            warn!("--spin-us has no effect: {why}");
        }
        Core::placed(options, libraries, guard, &cores, placement, Access::new())
    }

    /// The same inside an application, which assigns its cores itself: no thread of ours is bound to one.
    pub fn start_embedded(options: &Options, libraries: &Libraries, access: Arc<Access>) -> Result<Arc<Core>, Failure> {
        let placement = Placement { shards: Vec::new(), workers: Vec::new(), spin_ns: 0 };
        Core::placed(options, libraries, Guard::default(), &cores()?, placement, access)
    }

    fn placed(
        options: &Options,
        libraries: &Libraries,
        guard: Guard,
        cores: &Cores,
        mut placement: Placement,
        access: Arc<Access>,
    ) -> Result<Arc<Core>, Failure> {
        options.check().map_err(Failure::Creating)?;
        let host_policies = Arc::new(host_policies(options).map_err(Failure::Start)?);
        if placement.spin_ns > 0 && !instance::all_within(&host_policies, &placement.workers) {
            info!("threads sleep at once when they wait: a host policy puts instances on cores of the network");
            placement.spin_ns = 0;
        }
        let gpus = Gpus::discover(&options.gpu_settings());
        devices::log_unused_options(options, &gpus);
        let pool = Pool::of_server(budget::bytes(options), gpus.pinned().source());
        let pool =
            pool.map_err(|error| Failure::Creating(Status::internal(format!("cannot start a thread: {error}"))))?;
        info!("requests and answers may hold {} MiB of memory", pool.limit() >> 20);
        let (metrics, own_metrics) = (Arc::new(Registry::of_process().clone()), Registry::default());
        let host = Arc::new(HostGauges::new(options.allow_cpu_metrics, options.pinned_memory_pool_byte_size));
        let metrics_config = metrics_config(options);
        let (stores, opened) = match open_repositories(options) {
            Ok(stores) => (stores, Ok(())),
            Err(status) => (Vec::new(), Err(status)),
        };
        let settings = repository::Settings {
            stores,
            mode: match options.model_control {
                ModelControl::None => ControlMode::None,
                ModelControl::Poll { .. } => ControlMode::Poll,
                ModelControl::Explicit => ControlMode::Explicit,
            },
            startup_models: options.startup_models.clone(),
            auto_complete: options.auto_complete_config,
            config_name: options.model_config_name.clone(),
            namespacing: options.model_namespacing,
            load_thread_count: options.model_load_thread_count,
            load_retry_count: options.model_load_retry_count,
            backend_directory: options.backend_directory.clone(),
            min_compute_capability: options.min_compute_capability,
            backend_settings: {
                let options = options.clone();
                Arc::new(move |backend| options.settings_of(backend))
            },
            worker_cpus: placement.workers.clone(),
            worker_cpu_count: if placement.workers.is_empty() { cores.quota } else { placement.workers.len() },
            worker_spin: Spin::new(placement.spin_ns, placement.workers.len()),
            host_policies,
            pool: pool.clone(),
            metrics: Arc::clone(&metrics),
            metrics_config: metrics_config.clone(),
            scheduling: Services {
                limiter: rate_limiter(options),
                cache: open_cache(options, libraries)?,
                run_to_completion: options.run_to_completion,
                deadline_admission: options.deadline_admission,
                models: None,
                delayed_until: delayed_until(std::env::var_os("TRITONSERVER_DELAY_SCHEDULER").as_deref()),
            },
            stalls: options.stall_timeout.map(StallWatch::new),
            host: Host::new(Arc::clone(&access)),
            gpus: Arc::clone(&gpus),
            plugins: libraries.plugins,
            agents: Agents::new((libraries.agents)(options.agent_directory.clone())),
        };
        let lifecycle = Lifecycle::new(settings);
        access.set_lifecycle(&lifecycle, &pool, &gpus);
        let started = opened.and_then(|()| lifecycle.start());
        let has_failed = started.is_err();
        tables::log_start(options, &gpus, &lifecycle.map(), &lifecycle.agents());
        let is_complete = |is_complete: bool| is_complete.then_some(());
        let incomplete = || Status::internal("failed to load all models");
        if let Err(status) = started.and_then(|all| is_complete(all).ok_or_else(incomplete)) {
            if options.exit_on_error {
                drain::unload(&lifecycle, options.exit_timeout_secs);
                return Err(Failure::Creating(status));
            }
            error!("{status}");
        }
        let facts = start_facts(options, guard, &lifecycle, Arc::clone(&gpus))
            .inspect_err(|_| drain::unload(&lifecycle, options.exit_timeout_secs))?;
        let traces = Arc::clone(&facts.settings.traces);
        let mut kept = trace_metrics(&own_metrics, &traces);
        kept.extend(general_metrics(&own_metrics, &facts, &pool));
        let host_poller = options.metrics.allowed.then(|| start_poller(options, &host, &gpus)).flatten();
        let core = Arc::new(Core {
            options: options.clone(),
            placement,
            lifecycle,
            facts,
            pool,
            metrics,
            own_metrics,
            traces,
            access,
            metrics_config,
            host,
            has_failed,
            _host_poller: host_poller,
            _kept_metrics: kept,
        });
        core.access.set_core(&core);
        Ok(core)
    }

    /// The server's state after the start.
    pub fn state_after_start(&self) -> ServerState {
        if self.has_failed { ServerState::Failed } else { ServerState::Ready }
    }

    /// The metrics page.
    pub fn render_metrics(&self) -> String {
        render_page(&self.lifecycle.map(), &self.metrics_config, &self.host, &[&self.own_metrics, &self.metrics])
    }

    /// The facts about this server for shards that serve with other options of their ports.
    pub fn facts_of_ports(&self, options: &Options, access: Arc<api::Access>) -> Result<Arc<Facts>, Failure> {
        let api::Settings { traces, gpus, audit, .. } = &self.facts.settings;
        let guard = Guard { access, audit: audit.clone() };
        let settings = settings(options, guard, &self.lifecycle, Arc::clone(gpus), Arc::clone(traces))?;
        Ok(Arc::new(self.facts.with_settings(settings)))
    }

    /// Waits until the traces and the audit log are written; logs if that takes too long.
    pub fn finish_records(&self) {
        if !self.traces.finish(TRACE_PATIENCE) {
            warn!("not all traces could be written before the end");
        }
        if self.facts.settings.audit.as_ref().is_some_and(|audit| !audit.flush(TRACE_PATIENCE)) {
            warn!("not all records of the audit log could be written before the end");
        }
    }
}

fn cores() -> Result<Cores, Failure> {
    Cores::of_this_process().map_err(|error| Failure::Start(format!("cannot read the cores: {error}")))
}

/// The facts about the server that all services report, with the threads that they need.
fn start_facts(
    options: &Options,
    guard: Guard,
    lifecycle: &Arc<Lifecycle>,
    gpus: Arc<Gpus>,
) -> Result<Arc<Facts>, Failure> {
    let facts = Arc::new(Facts::new(settings(options, guard, lifecycle, gpus, start_traces(options)?)?));
    if options.allow_client_shm {
        let cannot = |error| Failure::Start(format!("cannot start a thread: {error}"));
        facts.regions.job_thread().start().map_err(cannot)?;
    }
    Ok(facts)
}

/// What the services of ports with these options need.
fn settings(
    options: &Options,
    guard: Guard,
    lifecycle: &Arc<Lifecycle>,
    gpus: Arc<Gpus>,
    traces: Arc<Traces>,
) -> Result<api::Settings, Failure> {
    let (sagemaker, vertex) = clouds::settings(options, &lifecycle.map())?;
    Ok(api::Settings {
        traces,
        id: options.server_id.clone(),
        strict_readiness: options.strict_readiness,
        strict_device_liveness: options.strict_device_liveness,
        http_input_bytes_max: usize::try_from(options.http_max_input_size).unwrap_or(usize::MAX),
        grpc_responses_max: options.grpc_max_response_pool_size,
        allow_client_shm: options.allow_client_shm,
        gpus,
        sagemaker,
        vertex,
        openai: openai::settings(options, lifecycle)?,
        access: guard.access,
        audit: guard.audit,
        http_forwarded: forwarded("http", &options.http_header_forward_pattern)?,
        grpc_forwarded: forwarded("grpc", &options.grpc_header_forward_pattern)?,
        grpc_packing: options.grpc_response_compression,
        request_plan_cache: options.request_plan_cache,
        orca: options.orca,
        probes: match (options.http_metrics, options.metrics.allowed) {
            (false, _) => Probes::None,
            (true, false) => Probes::Health,
            (true, true) => Probes::HealthAndMetrics,
        },
    })
}

fn forwarded(protocol: &str, pattern: &str) -> Result<Option<HeaderPattern>, Failure> {
    let pattern = (!pattern.is_empty()).then(|| HeaderPattern::new(pattern)).transpose();
    pattern.map_err(|error| Failure::Start(format!("--{protocol}-header-forward-pattern: {error}")))
}

/// A location that is given twice is one repository.
fn open_repositories(options: &Options) -> Result<Vec<Arc<dyn Store>>, Status> {
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for location in &options.model_repositories {
        let location = location.to_str().ok_or_else(|| {
            let shown = location.display();
            Status::invalid(format!("the model repository's location '{shown}' is not UTF-8"))
        })?;
        if stores.iter().all(|store| store.location() != location) {
            let opened = store::open(location, &|name| std::env::var_os(name))?;
            stores.push(Arc::from(opened));
        }
    }
    Ok(stores)
}

/// The policies of `--host-policy`; the error is a sentence for the user.
pub fn host_policies(options: &Options) -> Result<HostPolicies, String> {
    let settings = options.host_policies.iter().cloned().map(|setting| (setting.policy, setting.key, setting.value));
    let policies = HostPolicies::new(&settings.collect::<Vec<_>>());
    policies.map_err(|text| format!("--host-policy: {text}"))
}

fn rate_limiter(options: &Options) -> Option<Arc<dyn Limiter>> {
    let limits = options.rate_limits().into_iter().map(|((name, device), count)| ResourceLimit {
        name: name.to_owned(),
        // A negative number is a large one to Triton.
        count: u64::try_from(count).unwrap_or(u64::MAX),
        device: Some(device).filter(|device| *device != -1),
    });
    options.rate_limit.then(|| Arc::new(RateLimiter::new(limits.collect())) as Arc<dyn Limiter>)
}

fn open_cache(options: &Options, libraries: &Libraries) -> Result<Option<Arc<Cache>>, Failure> {
    let Some(name) = options.cache() else { return Ok(None) };
    let settings = options.settings_of_cache();
    let variable = |name: &str| std::env::var(name).ok();
    let library = |name: &str, file: Option<&str>, settings: &BTreeMap<&str, &str>| {
        (libraries.cache)(name, file, &options.cache_directory, settings)
    };
    let cache = Cache::open(name, &settings, &library, variable).map_err(Failure::Creating)?;
    let shown = settings.iter().map(|(key, value)| match key.as_str() {
        "password" => "password=<hidden>".to_owned(),
        key => format!("{key}={value}"),
    });
    info!("opened the response cache '{name}': {}", shown.collect::<Vec<_>>().join(", "));
    Ok(Some(Arc::new(cache)))
}

/// Always started: clients may switch traces on later.
fn start_traces(options: &Options) -> Result<Arc<Traces>, Failure> {
    let traces = Traces::new(options.traces.clone());
    let failed =
        |error| Failure::Start(format!("failed to configure tracing: Internal - cannot start a thread: {error}"));
    traces.map(Arc::new).map_err(failed)
}

fn trace_metrics(metrics: &Registry, traces: &Arc<Traces>) -> Vec<Box<dyn Any + Send + Sync>> {
    let count = |name: &str, help: &str, read: fn(&trace::Counts) -> u64| {
        let counts = Arc::clone(traces.counts());
        let counter = metrics.counter(name, help, &[], move || read(&counts));
        counter.map_err(|error| warn!("a metric is left out: {error}")).ok()
    };
    let counters = [
        count("nereid_traces_completed", "Traces of requests that are complete", |counts| {
            counts.completed.load(Ordering::Relaxed)
        }),
        count("nereid_traces_dropped", "Traces or spans that could not be written or sent", |counts| {
            counts.dropped.load(Ordering::Relaxed)
        }),
        count("nereid_trace_entries_cut", "Entries left out of traces that had too many", |counts| {
            counts.cut.load(Ordering::Relaxed)
        }),
    ];
    counters.into_iter().flatten().map(|counter| Box::new(counter) as Box<_>).collect()
}

fn start_poller(options: &Options, host: &Arc<HostGauges>, gpus: &Arc<Gpus>) -> Option<HostPoller> {
    let interval = std::time::Duration::from_millis(u64::from(options.metrics_interval_ms));
    // With any value: the GPUs of the host are not used (contract/cli.md section 4).
    let with_gpus = options.allow_gpu_metrics && std::env::var_os("TRITON_SERVER_CPU_ONLY").is_none();
    let is_needed = options.allow_cpu_metrics || with_gpus;
    if !is_needed {
        warn!("No polling metrics (CPU, GPU, Pinned memory) are enabled. Will not poll for them.");
    }
    let poller = is_needed.then(|| HostPoller::start(Arc::clone(host), interval, devices::sources(gpus, with_gpus)));
    poller?.map_err(|error| warn!("the host's gauges are not read: {error}")).ok()
}

/// Our own families beside Triton's.
fn general_metrics(metrics: &Registry, facts: &Arc<Facts>, pool: &Pool) -> Vec<Box<dyn Any + Send + Sync>> {
    let (facts, pool, watched) = (Arc::clone(facts), pool.clone(), Arc::clone(facts));
    let (of_shards, of_connections) = (Arc::clone(&facts), Arc::clone(&facts));
    let audit = facts.settings.audit.clone();
    let gauges = [
        metrics.counter("nereid_audit_records_dropped", "Records of the audit log that are lost", &[], move || {
            audit.as_ref().map_or(0, |audit| audit.dropped())
        }),
        metrics.counter("nereid_stale_deliveries", "Answers that came after their client had left", &[], move || {
            facts.stale_deliveries.load(std::sync::atomic::Ordering::Relaxed)
        }),
        metrics.counter("nereid_log_messages_dropped", "Log messages that could not be written", &[], || {
            log::installed().map_or(0, Logger::dropped)
        }),
        // A gauge of 1 with labels by which a dashboard maps a series to its server.
        metrics.gauge(
            "nereid_build_info",
            "The program that answers, and the release whose contract it keeps",
            &[("version", env!("CARGO_PKG_VERSION")), ("triton_version", api::SERVER_VERSION)],
            || 1.0,
        ),
        metrics.gauge("nereid_shards", "I/O threads", &[], move || of_shards.shard_load.shards() as f64),
        metrics.gauge("nereid_connections", "Open connections of clients, of all ports", &[], move || {
            of_connections.shard_load.connections() as f64
        }),
        metrics.gauge("nereid_shards_stuck", "I/O threads that do not go on", &[], move || {
            watched.stuck_shards.load(std::sync::atomic::Ordering::Relaxed) as f64
        }),
        metrics.gauge("nereid_pool_bytes_in_use", "Bytes of request and response data held now", &[], move || {
            pool.bytes_in_use() as f64
        }),
    ];
    let panics = ThreadKind::ALL.map(|kind| {
        let help = "Panics, by the kind of thread";
        metrics.counter("nereid_panics_total", help, &[("thread", kind.label())], move || kind.panics())
    });
    let keep = |gauge: Result<_, nereid_observe::metrics::MetricError>| {
        gauge.map_err(|error| warn!("a metric is left out: {error}")).ok()
    };
    let refused = RefusalReason::ALL.map(|reason| {
        let (labels, help) = ([("reason", reason.name())], "Refusals sent to clients that may come again");
        metrics.counter("nereid_refused_requests_total", help, &labels, move || reason.sent())
    });
    let all = gauges.into_iter().chain(panics).chain(refused);
    all.filter_map(keep).map(|gauge| Box::new(gauge) as Box<_>).collect()
}

/// The settings of `--metrics-config`. As in Triton none of them makes the start fail.
fn metrics_config(options: &Options) -> MetricsConfig {
    let (config, complaints) = MetricsConfig::new(&options.metrics_settings);
    complaints.iter().for_each(|complaint| error!("{complaint}"));
    MetricsConfig { engine: options.engine_metrics, ..config }
}

fn render_page(models: &ModelMap, config: &MetricsConfig, host: &HostGauges, metrics: &[&Registry]) -> String {
    let mut readings: Vec<Reading<'_>> = Vec::new();
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
                readings.push(Reading { model, gpu_uuid: "".into(), snapshot, distributions });
                let of_devices = model.statistics.devices().into_iter();
                readings.extend(of_devices.map(|DeviceReading { uuid, counters, distributions }| Reading {
                    model,
                    gpu_uuid: uuid,
                    snapshot: counters,
                    distributions,
                }));
            }
        }
    }
    let samples = readings.iter().map(|Reading { model, gpu_uuid, snapshot, distributions }| ModelSample {
        name: &model.name,
        namespace: &model.namespace,
        version: if is_ensemble(model) { 1 } else { model.version },
        gpu_uuid,
        tags: model.spec.config.metric_tags.iter().map(|(key, value)| (&**key, &**value)).collect(),
        snapshot,
        running: load::running(model, snapshot.pending),
        distributions: distributions.as_ref(),
        load_duration_secs: model.load_duration_secs,
    });
    render(samples, config, host, metrics)
}

/// What a series of each family is made from.
struct Reading<'a> {
    model: &'a Arc<ServedModel>,
    gpu_uuid: Arc<str>,
    snapshot: Snapshot,
    distributions: Option<Distributions>,
}

fn is_ensemble(model: &ServedModel) -> bool {
    model.spec.platform == ENSEMBLE_PLATFORM
}

fn is_same_model(one: &ServedModel, other: &ServedModel) -> bool {
    one.name == other.name && one.namespace == other.namespace
}
