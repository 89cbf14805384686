//! `onnxruntime`: ONNX models through a library that is found when the first of them is loaded (backends.md section 4).
//!
//! The library's C interface is called directly for sessions and runs, because the safe layer of its binding copies
//! inputs and does not accept borrowed outputs (RUNTIMES.md). All of that lies in the few files below that allow
//! `unsafe`; what is above them is safe Rust.

mod batch_input;
mod binding;
mod discovery;
mod element;
#[cfg(test)]
pub(crate) mod fixtures;
mod instance;
mod library;
mod model;
mod options;
mod plan;
mod result;
mod runtime;
#[cfg(test)]
pub(crate) mod scratch;
mod session;
mod settings;
mod strings;
mod value;

use std::sync::Arc;

pub use discovery::{INSTALL_COMMAND, Origin, Place, Surroundings};
pub use library::{Inspected, LibraryError, Missing, inspect, locate};

use self::model::OnnxModel;
use self::settings::{BackendSettings, SessionSettings};
use super::{Attributes, Backend, Model, ModelContext};
use crate::model_config::normalize::PreferredGroup;
use crate::request::Status;
use crate::wire::inference::model_instance_group::Kind;

/// The backend. Nothing is opened before a model asks for it.
#[derive(Debug, Default)]
pub struct OnnxRuntimeBackend;

impl Backend for OnnxRuntimeBackend {
    fn name(&self) -> &str {
        "onnxruntime"
    }

    fn attributes(&self) -> Attributes {
        let preferred_groups = vec![PreferredGroup::new(Kind::Cpu, 2)];
        Attributes { preferred_groups, parallel_instance_loading: true, ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        BackendSettings::parse(context)?;
        SessionSettings::parse(context)?;
        model::model_path(context)?;
        library::candidate(&Surroundings::of_process(context.setting("library")))?;
        Ok(())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        let settings = BackendSettings::parse(&context)?;
        let surroundings = Surroundings::of_process(context.setting("library"));
        let runtime = library::load(&surroundings, &settings.runtime)?;
        Ok(Arc::new(OnnxModel::open(runtime, &settings, context)?))
    }
}
