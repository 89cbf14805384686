//! Loads every model of the repositories at start-up, a few at a time.
//!
//! The steps and the texts of failures are those of model_config.md section 6: what is wrong before a backend is
//! touched fails the poll of the model's directory, what is wrong later fails the version. A model that fails leaves
//! the others alone.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::{error, info, warn};

use super::models::{Entry, ModelMap, ServedModel, VersionState};
use crate::backend::plugin::Plugins;
use crate::backend::registry::{NATIVE_NAMES, NativeBackends};
use crate::backend::{Backend, HostPolicies, ModelContext};
use crate::instance::{Instances, PayloadSource, Plan};
use crate::memory::Pool;
use crate::model_config::{self, ModelSpec, labels, layout, normalize, support, validate, warmup};
use crate::observe::metrics::Registry;
use crate::observe::statistics::ModelStatistics;
use crate::request::Status;
use crate::scheduler::{Direct, Scheduler};
use crate::wire::inference::ModelConfig;

/// Models that are loaded at the same time (`--model-load-thread-count` of Triton).
const LOAD_THREADS: usize = 4;

/// The settings of a backend, by its name.
pub type BackendSettings = dyn Fn(&str) -> Vec<(String, String)> + Send + Sync;

/// What loading needs to know.
pub struct Settings {
    pub repositories: Vec<PathBuf>,
    /// The models to load; `None`: all.
    pub only: Option<Vec<String>>,
    /// `--disable-auto-complete-config` was not given.
    pub auto_complete: bool,
    pub backend_directory: PathBuf,
    /// What `--backend-config` says to a backend, later settings win.
    pub backend_settings: Arc<BackendSettings>,
    /// Where workers may run; empty: anywhere.
    pub worker_cpus: Vec<usize>,
    pub worker_cpu_count: usize,
    /// What `--host-policy` says.
    pub host_policies: Arc<HostPolicies>,
    pub pool: Pool,
    pub metrics: Arc<Registry>,
}

/// A version and the threads that execute it.
pub struct RunningModel {
    pub model: Arc<ServedModel>,
    instances: Instances,
}

impl RunningModel {
    /// Waits for the workers, once their scheduler was stopped.
    pub fn join(self) {
        self.instances.join();
    }

    /// Finishes what was accepted, and ends.
    pub fn stop(self) {
        self.model.scheduler.stop();
        self.join();
    }
}

/// The outcome of start-up.
pub struct Loaded {
    pub models: ModelMap,
    pub running: Vec<RunningModel>,
    /// Every model that was found is ready in all chosen versions.
    pub is_complete: bool,
}

/// Loads all models of all repositories.
pub fn load(settings: &Settings) -> Result<Loaded, Status> {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    // The same path given twice is one repository.
    let repositories: BTreeSet<&PathBuf> = settings.repositories.iter().collect();
    for repository in repositories {
        for name in directories(repository)? {
            found.entry(name.clone()).or_default().push(repository.join(name));
        }
    }
    let backends = NativeBackends::default();
    let plugins = Plugins::new(settings.backend_directory.clone(), settings.auto_complete);
    let loader = Loader { settings, backends: &backends, plugins: &plugins };
    let is_wanted = |name: &String| settings.only.as_ref().is_none_or(|only| only.contains(name));
    let work: Vec<(String, Vec<PathBuf>)> = found.into_iter().filter(|(name, _)| is_wanted(name)).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(String, Entry, Vec<RunningModel>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..LOAD_THREADS.min(work.len()) {
            scope.spawn(|| {
                while let Some((name, places)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (entry, running) = loader.model(name, places);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((name.clone(), entry, running));
                }
            });
        }
    });
    let (mut entries, mut running) = (BTreeMap::new(), Vec::new());
    for (name, entry, workers) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        entries.insert(name, entry);
        running.extend(workers);
    }
    let models = ModelMap::new(entries);
    let is_complete = models.is_complete();
    Ok(Loaded { models, running, is_complete })
}

