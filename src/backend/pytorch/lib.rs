//! `pytorch`: models of PyTorch, run by the library of a PyTorch that is located when the first of them is loaded
//! (contract/frameworks.md section 1).
//!
//! The configuration's `platform` chooses how a model is run: `torch_aoti` is a package that was compiled ahead of
//! time, every other one a TorchScript module.

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

/// `platform` of models that were compiled ahead of time.
const COMPILED_PLATFORM: &str = "torch_aoti";

/// The backend. The library is not opened before a model needs it.
#[derive(Debug, Default)]
pub struct PytorchBackend;

impl Backend for PytorchBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn attributes(&self) -> Attributes {
        let preferred_groups = vec![PreferredGroup::new(Kind::Cpu, 1)];
        Attributes { preferred_groups, parallel_instance_loading: true, ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        check_platform(&context.config.platform)?;
        torchscript::examine(context)?;
        Surroundings::of_process(&torch::RUNTIME, context.setting("library")).candidate(&torch::RUNTIME)?;
        Ok(())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        tracing::info!("Model platform for '{}': '{}'.", context.name, context.config.platform);
        check_platform(&context.config.platform)?;
        let torch = torch::load(&Surroundings::of_process(&torch::RUNTIME, context.setting("library")))?;
        torchscript::create_model(context, torch)
    }
}

fn check_platform(platform: &str) -> Result<(), Status> {
    match platform == COMPILED_PLATFORM {
        true => Err(Status::unsupported(
            "platform 'torch_aoti' is not built into this server: export the model as a TorchScript module",
        )),
        false => Ok(()),
    }
}
