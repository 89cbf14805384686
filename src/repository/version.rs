//! Loading of one version of a model, from its directory to the threads that execute it.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Settings;
use super::agents::AgentModels;
use super::composed::Composed;
use super::models::ModelId;
use super::poll::{Polled, honoured, shown};
use super::supported_gpus;
use crate::native_backends::{NativeBackends, check_version};
use nereid_backend::instance::{Instances, Plan, confined};
use nereid_backend::plugin::{Located, PluginSettings, Plugins};
use nereid_backend::{Attributes, Backend, ExecutionPolicy, Model, ModelContext, python};
use nereid_gpu::Gpus;
use nereid_model_config::labels::{self, Labels};
use nereid_model_config::provenance::Provenance;
use nereid_model_config::{ModelSpec, layout, normalize, validate, warmup};
use nereid_observe::log::verbose;
use nereid_observe::metrics::is_customizable;
use nereid_observe::statistics::ModelStatistics;
use nereid_request::{LoadUnderWay, Status};
use nereid_scheduler::ensemble::labels_of_steps;
use nereid_scheduler::{BatchStrategy, Purpose, Registration, Scheduling, ServedModel};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_metrics::MetricControl;
use nereid_wire::inference::model_metrics::metric_control::MetricOptions;

/// How long a load waits for an instance to end: that may be in a long execution.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);

/// A directory of this host and the value that keeps its files there.
#[derive(Clone)]
pub struct Directory {
    pub path: PathBuf,
    /// A temporary copy is removed when the last reference is dropped.
    pub keep: Arc<dyn Any + Send + Sync>,
    /// The agents that acted on these files.
    pub agents: Option<Arc<AgentModels>>,
}

/// Opens versions. One value lives as long as the server and keeps the list of open libraries.
pub struct Loader {
    settings: Arc<Settings>,
    backends: NativeBackends,
    plugins: Plugins,
}

/// A version that serves, with its threads.
pub struct RunningVersion {
    pub served: Arc<ServedModel>,
    /// The versions served under older configurations by the same instances.
    former: Vec<Weak<ServedModel>>,
    instances: Instances,
    /// The model's own batching, which ends before the model does.
    strategy: Option<Arc<dyn BatchStrategy>>,
    /// The model, from which further instances are made.
    model: Arc<dyn Model>,
    context: Arc<ModelContext>,
    attributes: Attributes,
    directory: Directory,
    /// The resources that its instances request, where the rate limiter is on. Dropped after them.
    registration: Option<Registration>,
}

impl RunningVersion {
    /// Names of its instances.
    pub fn instance_names(&self) -> Vec<String> {
        self.instances.names()
    }

    /// References to the version: from requests in flight and from maps of models.
    pub fn holders(&self) -> usize {
        let former: usize = self.former.iter().map(Weak::strong_count).sum();
        former + Arc::strong_count(&self.served) - 1
    }

    /// Waits until the instances that it lost have ended.
    pub fn settle(&self) {
        self.instances.settle(SETTLE_WITHIN);
    }

    /// Counts a serving version for the agents' model, which stays as long as a version of it serves. An ensemble's
    /// agents are kept until its parts are back.
    pub fn enter(&self) {
        if let Some(agents) = self.directory.agents.as_ref().filter(|_| !self.is_ensemble()) {
            agents.enter();
        }
    }

    /// Counts a version that no longer serves.
    pub fn leave(&self) {
        if let Some(agents) = self.directory.agents.as_ref().filter(|_| !self.is_ensemble()) {
            agents.leave();
        }
    }

    fn is_ensemble(&self) -> bool {
        self.served.spec.platform == normalize::ENSEMBLE_PLATFORM
    }

    /// Finishes the accepted requests and ends. Later requests are refused.
    pub fn end(self) {
        self.served.scheduler.stop();
        self.served.scheduler.close();
        self.instances.join();
        if let Some(strategy) = &self.strategy {
            strategy.close();
        }
    }
}

impl Loader {
    pub fn new(settings: Arc<Settings>) -> Loader {
        let plugins = Plugins::new(
            PluginSettings {
                directory: settings.backend_directory.clone(),
                auto_complete: settings.auto_complete,
                min_compute_capability: settings.min_compute_capability,
                pool: settings.pool.clone(),
                gpus: Arc::clone(&settings.gpus),
            },
            settings.plugins,
        );
        Loader { settings, backends: NativeBackends::default(), plugins }
    }

