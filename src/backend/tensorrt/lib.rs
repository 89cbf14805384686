//! `tensorrt`: plans of TensorRT on NVIDIA's GPUs (contract/frameworks.md section 2).
//!
//! A plan is read into an engine, which the instances of a device share unless it has open dimensions; each instance
//! has a context for each of its profiles, and pipelines batches over its device. Only [`api`] and [`contexts`] call
//! the library; the modules above them are safe Rust.
//!
//! No plan was executed on a GPU yet: on one, the lean runtime was opened and refused what is no plan. The tests use
//! simulated devices and a library of their own in place of TensorRT; the places of TensorRT's virtual functions are
//! compared with those that NVIDIA's Python package calls.

mod api;
mod checks;
mod completion;
mod contexts;
mod described;
#[cfg(test)]
mod fixtures;
mod graphs;
mod instance;
mod model;
mod outputs;
mod plan;
mod settings;

use std::sync::Arc;

use nereid_backend::runtime_search::{RuntimeKind, Surroundings};
use nereid_backend::{Attributes, Backend, Model, ModelContext};
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

pub use self::api::inspect;

use self::model::TensorRtModel;
use self::settings::BackendSettings;

/// The backend's name in configurations.
pub const NAME: &str = "tensorrt";

/// How the library is found.
pub static RUNTIME: RuntimeKind = RuntimeKind {
    name: NAME,
    title: "TensorRT",
    stem: "libnvinfer.so",
    smaller_stem: Some("libnvinfer_lean.so"),
    variables: &["NEREID_TENSORRT_LIBRARY"],
    folders: &["tensorrt_libs", "tensorrt_lean_libs"],
    gpu_marker: None,
    // NVIDIA's packages for Debian and RHEL, and the usual places of the archive.
    loader_folders: &[
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/local/tensorrt/lib",
        "/opt/tensorrt/lib",
    ],
};

/// The backend. The library is not opened before a model needs it.
#[derive(Debug, Default)]
pub struct TensorRtBackend;

impl Backend for TensorRtBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn attributes(&self) -> Attributes {
        Attributes { preferred_groups: vec![PreferredGroup::new(Kind::Gpu, 1)], ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        BackendSettings::parse(context)?;
        settings::check_multi_device(context)?;
        settings::allocation_strategy(context, &context.name)?;
        checks::check_features(&context.config)?;
        graphs::Wanted::of(&context.config)?;
        for group in &context.config.instance_group {
            settings::profiles(group).map_err(Status::internal)?;
        }
        let own = context.config.cc_model_filenames.values().map(String::as_str);
        match own.clone().next() {
            Some(_) => own
                .map(|name| model::plan_path(context, Some(name), &context.name))
                .try_for_each(|path| path.map(drop))?,
            None => drop(model::plan_path(context, None, &context.name)?),
        }
        Surroundings::of_process(&RUNTIME, context.setting("library")).candidate(&RUNTIME)?;
        checks::check_kind(&context.name, Kind::Gpu, model::without_gpu(context))
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        let surroundings = Surroundings::of_process(&RUNTIME, context.setting("library"));
        let library = api::load(&surroundings)?;
        Ok(Arc::new(TensorRtModel::open(library, context)?))
    }
}
