//! Opening one version of a model: its file, its settings, its configuration, its instances.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::info;

use super::append::{OnGpu, require};
use super::device_instance::{DeviceInstance, Running};
use super::element::ElementType;
use super::instance::OnnxInstance;
use super::io_binding::is_simulated;
use super::options::RunOptions;
use super::plan::{ConfiguredTensor, Plan};
use super::providers::GpuProviders;
use super::recording::Recordings;
use super::runtime::Runtime;
use super::session::{Session, TensorInfo};
use super::settings::{BackendSettings, SessionSettings};
use crate::{Instance, InstanceContext, Model, ModelContext};
use nereid_gpu::{Gpu, Lanes};
use nereid_model_config::TensorSpec;
use nereid_model_config::complete::{Learned, LearnedKind, LearnedTensor, check_instance, complete};
use nereid_request::{DataType, Shape, Status};
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{self as wire, ModelConfig};

const DEFAULT_FILE: &str = "model.onnx";

/// A model version, with the data that all its instances share.
pub struct OnnxModel {
    runtime: &'static Runtime,
    context: Arc<ModelContext>,
    settings: SessionSettings,
    completed: Option<ModelConfig>,
    /// The session that auto-completion read; the first instance takes it over instead of loading the file again.
    trial: Mutex<Option<Session>>,
    /// Files with some node that runs on the CPU.
    with_cpu: Mutex<BTreeSet<Option<String>>>,
}

impl OnnxModel {
    pub fn open(
        runtime: &'static Runtime,
        backend: &BackendSettings,
        context: Arc<ModelContext>,
    ) -> Result<OnnxModel, Status> {
        let settings = SessionSettings::parse(&context)?;
        let (trial, with_cpu) = (Mutex::new(None), Mutex::default());
        let mut model = OnnxModel { runtime, context, settings, completed: None, trial, with_cpu };
        if model.context.auto_complete {
            model.complete(backend.default_max_batch_size)?;
        }
        Ok(model)
    }