    /// Loads a version; `--model-load-retry-count` bounds the retries. `operation`: the number of the calling
    /// operation.
    pub fn load(
        &self,
        id: &ModelId,
        version: i64,
        directory: &Directory,
        polled: &Polled,
        operation: u64,
    ) -> Result<RunningVersion, Status> {
        let mut retries = self.settings.load_retry_count;
        loop {
            info!("loading: {}:{version}", id.name);
            // A panic of a backend fails its version, not the server.
            let load = AssertUnwindSafe(|| self.attempt(id, version, directory, polled, operation));
            let panicked = Status::internal("the backend panicked while it loaded the model");
            match catch_unwind(load).unwrap_or(Err(panicked)) {
                Err(status) if retries > 0 => {
                    info!("loading '{}' version {version} again after a failure: {status}", id.name);
                    retries -= 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn backend(&self, config: &ModelConfig, directory: &Path, version: &Path) -> Result<Arc<dyn Backend>, Status> {
        if config.platform == normalize::ENSEMBLE_PLATFORM {
            return Ok(Arc::new(Composed));
        }
        let settings = (self.settings.backend_settings)(&config.backend);
        check_version(&config.backend, &settings)?;
        log_default(&settings);
        if let Some(native) = self.backends.named(&config.backend, &config.runtime) {
            return Ok(native);
        }
        match self.plugins.locate(&config.backend, &config.runtime, directory, version, &config.name)? {
            Located::Library { directory, file } => {
                self.plugins.loader().load(&config.backend, &directory, &file, &settings)
            }
            Located::Script { directory } => Ok(self.backends.python_based(directory)),
        }
    }

    fn attempt(
        &self,
        id: &ModelId,
        version: i64,
        directory: &Directory,
        polled: &Polled,
        operation: u64,
    ) -> Result<RunningVersion, Status> {
        let started = Instant::now();
        let name = &id.name;
        let version_directory = layout::version_dir(&directory.path, version);
        let backend = self.backend(&polled.config, &directory.path, &version_directory)?;
        let config = self.with_script(&polled.config, &*backend);
        warn_of_families(&polled.config);
        let wanted = self.settings.metrics_config.wanted(|family| bounds_of(&polled.config, family));
        let statistics = Arc::new(ModelStatistics::with(wanted));
        statistics.set_model(name, version);
        let context = Arc::new(ModelContext {
            name: name.to_owned(),
            version,
            directory: directory.path.clone(),
            version_directory,
            config: config.clone(),
            auto_complete: self.settings.auto_complete,
            // A Python-based backend has the settings of the Python backend.
            settings: (self.settings.backend_settings)(backend.name()),
            backend_directory: self.settings.backend_directory.clone(),
            statistics: Arc::clone(&statistics),
            metrics: Arc::clone(&self.settings.metrics),
            pool: self.settings.pool.clone(),
            worker_cpu_count: self.settings.worker_cpu_count,
            host: self.settings.host.clone(),
            load: LoadUnderWay::default(),
            gpus: Arc::clone(&self.settings.gpus),
        });
        let _under_way = context.load.begin(operation);
        // A runtime may start its threads as soon as it opens a model.
        let model = confined(&self.settings.worker_cpus, || backend.create_model(Arc::clone(&context)))?;
        let completed = model.completed_config();
        if completed.is_none() && !polled.has_config {
            return Err(Status::not_found(format!("model configuration is not provided for model '{name}'")));
        }
        if let Some(completed) = &completed {
            // What a backend adds must be supported by this version, as for a file.
            honoured(completed)
                .map_err(|error| Status::unsupported(format!("the backend completed the configuration: {error}")))?;
        }
        let config = completed.unwrap_or(config);
        let completed = polled.written.as_ref().map(|_| config.clone());
        let spec = Arc::new(resolve(config, &*backend, &self.settings.gpus)?);
        let provenance = provenance(polled, completed.as_ref(), &spec.config);
        verbose!(1, object = %shown(&spec.config), "model configuration:");
        validate::data_files(&spec.config, &directory.path).first()?;
        let labels = self.labels(&spec, directory)?;
        // Before any instance is made (contract/model_config.md section 6, row "rate limiter").
        let limiter = self.settings.scheduling.limiter.as_ref();
        let registration = limiter.map(|limiter| limiter.register(&spec.config.instance_group)).transpose()?;
        let strategy = {
            let was_sequence = matches!(polled.config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)));
            let backend_directory = self.settings.backend_directory.join(&spec.config.backend);
            self.plugins.loader().strategy_of(&spec, was_sequence, &*model, &context, &backend_directory)?
        };
        let purpose = Purpose {
            spec: Arc::clone(&spec),
            version,
            statistics: Arc::clone(&statistics),
            directory: directory.path.clone(),
            pool: self.settings.pool.clone(),
            strategy: strategy.clone(),
        };
        let Scheduling { scheduler, source } = nereid_scheduler::create(&purpose, &self.settings.scheduling)?;
        let attributes = backend.attributes();
        if attributes.execution_policy == ExecutionPolicy::DeviceBlocking
            && matches!(spec.config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)))
        {
            info!(
                "Overriding execution policy to \"TRITONBACKEND_EXECUTION_BLOCKING\" for sequence model \"{}\"",
                spec.name
            );
        }
        let plan = self.plan(&spec, &model, &context, &attributes, directory)?;
        let instances = Instances::start(&plan, &source)?;
        let served = ServedModel {
            name: name.to_owned(),
            namespace: id.namespace.clone(),
            version,
            spec,
            statistics,
            scheduler,
            checks: Arc::clone(instances.checks()),
            labels,
            load_duration_secs: started.elapsed().as_secs_f64(),
            provenance,
            load: Arc::default(),
            pins: AtomicUsize::new(0),
        };
        Ok(RunningVersion {
            served: Arc::new(served),
            former: Vec::new(),
            instances,
            strategy,
            model,
            context,
            attributes,
            directory: directory.clone(),
            registration,
        })
    }

