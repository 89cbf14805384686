//! `tensorflow`: SavedModels and graphs, run by a library that is located when the first of them is loaded
//! (contract/frameworks.md section 5).
//!
//! Sessions are made through the C interface (`api`, the only folder that allows `unsafe`). SavedModels describe their
//! inputs and outputs by signatures, which are read here; graphs have none, so that any placeholder can be an input and
//! any other operation an output.

mod api;
mod checks;
mod complete;
mod config;
mod element;
#[cfg(test)]
mod fixtures;
mod graph_def;
mod instance;
mod messages;
mod model;
mod optimization;
mod own_threads;
mod plan;
mod saved_model;
mod settings;

use std::sync::Arc;

pub use api::{Inspected, inspect, locate};

use self::model::TensorFlowModel;
use self::settings::{BackendSettings, Format, ModelSettings};
use nereid_backend::runtime_search::{RuntimeKind, Surroundings};
use nereid_backend::{Attributes, Backend, Model, ModelContext};
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

/// How the library is found.
pub static RUNTIME: RuntimeKind = RuntimeKind {
    name: "tensorflow",
    title: "TensorFlow",
    stem: "libtensorflow_cc.so",
    smaller_stem: None,
    variables: &["NEREID_TENSORFLOW_LIBRARY"],
    folders: &["tensorflow"],
    gpu_marker: None,
    loader_folders: &[],
};

/// The backend. The library is not opened before a model needs it.
#[derive(Debug, Default)]
pub struct TensorFlowBackend;

impl Backend for TensorFlowBackend {
    fn name(&self) -> &str {
        RUNTIME.name
    }

    fn attributes(&self) -> Attributes {
        let preferred_groups = vec![PreferredGroup::new(Kind::Cpu, 2)];
        Attributes { preferred_groups, parallel_instance_loading: true, ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        BackendSettings::parse(context)?;
        let settings = ModelSettings::parse(context)?;
        model::model_path(context, settings.format, None)?;
        Surroundings::of_process(&RUNTIME, context.setting("library")).candidate(&RUNTIME)?;
        Ok(())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        let backend = BackendSettings::parse(&context)?;
        let settings = ModelSettings::parse(&context)?;
        // A model that is absent is no reason to open the library.
        if context.auto_complete && settings.format == Format::SavedModel {
            model::model_path(&context, settings.format, None)?;
        }
        let surroundings = Surroundings::of_process(&RUNTIME, context.setting("library"));
        let runtime = api::load(&surroundings)?;
        Ok(Arc::new(TensorFlowModel::open(runtime, backend, settings, context)?))
    }
}
