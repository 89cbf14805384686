//! One version of a model: its files, its sessions, its completed configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use super::api::{Node, Runtime, Session};
use super::checks::{check_graph_types, check_saved_model, check_types};
use super::complete::complete;
use super::config::{Place, note_threads, run_options, session_config};
use super::graph_def::{check_names, describe};
use super::instance::TensorFlowInstance;
use super::own_threads::OwnThreads;
use super::plan::Plan;
use super::saved_model::{Signature, has_saved_variables, signature, tags};
use super::settings::{BackendSettings, Format, ModelSettings};
use nereid_backend::model_file::{existing_model_file, stays_inside};
use nereid_backend::runtime_search::OpenedLibrary;
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_instance_group::Kind;

/// The largest file of a list of operations (`TF_INIT_OPS_FILE`), and of a graph, which is a protocol buffer.
const INIT_OPS_BYTES_MAX: u64 = 1 << 20;
const GRAPH_BYTES_MAX: u64 = 1 << 31;

/// Operations that are variables.
const VARIABLES: [&str; 3] = ["VarHandleOp", "VariableV2", "Variable"];

/// A session, and what the model says of itself: nothing if it is a graph.
struct Opened {
    session: Arc<Session>,
    signature: Option<Arc<Signature>>,
}

/// Where instances share sessions: the place, and the file if it is not the default one.
type Share = (Place, Option<String>);

/// A model version, with the data that all its instances share.
pub struct TensorFlowModel {
    runtime: &'static Runtime,
    backend: BackendSettings,
    settings: ModelSettings,
    context: Arc<ModelContext>,
    completed: Option<ModelConfig>,
    /// The newest session of each share, and the number of instances that have it. A session that completion opened has
    /// none yet.
    sessions: Mutex<BTreeMap<Share, (usize, Opened)>>,
}

impl TensorFlowModel {
    pub fn open(
        runtime: &'static Runtime,
        backend: BackendSettings,
        settings: ModelSettings,
        context: Arc<ModelContext>,
    ) -> Result<TensorFlowModel, Status> {
        for library in &settings.operation_libraries {
            runtime.load_operations(library)?;
        }
        let sessions = Mutex::default();
        let mut model = TensorFlowModel { runtime, backend, settings, context, completed: None, sessions };
        if model.context.auto_complete && model.settings.format == Format::SavedModel {
            model.complete()?;
        }
        check_types(model.completed.as_ref().unwrap_or(&model.context.config))?;
        Ok(model)
    }

    /// Completes the configuration by the signature of the model, which is loaded for it.
    fn complete(&mut self) -> Result<(), Status> {
        let mut config = self.context.config.clone();
        let path = model_path(&self.context, self.settings.format, None)?;
        let opened = self.open_session(&path, Place::Cpu).map_err(|error| {
            let text = "unable to auto-complete model configuration for";
            Status::internal(format!("{text} '{}', failed to load model: {}", config.name, error.message))
        })?;
        let signature = opened.signature.as_deref().cloned().unwrap_or_default();
        if let Some(warning) = complete(&mut config, &signature, self.backend.default_max_batch_size)? {
            tracing::warn!("{warning}");
        }
        self.completed = Some(config);
        // Without an instance on the CPU no instance would take the session over.
        let groups = &self.context.config.instance_group;
        if groups.is_empty() || groups.iter().any(|group| matches!(group.kind(), Kind::Cpu | Kind::Auto)) {
            let sessions = self.sessions.get_mut().unwrap_or_else(PoisonError::into_inner);
            sessions.insert((Place::Cpu, None), (0, opened));
        }
        Ok(())
    }

    /// Loads the model's files into a new session.
    fn open_session(&self, path: &Path, place: Place) -> Result<Opened, Status> {
        let (settings, name) = (&self.settings, &self.context.name);
        if place == Place::Cpu && settings.optimization.has_gpu_accelerators {
            tracing::warn!("GPU Execution Accelerator will be ignored for model instance on CPU");
        }
        let config = session_config(&self.backend, settings, place)?;
        note_threads(name, settings);
        let own_threads = OwnThreads::of(name, settings)?;
        let opened = match settings.format {
            Format::SavedModel => {
                let tags = tags(path, settings.graph_tag.as_deref());
                let (session, meta_graph) = Session::from_saved_model(self.runtime, &config, path, &tags, own_threads)?;
                check_variables(name, path, &session, &meta_graph)?;
                let signature = signature(name, &meta_graph, settings.signature.as_deref())?;
                Opened { session: Arc::new(session), signature: Some(Arc::new(signature)) }
            }
            Format::GraphDef => {
                let graph = read_limited(path, GRAPH_BYTES_MAX)?;
                let session =
                    Session::from_graph_def(self.runtime, &config, &graph, place.device().as_deref(), own_threads)?;
                Opened { session: Arc::new(session), signature: None }
            }
        };
        if let Place::Gpu(ordinal) = place {
            self.check_gpu(&opened.session, ordinal)?;
        }
        if settings.format == Format::GraphDef {
            opened.session.run_operations(&self.init_operations()?)?;
        }
        Ok(opened)
    }