    /// Completes the configuration from the model's file. With a configuration that has inputs and outputs, the file is
    /// not read.
    fn complete(&mut self, default_max_batch_size: i32) -> Result<(), Status> {
        let mut config = self.context.config.clone();
        let known = (!config.input.is_empty() || !config.batch_input.is_empty()) && !config.output.is_empty();
        let learned = match known {
            true => Learned::default(),
            false => {
                let on_gpu = self.trial_gpu();
                let session = match &on_gpu {
                    Some(gpu) => self.open_session_on(gpu, None, &self.settings)?.1,
                    None => self.open_session(None)?,
                };
                let learned = learned(&session);
                // A session on a device has streams that do not belong to an instance.
                let kept = Some(session).filter(|_| on_gpu.is_none());
                *self.trial.get_mut().unwrap_or_else(PoisonError::into_inner) = kept;
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

    /// `filename`: another file than the default one.
    fn open_session(&self, filename: Option<&str>) -> Result<Session, Status> {
        let path = model_path(&self.context, filename)?;
        Ok(Session::open(self.runtime, &path, &self.settings, None)?)
    }

    /// Where the configuration is completed: device 0 if some group is for GPUs, else the host.
    fn trial_gpu(&self) -> Option<Gpu> {
        let groups = &self.context.config.instance_group;
        groups.iter().any(|group| group.kind() == Kind::Gpu).then(|| self.context.gpus.get(0).cloned()).flatten()
    }

    /// A session on a device, with the streams that it uses.
    fn open_session_on(
        &self,
        gpu: &Gpu,
        filename: Option<&str>,
        settings: &SessionSettings,
    ) -> Result<(Arc<Lanes>, Session), Status> {
        let path = model_path(&self.context, filename)?;
        gpu.enter()?;
        let lanes = Lanes::new(gpu, self.context.gpus.pinned())?;
        let providers = self.settings.gpu.on(gpu.ordinal());
        let is_simulated = is_simulated(gpu);
        if !is_simulated {
            require(self.runtime, &providers, &self.context.name)?;
        }
        let on_gpu = OnGpu { lanes: &lanes, providers: (!is_simulated).then_some(&providers) };
        let session = Session::open(self.runtime, &path, settings, Some(on_gpu))?;
        Ok((lanes, session))
    }

    /// The same, and whether its runs may return early. If a node is on the CPU, the library copies its results to the
    /// device from memory that it reuses in the next run, so the copy has to be complete when a run returns.
    fn open_instance_session(
        &self,
        gpu: &Gpu,
        filename: Option<&str>,
    ) -> Result<((Arc<Lanes>, Session), bool), Status> {
        let all = || self.open_session_on(gpu, filename, &self.settings);
        match self.settings.returns_early {
            _ if is_simulated(gpu) => Ok((all()?, false)),
            Some(is_early) => Ok((all()?, is_early)),
            None if self.needs_cpu(filename) => Ok((all()?, false)),
            None => match self.open_session_on(gpu, filename, &self.settings.without_cpu()) {
                Ok(opened) => Ok((opened, true)),
                Err(why) => {
                    let opened = all()?;
                    info!("model '{}' waits for its GPU at the end of each run: {why}", self.context.name);
                    self.with_cpu().insert(filename.map(str::to_owned));
                    Ok((opened, false))
                }
            },
        }
    }

    /// Files for which an instance was found to run some node on the CPU: further instances need not try.
    fn with_cpu(&self) -> MutexGuard<'_, BTreeSet<Option<String>>> {
        self.with_cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn needs_cpu(&self, filename: Option<&str>) -> bool {
        self.with_cpu().contains(&filename.map(str::to_owned))
    }

    /// Checks the final configuration against the file, and makes one instance.
    pub fn instance(&self, context: InstanceContext) -> Result<OnnxInstance, Status> {
        let trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The trial session's threads and memory are where the model was opened, not where a policy places them.
        let filename = context.filename_for_device();
        let session = match trial.filter(|_| filename.is_none() && !context.host_policy.is_placement()) {
            Some(session) => session,
            None => self.open_session(filename)?,
        };
        let plan = self.plan(&context, &session)?;
        let options = RunOptions::new(self.runtime, &self.settings)?;
        Ok(OnnxInstance::new(context, session, options, plan))
    }

    /// The same on a GPU.
    pub fn device_instance(&self, context: InstanceContext) -> Result<DeviceInstance, Status> {
        let name = &context.name;
        let gpu = context.gpu.as_ref();
        let gpu = gpu.ok_or_else(|| Status::unavailable(format!("the server has no GPU for instance '{name}'")))?;
        // Errors in these settings do not concern instances elsewhere.
        GpuProviders::parse(&self.context)?;
        let ((lanes, session), is_early) = self.open_instance_session(gpu, context.filename_for_device())?;
        let plan = self.plan(&context, &session)?;
        let options = match is_simulated(gpu) {
            true => RunOptions::new(self.runtime, &self.settings)?,
            false => RunOptions::on_device(self.runtime, &self.settings, is_early)?,
        };
        let recordings = Recordings::new(self.runtime, &self.settings);
        DeviceInstance::new(context, lanes, session, plan, Running { options, recordings })
    }

    fn plan(&self, context: &InstanceContext, session: &Session) -> Result<Plan, Status> {
        check_instance(&context.spec.config, &learned(session))?;
        let spec = &context.spec;
        let mut inputs = configured(spec.inputs.iter().chain(&spec.hidden_inputs))?;
        for (tensor, input) in inputs.iter_mut().zip(&spec.config.input) {
            tensor.ragged = input.allow_ragged_batch;
        }
        let outputs = configured(spec.outputs.iter().chain(&spec.hidden_outputs))?;
        Plan::new(session, &inputs, &outputs, &spec.config)
    }
}

impl Model for OnnxModel {
    fn completed_config(&self) -> Option<ModelConfig> {
        self.completed.clone()
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        match context.kind {
            Kind::Gpu => Ok(Box::new(self.device_instance(context)?)),
            _ => Ok(Box::new(self.instance(context)?)),
        }
    }
}

/// `<version>/<default_model_filename>`, or `model.onnx` in the directory of that name. `for_device` replaces the
/// default.
pub(super) fn model_path(context: &ModelContext, for_device: Option<&str>) -> Result<PathBuf, Status> {
    let usual = || ("default_model_filename", context.config.default_model_filename.as_str());
    let (field, given) = for_device.map_or_else(usual, |given| ("cc_model_filenames", given));
    // Joining with an absolute path yields that path, and `..` leaves the directory: either would be outside the
    // version's directory.
    if !Path::new(given).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Status::invalid(format!(
            "{field} '{given}' of model '{}' is outside its version directory",
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

/// The model's own description, in the terms of the configuration.
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
        // The checks refuse a type that configurations have no name for.
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
