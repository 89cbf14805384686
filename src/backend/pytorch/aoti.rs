//! Platform `torch_aoti`: models that AOTInductor compiled to a library, in `.pt2` packages
//! (contract/frameworks.md section 1a).
//!
//! A package is a zip archive whose library has a C interface, so neither a compiler nor C++ is needed to run it: its
//! library is copied to memory, opened and called. It is native code for one kind of CPU.

mod archive;
mod bindings;
mod call_spec;
mod host;
mod input_checks;
mod instance;
mod names;
mod plan;
mod runners;
mod settings;

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend::model_file::model_file;
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

use self::bindings::Api;
use self::instance::AotiInstance;
use self::plan::Plan;
use self::runners::{Runner, Runners, SharedRunners};
use self::settings::Settings;
use crate::torch::Torch;
use crate::torchscript::threads;

/// The `platform` of configurations whose models are packages.
pub const PLATFORM: &str = "torch_aoti";

const DEFAULT_FILE: &str = "model.pt2";

/// One version of a model.
pub struct AotiModel {
    api: &'static Api,
    context: Arc<ModelContext>,
    is_shared: bool,
    /// The threads of an operator.
    intra_op_threads: i32,
    shared: SharedRunners,
}

/// Holds a model against what is known of it without opening it.
pub fn examine(context: &ModelContext) -> Result<(), Status> {
    Settings::parse(context)?;
    let path = model_path(context)?;
    if path.is_file() { Ok(()) } else { Err(runners::unreachable(&path)) }
}

/// Opens a model.
pub fn create_model(context: Arc<ModelContext>, torch: &'static Torch) -> Result<Arc<dyn Model>, Status> {
    Ok(Arc::new(AotiModel::open(torch, context)?))
}

impl AotiModel {
    /// Reads the model's parameters. The package is opened by the first instance, because it has as many runners as
    /// there are instances.
    pub fn open(torch: &'static Torch, context: Arc<ModelContext>) -> Result<AotiModel, Status> {
        let settings = Settings::parse(&context)?;
        let api = Api::get(torch).map_err(|error| {
            Status::unavailable(format!("PyTorch {} at {} {error}", torch.version(), torch.path().display()))
        })?;
        if context.auto_complete {
            tracing::warn!(
                "Auto-complete configuration is not supported for Inductor models. Skipping auto-complete for model \
                 \"{}\".",
                context.name
            );
        }
        let intra_op_threads =
            threads::intra_op_count(settings.intra_op_threads, &context.name, context.worker_cpu_count);
        if let Some(count) = settings.inter_op_threads {
            threads::set_inter_op_count(count, &context.name, |count| api.set_inter_op_threads(torch, count));
        }
        let (is_shared, shared) = (settings.is_shared, SharedRunners::default());
        Ok(AotiModel { api, context, is_shared, intra_op_threads, shared })
    }

    fn instance(&self, context: InstanceContext) -> Result<AotiInstance, Status> {
        let runner = self.runner(&context)?;
        if context.kind == Kind::Gpu {
            // The package has been compiled for the CPU: the runner accepts no other.
            tracing::warn!(
                "instance '{}' is for a GPU and computes on the CPU, for which its package was compiled",
                context.name
            );
        }
        let runners = runner.of();
        let plan = Plan::new(&context.name, &context.spec, &runners.inputs, &runners.outputs)?;
        // The thread that creates an instance is the one that runs it.
        self.api.prepare_thread(self.intra_op_threads);
        tracing::debug!("operators of instance '{}' use {} threads", context.name, self.api.threads());
        Ok(AotiInstance::new(context, self.api, runner, plan))
    }

    fn runner(&self, context: &InstanceContext) -> Result<Runner, Status> {
        let path = model_path(&self.context)?;
        let open = |count| Runners::open(self.api, &self.context.name, &path, count);
        match self.is_shared {
            true => self.shared.take(|| open(context.spec.instances.len())),
            false => SharedRunners::default().take(|| open(1)),
        }
    }
}

impl Model for AotiModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        let (model, instance) = (self.context.name.clone(), context.name.clone());
        match self.instance(context) {
            Ok(instance) => Ok(Box::new(instance)),
            Err(mut status) => {
                let text = &status.message;
                status.message = format!(
                    "failed to create instance \"{instance}\" for inductor model \"{model}\": Failed to create \
                     ModelInstanceState for model \"{model}\": {text}"
                )
                .into();
                Err(status)
            }
        }
    }
}

/// `<version>/<default_model_filename>`, which stays in the version's directory.
fn model_path(context: &ModelContext) -> Result<PathBuf, Status> {
    model_file(context, None, DEFAULT_FILE)
}

#[cfg(test)]
mod tests;
