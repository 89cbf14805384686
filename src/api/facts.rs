//! Facts about the server that all shards share: its settings, its state, and the shared memory that clients have
//! registered.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::access::Access;
use super::clouds::sagemaker::settings::SageMaker;
use super::clouds::sagemaker_models::SageMakerModels;
use super::clouds::vertex::settings::Vertex;
use super::forwarding::HeaderPattern;
use super::load_reports::Orca;
use super::openai::OpenAi;
use super::routes::{Route, route, route_of_probes};
use nereid_gpu::Gpus;
use nereid_observe::audit::AuditLog;
use nereid_observe::trace::Traces;
use nereid_protocol::compression::Level;
use nereid_recording::Recorder;
use nereid_request::SharedMemory;

/// Version that this server answers to: the release whose contract it keeps.
pub const SERVER_VERSION: &str = "2.75.0";

/// The extensions (contract/http.md section 3 has the order).
pub const EXTENSIONS: [&str; 13] = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    Starting = 0,
    Ready = 1,
    /// Requests are served, but the server reports that it is not ready, so that clients go elsewhere.
    Leaving = 2,
    Exiting = 3,
    /// The start failed, and an option keeps the process running: it reports that it is neither live nor ready.
    Failed = 4,
}

/// The options of the command line that the service needs.
#[derive(Debug)]
pub struct Settings {
    pub id: String,
    pub strict_readiness: bool,
    /// The server is live as long as no device is broken for good.
    pub strict_device_liveness: bool,
    /// `--http-max-input-size`.
    pub http_input_bytes_max: usize,
    /// `--grpc-max-response-pool-size`.
    pub grpc_responses_max: u32,
    /// `--allow-client-shm`.
    pub allow_client_shm: bool,
    /// The devices whose memory clients may register.
    pub gpus: Arc<Gpus>,
    pub traces: Arc<Traces>,
    pub sagemaker: SageMaker,
    /// `None`: the port is off.
    pub vertex: Option<Vertex>,
    pub records: Records,
    /// Which requests need a key, at the start.
    pub access: Arc<Access>,
    /// `--http-header-forward-pattern` and `--grpc-header-forward-pattern`.
    pub http_forwarded: Option<HeaderPattern>,
    pub grpc_forwarded: Option<HeaderPattern>,
    /// `--grpc-infer-response-compression-level`.
    pub grpc_packing: Option<Level>,
    /// `--request-plan-cache`.
    pub request_plan_cache: bool,
    /// OpenAI's interface, where it is on.
    pub openai: Option<Arc<OpenAi>>,
    /// `--orca`.
    pub orca: Orca,
    /// `--http-metrics`.
    pub probes: Probes,
    /// `--allow-ui`: the metrics port has the inspect page.
    pub ui: bool,
}

/// Where calls are recorded.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// `--audit-log`.
    pub audit: Option<Arc<AuditLog>>,
    /// `--record`.
    pub requests: Option<Arc<Recorder>>,
}

/// The routes for probes and scrapers that the HTTP port has beside Triton's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Probes {
    #[default]
    None,
    /// There are no metrics to show.
    Health,
    HealthAndMetrics,
}

impl Settings {
    /// The route of a path on the HTTP port.
    pub(super) fn route<'a>(&self, path: &'a [u8]) -> Option<Route<'a>> {
        route(path).or_else(|| {
            route_of_probes(path).filter(|found| match self.probes {
                Probes::None => false,
                Probes::Health => *found == Route::Health,
                Probes::HealthAndMetrics => true,
            })
        })
    }
}

/// How many shards there are, and how many connections they have; 0 until they start.
#[derive(Default)]
pub struct ShardLoad(OnceLock<ReadShardLoad>);

type ReadShardLoad = Box<dyn Fn() -> (usize, usize) + Send + Sync>;

impl ShardLoad {
    /// The first one stays.
    pub fn set(&self, read: impl Fn() -> (usize, usize) + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(read));
    }

    pub fn shards(&self) -> usize {
        self.0.get().map_or(0, |read| read().0)
    }

    pub fn connections(&self) -> usize {
        self.0.get().map_or(0, |read| read().1)
    }
}

impl std::fmt::Debug for ShardLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardLoad").field("connections", &self.connections()).finish()
    }
}

/// Facts about the server, shared by all shards that serve with the same settings.
#[derive(Debug)]
pub struct Facts {
    pub settings: Settings,
    /// The models that SageMaker has loaded.
    pub(super) sagemaker_models: Arc<SageMakerModels>,
    state: Arc<AtomicU8>,
    /// Shards that do not read their mail.
    pub stuck_shards: AtomicUsize,
    pub shard_load: ShardLoad,
    /// Answers to clients that had left.
    pub stale_deliveries: Arc<AtomicU64>,
    /// Shared memory that clients have registered.
    pub regions: Arc<SharedMemory>,
}

impl Facts {
    pub fn new(settings: Settings) -> Facts {
        let state = Arc::new(AtomicU8::new(ServerState::Starting as u8));
        let regions = Arc::new(SharedMemory::new(Arc::clone(&settings.gpus)));
        Facts {
            settings,
            sagemaker_models: Arc::default(),
            state,
            stuck_shards: AtomicUsize::new(0),
            shard_load: ShardLoad::default(),
            stale_deliveries: Arc::default(),
            regions,
        }
    }

    /// Facts about the same server for shards that serve with other settings: a change of its state, and a region that
    /// a client registers, are theirs too. Whether shards are stuck is each one's own.
    pub fn with_settings(&self, settings: Settings) -> Facts {
        Facts {
            settings,
            sagemaker_models: Arc::clone(&self.sagemaker_models),
            state: Arc::clone(&self.state),
            stuck_shards: AtomicUsize::new(0),
            shard_load: ShardLoad::default(),
            stale_deliveries: Arc::clone(&self.stale_deliveries),
            regions: Arc::clone(&self.regions),
        }
    }

    pub fn state(&self) -> ServerState {
        match self.state.load(Ordering::Acquire) {
            0 => ServerState::Starting,
            1 => ServerState::Ready,
            2 => ServerState::Leaving,
            3 => ServerState::Exiting,
            _ => ServerState::Failed,
        }
    }

    pub fn set_state(&self, state: ServerState) {
        self.state.store(state as u8, Ordering::Release);
    }
}
