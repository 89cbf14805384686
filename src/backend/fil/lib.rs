//! `fil`: tree models of XGBoost, LightGBM and scikit-learn, computed by treelite, whose library is located when the
//! first of them is loaded (contract/frameworks.md section 4).
//!
//! treelite trusts the files that it reads: some damaged ones make it read foreign memory or loop for ever. So a file
//! is validated before treelite gets it, and the forest that treelite made of it is validated before it predicts. The
//! calls of its C interface are in `treelite`; everything else is safe Rust.

mod classes;
mod files;
#[cfg(test)]
mod fixtures;
mod forest;
mod instance;
mod model;
mod plan;
mod settings;
mod shap;
mod treelite;
mod validation;

use std::sync::Arc;

use nereid_backend::runtime_search::{RuntimeKind, Surroundings};
use nereid_backend::{Attributes, Backend, Model, ModelContext};
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

pub use settings::OF_GPUS;
pub use treelite::{Inspected, inspect};

use self::model::FilModel;
use self::settings::Settings;

/// How the library is found.
pub static RUNTIME: RuntimeKind = RuntimeKind {
    name: "fil",
    title: "treelite",
    stem: "libtreelite.so",
    smaller_stem: None,
    variables: &["NEREID_FIL_LIBRARY"],
    folders: &["treelite/lib"],
    gpu_marker: None,
    loader_folders: &[],
};

/// The backend. The library is not opened before a model needs it.
#[derive(Debug, Default)]
pub struct FilBackend;

impl Backend for FilBackend {
    fn name(&self) -> &str {
        "fil"
    }

    fn attributes(&self) -> Attributes {
        let preferred_groups = vec![PreferredGroup::new(Kind::Cpu, 1)];
        Attributes { preferred_groups, parallel_instance_loading: true, ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        let settings = Settings::parse(context)?;
        files::existing_path(context, settings.model_type)?;
        Surroundings::of_process(&RUNTIME, context.setting("library")).candidate(&RUNTIME)?;
        Ok(())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        let settings = Settings::parse(&context)?;
        let surroundings = Surroundings::of_process(&RUNTIME, context.setting("library"));
        let library = treelite::load(&surroundings)?;
        Ok(Arc::new(FilModel::open(library, &settings, context)?))
    }
}
