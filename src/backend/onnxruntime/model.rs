//! Opening one version of a model: its file, its settings, its configuration, its instances.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::instance::OnnxInstance;
use super::plan::{ConfiguredTensor, Plan};
use super::runtime::Runtime;
use super::session::{RunOptions, Session};
use super::settings::{BackendSettings, SessionSettings};
use crate::backend::{Instance, InstanceContext, Model, ModelContext};
use crate::request::{DataType, Shape, Status};
use crate::wire::inference::ModelConfig;

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
        let _ = backend;
        Ok(OnnxModel { runtime, context, settings, completed: None, trial: Mutex::new(None) })
    }

    fn open_session(&self) -> Result<Session, Status> {
        let path = model_path(&self.context)?;
        Ok(Session::open(self.runtime, &path, &self.settings)?)
    }

    pub fn instance(&self, context: InstanceContext) -> Result<OnnxInstance, Status> {
        let trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner).take();
        let session = match trial {
            Some(session) => session,
            None => self.open_session()?,
        };
        let config = &context.spec.config;
        let max_batch_size = u64::try_from(config.max_batch_size).unwrap_or(0);
        let plan = Plan::new(&session, &inputs(config)?, &outputs(config)?, max_batch_size)?;
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
fn model_path(context: &ModelContext) -> Result<PathBuf, Status> {
    let given = context.config.default_model_filename.as_str();
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

fn inputs(config: &ModelConfig) -> Result<Vec<ConfiguredTensor>, Status> {
    let tensor = |input: &crate::wire::inference::ModelInput| {
        Ok(ConfiguredTensor {
            name: input.name.clone(),
            datatype: datatype(&input.name, input.data_type)?,
            dims: Shape::from_slice(&input.dims),
            reshape: input.reshape.as_ref().map(|reshape| Shape::from_slice(&reshape.shape)),
            optional: input.optional,
        })
    };
    config.input.iter().map(tensor).collect()
}

fn outputs(config: &ModelConfig) -> Result<Vec<ConfiguredTensor>, Status> {
    let tensor = |output: &crate::wire::inference::ModelOutput| {
        Ok(ConfiguredTensor {
            name: output.name.clone(),
            datatype: datatype(&output.name, output.data_type)?,
            dims: Shape::from_slice(&output.dims),
            reshape: output.reshape.as_ref().map(|reshape| Shape::from_slice(&reshape.shape)),
            optional: false,
        })
    };
    config.output.iter().map(tensor).collect()
}

fn datatype(name: &str, number: i32) -> Result<DataType, Status> {
    let known = u32::try_from(number).ok().and_then(DataType::from_number);
    known.ok_or_else(|| Status::invalid(format!("tensor '{name}' must specify 'data_type'")))
}