    /// Labels by output: from its own file, or, in an ensemble, those of the step that makes it.
    fn labels(&self, spec: &ModelSpec, directory: &Directory) -> Result<BTreeMap<String, Arc<Labels>>, Status> {
        let own = labels::load(&spec.name, &directory.path, &spec.config.output)?;
        let models = self.settings.scheduling.models.as_deref();
        let mut labels = models.map(|models| labels_of_steps(spec, models)).unwrap_or_default();
        labels.extend(own.into_iter().map(|(output, labels)| (output, Arc::new(labels))));
        Ok(labels)
    }

    /// Adds the fields that a Python-based backend declares for its models.
    fn with_script(&self, config: &ModelConfig, backend: &dyn Backend) -> ModelConfig {
        let mut config = config.clone();
        if backend.name() == python::NAME && config.backend != python::NAME {
            let base = self.settings.backend_directory.join(&config.backend);
            python::complete_based(&mut config, &base);
        }
        config
    }

    fn plan(
        &self,
        spec: &Arc<ModelSpec>,
        model: &Arc<dyn Model>,
        context: &Arc<ModelContext>,
        attributes: &Attributes,
        directory: &Directory,
    ) -> Result<Plan, Status> {
        Ok(Plan {
            warmup: warmup::resolve(spec, &directory.path)?,
            spec: Arc::clone(spec),
            model: Arc::clone(model),
            context: Arc::clone(context),
            attributes: attributes.clone(),
            policies: Arc::clone(&self.settings.host_policies),
            worker_cpus: self.settings.worker_cpus.clone(),
            spin: self.settings.worker_spin.clone(),
            run_to_completion: self.settings.scheduling.run_to_completion,
            stalls: self.settings.stalls.clone(),
        })
    }

    /// Registers with the rate limiter the resources that the instances of a version request from now on.
    fn register(&self, running: &RunningVersion, config: &ModelConfig) -> Result<(), Status> {
        match (&self.settings.scheduling.limiter, &running.registration) {
            (Some(limiter), Some(registration)) => limiter.change(registration, &config.instance_group),
            _ => Ok(()),
        }
    }

