//! One version of a TorchScript model: its file, and the modules of its instances.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::instance::TorchScriptInstance;
use super::plan::Plan;
use super::settings::Settings;
use super::threads;
use crate::torch::{Module, Shim};
use nereid_backend::model_file::existing_model_file;
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

const DEFAULT_FILE: &str = "model.pt";

/// A model version, with the data that its instances share.
pub struct TorchScriptModel {
    context: Arc<ModelContext>,
    shim: &'static Shim,
    settings: Settings,
    /// The modules that instances share, by what they are placed on; `None`: instances have modules of their own.
    shared: Option<Mutex<BTreeMap<Placement, Arc<Module>>>>,
}

/// Where a module's tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Placement {
    Host,
    /// KIND_MODEL: where the file has them.
    AsSaved,
}

impl TorchScriptModel {
    pub fn open(context: Arc<ModelContext>, shim: &'static Shim) -> Result<TorchScriptModel, Status> {
        let settings = Settings::parse(&context)?;
        let name = &context.name;
        if context.auto_complete {
            tracing::warn!(
                "skipping model configuration auto-complete for '{name}': not supported for pytorch backend"
            );
        }
        settings.log_lines(name).iter().for_each(|line| tracing::info!("{line}"));
        threads::apply(shim, &settings, name, context.worker_cpu_count);
        let shared = settings.weight_sharing.unwrap_or(false).then(Mutex::default);
        Ok(TorchScriptModel { context, shim, settings, shared })
    }

    /// The module of an instance: of all instances with the same placement one, if they share it.
    pub(super) fn module(&self, instance: &InstanceContext) -> Result<Arc<Module>, Status> {
        let placement = match instance.kind {
            Kind::Model => Placement::AsSaved,
            Kind::Gpu => {
                return Err(Status::unsupported(format!(
                    "instance '{}' of model '{}' is for a GPU, where the pytorch backend does not run models: use \
                     KIND_CPU or KIND_MODEL in its instance_group",
                    instance.name, self.context.name
                )));
            }
            _ => Placement::Host,
        };
        let Some(shared) = &self.shared else { return self.load(instance, placement).map(Arc::new) };
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = shared.get(&placement) {
            tracing::info!("Reusing TorchScript model for instance '{}'", self.context.name);
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(self.load(instance, placement)?);
        shared.insert(placement, Arc::clone(&module));
        Ok(module)
    }

    fn load(&self, instance: &InstanceContext, placement: Placement) -> Result<Module, Status> {
        let path = module_path(&self.context, instance.filename_for_device())?;
        let failed = |text: &dyn std::fmt::Display| {
            Status::internal(format!("failed to load model '{}': {text}", self.context.name))
        };
        let bytes = fs::read(&path).map_err(|error| failed(&format_args!("{}: {error}", path.display())))?;
        let device = match placement {
            Placement::Host => Some(c"cpu"),
            Placement::AsSaved => None,
        };
        Module::load(self.shim, &bytes, device, self.settings.options.is_inference).map_err(|text| failed(&text))
    }
}

impl Model for TorchScriptModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        let module = self.module(&context)?;
        let plan = Plan::new(&context.spec, module.arguments())?;
        Ok(Box::new(TorchScriptInstance::new(context, self.shim, module, plan, self.settings.options)))
    }
}

/// `<version>/<default_model_filename>`, or `model.pt`. `for_device` replaces the default.
pub fn module_path(context: &ModelContext, for_device: Option<&str>) -> Result<PathBuf, Status> {
    existing_model_file(context, for_device, DEFAULT_FILE)
}
