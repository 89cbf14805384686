//! One version of a TorchScript model: its file, and the modules of its instances.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::instance::TorchScriptInstance;
use super::plan::Plan;
use super::settings::Settings;
use super::threads;
use crate::torch::{Module, Place, RUNTIME, Shim, Torch};
use nereid_backend::model_file::existing_model_file;
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

const DEFAULT_FILE: &str = "model.pt";

/// A model version, with the data that its instances share.
pub struct TorchScriptModel {
    context: Arc<ModelContext>,
    torch: &'static Torch,
    shim: &'static Shim,
    settings: Settings,
    /// The modules that instances share, by what they are placed on; `None`: instances have modules of their own.
    shared: Option<Mutex<BTreeMap<Placement, Arc<Module>>>>,
}

/// Where a module's tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Placement {
    Host,
    /// On the GPU of this number.
    Gpu(i32),
    /// KIND_MODEL: where the file has them.
    AsSaved,
}

impl TorchScriptModel {
    pub fn open(
        context: Arc<ModelContext>,
        torch: &'static Torch,
        shim: &'static Shim,
    ) -> Result<TorchScriptModel, Status> {
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
        Ok(TorchScriptModel { context, torch, shim, settings, shared })
    }

    /// Opens what the library needs for instances of this kind.
    fn prepare(&self, instance: &InstanceContext) -> Result<Placement, Status> {
        let (torch, name) = (self.torch, &instance.name);
        match instance.kind {
            Kind::Gpu => {
                if self.context.gpus.is_simulated() {
                    let text = format!("instance '{name}': PyTorch cannot compute on simulated GPUs");
                    return Err(Status::unsupported(text));
                }
                torch.open_cuda().map_err(|error| {
                    Status::unavailable(format!(
                        "instance '{name}' is for a GPU, and PyTorch {} at {} cannot use it: {error}. Name a PyTorch \
                         for CUDA by --backend-config=pytorch,library=<path>, or use KIND_CPU",
                        torch.version(),
                        torch.path().display()
                    ))
                })?;
                if self.settings.options.returns_memory && !self.shim.returns_memory() {
                    tracing::warn!(
                        "ENABLE_CACHE_CLEANING of model '{}' has no effect: it needs PyTorch 2.9, this is {}",
                        self.context.name,
                        torch.version()
                    );
                }
                Ok(Placement::Gpu(instance.device))
            }
            Kind::Model => {
                // The file may have tensors on GPUs.
                if RUNTIME.computes_on_gpus(torch.path()) && !self.context.gpus.ids().is_empty() {
                    let opened = torch.open_cuda();
                    opened.unwrap_or_else(|error| tracing::warn!("instance '{name}' has no GPUs: {error}"));
                }
                Ok(Placement::AsSaved)
            }
            _ => Ok(Placement::Host),
        }
    }

    /// The module of an instance: of all instances with the same placement one, if they share it.
    pub(super) fn module(&self, instance: &InstanceContext) -> Result<Arc<Module>, Status> {
        let placement = self.prepare(instance)?;
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

    /// A stream for an instance.
    fn place(&self, device: i32) -> Result<Place, Status> {
        let failed = |text| Status::internal(format!("failed to create a stream on GPU {device}: {text}"));
        let _shared = nereid_gpu::capture::shared();
        self.shim.place(&cuda(device)).map_err(failed)
    }

    fn load(&self, instance: &InstanceContext, placement: Placement) -> Result<Module, Status> {
        let path = module_path(&self.context, instance.filename_for_device())?;
        let failed = |text: &dyn std::fmt::Display| {
            Status::internal(format!("failed to load model '{}': {text}", self.context.name))
        };
        let bytes = fs::read(&path).map_err(|error| failed(&format_args!("{}: {error}", path.display())))?;
        let device = match placement {
            Placement::Host => Some(c"cpu".to_owned()),
            Placement::Gpu(number) => Some(cuda(number)),
            Placement::AsSaved => None,
        };
        // The library allocates memory of the GPU, which breaks the recording of another thread.
        let _shared = (placement != Placement::Host).then(nereid_gpu::capture::shared);
        Module::load(self.shim, &bytes, device.as_deref(), self.settings.options.is_inference)
            .map_err(|text| failed(&text))
    }
}

impl Model for TorchScriptModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        let module = self.module(&context)?;
        let plan = Plan::new(&context.spec, module.arguments())?;
        let place = match context.kind {
            Kind::Gpu => Some(self.place(context.device)?),
            _ => None,
        };
        Ok(Box::new(TorchScriptInstance::new(context, self.shim, module, place, plan, self.settings.options)))
    }
}

/// The library's name of a GPU.
fn cuda(number: i32) -> CString {
    CString::new(format!("cuda:{number}")).unwrap_or_default()
}

/// `<version>/<default_model_filename>`, or `model.pt`. `for_device` replaces the default.
pub fn module_path(context: &ModelContext, for_device: Option<&str>) -> Result<PathBuf, Status> {
    existing_model_file(context, for_device, DEFAULT_FILE)
}