/// Every sub-directory of a repository is a model.
fn directories(repository: &Path) -> Result<Vec<String>, Status> {
    let cannot = |error: std::io::Error| {
        Status::internal(format!("failed to stat the model repository '{}': {error}", repository.display()))
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(repository).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if !entry.path().is_dir() {
            continue;
        }
        match entry.file_name().into_string() {
            Ok(name) => names.push(name),
            Err(name) => warn!("ignoring '{}' in the model repository: its name is not UTF-8", name.to_string_lossy()),
        }
    }
    Ok(names)
}

struct Loader<'a> {
    settings: &'a Settings,
    backends: &'a NativeBackends,
    plugins: &'a Plugins,
}

impl From<model_config::Error> for Status {
    fn from(error: model_config::Error) -> Status {
        let message = error.to_string();
        match error {
            model_config::Error::Invalid { .. } => Status::invalid(message),
            model_config::Error::NotFound { .. } => Status::not_found(message),
            model_config::Error::Unsupported { .. } => Status::unsupported(message),
            model_config::Error::Internal { .. } => Status::internal(message),
        }
    }
}

/// What a model's directory says, before any backend has seen it.
struct Polled {
    config: ModelConfig,
    versions: Vec<i64>,
    has_file: bool,
}

impl Loader<'_> {
    fn model(&self, name: &str, places: &[PathBuf]) -> (Entry, Vec<RunningModel>) {
        let [directory] = places else {
            error!("failed to poll model '{name}': not unique across all model repositories");
            let reason = "model appears in two or more repositories".to_owned();
            return (Entry { reason, ..Entry::default() }, Vec::new());
        };
        let polled = match self.poll(name, directory) {
            Ok(polled) => polled,
            Err(status) => {
                error!("Poll failed for model directory '{name}': {}", status.message);
                return (Entry { reason: status.to_string(), ..Entry::default() }, Vec::new());
            }
        };
        let mut entry = Entry::default();
        let mut running = Vec::new();
        let mut failures = String::new();
        for &version in &polled.versions {
            info!("loading: {name}:{version}");
            match self.guarded_version(name, version, directory, &polled) {
                Ok(loaded) => {
                    entry.versions.insert(version, VersionState::Ready(Arc::clone(&loaded.model)));
                    running.push(loaded);
                }
                Err(status) => {
                    error!("failed to load '{name}' version {version}: {status}");
                    failures.push_str(&format!("version {version} is at UNAVAILABLE state: {status};"));
                    entry.versions.insert(version, VersionState::Unavailable(status.to_string()));
                }
            }
        }
        if !failures.is_empty() {
            // The versions of a model come and go together (schedulers.md section 10, "unit").
            for loaded in running.drain(..) {
                entry.versions.insert(loaded.model.version, VersionState::Unavailable("unloaded".to_owned()));
                loaded.stop();
            }
            error!("load failed for model '{name}': {failures}");
        } else if !polled.versions.is_empty() {
            info!("successfully loaded '{name}'");
        }
        if polled.versions.is_empty() {
            let text = "at least one version must be available under the version policy of model";
            let status = Status::invalid(format!("{text} '{name}'"));
            error!("failed to load '{name}': {status}");
            entry.reason = status.to_string();
        }
        (entry, running)
    }

    /// Reads, completes by rule and checks the configuration.
    fn poll(&self, name: &str, directory: &Path) -> Result<Polled, Status> {
        let layout = layout::scan(directory)?;
        for ignored in &layout.ignored {
            warn!("model '{name}': {}", ignored.warning());
        }
        let file = layout::config_file(directory, None);
        let mut config = match &file {
            None if !self.settings.auto_complete => {
                return Err(Status::not_found(format!("model configuration is not provided for model '{name}'")));
            }
            None => ModelConfig::default(),
            Some(file) => self.read(file)?,
        };
        normalize::normalize(&mut config, name, &layout)?;
        validate::at_poll(&config, name, !self.settings.auto_complete)?;
        let policy = model_config::VersionPolicy::from_config(config.version_policy.as_ref());
        let selection = policy.select(&layout.versions);
        for absent in &selection.absent {
            warn!("model '{name}': version {absent} is specified by its version policy but is not found");
        }
        Ok(Polled { config, versions: selection.versions, has_file: file.is_some() })
    }

    fn read(&self, file: &Path) -> Result<ModelConfig, Status> {
        let shown = file.to_string_lossy();
        let text = std::fs::read(file)
            .map_err(|error| Status::internal(format!("failed to read text proto from {shown}: {error}")))?;
        let document = model_config::parse(&shown, &text)
            .map_err(|error| Status::internal(format!("failed to read text proto from {shown}: {error}")))?;
        support::check(&document.message, Some(&document.positions), |backend| NATIVE_NAMES.contains(&backend))
            .map_err(|error| Status::unsupported(error.to_string()))?;
        Ok(model_config::from_dynamic(&document.message)?)
    }

    fn backend(&self, config: &ModelConfig, directory: &Path, version: &Path) -> Result<Arc<dyn Backend>, Status> {
        if config.runtime.is_empty()
            && let Some(native) = self.backends.get(&config.backend)
        {
            return Ok(native);
        }
        let settings = (self.settings.backend_settings)(&config.backend);
        self.plugins.find(&config.backend, &config.runtime, directory, version, &config.name, &settings)
    }

    /// A backend that panics fails its version, not the server.
    fn guarded_version(
        &self,
        name: &str,
        version: i64,
        directory: &Path,
        polled: &Polled,
    ) -> Result<RunningModel, Status> {
        let load = AssertUnwindSafe(|| self.version(name, version, directory, polled));
        catch_unwind(load).unwrap_or_else(|_| Err(Status::internal("the backend panicked while it loaded the model")))
    }

    fn version(&self, name: &str, version: i64, directory: &Path, polled: &Polled) -> Result<RunningModel, Status> {
        let started = Instant::now();
        let version_directory = layout::version_dir(directory, version);
        let backend = self.backend(&polled.config, directory, &version_directory)?;
        let statistics: Arc<ModelStatistics> = Arc::default();
        let context = Arc::new(ModelContext {
            name: name.to_owned(),
            version,
            directory: directory.to_owned(),
            version_directory,
            config: polled.config.clone(),
            auto_complete: self.settings.auto_complete,
            settings: (self.settings.backend_settings)(&polled.config.backend),
            statistics: Arc::clone(&statistics),
            metrics: Arc::clone(&self.settings.metrics),
            pool: self.settings.pool.clone(),
            worker_cpu_count: self.settings.worker_cpu_count,
        });
        let model = backend.create_model(Arc::clone(&context))?;
        let completed = model.completed_config();
        if completed.is_none() && !polled.has_file {
            return Err(Status::not_found(format!("model configuration is not provided for model '{name}'")));
        }
        if let Some(completed) = &completed {
            // What a backend adds is held to what this version honours, as a file is.
            support::check(&model_config::to_dynamic(completed)?, None, |backend| NATIVE_NAMES.contains(&backend))
                .map_err(|error| Status::unsupported(format!("the backend completed the configuration: {error}")))?;
        }
        let config = completed.unwrap_or_else(|| polled.config.clone());
        let spec = Arc::new(resolve(config, &*backend)?);
        let labels = labels::load(name, directory, &spec.config.output)?;
        let plan = Plan {
            warmup: warmup::resolve(&spec, directory)?,
            spec: Arc::clone(&spec),
            model,
            context: Arc::clone(&context),
            attributes: backend.attributes(),
            policies: Arc::clone(&self.settings.host_policies),
            worker_cpus: self.settings.worker_cpus.clone(),
        };
        let scheduler = Arc::new(Direct::new(Arc::clone(&statistics)));
        let source: Arc<dyn PayloadSource> = scheduler.clone();
        let instances = Instances::start(&plan, &source)?;
        let scheduler: Arc<dyn Scheduler> = scheduler;
        let load_duration_secs = started.elapsed().as_secs_f64();
        let served =
            ServedModel { name: name.to_owned(), version, spec, statistics, scheduler, labels, load_duration_secs };
        Ok(RunningModel { model: Arc::new(served), instances })
    }
}

/// Defaults and checks after the backend's own completion.
fn resolve(mut config: ModelConfig, backend: &dyn Backend) -> Result<ModelSpec, Status> {
    normalize::fill_defaults(&mut config);
    normalize::instance_groups(&mut config, &backend.attributes().preferred_groups);
    validate::at_load(&config)?;
    Ok(ModelSpec::new(config)?)
}
