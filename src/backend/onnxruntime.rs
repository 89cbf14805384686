//! `onnxruntime`: ONNX models, run by a library that is located when the first of them is loaded
//! (contract/backends.md section 4).
//!
//! The library's C interface is called directly for sessions and runs, because the safe layer of its binding copies
//! inputs and does not accept borrowed outputs. These calls are in the few files below that allow `unsafe`; the
//! files above them are safe Rust.

mod append;
mod batch;
mod batch_input;
mod binding;
mod bounded_graph;
mod composite;
mod description;
mod device_instance;
mod device_outputs;
mod element;
mod explain;
#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
mod instance;
mod io_binding;
mod library;
mod model;
mod options;
mod plan;
mod providers;
mod recording;
mod result;
mod runtime;
mod session;
mod settings;
mod shared_sessions;
mod strings;
mod value;
mod value_type;

use std::sync::Arc;

pub use library::{Inspected, inspect, locate};

use self::model::OnnxModel;
use self::settings::{BackendSettings, SessionSettings};
use super::runtime_search::{RuntimeKind, Surroundings};
use super::{Attributes, Backend, Model, ModelContext};
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

/// How the library is found.
pub static RUNTIME: RuntimeKind = RuntimeKind {
    name: "onnxruntime",
    title: "ONNX Runtime",
    stem: "libonnxruntime.so",
    smaller_stem: None,
    variables: &["ORT_DYLIB_PATH", "NEREID_ONNXRUNTIME_LIBRARY"],
    folders: &["onnxruntime/capi"],
    gpu_marker: Some("libonnxruntime_providers_cuda.so"),
    loader_folders: &[],
};

/// The backend. The library is not opened before a model needs it.
#[derive(Debug, Default)]
pub struct OnnxRuntimeBackend;

impl Backend for OnnxRuntimeBackend {
    fn name(&self) -> &str {
        "onnxruntime"
    }

    fn attributes(&self) -> Attributes {
        // If only a build for the host is found, models that do not request a GPU stay on the host. A library that a
        // flag names is not known here yet.
        let found = Surroundings::of_process(&RUNTIME, None).candidate(&RUNTIME);
        let on_gpu = found.map_or(true, |library| RUNTIME.computes_on_gpus(&library));
        let on_gpu = on_gpu.then(|| PreferredGroup::new(Kind::Gpu, 1));
        let preferred_groups = on_gpu.into_iter().chain([PreferredGroup::new(Kind::Cpu, 2)]).collect();
        Attributes { preferred_groups, parallel_instance_loading: true, ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        BackendSettings::parse(context)?;
        SessionSettings::parse(context)?;
        model::model_path(context, None)?;
        Surroundings::of_process(&RUNTIME, context.setting("library")).candidate(&RUNTIME)?;
        Ok(())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        let settings = BackendSettings::parse(&context)?;
        let surroundings = Surroundings::of_process(&RUNTIME, context.setting("library"));
        let runtime = library::load(&surroundings, &settings.runtime)?;
        Ok(Arc::new(OnnxModel::open(runtime, &settings, context)?))
    }
}
