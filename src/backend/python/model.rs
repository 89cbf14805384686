//! A model with its code in a `model.py`: how it is completed and how its instances start.

use std::sync::Arc;

use tracing::info;

use super::dispatch::Dispatch;
use super::fence;
use super::instance::PythonInstance;
use super::interpreter::Interpreter;
use super::layout::Layout;
use super::link::Bounds;
use super::marshal::{Value, Writer};
use super::message::{from_worker, to_worker};
use super::process;
use super::program;
use super::settings::{Settings, check_stub_name};
use super::worker::{Ended, OnEnd, Plan, Wait, Worker};
use super::worker_supervisor::{WorkerCounts, WorkerFactory, WorkerSupervisor, not_healthy};
use crate::{Instance, InstanceContext, Model, ModelContext};
use nereid_model_config::json;
use nereid_observe::log::verbose;
use nereid_queue::Spin;
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_instance_group::Kind;

/// See the [module](self).
pub struct PythonModel {
    context: Arc<ModelContext>,
    settings: Settings,
    layout: Layout,
    interpreter: Interpreter,
    completed: Option<ModelConfig>,
    counts: Arc<WorkerCounts>,
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
        verbose!(1, "Shared memory configuration is {}", settings.shared_memory());
        verbose!(1, "the Python backend's settings for '{}': {settings}", context.name);
        let counts = Arc::new(WorkerCounts::new(&context));
        let mut model = PythonModel { context, settings, layout, interpreter, completed: None, counts };
        if model.context.auto_complete {
            model.completed = model.complete()?;
        }
        Ok(model)
    }

    fn start(&self, name: &str, spin: Spin, ended: OnEnd) -> Result<Arc<Worker>, Status> {
        let bytes = |setting: u64| usize::try_from(setting).unwrap_or(usize::MAX);
        let Settings { shm_default_byte_size, shm_growth_byte_size, shm_max_byte_size, .. } = self.settings;
        let archive = program::archive_for(self.interpreter.command()).map_err(|error| {
            Status::internal(format!("cannot make the program of the Python process of '{name}': {error}"))
        })?;
        let command = process::command(self.interpreter.command(), name);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(std::ffi::OsStr::to_string_lossy).collect();
        let environment = if self.interpreter.has_environment() { " with custom environment" } else { "" };
        verbose!(1, "Starting Python backend stub{environment}: {}", words.join(" "));
        Worker::start(Plan {
            name: name.to_owned(),
            model: self.context.name.clone(),
            command,
            archive,
            spin,
            bounds: Bounds {
                first_bytes: bytes(shm_default_byte_size),
                growth_bytes: bytes(shm_growth_byte_size),
                max_bytes: bytes(shm_max_byte_size),
            },
            fences: fence::IS_NEEDED || self.settings.memory_fences,
            gpus: Arc::clone(&self.context.gpus),
            handler: Arc::new(Dispatch::new(&self.context)),
            ended,
        })
    }

    /// Writes (model file, module, paths), the start of a worker's first message.
    fn write_source(&self, writer: &mut Writer) {
        let Layout { file, module, search } = &self.layout;
        writer.text(file.to_string_lossy().as_bytes());
        writer.text(module.as_bytes());
        writer.tuple(search.len());
        search.iter().for_each(|place| writer.text(place.to_string_lossy().as_bytes()));
    }

    /// Completes the configuration with a worker that ends afterwards.
    fn complete(&self) -> Result<Option<ModelConfig>, Status> {
        let config = json::write(&self.context.config, 1).map_err(|error| Status::internal(error.to_string()))?;
        let mut writer = Writer::default();
        writer.tuple(5);
        self.write_source(&mut writer);
        writer.text(self.context.version_directory.to_string_lossy().as_bytes());
        writer.text(config.as_bytes());
        let worker = self.start(&self.context.name, Spin::default(), Box::new(|_| ()))?;
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

/// Sends a worker its first message and waits for its result.
fn converse(worker: &Arc<Worker>, kind: u32, writer: &Writer, awaited: u32, name: &str) -> Result<Vec<u8>, Status> {
    let sent = worker.send(kind, writer.bytes());
    sent.map_err(|error| Status::internal(format!("the Python process of '{}': {error}", worker.name)))?;
    let mut payload = Vec::new();
    match worker.serve(&[awaited, from_worker::FAILED], &mut payload, Wait::default()) {
        Ok(kind) if kind == awaited => Ok(payload),
        Ok(_) => {
            let text = Value::read(&payload).and_then(|value| {
                let [text] = value.as_tuple()?;
                Ok(text.as_text()?.into_owned())
            });
            Err(Status::internal(text.unwrap_or_else(|malformed| malformed.to_string())))
        }
        Err(Ended::Died(how)) => Err(Status::internal(format!("{} The process {how}", not_healthy(name)))),
        Err(Ended::Late(_)) => Err(Status::internal(not_healthy(name))),
    }
}

impl Model for PythonModel {
    fn completed_config(&self) -> Option<ModelConfig> {
        self.completed.clone()
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        check_stub_name(&context.name)?;
        let (counts, settings) = (Arc::clone(&self.counts), self.settings.clone());
        let starter = Starter { model: self, context: context.clone() };
        let supervisor =
            WorkerSupervisor::open(&context.name, &context.spec.name, Box::new(starter), settings.restart, counts)?;
        Ok(Box::new(PythonInstance::new(context, supervisor, &settings)))
    }
}

/// The factory of the workers of one instance.
struct Starter {
    model: Arc<PythonModel>,
    context: InstanceContext,
}

impl WorkerFactory for Starter {
    fn start(&self, ended: OnEnd) -> Result<Arc<Worker>, Status> {
        self.model.start(&self.context.name, self.context.spin.clone(), ended)
    }

    fn lost(&self) {
        self.context.state_loss.report();
    }

    fn initialize(&self, worker: &Arc<Worker>) -> Result<(), Status> {
        let Starter { model, context } = self;
        let config = json::write(&context.spec.config, 1).map_err(|error| Status::internal(error.to_string()))?;
        let kind = match context.kind {
            Kind::Gpu => "GPU",
            Kind::Model => "MODEL",
            _ => "CPU",
        };
        let mut writer = Writer::default();
        writer.tuple(6);
        model.write_source(&mut writer);
        writer.text(model.context.version_directory.to_string_lossy().as_bytes());
        let arguments = [
            ("model_config", config.as_str()),
            ("model_instance_kind", kind),
            ("model_instance_name", &context.name),
            ("model_instance_device_id", &context.device.to_string()),
            ("model_repository", &model.context.directory.to_string_lossy()),
            ("model_version", &model.context.version.to_string()),
            ("model_name", &model.context.name),
        ];
        writer.tuple(arguments.len());
        for (name, value) in arguments {
            writer.tuple(2);
            writer.text(name.as_bytes());
            writer.text(value.as_bytes());
        }
        let is_decoupled = context.spec.config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
        writer.bool(is_decoupled);
        let said = converse(worker, to_worker::INITIALIZE, &writer, from_worker::INITIALIZED, &context.name)?;
        let slot = Value::read(&said).and_then(|value| {
            let [slot] = value.as_tuple()?;
            slot.optional(Value::as_int)
        });
        let slot = slot.map_err(|error| Status::internal(format!("what '{}' said first: {error}", worker.name)))?;
        slot.into_iter().for_each(|slot| worker.readiness.open(slot));
        Ok(())
    }
}
