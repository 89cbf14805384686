//! Options of the server, from the command line or from an application.

use nereid_observe::log::LogSettings;
use nereid_observe::trace::TraceOptions;
use nereid_protocol::slow_peers::SlowPeers;
use nereid_request::Status;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub mod ipc;
pub mod openai;
pub mod record;

use ipc::IpcOptions;
use openai::OpenAiOptions;
use record::RecordOptions;

pub use crate::api::{HeaderPattern, Orca};
use crate::repository::ResidencySettings;
pub use nereid_net::{Credentials, Keepalive};
pub use nereid_observe::metrics::EngineMetrics;
pub use nereid_protocol::compression::Level;
pub use nereid_scheduler::RunToCompletion;
use nereid_scheduler::cache::KeyForm;
use nereid_scheduler::cache::settings::{Code, Described};
pub use nereid_shard::placement::{IoCores, SpinFlags};

/// `--stall-timeout`: correct models rarely execute for so long.
const STALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Why settings of GPUs have no effect.
pub const NO_GPU: &str = "there is no GPU that this server could use";
/// Why the addresses that are reserved for growing states have no effect.
pub const NO_GROWING: &str = "growing states are in host memory";
/// Why the number of threads that copy tensors has no effect.
pub const NO_COPYING_THREADS: &str = "each worker gathers its own batch";

/// A response cache, as far as its settings say.
pub struct CacheFacts<'a> {
    pub name: &'a str,
    /// None: built in. Else the file of its library, if a setting names one.
    pub library: Option<Option<String>>,
    pub has_tritons_key: bool,
    /// Why it could not be opened.
    pub error: Option<Status>,
}

/// One listening service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listen {
    pub allowed: bool,
    pub address: String,
    /// Not checked for its range: binding does that (contract/cli.md section 3).
    pub port: i32,
    /// SO_REUSEPORT.
    pub reuse_port: bool,
}

impl Listen {
    /// At this port of every address.
    pub fn at(port: i32) -> Listen {
        Listen { allowed: true, address: "0.0.0.0".to_owned(), port, reuse_port: false }
    }
}

/// Environment variables that configure the ports of the clouds (contract/cli.md section 4); empty where they are
/// unset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clouds {
    /// SAGEMAKER_TRITON_PING_MODE.
    pub ping_mode: String,
    /// SAGEMAKER_TRITON_DEFAULT_MODEL_NAME.
    pub default_model: String,
    /// SAGEMAKER_TRITON_INFERENCE_TYPE.
    pub inference_type: String,
    /// AIP_HEALTH_ROUTE.
    pub health_route: String,
    /// AIP_PREDICT_ROUTE.
    pub predict_route: String,
}

/// TLS options of a port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    pub allowed: bool,
    /// Its `mutual` implies TLS.
    pub credentials: Credentials,
}

impl TlsOptions {
    pub fn is_on(&self) -> bool {
        self.allowed || self.credentials.mutual
    }
}

/// A `--backend-config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSetting {
    /// `None`: for every backend.
    pub backend: Option<String>,
    pub key: String,
    pub value: String,
}

/// When models are loaded and unloaded (`--model-control-mode`, contract/schedulers.md section 10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModelControl {
    /// All models of the repositories, once, at the start.
    #[default]
    None,
    /// The repositories are polled again every so many seconds; 0: never again.
    Poll { period_secs: u32 },
    /// [`Options::startup_models`] at the start, then those that clients request.
    Explicit,
}

/// A `--cache-config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSetting {
    pub cache: String,
    pub key: String,
    pub value: String,
}

/// A `--rate-limit-resource`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitResource {
    pub name: String,
    /// Not checked: a negative count is more than any instance requests, as in Triton.
    pub count: i64,
    /// `None`: on each device.
    pub device: Option<i32>,
}

