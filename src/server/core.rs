//! The parts of the server that run with or without ports: models and their life cycle, metrics, traces and their
//! reports.
//!
//! The program adds shards to it; an application that links the server uses it as it is (contract/c_api.md section 4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::access::Access;
use super::options::{HeaderPattern, ModelControl, Options};
use super::{
    Failure, Libraries, budget, clouds, devices, drain, ipc, metrics, openai, process_limits, residency, tables,
};
use crate::api::{self, Facts, Probes, ServerState};
use crate::repository::agents::Agents;
use crate::repository::store::{self, Store};
use crate::repository::{self, ControlMode, Lifecycle};
use nereid_backend::instance::{self, StallWatch};
use nereid_backend::{Host, HostPolicies};
use nereid_gpu::Gpus;
use nereid_memory::Pool;
use nereid_net::IpcCounts;
use nereid_observe::metrics::{CallbackMetric, HostGauges, HostPoller, MetricsConfig, PageFormat, Registry};
use nereid_observe::statistics::slowest;
use nereid_observe::trace::Traces;
use nereid_request::Status;
use nereid_scheduler::{Cache, Limiter, RateLimiter, ResourceLimit, Services, delayed_until};
use nereid_shard::placement::{Cores, Placement};

/// Time limit at the end of the server for writing or sending traces, and the same for the audit log and the recording.
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
    /// Of clients of shared-memory rings, with `--ipc-path`.
    pub ipc_counts: Option<Arc<IpcCounts>>,
    own_metrics: Registry,
    pub traces: Arc<Traces>,
    /// Access to it from inside the process.
    pub access: Arc<Access>,
    metrics_config: MetricsConfig,
    host: Arc<HostGauges>,
    /// The repositories cannot be read, and `--exit-on-error` is off.
    pub has_failed: bool,
    /// A model, not a flag, has switched OpenAI's interface on: its port is not open yet.
    pub openai_is_on_by_model: bool,
    _host_poller: Option<HostPoller>,
    /// Metrics that live as long as the server.
    _kept_metrics: Vec<CallbackMetric>,
}

/// Who may do what, and where that is recorded. Both are opened before models are loaded, which may take minutes.
#[derive(Default)]
pub struct Guard {
    pub access: Arc<api::Access>,
    pub records: api::Records,
}

impl Core {
    /// Opens everything and loads the start-up models.
    pub fn start(options: &Options, libraries: &Libraries, guard: Guard) -> Result<Arc<Core>, Failure> {
        let (cores, placement) = arrange(options)?;
        let checked = process_limits::check(placement.shards.len(), options.request_memory_byte_size);
        if let Some(tight) = checked.map_err(Failure::Limit)? {
            warn!("{tight}: the server may end when memory is needed; next step: {}", tight.next_step());
        }
        Core::placed(options, libraries, guard, &cores, placement, Access::new())
    }

    /// The same for a process that serves nothing: it starts no I/O threads, and holds no requests.
    pub fn start_trial(options: &Options, libraries: &Libraries) -> Result<Arc<Core>, Failure> {
        let (cores, placement) = arrange(options)?;
        Core::placed(options, libraries, Guard::default(), &cores, placement, Access::new())
    }

