//! `openvino`: models of OpenVINO's own format, ONNX and what else the library reads, on the CPU
//! (contract/frameworks.md section 3).
//!
//! A model is compiled once and shared by its instances, each of which has an infer request of its own. The library
//! reads inputs where they are and writes outputs of known sizes where the client wants them. Only [`runtime`] calls
//! the library; the modules above it are safe Rust.

mod checks;
mod completion;
#[cfg(test)]
mod fixtures;
mod instance;
mod layout;
mod model;
mod plan;
mod runtime;
mod settings;

use std::sync::Arc;

use nereid_backend::runtime_search::{RuntimeKind, Surroundings};
use nereid_backend::{Attributes, Backend, Model, ModelContext};
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

pub use self::runtime::version;

use self::model::OpenVinoModel;
use self::settings::ModelSettings;

/// The backend's name in configurations.
pub const NAME: &str = "openvino";

/// How the library is found.
pub static RUNTIME: RuntimeKind = RuntimeKind {
    name: NAME,
    title: "OpenVINO",
    stem: "libopenvino_c.so",
    smaller_stem: None,
    variables: &["NEREID_OPENVINO_LIBRARY"],
    folders: &["openvino/libs"],
    gpu_marker: None,
    loader_folders: &[],
};

/// The backend. The library is not opened before a model needs it.
#[derive(Debug, Default)]
pub struct OpenVinoBackend;

impl Backend for OpenVinoBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn attributes(&self) -> Attributes {
        Attributes { preferred_groups: vec![PreferredGroup::new(Kind::Cpu, 1)], ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        settings::default_max_batch_size(context)?;
        ModelSettings::parse(context)?;
        checks::check_features(&context.config)?;
        model::model_path(context)?;
        Surroundings::of_process(&RUNTIME, context.setting("library")).candidate(&RUNTIME)?;
        Ok(())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        let surroundings = Surroundings::of_process(&RUNTIME, context.setting("library"));
        let runtime = runtime::load(&surroundings)?;
        Ok(Arc::new(OpenVinoModel::open(runtime, context)?))
    }
}