/// A `--host-policy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPolicySetting {
    pub policy: String,
    /// `numa-node`, `cpu-cores`, or a key that only backends use.
    pub key: String,
    pub value: String,
}

/// A group of `--http-restricted-api` or `--grpc-restricted-protocol`.
#[derive(Clone, PartialEq, Eq)]
pub struct Restriction {
    /// One of the nine groups.
    pub group: String,
    /// Name of the header, or the end of that of the metadata.
    pub key: String,
    pub value: String,
}

impl std::fmt::Debug for Restriction {
    /// The value is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Restriction({}: {})", self.group, self.key)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// io_uring where the kernel supports it, else epoll.
    #[default]
    Auto,
    IoUring,
    Epoll,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub server_id: String,
    pub exit_timeout_secs: u32,
    /// `--drain-delay`: how long the server continues to serve after a signal, as not ready; part of the exit time-out.
    pub drain_delay: Duration,
    /// `--take-over`: where a starting server gets the listening sockets of the running one.
    pub take_over: Option<PathBuf>,
    pub log: LogSettings,
    /// False where TRITON_SERVER_ESCAPE_LOG_MESSAGES is `0`.
    pub escape_log_messages: bool,
    /// May be empty: creating the server fails then, with `--model-repository must be specified`.
    pub model_repositories: Vec<PathBuf>,
    pub exit_on_error: bool,
    pub auto_complete_config: bool,
    pub strict_readiness: bool,
    pub http: Listen,
    pub http_tls: TlsOptions,
    /// A Unix socket beside the port.
    pub http_unix_socket: Option<PathBuf>,
    /// Bytes; at least 1.
    pub http_max_input_size: u64,
    /// RE2; empty: none.
    pub http_header_forward_pattern: String,
    /// In the order of the command line; each group once.
    pub http_restricted: Vec<Restriction>,
    /// More of them in a file, which is read again when it changes.
    pub http_restricted_file: Option<PathBuf>,
    pub grpc: Listen,
    pub grpc_tls: TlsOptions,
    /// A Unix socket beside the port.
    pub grpc_unix_socket: Option<PathBuf>,
    pub grpc_keepalive: Keepalive,
    /// `--slow-peer-secs`, `--slow-peer-min-rate` and `--request-receive-secs`.
    pub slow_peers: SlowPeers,
    /// Responses of one decoupled request that may wait for their client; at least 1.
    pub grpc_max_response_pool_size: u32,
    /// Bytes of the longest message that a client may send; at least 1.
    pub grpc_max_receive_message_size: u32,
    /// RE2; empty: none.
    pub grpc_header_forward_pattern: String,
    /// In the order of the command line; each group once.
    pub grpc_restricted: Vec<Restriction>,
    pub grpc_restricted_file: Option<PathBuf>,
    /// Where calls that change the server are recorded; `-`: on stdout.
    pub audit_log: Option<PathBuf>,
    pub ipc: IpcOptions,
    pub record: RecordOptions,
    /// `--grpc-infer-response-compression-level`; `None`: answers are not compressed.
    pub grpc_response_compression: Option<Level>,
    pub metrics: Listen,
    pub sagemaker: Listen,
    pub vertex: Listen,
    /// OpenAI's interface.
    pub openai: OpenAiOptions,
    /// Environment variables of these two ports.
    pub clouds: Clouds,
    /// `--vertex-ai-default-model`; empty: the only model, if there is just one.
    pub vertex_default_model: String,
    /// False where there are no metrics at all.
    pub allow_cpu_metrics: bool,
    pub allow_gpu_metrics: bool,
    pub metrics_interval_ms: u32,
    pub traces: TraceOptions,
    /// `--metrics-config`, in the order of the command line.
    pub metrics_settings: Vec<(String, String)>,
    pub backend_directory: PathBuf,
    /// In the order of the command line.
    pub backend_settings: Vec<BackendSetting>,
    /// `None`: by the number of cores.
    pub io_cores: Option<IoCores>,
    pub io_engine: IoEngine,
    /// Microseconds for which a thread spins before it sleeps; `None`: depends on the cores.
    pub spin_us: Option<u32>,
    /// The share of its time for which a thread spins at most; `None`: depends on the cores.
    pub spin_percent: Option<u32>,
    /// Which requests shards execute themselves.
    pub run_to_completion: RunToCompletion,
    /// Shards cache what they derive from requests and answers, and reuse it for equal ones.
    pub request_plan_cache: bool,
    /// Which answers report the server's load.
    pub orca: Orca,
    /// The HTTP port answers `/metrics` and `/health` too.
    pub http_metrics: bool,
    /// The metrics port has the inspect page.
    pub allow_ui: bool,
    /// Load of the models under the names of another engine.
    pub engine_metrics: EngineMetrics,
    /// How long an execution may take before its instance counts as stalled; `None`: for ever.
    pub stall_timeout: Option<Duration>,
    pub model_control: ModelControl,
    /// The models of `--load-model`, sorted, each once; `*` alone is every model. Empty in any mode but explicit.
    pub startup_models: Vec<String>,
    /// `--model-config-name`: `<model>/configs/<name>.pbtxt` stands in for `config.pbtxt` where it exists.
    pub model_config_name: Option<String>,
    /// Models that load at the same time; at least 1.
    pub model_load_thread_count: usize,
    /// Further attempts, at once, after a load that failed.
    pub model_load_retry_count: u32,
    /// Models of one name may lie in several repositories.
    pub model_namespacing: bool,
    /// `--keep-generations`: earlier generations of each model whose files are kept.
    pub keep_generations: usize,
    /// Which models are loaded, and stay, by use.
    pub residency: ResidencySettings,
    /// In the order of the command line.
    pub host_policies: Vec<HostPolicySetting>,
    /// In the order of the command line; empty: no cache, unless there is a bare one.
    pub cache_settings: Vec<CacheSetting>,
    /// A cache without any setting, which only an application can request.
    pub bare_cache: Option<String>,
    pub cache_directory: PathBuf,
    pub agent_directory: PathBuf,
    /// `--rate-limit=execution_count`.
    pub rate_limit: bool,
    /// In the order of the command line.
    pub rate_limit_resources: Vec<RateLimitResource>,
    /// 0: no pool.
    pub pinned_memory_pool_byte_size: u64,
    /// By device, where it is not the default.
    pub cuda_memory_pools: BTreeMap<i32, u64>,
    /// GPUs below it are not used.
    pub min_compute_capability: f64,
    /// GPUs read and write each other's memory where they can.
    pub enable_peer_access: bool,
    /// By device, the part of its memory, 0 to 1, beyond which no more instances are made there.
    pub gpu_load_limits: BTreeMap<i32, f64>,
    /// A GPU that is broken for good makes the server not live.
    pub strict_device_liveness: bool,
    /// Names of options that have no effect on a host without GPUs; each once.
    pub for_gpus: Vec<String>,
    /// Bytes that requests and answers may hold in all; 0: derived from the host and its limits.
    pub request_memory_byte_size: u64,
    /// The parts of it, above 0 and at most 1, that one connection and one client's address may hold.
    pub request_memory_connection_share: f64,
    pub request_memory_client_share: f64,
    pub request_memory_model_share: f64,
    /// The parts of the calls that the shards take at a time that one connection, one client and one model may have.
    pub request_count_connection_share: f64,
    pub request_count_client_share: f64,
    pub request_count_model_share: f64,
    /// Requests that would be answered too late are refused.
    pub deadline_admission: bool,
    /// Clients may register shared memory.
    pub allow_client_shm: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            server_id: "triton".to_owned(),
            exit_timeout_secs: 30,
            drain_delay: Duration::ZERO,
            take_over: None,
            log: LogSettings::default(),
            escape_log_messages: true,
            model_repositories: Vec::new(),
            exit_on_error: true,
            auto_complete_config: true,
            strict_readiness: true,
            http: Listen::at(8000),
            http_tls: TlsOptions::default(),
            http_unix_socket: None,
            http_max_input_size: 64 << 20,
            http_header_forward_pattern: String::new(),
            http_restricted: Vec::new(),
            http_restricted_file: None,
            grpc: Listen::at(8001),
            grpc_tls: TlsOptions::default(),
            grpc_unix_socket: None,
            grpc_keepalive: Keepalive::default(),
            slow_peers: SlowPeers::default(),
            grpc_max_response_pool_size: i32::MAX as u32,
            grpc_max_receive_message_size: i32::MAX as u32,
            grpc_header_forward_pattern: String::new(),
            grpc_restricted: Vec::new(),
            grpc_restricted_file: None,
            audit_log: None,
            ipc: IpcOptions::default(),
            record: RecordOptions::default(),
            grpc_response_compression: None,
            metrics: Listen::at(8002),
            sagemaker: Listen { allowed: false, ..Listen::at(8080) },
            vertex: Listen { allowed: false, ..Listen::at(8080) },
            openai: OpenAiOptions::default(),
            clouds: Clouds::default(),
            vertex_default_model: String::new(),
            allow_cpu_metrics: true,
            allow_gpu_metrics: true,
            metrics_interval_ms: 2000,
            traces: TraceOptions::default(),
            metrics_settings: Vec::new(),
            backend_directory: "/opt/tritonserver/backends".into(),
            backend_settings: Vec::new(),
            io_cores: None,
            io_engine: IoEngine::Auto,
            spin_us: None,
            spin_percent: None,
            run_to_completion: RunToCompletion::default(),
            request_plan_cache: true,
            orca: Orca::OnRequest,
            http_metrics: false,
            allow_ui: true,
            engine_metrics: EngineMetrics::None,
            stall_timeout: Some(STALL_TIMEOUT),
            model_control: ModelControl::None,
            startup_models: Vec::new(),
            model_config_name: None,
            model_load_thread_count: 4,
            model_load_retry_count: 0,
            model_namespacing: false,
            keep_generations: 0,
            residency: ResidencySettings::default(),
            host_policies: Vec::new(),
            cache_settings: Vec::new(),
            bare_cache: None,
            cache_directory: "/opt/tritonserver/caches".into(),
            agent_directory: "/opt/tritonserver/repoagents".into(),
            rate_limit: false,
            rate_limit_resources: Vec::new(),
            pinned_memory_pool_byte_size: 256 << 20,
            cuda_memory_pools: BTreeMap::new(),
            min_compute_capability: 0.0,
            enable_peer_access: true,
            gpu_load_limits: BTreeMap::new(),
            strict_device_liveness: false,
            for_gpus: Vec::new(),
            request_memory_byte_size: 0,
            request_memory_connection_share: 0.5,
            request_memory_client_share: 0.75,
            request_memory_model_share: 0.75,
            request_count_connection_share: 0.5,
            request_count_client_share: 0.75,
            request_count_model_share: 0.75,
            deadline_admission: false,
            allow_client_shm: false,
        }
    }
}

