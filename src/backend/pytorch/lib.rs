//! `pytorch`: models of PyTorch, run by the library of a PyTorch that is located when the first of them is loaded
//! (contract/frameworks.md section 1).
//!
//! The configuration's `platform` chooses how a model is run: `torch_aoti` is a package that was compiled ahead of
//! time, every other one a TorchScript module.

pub mod aoti;
mod element;
#[cfg(test)]
mod fixtures;
pub mod torch;
mod torchscript;

use std::sync::Arc;

use nereid_backend::runtime_search::Surroundings;
use nereid_backend::{Attributes, Backend, Model, ModelContext};
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

/// Its name in configurations.
pub const NAME: &str = "pytorch";

/// The backend. The library is not opened before a model needs it.
#[derive(Debug, Default)]
pub struct PytorchBackend;

impl Backend for PytorchBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn attributes(&self) -> Attributes {
        // If only a build for the host is found, models that do not request a GPU stay on the host. A library that a
        // flag names is not known here yet.
        let found = Surroundings::of_process(&torch::RUNTIME, None).candidate(&torch::RUNTIME);
        let on_gpu = found.is_ok_and(|library| torch::RUNTIME.computes_on_gpus(&library));
        let on_gpu = on_gpu.then(|| PreferredGroup::new(Kind::Gpu, 1));
        let preferred_groups = on_gpu.into_iter().chain([PreferredGroup::new(Kind::Cpu, 1)]).collect();
        Attributes { preferred_groups, parallel_instance_loading: true, ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        match context.config.platform == aoti::PLATFORM {
            true => aoti::examine(context)?,
            false => torchscript::examine(context)?,
        }
        Surroundings::of_process(&torch::RUNTIME, context.setting("library")).candidate(&torch::RUNTIME)?;
        Ok(())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        tracing::info!("Model platform for '{}': '{}'.", context.name, context.config.platform);
        let torch = torch::load(&Surroundings::of_process(&torch::RUNTIME, context.setting("library")))?;
        match context.config.platform == aoti::PLATFORM {
            true => aoti::create_model(context, torch),
            false => torchscript::create_model(context, torch),
        }
    }
}
