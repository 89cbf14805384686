//! Backends as shared libraries: Triton's own plug-in interface behind the `Backend` trait.
//!
//! A library `libtriton_<backend>.so` is opened once, its exports are looked up, and from then on it calls the
//! functions of `abi` in this very process image. What it holds as a request is the server's request.

#![allow(unsafe_code)]

pub(crate) mod guard;
mod library;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Attributes, Backend, Instance, InstanceContext, Model, ModelContext, Payload, fail};
use crate::abi::handles::{InstanceHandle, ModelHandle, UserState, c_string};
use crate::observe::statistics::Holder;
use crate::request::{Request, Status};
use crate::wire::inference::ModelConfig;
use library::{Library, Outcome};

pub(crate) use library::{executing_model, note_release, provide_soname};

/// Where libraries of one server are searched, and those that are open.
pub struct Plugins {
    directory: PathBuf,
    auto_complete: bool,
    open: Mutex<Vec<(PathBuf, Weak<Library>)>>,
}

impl Plugins {
    /// `directory` is `--backend-directory`.
    pub fn new(directory: PathBuf, auto_complete: bool) -> Plugins {
        Plugins { directory, auto_complete, open: Mutex::new(Vec::new()) }
    }

    /// Finds and opens the library of `backend` for a model.
    pub fn find(
        &self,
        backend: &str,
        runtime: &str,
        model_directory: &Path,
        version_directory: &Path,
        model: &str,
        settings: &[(String, String)],
    ) -> Result<Arc<dyn Backend>, Status> {
        let (place, path) = self.locate(backend, runtime, model_directory, version_directory, model)?;
        let library = self.open(backend, &path, &place, settings)?;
        Ok(Arc::new(PluginBackend { name: backend.to_owned(), library }))
    }

    /// Finds the library of `backend` for a model, and the directory that it lies in; it is not opened (c_api.md
    /// section 5, "Library search").
    pub fn locate(
        &self,
        backend: &str,
        runtime: &str,
        model_directory: &Path,
        version_directory: &Path,
        model: &str,
    ) -> Result<(PathBuf, PathBuf), Status> {
        let file = if runtime.is_empty() { format!("libtriton_{backend}.so") } else { runtime.to_owned() };
        let places = [version_directory.to_owned(), model_directory.to_owned(), self.directory.join(backend)];
        if file.contains('/') || file == ".." {
            let directory = self.directory.join(backend);
            return Err(Status::invalid(format!(
                "backend library name '{file}' escapes backend directory '{}', for model '{model}', check model config \
                 runtime field",
                directory.display()
            )));
        }
        let found = places.iter().map(|place| (place, place.join(&file))).find(|(_, path)| path.is_file());
        if let Some((place, path)) = found {
            return Ok((place.clone(), path));
        }
        if runtime.is_empty() {
            return Err(Status::invalid(format!(
                "unable to find backend library for backend '{backend}', try specifying runtime on the model \
                 configuration."
            )));
        }
        let searched: Vec<String> = places.iter().map(|place| format!("'{}'", place.display())).collect();
        let searched = searched.join(" ");
        Err(Status::invalid(format!(
            "unable to find backend library '{file}' for model '{model}', searched: {searched}"
        )))
    }

    fn open(
        &self,
        backend: &str,
        path: &Path,
        place: &Path,
        settings: &[(String, String)],
    ) -> Result<Arc<Library>, Status> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, library)| library.strong_count() > 0);
        if let Some(library) = open.iter().find(|(known, _)| known == path).and_then(|(_, library)| library.upgrade()) {
            return Ok(library);
        }
        let library = Arc::new(Library::open(backend, path, place, &self.cmdline(settings))?);
        open.push((path.to_owned(), Arc::downgrade(&library)));
        Ok(library)
    }

    /// What every backend is told (c_api.md section 5, "BackendConfig message"), and then its own settings.
    fn cmdline(&self, settings: &[(String, String)]) -> Vec<(String, String)> {
        let mut cmdline: Vec<(String, String)> = [
            ("auto-complete-config", self.auto_complete.to_string()),
            ("backend-directory", self.directory.to_string_lossy().into_owned()),
            ("min-compute-capability", "0.0".to_owned()),
            ("default-max-batch-size", "4".to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        cmdline.extend_from_slice(settings);
        cmdline
    }
}

struct PluginBackend {
    name: String,
    library: Arc<Library>,
}

impl Backend for PluginBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn attributes(&self) -> Attributes {
        self.library.attributes()
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        let handle = Arc::new(ModelHandle {
            name: c_string(&context.name),
            directory: c_string(&context.directory.to_string_lossy()),
            backend: Arc::clone(&self.library.handle),
            state: UserState::default(),
            completed: Mutex::new(None),
            is_sealed: AtomicBool::new(false),
            config: Mutex::new(context.config.clone()),
            context,
        });
        let library = Arc::clone(&self.library);
        let work = library.work_on("TRITONBACKEND_ModelInitialize", &handle.context.name, "");
        library.call(&work, library.exports.model_initialize, Arc::as_ptr(&handle).cast_mut().cast())?;
        handle.is_sealed.store(true, Ordering::Release);
        Ok(Arc::new(PluginModel { handle, library }))
    }
}