/// In [`Options::startup_models`]: every model.
pub const WILDCARD: &str = "*";

impl Options {
    /// Whether the inspect page is there.
    pub fn has_ui(&self) -> bool {
        self.allow_ui && self.metrics.allowed
    }

    /// The flags about spinning.
    pub fn spin_flags(&self) -> SpinFlags {
        SpinFlags { us: self.spin_us, percent: self.spin_percent }
    }

    /// For a server without ports, which an application links.
    pub fn without_ports() -> Options {
        let closed = |listen: Listen| Listen { allowed: false, ..listen };
        let options = Options::default();
        Options {
            http: closed(options.http),
            grpc: closed(options.grpc),
            sagemaker: closed(options.sagemaker),
            vertex: closed(options.vertex),
            openai: OpenAiOptions::default(),
            ..options
        }
    }

    /// Checks for options with which no server can be created.
    pub fn check(&self) -> Result<(), Status> {
        if self.model_repositories.is_empty() {
            return Err(Status::invalid("--model-repository must be specified"));
        }
        let is_wild = self.startup_models.iter().any(|name| name == WILDCARD);
        if is_wild && self.startup_models.len() > 1 {
            let text = "Wildcard model name '*' must be the ONLY startup model if specified at all.";
            return Err(Status::invalid(text));
        }
        if self.agent_directory.as_os_str().is_empty() {
            return Err(Status::invalid("--repoagent-directory can not be empty"));
        }
        let cache = self.cache();
        if cache.is_some() && self.cache_directory.as_os_str().is_empty() {
            return Err(Status::invalid("cache directory can not be empty"));
        }
        let mut caches = self.cache_settings.iter().map(|setting| &setting.cache).chain(&self.bare_cache);
        if caches.any(|other| Some(&**other) != cache) {
            let text = "found multiple cache configurations, but only a single cache is currently supported";
            return Err(Status::invalid(text));
        }
        Ok(())
    }

