//! Opening one version of a model: its plan, its configuration, its engines, its instances.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend::model_file::model_file;
use nereid_backend::runtime_search::OpenedLibrary;
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_gpu::{Gpu, Lanes};
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::model_optimization_policy::ModelPriority;
use nereid_wire::inference::{ModelConfig, ModelInstanceGroup};

use super::api::{Engine, Library, Runtime, open_plugins};
use super::checks::{self, Checks};
use super::completion::complete;
use super::contexts::Contexts;
use super::described::Described;
use super::graphs::Wanted;
use super::instance::TensorRtInstance;
use super::plan::Plan;
use super::settings::{BackendSettings, allocation_strategy, dla_core, profiles};

const DEFAULT_FILE: &str = "model.plan";

/// A model version.
pub struct TensorRtModel {
    context: Arc<ModelContext>,
    library: &'static Library,
    settings: BackendSettings,
    completed: Option<ModelConfig>,
    loading: Mutex<Loading>,
}

/// A device, and the core of its Deep Learning Accelerator that is used.
type Place = (i32, Option<i64>);

/// What instances share.
#[derive(Default)]
struct Loading {
    runtimes: BTreeMap<Place, Arc<Runtime>>,
    /// Engines without open dimensions, and the one of auto-completion.
    engines: BTreeMap<Place, (PathBuf, Opened)>,
}

/// An engine and its description.
#[derive(Clone)]
struct Opened {
    engine: Arc<Engine>,
    described: Arc<Described>,
}

impl TensorRtModel {
    pub fn open(library: &'static Library, context: Arc<ModelContext>) -> Result<TensorRtModel, Status> {
        let settings = BackendSettings::parse(&context)?;
        let without_gpu = without_gpu(&context)
            .map(|reason| format!("{reason} (TensorRT {} is in {})", library.version(), library.path().display()));
        checks::check_kind(&context.name, Kind::Gpu, without_gpu.as_deref())?;
        super::settings::check_multi_device(&context)?;
        if context.gpus.is_simulated() && !library.is_for_simulated() {
            return Err(Status::unsupported(format!(
                "unable to load model '{}', TensorRT {} cannot compute on simulated GPUs",
                context.name,
                library.version()
            )));
        }
        if let Some(plugins) = &settings.plugins {
            open_plugins(plugins);
        }
        let loading = Mutex::default();
        let mut model = TensorRtModel { context, library, settings, completed: None, loading };
        if model.context.auto_complete {
            model.complete()?;
        }
        Ok(model)
    }

    /// Completes the configuration from the engine, if the first group is for GPUs.
    fn complete(&mut self) -> Result<(), Status> {
        let context = Arc::clone(&self.context);
        // Without groups there will be one for all GPUs: the backend prefers it, and there are GPUs.
        let default = ModelInstanceGroup { kind: Kind::Gpu.into(), ..ModelInstanceGroup::default() };
        let group = context.config.instance_group.first().unwrap_or(&default);
        if !matches!(group.kind(), Kind::Gpu | Kind::Auto) {
            return Ok(());
        }
        let first = group.gpus.first().copied();
        let gpu = first.map_or_else(|| context.gpus.iter().next(), |ordinal| context.gpus.get(ordinal));
        let Some(gpu) = gpu else { return Ok(()) };
        let path = plan_path(&context, filename_of(&context.config, gpu), &context.name)?;
        let opened = self.opened(gpu, dla_core(group), &path).map_err(|status| {
            let path = path.display();
            let message = format!("unable to load plan file to auto complete config: {path}: {}", status.message);
            Status { message: message.into(), ..status }
        })?;
        // The first instance gets the engine that was read here.
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        loading.engines.insert((gpu.id(), dla_core(group)), (path, opened.clone()));
        drop(loading);
        let mut config = context.config.clone();
        complete(&mut config, &opened.described)?;
        self.completed = Some(config);
        Ok(())
    }

    /// The engine of a plan on a device: shared, unless it has open dimensions.
    fn opened(&self, gpu: &Gpu, dla: Option<i64>, path: &Path) -> Result<Opened, Status> {
        gpu.enter()?;
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (gpu.id(), dla);
        let runtime = match loading.runtimes.get(&place) {
            Some(runtime) => Arc::clone(runtime),
            None => {
                let runtime = Arc::new(self.runtime(gpu, dla)?);
                loading.runtimes.insert(place, Arc::clone(&runtime));
                runtime
            }
        };
        if let Some((known, opened)) = loading.engines.get(&place)
            && known == path
        {
            let opened = opened.clone();
            // Instances do not share it.
            if opened.described.is_dynamic() {
                loading.engines.remove(&place);
            }
            return Ok(opened);
        }
        let opened = read(&runtime, path)?;
        if !opened.described.is_dynamic() {
            loading.engines.insert(place, (path.to_path_buf(), opened.clone()));
        }
        Ok(opened)
    }