struct PluginModel {
    handle: Arc<ModelHandle>,
    library: Arc<Library>,
}

impl Model for PluginModel {
    fn completed_config(&self) -> Option<ModelConfig> {
        self.handle.completed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        if let Some(output) = context.spec.outputs.iter().find(|output| output.reshape.is_some()) {
            // A plug-in answers in the model's shape, and nobody would turn it into the configured one.
            let name = &output.name;
            return Err(Status::unsupported(format!(
                "output '{name}': 'reshape' is not supported by this version of Nereid for a backend library"
            )));
        }
        *self.handle.config.lock().unwrap_or_else(PoisonError::into_inner) = context.spec.config.clone();
        let handle = Arc::new(InstanceHandle {
            name: c_string(&context.name),
            model: Arc::clone(&self.handle),
            state: UserState::default(),
            context,
        });
        let call = "TRITONBACKEND_ModelInstanceInitialize";
        let work = self.library.work_on(call, &self.handle.context.name, &handle.context.name);
        self.library.call(&work, self.library.exports.instance_initialize, Arc::as_ptr(&handle).cast_mut().cast())?;
        Ok(Box::new(PluginInstance { handle, model: self, requests: Vec::new() }))
    }
}

impl Drop for PluginModel {
    fn drop(&mut self) {
        let handle = Arc::as_ptr(&self.handle).cast_mut().cast();
        let work = self.library.work_on("TRITONBACKEND_ModelFinalize", &self.handle.context.name, "");
        if let Err(status) = self.library.call(&work, self.library.exports.model_finalize, handle) {
            tracing::error!("model '{}': its backend failed to finalize it: {status}", self.handle.context.name);
        }
        self.handle.context.statistics.memory_released(Holder::Model);
    }
}

struct PluginInstance {
    handle: Arc<InstanceHandle>,
    model: Arc<PluginModel>,
    /// Reused from call to call.
    requests: Vec<*mut Request>,
}

// SAFETY: the instance is driven by one thread at a time, and the request pointers are only there during a call.
unsafe impl Send for PluginInstance {}

impl Instance for PluginInstance {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        self.requests.extend(payload.take().into_iter().map(Box::into_raw));
        let instance = Arc::as_ptr(&self.handle).cast_mut().cast();
        let context = &self.handle.context;
        let call = "TRITONBACKEND_ModelInstanceExecute";
        let work = self.model.library.work_on(call, &context.model.name, &context.name);
        let outcome = self.model.library.execute(&work, instance, &mut self.requests);
        let statistics = &context.model.statistics;
        match outcome {
            Outcome::Done => {
                self.requests.clear();
                Ok(())
            }
            Outcome::Failed { status, released } => {
                if !released.is_empty() {
                    let name = &context.name;
                    let count = released.len();
                    tracing::error!(
                        "instance '{name}': its backend returned an error after it released {count} requests"
                    );
                }
                for request in self.requests.drain(..).filter(|request| !released.contains(request)) {
                    // SAFETY: a backend that returns an error has taken none of the requests, which came from boxes;
                    // those that it released against that rule are left out.
                    payload.push(unsafe { Box::from_raw(request) });
                }
                Err(status)
            }
            Outcome::Threw { status, released } => {
                for request in self.requests.drain(..).filter(|request| !released.contains(request)) {
                    // SAFETY: the backend unwound before it released this request, so it is still the server's.
                    fail(statistics, unsafe { Box::from_raw(request) }, status.clone());
                }
                Ok(())
            }
        }
    }
}

impl Drop for PluginInstance {
    fn drop(&mut self) {
        let library = &self.model.library;
        let handle = Arc::as_ptr(&self.handle).cast_mut().cast();
        let context = &self.handle.context;
        let work = library.work_on("TRITONBACKEND_ModelInstanceFinalize", &context.model.name, &context.name);
        if let Err(status) = library.call(&work, library.exports.instance_finalize, handle) {
            tracing::error!("instance '{}': its backend failed to finalize it: {status}", self.handle.context.name);
        }
        self.handle.context.model.statistics.memory_released(self.handle.holder());
    }
}