    /// The name of the cache, where there is one.
    pub fn cache(&self) -> Option<&str> {
        self.cache_settings.first().map(|setting| &setting.cache).or(self.bare_cache.as_ref()).map(String::as_str)
    }

    /// The settings of the cache.
    pub fn settings_of_cache(&self) -> Vec<(String, String)> {
        self.cache_settings.iter().map(|setting| (setting.key.clone(), setting.value.clone())).collect()
    }

    /// What the settings of the cache say, where there is one. It is not opened.
    pub fn cache_facts(&self) -> Option<CacheFacts<'_>> {
        let name = self.cache()?;
        let settings = self.settings_of_cache();
        let described = Described::of(name, &settings);
        Some(CacheFacts {
            name,
            library: match described.code {
                Code::BuiltIn => None,
                Code::Library(file) => Some(file.map(str::to_owned)),
            },
            has_tritons_key: described.form == KeyForm::Triton,
            error: described.check(name).err(),
        })
    }

    /// `--rate-limit-resource` by name and device, -1 for each device. Of equal ones the first counts.
    pub fn rate_limits(&self) -> BTreeMap<(&str, i32), i64> {
        let mut limits = BTreeMap::new();
        for resource in &self.rate_limit_resources {
            limits.entry((&*resource.name, resource.device.unwrap_or(-1))).or_insert(resource.count);
        }
        limits
    }

    /// The options about GPUs.
    pub fn gpu_settings(&self) -> nereid_gpu::Settings {
        nereid_gpu::Settings {
            min_compute_capability: self.min_compute_capability,
            pinned_pool_bytes: self.pinned_memory_pool_byte_size,
            memory_pool_bytes: self.cuda_memory_pools.clone(),
            enable_peer_access: self.enable_peer_access,
            load_limits: self.gpu_load_limits.clone(),
        }
    }

    /// Records, once, the name of an option that concerns GPUs alone.
    pub fn note_for_gpus(&mut self, name: &str) {
        if self.for_gpus.iter().all(|noted| noted != name) {
            self.for_gpus.push(name.to_owned());
        }
    }

    /// The `--backend-config` settings of one backend: global settings first, so that a later one wins.
    pub fn settings_of(&self, backend: &str) -> Vec<(String, String)> {
        let of = |backend: Option<&str>| {
            let fitting = self.backend_settings.iter().filter(move |setting| setting.backend.as_deref() == backend);
            fitting.map(|setting| (setting.key.clone(), setting.value.clone())).collect::<Vec<_>>()
        };
        let mut settings = of(None);
        settings.extend(of(Some(backend)));
        settings
    }
}
