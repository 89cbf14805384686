//! Backends as shared libraries: Triton's own plug-in interface behind the `Backend` trait.
//!
//! A library `libtriton_<backend>.so` is opened once and its exports are resolved; it calls the functions of `abi` in
//! this process image. Its request pointers point to the server's own requests.

mod batching;
mod library;
mod loader;
mod readiness;
mod soname;

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::abi::handle_registry;
use crate::abi::handles::{InstanceHandle, ModelHandle};
use library::{Library, Outcome};
use nereid_backend::{Attributes, Backend, Instance, InstanceContext, Model, ModelContext, fail};
use nereid_model_config::ModelSpec;
use nereid_observe::statistics::Holder;
use nereid_request::{OutputShape, OutputShapes, Request, Shape, Status, Text};
use nereid_scheduler::{Payload, Readiness};
use nereid_wire::inference::ModelConfig;
use readiness::Gate;

pub use library::EXECUTE;
pub(crate) use library::{executing_model, note_release, open_file, reason_of};
pub use loader::loader;

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
        let handle = Arc::new(ModelHandle::new(context, Arc::clone(&self.library.handle)));
        handle_registry::expose(Arc::as_ptr(&handle));
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

    fn handle(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::clone(&self.handle) as Arc<_>)
    }

    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        *self.handle.config.lock().unwrap_or_else(PoisonError::into_inner) = context.spec.config.clone();
        let shapes = output_shapes(&context.spec).map(Arc::new);
        let handle = Arc::new(InstanceHandle::new(context, Arc::clone(&self.handle)));
        handle_registry::expose(Arc::as_ptr(&handle));
        let call = "TRITONBACKEND_ModelInstanceInitialize";
        let work = self.library.work_on(call, &self.handle.context.name, &handle.context.name);
        self.library.call(&work, self.library.exports.instance_initialize, Arc::as_ptr(&handle).cast_mut().cast())?;
        let gate = self.library.exports.instance_ready.map(|ready| Gate::new(ready, &self.library, &handle));
        Ok(Box::new(PluginInstance { handle, model: self, requests: Vec::new(), shapes, gate: gate.map(Arc::new) }))
    }
}

/// How the shapes of a library's responses, which are the model's, change on the way to clients
/// (contract/model_config.md section 7).
fn output_shapes(spec: &ModelSpec) -> Option<OutputShapes> {
    let outputs = spec.outputs.iter().map(|output| {
        let reshape = output.reshape.as_deref().map(Shape::from_slice);
        (Text::from(output.name.as_str()), OutputShape { dims: Shape::from_slice(&output.dims), reshape })
    });
    OutputShapes::new(outputs, spec.max_batch_size > 0)
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
    /// Buffer that is reused from call to call.
    requests: Vec<*mut Request>,
    /// The changes of output shapes, if clients get some outputs in other shapes.
    shapes: Option<Arc<OutputShapes>>,
    /// Readiness queries, if the library exports a function for them.
    gate: Option<Arc<Gate>>,
}

// SAFETY: one thread at a time uses the instance, and the request pointers exist only during a call.
unsafe impl Send for PluginInstance {}

impl Instance for PluginInstance {
    /// A library that has an instance on a device reads inputs there (contract/c_api.md section 5, "InputBuffer").
    fn takes_device_tensors(&self) -> bool {
        self.handle.context.gpu.is_some()
    }

    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        self.gate.as_ref().map(|gate| Arc::clone(gate) as Arc<dyn Readiness>)
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let mut requests = payload.take();
        if self.shapes.is_some() {
            requests.iter_mut().for_each(|request| request.output_shapes.clone_from(&self.shapes));
        }
        if self.handle.context.model.gpus.is_supported() {
            requests.iter_mut().for_each(|request| request.gpus = Some(Arc::clone(&self.handle.context.model.gpus)));
        }
        self.requests.extend(requests.into_iter().map(Box::into_raw));
        handle_registry::expose_requests(&self.requests);
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
                    handle_registry::reclaim(request);
                    // SAFETY: a backend that returns an error has taken none of the requests, which came from boxes;
                    // requests that it released against that rule are left out.
                    payload.push(unsafe { Box::from_raw(request) });
                }
                Err(status)
            }
            Outcome::Threw { status, released } => {
                for request in self.requests.drain(..).filter(|request| !released.contains(request)) {
                    handle_registry::reclaim(request);
                    // SAFETY: the backend unwound before it released this request, so the server still owns it.
                    fail(statistics, unsafe { Box::from_raw(request) }, status.clone());
                }
                Ok(())
            }
        }
    }
}

impl Drop for PluginInstance {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            gate.close();
        }
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