    /// Applies, while the version serves, a polled configuration that differs in instance groups and version policy
    /// only. On an error nothing has changed. `operation`: the number of the calling operation.
    pub fn change_placement(
        &self,
        running: &mut RunningVersion,
        polled: &ModelConfig,
        operation: u64,
    ) -> Result<(), Status> {
        let old = &running.served.spec.config;
        let mut config = ModelConfig {
            version_policy: polled.version_policy.clone(),
            instance_group: polled.instance_group.clone(),
            ..old.clone()
        };
        let gpus = supported_gpus(&self.settings.gpus);
        normalize::instance_groups(&mut config, &running.attributes.preferred_groups, &gpus);
        if config == *old {
            return Ok(());
        }
        validate::at_load(&config, &gpus)?;
        let spec = Arc::new(ModelSpec::new(config)?);
        if spec.config.instance_group != old.instance_group {
            let RunningVersion { model, context, attributes, directory, .. } = &*running;
            let plan = self.plan(&spec, model, context, attributes, directory)?;
            self.register(running, &spec.config)?;
            let _under_way = running.context.load.begin(operation);
            if let Err(status) = running.instances.update(&plan) {
                // The old registration fits unless a model was loaded in between that excludes it. The limits are then
                // checked against the registered resources, and the existing instances wait for the available ones.
                if let Err(error) = self.register(running, old) {
                    warn!("the instances of '{}' request resources that no longer exist: {error}", context.name);
                }
                return Err(status);
            }
            info!("the instances of '{}' version {} were updated", context.name, context.version);
        }
        running.former.retain(|former| former.strong_count() > 0);
        running.former.push(Arc::downgrade(&running.served));
        running.served = Arc::new(running.served.with_spec(spec));
        Ok(())
    }
}

/// Where the values of a model's configuration come from, where that is kept. A model serves without it too.
fn provenance(polled: &Polled, completed: Option<&ModelConfig>, resolved: &ModelConfig) -> Option<Arc<Provenance>> {
    let found = polled.written.as_ref()?.provenance(&polled.config, completed?, resolved);
    let failed = |error: &nereid_model_config::Error| {
        warn!("the sources of the configuration of '{}' are not known: {error}", resolved.name);
    };
    found.inspect_err(failed).ok().map(Arc::new)
}

/// Logs the one setting that Triton adds to those of each backend, in Triton's words.
fn log_default(settings: &[(String, String)]) {
    const DEFAULT: &str = "default-max-batch-size";
    match settings.iter().rfind(|(key, _)| key == DEFAULT) {
        Some((_, value)) => verbose!(1, "Found overwritten default setting: {DEFAULT},{value}"),
        None => verbose!(1, "Adding default backend config setting: {DEFAULT},4"),
    }
}

/// Warns of families in a model's `model_metrics` that are not customizable.
fn warn_of_families(config: &ModelConfig) {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    for identifier in controls.filter_map(|control| control.metric_identifier.as_ref()) {
        if !is_customizable(&identifier.family) {
            warn!(
                "Metric family '{}' in 'metric_identifier' is not a customizable metric in Triton core.",
                identifier.family
            );
        }
    }
}

/// The bounds that a model's `model_metrics` give a family of histograms; the last ones if there are several.
fn bounds_of(config: &ModelConfig, family: &str) -> Option<Vec<f64>> {
    let controls = config.model_metrics.iter().flat_map(|metrics| metrics.metric_control.iter().rev());
    let of = |control: &MetricControl| match (&control.metric_identifier, &control.metric_options) {
        (Some(identifier), Some(MetricOptions::HistogramOptions(options))) if identifier.family == family => {
            Some(options.buckets.clone())
        }
        _ => None,
    };
    controls.map(of).find(Option::is_some).flatten()
}

/// Defaults and checks after the backend's own completion.
fn resolve(mut config: ModelConfig, backend: &dyn Backend, gpus: &Gpus) -> Result<ModelSpec, Status> {
    let gpus = supported_gpus(gpus);
    normalize::fill_defaults(&mut config);
    normalize::instance_groups(&mut config, &backend.attributes().preferred_groups, &gpus);
    validate::at_load(&config, &gpus)?;
    Ok(ModelSpec::new(config)?)
}
