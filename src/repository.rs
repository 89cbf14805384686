//! Disk → models: the model repositories, the models in their directories, and their life cycle.
//!
//! ```text
//! store (directory or bucket) ─► poll (configuration, versions) ─► version (backend, instances) ─► models (the map)
//!                     └──────────────────── lifecycle: when, and in which order ───────────────────┘
//! ```

pub mod agents;
mod composed;
pub mod demand;
mod directory;
pub mod generations;
mod index;
pub mod inspect;
mod lifecycle;
mod models;
pub mod next_steps;
mod overrides;
mod poll;
mod residency;
pub mod store;
pub mod traffic;
mod version;

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend::instance::Spin;
use nereid_backend::plugin::MakePluginLoader;
use nereid_backend::{Host, HostPolicies};
use nereid_gpu::Gpus;
use nereid_memory::Pool;
use nereid_model_config::SupportedGpus;
use nereid_observe::metrics::{MetricsConfig, Registry};
use store::Store;

pub use index::IndexRow;
pub use lifecycle::{Attachment, InFlight, Lifecycle, Publisher};
pub use models::{Choice, ModelEntry, ModelId, ModelMap, UNLOADED, VersionState, parse_version};
pub use overrides::{Parameter, ParameterValue};
pub use residency::{Prewarm, Reason as EvictionReason, ResidencySettings};

/// How models are selected for loading (contract/schedulers.md section 10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ControlMode {
    /// All of them, once.
    #[default]
    None,
    /// All of them, again when they change.
    Poll,
    /// Those that clients request.
    Explicit,
}

/// The settings of a backend, by its name.
pub type BackendSettings = dyn Fn(&str) -> Vec<(String, String)> + Send + Sync;

/// Settings of loading.
pub struct Settings {
    /// The model repositories.
    pub stores: Vec<Arc<dyn Store>>,
    pub mode: ControlMode,
    /// `--load-model`, for the explicit mode; `*` is every model.
    pub startup_models: Vec<String>,
    /// `--disable-auto-complete-config` was not given.
    pub auto_complete: bool,
    /// `--model-config-name`.
    pub config_name: Option<String>,
    /// `--model-namespacing`.
    pub namespacing: bool,
    /// Versions that load at the same time.
    pub load_thread_count: usize,
    pub load_retry_count: u32,
    pub backend_directory: PathBuf,
    /// `--min-supported-compute-capability`, passed to backends.
    pub min_compute_capability: f64,
    /// The settings of a backend from `--backend-config`; later settings win.
    pub backend_settings: Arc<BackendSettings>,
    /// CPUs for workers; empty for any.
    pub worker_cpus: Vec<usize>,
    pub worker_cpu_count: usize,
    /// Whether workers on these CPUs may spin.
    pub worker_spin: Spin,
    /// From `--host-policy`.
    pub host_policies: Arc<HostPolicies>,
    pub pool: Pool,
    pub metrics: Arc<Registry>,
    /// The latencies of models that are recorded.
    pub metrics_config: MetricsConfig,
    /// What the schedulers of all models share.
    pub scheduling: nereid_scheduler::Services,
    /// `--stall-timeout`.
    pub stalls: Option<Arc<nereid_backend::instance::StallWatch>>,
    /// The server, for backends with models that call others.
    pub host: Host,
    /// The devices that models may use.
    pub gpus: Arc<Gpus>,
    /// Opens backends that are libraries.
    pub plugins: MakePluginLoader,
    /// The agents that models name in `model_repository_agents`.
    pub agents: agents::Agents,
    /// Which models stay in memory.
    pub residency: ResidencySettings,
    /// `--keep-generations`: earlier generations of each model that can be loaded again.
    pub keep_generations: usize,
    /// Whether models keep where the values of their configurations come from.
    pub keeps_provenance: bool,
}

/// The devices that the models of this server may be checked against.
fn supported_gpus(gpus: &Gpus) -> SupportedGpus {
    match gpus.is_supported() {
        true => SupportedGpus::Found { ids: gpus.ids(), capability_min: gpus.min_compute_capability() },
        false => SupportedGpus::NoDriver,
    }
}
