//! A model whose code is a `model.py`: how it is completed and how its instances start.

use std::sync::Arc;

use tracing::info;

use super::desk::Desk;
use super::instance::PythonInstance;
use super::interpreter::Interpreter;
use super::layout::Layout;
use super::link::Bounds;
use super::marshal::{Value, Writer};
use super::message::{from_worker, to_worker};
use super::process;
use super::settings::{Settings, check_stub_name};
use super::worker::{Ended, Plan, Worker};
use crate::backend::{Instance, InstanceContext, Model, ModelContext};
use crate::model_config::json;
use crate::observe::log::verbose;
use crate::request::Status;
use crate::wire::inference::ModelConfig;
use crate::wire::inference::model_instance_group::Kind;

/// See the [module](self).
pub struct PythonModel {
    context: Arc<ModelContext>,
    settings: Settings,
    layout: Layout,
    interpreter: Interpreter,
    completed: Option<ModelConfig>,
}

impl PythonModel {
    /// Opens a model, and lets its code complete the configuration.
    pub fn open(
        context: Arc<ModelContext>,
        settings: Settings,
        layout: Layout,
        interpreter: Interpreter,
    ) -> Result<PythonModel, Status> {
        info!("model '{}': {}, by {interpreter}", context.name, layout.file.display());
        verbose!(1, "the Python backend's settings for '{}': {settings}", context.name);
        let mut model = PythonModel { context, settings, layout, interpreter, completed: None };
        if model.context.auto_complete {
            model.completed = model.complete()?;
        }
        Ok(model)
    }

    fn start(&self, name: &str) -> Result<Arc<Worker>, Status> {
        let bytes = |setting: u64| usize::try_from(setting).unwrap_or(usize::MAX);
        let Settings { shm_default_byte_size, shm_growth_byte_size, shm_max_byte_size, .. } = self.settings;
        Worker::start(Plan {
            name: name.to_owned(),
            command: process::command(self.interpreter.command(), name),
            bounds: Bounds {
                first_bytes: bytes(shm_default_byte_size),
                growth_bytes: bytes(shm_growth_byte_size),
                max_bytes: bytes(shm_max_byte_size),
            },
            attendant: Arc::new(Desk::new(&self.context)),
        })
    }

    /// (model file, module, paths), the beginning of what a worker is told first.
    fn write_source(&self, writer: &mut Writer) {
        let Layout { file, module, search } = &self.layout;
        writer.text(file.to_string_lossy().as_bytes());
        writer.text(module.as_bytes());
        writer.tuple(search.len());
        search.iter().for_each(|place| writer.text(place.to_string_lossy().as_bytes()));
    }

    /// Asks a worker that is thrown away afterwards.
    fn complete(&self) -> Result<Option<ModelConfig>, Status> {
        let worker = self.start(&self.context.name)?;
        let mut writer = Writer::default();
        writer.tuple(5);
        self.write_source(&mut writer);
        writer.text(self.context.version_directory.to_string_lossy().as_bytes());
        writer.text(
            json::write(&self.context.config, 1).map_err(|error| Status::internal(error.to_string()))?.as_bytes(),
        );
        let said = converse(&worker, to_worker::COMPLETE, &writer, from_worker::COMPLETED, "");
        worker.kill("has done its work");
        worker.join();
        let payload = said?;
        let broken = |error: &dyn std::fmt::Display| Status::internal(format!("the completed configuration: {error}"));
        let value = Value::read(&payload).map_err(|error| broken(&error))?;
        let [text] = value.as_tuple().map_err(|error| broken(&error))?;
        let text = text.optional(Value::as_text).map_err(|error| broken(&error))?;
        let text = text.filter(|text| !text.is_empty());
        text.map(|text| json::read(text.as_bytes()).map_err(|error| broken(&error))).transpose()
    }
}

/// Sends a worker its first message and waits for what it makes of it.
fn converse(worker: &Arc<Worker>, kind: u32, writer: &Writer, awaited: u32, name: &str) -> Result<Vec<u8>, Status> {
    let sent = worker.link.send(kind, writer.bytes());
    sent.map_err(|error| Status::internal(format!("the Python process of '{}': {error}", worker.name)))?;
    let mut payload = Vec::new();
    let failed = |text: String| Status::internal(text);
    match worker.serve(&[awaited, from_worker::FAILED], &mut payload, None) {
        Ok(kind) if kind == awaited => Ok(payload),
        Ok(_) => {
            let text = Value::read(&payload).and_then(|value| {
                let [text] = value.as_tuple()?;
                Ok(text.as_text()?.into_owned())
            });
            Err(failed(text.unwrap_or_else(|malformed| malformed.to_string())))
        }
        Err(Ended::Died(how)) => Err(failed(format!("Stub process '{name}' is not healthy. The process {how}"))),
        Err(Ended::Late(_)) => Err(failed(format!("Stub process '{name}' is not healthy."))),
    }
}

impl Model for PythonModel {
    fn completed_config(&self) -> Option<ModelConfig> {
        self.completed.clone()
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        check_stub_name(&context.name)?;
        let worker = self.start(&context.name)?;
        let config = json::write(&context.spec.config, 1).map_err(|error| Status::internal(error.to_string()))?;
        let kind = match context.kind {
            Kind::Gpu => "GPU",
            Kind::Model => "MODEL",
            _ => "CPU",
        };
        let mut writer = Writer::default();
        writer.tuple(6);
        self.write_source(&mut writer);
        writer.text(self.context.version_directory.to_string_lossy().as_bytes());
        let arguments = [
            ("model_config", config.as_str()),
            ("model_instance_kind", kind),
            ("model_instance_name", &context.name),
            ("model_instance_device_id", &context.device.to_string()),
            ("model_repository", &self.context.directory.to_string_lossy()),
            ("model_version", &self.context.version.to_string()),
            ("model_name", &self.context.name),
        ];
        writer.tuple(arguments.len());
        for (name, value) in arguments {
            writer.tuple(2);
            writer.text(name.as_bytes());
            writer.text(value.as_bytes());
        }
        let is_decoupled = context.spec.config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
        writer.bool(is_decoupled);
        let initialized = converse(&worker, to_worker::INITIALIZE, &writer, from_worker::INITIALIZED, &context.name);
        if let Err(status) = initialized {
            worker.kill("could not be initialized");
            worker.join();
            return Err(status);
        }
        Ok(Box::new(PythonInstance::new(context, worker, self.settings.execute_timeout)))
    }
}
