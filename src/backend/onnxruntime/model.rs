//! Opening one version of a model: its file, its settings, its configuration, its instances.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::element::ElementType;
use super::instance::OnnxInstance;
use super::options::RunOptions;
use super::plan::{ConfiguredTensor, Plan};
use super::runtime::Runtime;
use super::session::{Session, TensorInfo};
use super::settings::{BackendSettings, SessionSettings};
use crate::backend::{Instance, InstanceContext, Model, ModelContext};
use crate::model_config::TensorSpec;
use crate::model_config::complete::{Learned, LearnedKind, LearnedTensor, check_instance, complete};
use crate::request::{DataType, Shape, Status};
use crate::wire::inference::{self as wire, ModelConfig};

const DEFAULT_FILE: &str = "model.onnx";

/// A model version and what all its instances have in common.
pub struct OnnxModel {
    runtime: &'static Runtime,
    context: Arc<ModelContext>,
    settings: SessionSettings,
    completed: Option<ModelConfig>,
    /// The session that auto-completion read; the first instance takes it over instead of loading the file again.
    trial: Mutex<Option<Session>>,
}

impl OnnxModel {
    pub fn open(
        runtime: &'static Runtime,
        backend: &BackendSettings,
        context: Arc<ModelContext>,
    ) -> Result<OnnxModel, Status> {
        let settings = SessionSettings::parse(&context)?;
        let mut model = OnnxModel { runtime, context, settings, completed: None, trial: Mutex::new(None) };
        if model.context.auto_complete {
            model.complete(backend.default_max_batch_size)?;
        }
        Ok(model)
    }

    /// Fills what the configuration leaves out from the model's file. A configuration with inputs and outputs costs no
    /// look at the file.
    fn complete(&mut self, default_max_batch_size: i32) -> Result<(), Status> {
        let mut config = self.context.config.clone();
        let known = (!config.input.is_empty() || !config.batch_input.is_empty()) && !config.output.is_empty();
        let learned = match known {
            true => Learned::default(),
            false => {
                let session = self.open_session()?;
                let learned = learned(&session);
                *self.trial.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(session);
                learned
            }
        };
        let completion = complete(&mut config, &learned, default_max_batch_size)?;
        if let Some(skipped) = completion.skipped {
            tracing::info!("{skipped}");
            return Ok(());
        }
        if let Some(warning) = completion.warning {
            tracing::warn!("{warning}");
        }
        self.completed = Some(config);
        Ok(())
    }

    fn open_session(&self) -> Result<Session, Status> {
        let path = model_path(&self.context)?;
        Ok(Session::open(self.runtime, &path, &self.settings)?)
    }

    /// Holds the final configuration against the file, and makes one instance.
    pub fn instance(&self, context: InstanceContext) -> Result<OnnxInstance, Status> {
        let trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The trial's threads and memory are where the model was opened, and not where a policy wants them.
        let session = match trial.filter(|_| !context.host_policy.is_placement()) {
            Some(session) => session,
            None => self.open_session()?,
        };
        check_instance(&context.spec.config, &learned(&session))?;
        let spec = &context.spec;
        let mut inputs = configured(spec.inputs.iter().chain(&spec.hidden_inputs))?;
        for (tensor, input) in inputs.iter_mut().zip(&spec.config.input) {
            tensor.ragged = input.allow_ragged_batch;
        }
        let outputs = configured(spec.outputs.iter().chain(&spec.hidden_outputs))?;
        let plan = Plan::new(&session, &inputs, &outputs, &spec.config)?;
        let options = RunOptions::new(self.runtime, &self.settings)?;
        Ok(OnnxInstance::new(context, session, options, plan))
    }
}

impl Model for OnnxModel {
    fn completed_config(&self) -> Option<ModelConfig> {
        self.completed.clone()
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(self.instance(context)?))
    }
}

/// `<version>/<default_model_filename>`, or `model.onnx` in the directory of that name.
pub(super) fn model_path(context: &ModelContext) -> Result<PathBuf, Status> {
    let given = context.config.default_model_filename.as_str();
    // A path joined with an absolute one is that absolute one: either would lead out of the version's directory.
    if !Path::new(given).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Status::invalid(format!(
            "default_model_filename '{given}' of model '{}' is outside its version directory",
            context.name
        )));
    }
    let mut path = context.version_directory.join(if given.is_empty() { DEFAULT_FILE } else { given });
    if path.is_dir() {
        path.push(DEFAULT_FILE);
    }
    match path.exists() {
        true => Ok(path),
        false => Err(Status::unavailable(format!(
            "unable to find '{}' for model instance '{}'",
            path.display(),
            context.name
        ))),
    }
}

/// The model's own description, in the words of the configuration.
fn learned(session: &Session) -> Learned {
    let tensors = |infos: &[TensorInfo]| infos.iter().map(learned_tensor).collect();
    Learned {
        inputs: tensors(&session.inputs),
        overridable: tensors(&session.initializers),
        outputs: tensors(&session.outputs),
    }
}

fn learned_tensor(info: &TensorInfo) -> LearnedTensor {
    let data_type = |element: ElementType| wire::DataType::try_from(element.datatype() as i32).ok();
    let kind = match info.is_tensor() {
        // A type that configurations have no name for is left for the checks to refuse.
        true => LearnedKind::Tensor(info.element.and_then(data_type).unwrap_or(wire::DataType::TypeInvalid)),
        false => LearnedKind::Other(info.onnx_type.to_owned()),
    };
    LearnedTensor { name: info.name.clone(), kind, dims: info.dims.to_vec() }
}

fn configured<'a>(tensors: impl Iterator<Item = &'a TensorSpec>) -> Result<Vec<ConfiguredTensor>, Status> {
    let tensor = |tensor: &TensorSpec| {
        let number = u32::try_from(tensor.wire_number()).ok();
        let datatype = number.and_then(DataType::from_number);
        Ok(ConfiguredTensor {
            name: tensor.name.clone(),
            datatype: datatype
                .ok_or_else(|| Status::invalid(format!("tensor '{}' must specify 'data_type'", tensor.name)))?,
            dims: Shape::from_slice(&tensor.dims),
            reshape: tensor.reshape.as_deref().map(Shape::from_slice),
            optional: tensor.optional,
            ragged: false,
        })
    };
    tensors.map(tensor).collect()
}

#[cfg(test)]
mod tests;