    /// The same inside an application, which assigns its cores itself: no thread of ours is bound to one.
    pub fn start_embedded(options: &Options, libraries: &Libraries, access: Arc<Access>) -> Result<Arc<Core>, Failure> {
        let placement = Placement { shards: Vec::new(), ..Placement::unpinned() };
        // An application has no port of its own for the page.
        let options = &Options { allow_ui: false, ..options.clone() };
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
        let options = &budget::within_addresses(options);
        let host_policies = Arc::new(host_policies(options).map_err(Failure::Start)?);
        let spins_on_own_cores = placement.spins() && !placement.shares_cores;
        if spins_on_own_cores && !instance::all_within(&host_policies, &placement.workers) {
            placement.share_cores(options.spin_flags());
            let effect = match placement.spins() {
                true => "no Python process spins, and threads only as --spin-us and --spin-percent say",
                false => "threads sleep at once when they wait",
            };
            info!("{effect}: a host policy puts instances on cores of the network");
        }
        let gpus = Gpus::discover(&options.gpu_settings());
        devices::log_unused_options(options, &gpus);
        slowest::switch(options.has_ui());
        let pool = Pool::of_server(budget::bytes(options), gpus.pinned().source());
        let pool =
            pool.map_err(|error| Failure::Creating(Status::internal(format!("cannot start a thread: {error}"))))?;
        info!("requests and answers may hold {} MiB of memory", pool.limit() >> 20);
        let (custom_metrics, own_metrics) = (Arc::new(Registry::of_process().clone()), Registry::default());
        let host = Arc::new(HostGauges::new(options.allow_cpu_metrics, options.pinned_memory_pool_byte_size));
        let metrics_config = metrics::config(options);
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
            worker_spin: placement.worker_spin(cores.quota),
            host_policies,
            pool: pool.clone(),
            metrics: Arc::clone(&custom_metrics),
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
            residency: options.residency.clone(),
            keep_generations: options.keep_generations,
            keeps_provenance: options.has_ui(),
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
        let mut options = options.clone();
        let options = &mut options;
        // A program that contains the server opens its ports itself.
        let openai_is_on_by_model = !placement.shards.is_empty() && openai::open_for_models(options, &lifecycle.map());
        let facts = start_facts(options, guard, &lifecycle, Arc::clone(&gpus))
            .inspect_err(|_| drain::unload(&lifecycle, options.exit_timeout_secs))?;
        let traces = Arc::clone(&facts.settings.traces);
        let mut kept = metrics::server_metrics(&own_metrics, &facts, &pool, &lifecycle);
        kept.extend(residency::metrics(&own_metrics, &lifecycle));
        let ipc_counts: Option<Arc<IpcCounts>> = options.ipc.path.as_ref().map(|_| Arc::default());
        kept.extend(ipc_counts.iter().flat_map(|counts| ipc::metrics(&own_metrics, options, counts)));
        let host_poller = options.metrics.allowed.then(|| start_poller(options, &host, &gpus)).flatten();
        let core = Arc::new(Core {
            options: options.clone(),
            placement,
            lifecycle,
            facts,
            pool,
            metrics: custom_metrics,
            ipc_counts,
            own_metrics,
            traces,
            access,
            metrics_config,
            host,
            has_failed,
            openai_is_on_by_model,
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

    /// The metrics page, in parts.
    pub fn render_metrics(&self, format: PageFormat) -> Vec<String> {
        let exemplars = (format == PageFormat::OpenMetrics).then(|| self.traces.exemplars());
        let (models, lifecycle) = (self.lifecycle.map(), &self.lifecycle);
        let registries = [&self.own_metrics, lifecycle.traffic_metrics(), &*self.metrics, lifecycle.memory_metrics()];
        metrics::page(&models, &self.metrics_config, &self.host, &registries, exemplars, format)
    }

    /// The facts about this server for shards that serve with other options of their ports.
    pub fn facts_of_ports(&self, options: &Options, access: Arc<api::Access>) -> Result<Arc<Facts>, Failure> {
        let api::Settings { traces, gpus, records, .. } = &self.facts.settings;
        let guard = Guard { access, records: records.clone() };
        let settings = settings(options, guard, &self.lifecycle, Arc::clone(gpus), Arc::clone(traces))?;
        Ok(Arc::new(self.facts.with_settings(settings)))
    }

    /// Waits until the traces, the audit log and the recording are written; logs if that takes too long.
    pub fn finish_records(&self) {
        if !self.traces.finish(TRACE_PATIENCE) {
            warn!("not all traces could be written before the end");
        }
        let api::Records { audit, requests } = &self.facts.settings.records;
        if audit.as_ref().is_some_and(|audit| !audit.flush(TRACE_PATIENCE)) {
            warn!("not all records of the audit log could be written before the end");
        }
        if requests.as_ref().is_some_and(|recorder| !recorder.flush(TRACE_PATIENCE)) {
            warn!("not all recorded requests could be written before the end");
        }
    }
}

/// The cores of the process, and which threads are bound to them.
fn arrange(options: &Options) -> Result<(Cores, Placement), Failure> {
    let cores = cores()?;
    let arranged = cores.arrange(options.io_cores.as_ref(), options.spin_flags());
    let (placement, one_core) = arranged.map_err(|error| Failure::Start(error.to_string()))?;
    if let Some(why) = one_core {
        warn!("--spin-us and --spin-percent have no effect: {why}");
    }
    Ok((cores, placement))
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
        // Models come and go by use, which says nothing of the server.
        strict_readiness: options.strict_readiness && !options.residency.on_demand,
        strict_device_liveness: options.strict_device_liveness,
        http_input_bytes_max: usize::try_from(options.http_max_input_size).unwrap_or(usize::MAX),
        grpc_responses_max: options.grpc_max_response_pool_size,
        allow_client_shm: options.allow_client_shm,
        gpus,
        sagemaker,
        vertex,
        openai: openai::settings(options, lifecycle)?,
        access: guard.access,
        records: guard.records,
        http_forwarded: forwarded("http", &options.http_header_forward_pattern)?,
        grpc_forwarded: forwarded("grpc", &options.grpc_header_forward_pattern)?,
        grpc_packing: options.grpc_response_compression,
        request_plan_cache: options.request_plan_cache,
        orca: options.orca,
        ui: options.has_ui(),
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