    fn runtime(&self, gpu: &Gpu, dla: Option<i64>) -> Result<Runtime, Status> {
        let created = Runtime::new(self.library, gpu);
        let runtime = created.map_err(|text| Status::internal(format!("unable to create TensorRT runtime: {text}")))?;
        if let Some(core) = dla {
            let cores = runtime.dla_cores();
            let number = i32::try_from(core).ok().filter(|core| (0..cores).contains(core));
            runtime.set_dla_core(number.ok_or_else(|| {
                Status::invalid(format!(
                    "unable to create TensorRT runtime with DLA Core ID: {core}, available number of DLA cores: {cores}"
                ))
            })?);
        }
        if self.settings.is_version_compatible {
            runtime.allow_host_code();
        }
        Ok(runtime)
    }
}

/// Reads a plan.
fn read(runtime: &Arc<Runtime>, path: &Path) -> Result<Opened, Status> {
    let failed = |text: String| Status::internal(format!("unable to create TensorRT engine: {text}"));
    let plan = std::fs::read(path).map_err(|error| failed(format!("'{}' cannot be read: {error}", path.display())))?;
    let engine = Arc::new(runtime.engine(&plan).map_err(failed)?);
    let described = Arc::new(Described::of(&engine).map_err(failed)?);
    Ok(Opened { engine, described })
}

/// Why there is no GPU for the model.
pub fn without_gpu(context: &ModelContext) -> Option<&'static str> {
    match (context.gpus.iter().next(), context.gpus.is_supported()) {
        (Some(_), _) => None,
        (None, true) => Some("no GPU of this host is used"),
        (None, false) => Some("this host has no driver for NVIDIA GPUs"),
    }
}

/// The name of a plan that is for a device alone, by its compute capability.
fn filename_of<'a>(config: &'a ModelConfig, gpu: &Gpu) -> Option<&'a str> {
    let (major, minor) = gpu.description().compute_capability;
    config.cc_model_filenames.get(&format!("{major}.{minor}")).map(String::as_str)
}

/// `<version>/<file name>`, or `model.plan`. `for_device` replaces the common name; `user` is the model or instance for
/// messages.
pub fn plan_path(context: &ModelContext, for_device: Option<&str>, user: &str) -> Result<PathBuf, Status> {
    let path = model_file(context, for_device, DEFAULT_FILE)?;
    match path.exists() {
        true => Ok(path),
        false => Err(Status::unavailable(format!("unable to find '{}' for model instance '{user}'", path.display()))),
    }
}

impl Model for TensorRtModel {
    fn completed_config(&self) -> Option<ModelConfig> {
        self.completed.clone()
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        checks::check_kind(&self.context.name, context.kind, None)?;
        let spec = Arc::clone(&context.spec);
        checks::check_features(&spec.config)?;
        let Some(gpu) = context.gpu.clone() else {
            return Err(Status::unsupported(format!("instance '{}' has no GPU {}", context.name, context.device)));
        };
        let profiles = profiles(&context.group).map_err(Status::internal)?;
        let strategy = allocation_strategy(&self.context, &context.name)?;
        let path = plan_path(&self.context, filename_of(&spec.config, &gpu), &context.name)?;
        let Opened { engine, described } = self.opened(&gpu, dla_core(&context.group), &path)?;
        let checks = Checks { spec: &spec, engine: &described, instance: &context.name, profiles: &profiles };
        checks.check_profiles()?;
        checks.check_batch_size()?;
        let plan = Plan::new(&spec, &checks.inputs()?, &checks.outputs()?);
        let priority = spec.config.optimization.as_ref().map(|optimization| optimization.priority());
        if priority.is_some_and(|priority| priority != ModelPriority::PriorityDefault) {
            tracing::warn!("{}: optimization.priority has no effect: all streams have the same priority", context.name);
        }
        let lanes = Lanes::new(&gpu, self.context.gpus.pinned())?;
        let mut contexts = Contexts::new(&engine, &described, profiles, (strategy, &context.name), &lanes)?;
        contexts.record(&plan, &Wanted::of(&spec.config)?)?;
        Ok(Box::new(TensorRtInstance::new(context, lanes, plan, contexts)))
    }
}