    /// The library computes on the host if it finds no GPU. A SavedModel names no device, so that it would be on the
    /// first one.
    fn check_gpu(&self, session: &Session, ordinal: i32) -> Result<(), Status> {
        let name = &self.context.name;
        if !session.has_device(&format!("GPU:{ordinal}"))? {
            let (version, path) = (self.runtime.version(), self.runtime.path().display());
            return Err(Status::unavailable(format!(
                "model '{name}' asks for GPU {ordinal}, but TensorFlow {version} at {path} has no such device. Give \
                 its instances KIND_CPU, or name a library that computes on GPUs with \
                 --backend-config=tensorflow,library"
            )));
        }
        if ordinal > 0 && self.settings.format == Format::SavedModel {
            return Err(Status::unsupported(format!(
                "model '{name}' asks for GPU {ordinal}, but TensorFlow puts SavedModels on GPU 0. Name the devices in \
                 the model and give its instances KIND_MODEL"
            )));
        }
        Ok(())
    }

    /// The operations that initialise a graph, of the file in the version's or in the model's directory.
    fn init_operations(&self) -> Result<Vec<String>, Status> {
        #[derive(Deserialize)]
        struct InitOps {
            init_ops: Vec<String>,
        }
        let Some(file) = &self.settings.init_ops_file else { return Ok(Vec::new()) };
        let name = &self.context.name;
        if !stays_inside(file) {
            let text = format!("TF_INIT_OPS_FILE '{file}' of model '{name}' is outside the directories of the model");
            return Err(Status::invalid(text));
        }
        let folders = [&self.context.version_directory, &self.context.directory];
        let path = folders.into_iter().map(|folder| folder.join(file)).find(|path| path.is_file());
        let path = path.ok_or_else(|| {
            let text = format!("TF_INIT_OPS_FILE '{file}' of model '{name}' is in neither of its directories");
            Status::unavailable(text)
        })?;
        let content = read_limited(&path, INIT_OPS_BYTES_MAX)?;
        let parsed: InitOps = serde_json::from_slice(&content).map_err(|error| {
            let subject = format!("TF_INIT_OPS_FILE '{file}' of model '{name}'");
            Status::invalid(format!("{subject} is not {{\"init_ops\": [\"…\"]}}: {error}"))
        })?;
        Ok(parsed.init_ops)
    }

    /// The session of the next instance: one that has room for it (`MAX_SESSION_SHARE_COUNT`), or a new one.
    fn session(&self, place: Place, filename: Option<&str>) -> Result<Opened, Status> {
        let path = model_path(&self.context, self.settings.format, filename)?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let share = (place, filename.map(str::to_owned));
        if let Some((count, opened)) = sessions.get_mut(&share)
            && *count < self.settings.session_share_count
        {
            *count += 1;
            return Ok(Opened { session: Arc::clone(&opened.session), signature: opened.signature.clone() });
        }
        let opened = self.open_session(&path, place)?;
        let kept = Opened { session: Arc::clone(&opened.session), signature: opened.signature.clone() };
        sessions.insert(share, (1, kept));
        Ok(opened)
    }

    /// Checks the final configuration against the model, and makes one instance.
    pub fn instance(&self, context: InstanceContext) -> Result<TensorFlowInstance, Status> {
        let place = match context.kind {
            Kind::Gpu => Place::Gpu(context.device),
            Kind::Model => Place::Model,
            Kind::Cpu | Kind::Auto => Place::Cpu,
        };
        let opened = self.session(place, context.filename_for_device())?;
        let config = &context.spec.config;
        let signature = match opened.signature {
            Some(signature) => {
                check_saved_model(config, &signature)?;
                signature
            }
            None => {
                check_names(config, &opened.session.nodes())?;
                let spec = &context.spec;
                let described = config.batch_input.iter().flat_map(|input| &input.target_name);
                let inputs = spec.inputs.iter().chain(&spec.hidden_inputs).map(|input| &input.name).chain(described);
                let outputs = spec.outputs.iter().chain(&spec.hidden_outputs).map(|output| output.name.as_str());
                let signature = describe(&opened.session, inputs.map(String::as_str), outputs)?;
                check_graph_types(config, &signature)?;
                Arc::new(signature)
            }
        };
        let plan = Plan::new(&opened.session, &signature, &context)?;
        Ok(TensorFlowInstance::new(context, opened.session, plan, run_options(&self.settings)))
    }
}

impl Model for TensorFlowModel {
    fn completed_config(&self) -> Option<ModelConfig> {
        self.completed.clone()
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(self.instance(context)?))
    }
}

/// Refuses a SavedModel whose variables were saved, but are not in its directory.
fn check_variables(name: &str, path: &Path, session: &Session, meta_graph: &[u8]) -> Result<(), Status> {
    let index = path.join("variables/variables.index");
    let is_variable = |node: &Node| VARIABLES.contains(&node.operation.as_str());
    if index.exists() || !has_saved_variables(meta_graph) || !session.nodes().iter().any(is_variable) {
        return Ok(());
    }
    Err(Status::internal(format!(
        "unable to load model '{name}', the values of its variables are missing: there is no '{}'",
        index.display()
    )))
}

/// `<version>/<default_model_filename>`; `for_device` replaces the default.
pub fn model_path(context: &ModelContext, format: Format, for_device: Option<&str>) -> Result<PathBuf, Status> {
    existing_model_file(context, for_device, format.default_file())
}

fn read_limited(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Status> {
    let cannot = |error: &dyn std::fmt::Display| Status::internal(format!("cannot read '{}': {error}", path.display()));
    let len = path.metadata().map_err(|error| cannot(&error))?.len();
    if len > bytes_max {
        return Err(cannot(&format!("it has {len} bytes, at most {bytes_max} are read")));
    }
    std::fs::read(path).map_err(|error| cannot(&error))
}

#[cfg(test)]
mod tests;
