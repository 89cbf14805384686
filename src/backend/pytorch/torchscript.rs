//! Models of platform `pytorch_libtorch`: TorchScript modules (contract/frameworks.md section 1).

mod batch;
mod instance;
mod model;
mod naming;
mod plan;
mod settings;
pub mod threads;

use std::sync::Arc;

pub(crate) use self::model::TorchScriptModel;
use self::settings::Settings;
use super::torch::{Shim, Torch};
use nereid_backend::runtime_search::Surroundings;
use nereid_backend::{Model, ModelContext};
use nereid_request::Status;

/// Checks what can be known without PyTorch.
pub fn examine(context: &ModelContext) -> Result<(), Status> {
    Settings::parse(context)?;
    model::module_path(context, None)?;
    Ok(())
}

pub fn create_model(context: Arc<ModelContext>, torch: &'static Torch) -> Result<Arc<dyn Model>, Status> {
    let surroundings = Surroundings::of_process(&super::torch::RUNTIME, context.setting("library"));
    let shim = shim_of(torch, &surroundings)?;
    Ok(Arc::new(TorchScriptModel::open(context, torch, shim)?))
}

/// The shim; a compilation reports its progress in the log.
fn shim_of(torch: &'static Torch, surroundings: &Surroundings) -> Result<&'static Shim, Status> {
    torch
        .shim(surroundings, &mut |progress| tracing::info!("{progress}"))
        .map_err(|error| Status::unavailable(error.to_string()))
}

#[cfg(test)]
mod tests;
