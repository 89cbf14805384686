//! Opening one version of a model: its file, its settings, its configuration, its instances.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{debug, info, warn};

use super::append::{OnGpu, require, require_openvino};
use super::bounded_graph::is_bounded;
use super::description::{configured, is_optional, learned, learned_for, output_for_whole_run};
use super::device_instance::{DeviceInstance, Running};
use super::explain::load_error;
use super::instance::OnnxInstance;
use super::io_binding::is_simulated;
use super::options::RunOptions;
use super::plan::Plan;
use super::providers::{GpuProviders, Provider};
use super::recording::Recordings;
use super::runtime::{Runtime, on_trial};
use super::session::Session;
use super::settings::{BackendSettings, SessionSettings};
use super::shared_sessions::SharedSessions;
use crate::model_file::{missing, model_file};
use crate::{Instance, InstanceContext, Mobility, Model, ModelContext};
use nereid_gpu::{Gpu, Lanes};
use nereid_model_config::complete::{Completion, Learned, check_instance, complete};
use nereid_request::{Code, Status};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_instance_group::Kind;

const DEFAULT_FILE: &str = "model.onnx";

/// A model version, with the data that all its instances share.
pub struct OnnxModel {
    runtime: &'static Runtime,
    context: Arc<ModelContext>,
    settings: SessionSettings,
    completed: Option<ModelConfig>,
    /// The session that auto-completion read; the first instance takes it over instead of loading the file again.
    trial: Mutex<Option<Session>>,
    /// Sessions on the host that instances share, if the configuration asks for that.
    shared: SharedSessions,
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
        settings.log(&context);
        let (trial, shared, with_cpu) = (Mutex::new(None), SharedSessions::default(), Mutex::default());
        let mut model = OnnxModel { runtime, context, settings, completed: None, trial, shared, with_cpu };
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
        let completion = match known {
            true => complete(&mut config, &Learned::default(), default_max_batch_size)?,
            false => {
                let on_gpu = self.trial_gpu();
                let session = match &on_gpu {
                    Some(gpu) => self.open_session_on(gpu, None, &self.settings)?.1,
                    None => self.open_session(None)?,
                };
                let completion = self.complete_from(&mut config, &session, default_max_batch_size)?;
                // A session on a device has streams that do not belong to an instance.
                let kept = Some(session).filter(|_| on_gpu.is_none());
                *self.trial.get_mut().unwrap_or_else(PoisonError::into_inner) = kept;
                completion
            }
        };
        if let Some(skipped) = completion.skipped {
            info!("{skipped}");
            return Ok(());
        }
        if let Some(warning) = completion.warning {
            // Triton spells this word so, and tests of its users search the text.
            warn!("{}", warning.replace("batching is supported but", "batching is supporrted but"));
        }
        self.completed = Some(config);
        Ok(())
    }

    fn complete_from(
        &self,
        config: &mut ModelConfig,
        session: &Session,
        default_max_batch_size: i32,
    ) -> Result<Completion, Status> {
        let name = &self.context.name;
        let batches = output_for_whole_run(session).is_none();
        if !batches && config.max_batch_size > 0 {
            return Err(Status::invalid(format!(
                "autofill failed for model '{name}': model does not support batching while non-zero max_batch_size is \
                 specified"
            )));
        }
        let fills_inputs = config.input.is_empty();
        let default_max_batch_size = if batches { default_max_batch_size } else { 0 };
        let completion = complete(config, &learned(session), default_max_batch_size);
        let completion = completion.map_err(|error| self.refused(error.into()))?;
        let may_leave_out = fills_inputs && config.max_batch_size == 0;
        for input in config.input.iter_mut().filter(|_| may_leave_out) {
            input.optional = session.inputs.iter().any(|info| info.name == input.name && is_optional(info));
        }
        Ok(completion)
    }

    /// Logs what can be done about a type that no tensor stands for: its error has Triton's text.
    fn refused(&self, status: Status) -> Status {
        if status.code == Code::Unsupported {
            warn!(
                "model '{}': {} Clients exchange tensors only; export the model with a tensor in place of this value",
                self.context.name, status.message
            );
        }
        status
    }

    /// `filename`: another file than the default one.
    fn open_session(&self, filename: Option<&str>) -> Result<Session, Status> {
        let path = model_path(&self.context, filename)?;
        if self.settings.openvino {
            require_openvino(self.runtime, &self.context.name)?;
        }
        let session = Session::open(self.runtime, &path, &self.settings, None);
        let session = session.map_err(|error| load_error(&error, &path, self.runtime))?;
        if self.settings.openvino {
            debug!("OpenVINO Execution Accelerator is set for '{}' on CPU", self.context.name);
        }
        Ok(session)
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
        let session = Session::open(self.runtime, &path, settings, Some(on_gpu));
        let session = session.map_err(|error| load_error(&error, &path, self.runtime))?;
        for (provider, options) in providers.iter().filter(|_| !is_simulated) {
            let (model, device) = (&self.context.name, gpu.ordinal());
            let is_set = format!("{} Execution Accelerator is set for '{model}' on device {device}", provider.title());
            match provider {
                Provider::TensorRt => debug!("{is_set}"),
                Provider::Cuda => {
                    let options: Vec<String> = options.iter().map(|(key, value)| format!("{key}={value}")).collect();
                    debug!("{is_set} with options: {}", options.join(";"));
                }
            }
        }
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
            None => match on_trial(|| self.open_session_on(gpu, filename, &self.settings.without_cpu())) {
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
        let filename = context.filename_for_device();
        let open = || {
            let trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner).take();
            // The trial session's threads and memory are where the model was opened, not where a policy places them.
            let session = match trial.filter(|_| filename.is_none() && !context.host_policy.is_placement()) {
                Some(session) => session,
                None => self.open_session(filename)?,
            };
            info!("Created session for instance: {}", context.name);
            Ok(session)
        };
        let session = match self.settings.shares_sessions {
            true => self.shared.get(&context.name, open)?,
            false => Arc::new(open()?),
        };
        let plan = self.plan(&context, &session)?;
        let options = RunOptions::new(self.runtime, &self.settings)?;
        let mobility = self.mobility(&context, filename);
        Ok(OnnxInstance::new(context, session, options, plan, mobility))
    }

    /// Any thread may run a session. On a thread alone, with inputs of fixed shapes and without loops, it waits for
    /// nothing, and a request that was short is short again.
    fn mobility(&self, context: &InstanceContext, filename: Option<&str>) -> Mobility {
        if context.kind != Kind::Cpu {
            return Mobility::Bound;
        }
        let mut inputs = context.spec.config.input.iter();
        let is_fixed = inputs.all(|input| !input.allow_ragged_batch && input.dims.iter().all(|dim| *dim >= 0));
        let is_alone = self.settings.has_one_thread() && !self.runtime.has_global_threads();
        let is_steady = is_alone && is_fixed && model_path(&self.context, filename).is_ok_and(|path| is_bounded(&path));
        if is_steady { Mobility::FreeIfShort } else { Mobility::FreeIfAsked }
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
        let spec = &context.spec;
        let learned = learned_for(session, &spec.config);
        check_instance(&spec.config, &learned).map_err(|error| self.refused(error.into()))?;
        let is_configured = |name: &str| spec.config.output.iter().any(|output| output.name == name);
        if let Some(output) = output_for_whole_run(session)
            && spec.config.max_batch_size > 0
            && is_configured(&output.name)
        {
            return Err(self.refused(Status::unsupported(format!(
                "Unsupported ONNX Type '{}' for I/O '{}', expected 'ONNX_TYPE_TENSOR'.",
                output.kind.onnx_name(),
                output.name
            ))));
        }
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
    let mut path = model_file(context, for_device, DEFAULT_FILE)?;
    if path.is_dir() {
        path.push(DEFAULT_FILE);
    }
    if path.exists() { Ok(path) } else { Err(missing(context, &path)) }
}

#[cfg(test)]
mod tests;
