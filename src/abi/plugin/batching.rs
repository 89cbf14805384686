//! Batching libraries: finding one for a model, and calling its five functions (contract/c_api.md section 5, "Batch
//! strategy library").
//!
//! The requests and models that a library gets are the server's own. Its failures (an error, an exception) are logged
//! once for each function, and the batcher continues with its own rules.

use std::ffi::c_void;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libloading::os::unix::Library as Handle;

use super::library::{open_file, returned};
use crate::abi::guard::{ForeignCode, ForeignException, guarded};
use crate::abi::handles::{BackendHandle, ModelHandle};
use crate::abi::{handle_registry, library_ranges};
use nereid_backend::{Model, ModelContext};
use nereid_model_config::ModelSpec;
use nereid_request::{Request, Status};
use nereid_scheduler::BatchStrategy;
use nereid_wire::inference::model_config::SchedulingChoice;

/// The parameter of a model that names its library.
const PARAMETER: &str = "TRITON_BATCH_STRATEGY_PATH";
/// The file name without that parameter.
const FILE: &str = "batchstrategy.so";

type Begin = unsafe extern "C-unwind" fn(*mut *mut c_void, *mut c_void) -> *mut c_void;
type End = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Include = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut bool) -> *mut c_void;
type BeginBatch = unsafe extern "C-unwind" fn(*const c_void, *mut *mut c_void) -> *mut c_void;

const BATCHER_INITIALIZE: &str = "TRITONBACKEND_ModelBatcherInitialize";
const BATCHER_FINALIZE: &str = "TRITONBACKEND_ModelBatcherFinalize";
const INCLUDE_REQUEST: &str = "TRITONBACKEND_ModelBatchIncludeRequest";
const BATCH_INITIALIZE: &str = "TRITONBACKEND_ModelBatchInitialize";
const BATCH_FINALIZE: &str = "TRITONBACKEND_ModelBatchFinalize";

/// The library that forms batches for a model, if it has one. `was_sequence`: the model's own file requests sequence
/// batching, not only the configuration that its backend completed. `backend_directory` is that of the model's backend.
pub fn strategy_of(
    spec: &ModelSpec,
    was_sequence: bool,
    model: &dyn Model,
    context: &Arc<ModelContext>,
    backend_directory: &Path,
) -> Result<Option<Arc<dyn BatchStrategy>>, Status> {
    let named = context.parameter(PARAMETER).map(|path| named(path, &context.directory)).transpose()?;
    let path = match &spec.config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(_)) if named.is_some() => {
            let text =
                format!("{PARAMETER} cannot be specified with sequence batcher, using default batching strategy");
            if was_sequence {
                return Err(Status::invalid(text));
            }
            tracing::error!("{text}");
            None
        }
        Some(SchedulingChoice::DynamicBatching(_)) => named.or_else(|| {
            let places = [&context.version_directory, &context.directory, backend_directory];
            places.iter().map(|place| place.join(FILE)).find(|path| path.is_file())
        }),
        _ => None,
    };
    let Some(path) = path else { return Ok(None) };
    tracing::info!("Loading custom batching strategy library {} for model {}", path.display(), context.name);
    let handle = model.handle().and_then(|handle| handle.downcast::<ModelHandle>().ok());
    let handle = handle.unwrap_or_else(|| handle_of(context, &spec.config.backend, backend_directory));
    // Auto-completion is over: this configuration is final.
    *handle.config.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = spec.config.clone();
    let library = BatchLibrary::open(&path, handle)?;
    Ok(library.map(|library| Arc::new(library) as Arc<dyn BatchStrategy>))
}

/// The file that a model's parameter names, relative to the model's directory, which it must not leave.
fn named(given: &str, directory: &Path) -> Result<PathBuf, Status> {
    let path = directory.join(given);
    let escapes = || Status::invalid("Batching library path escapes model repository.");
    // The path itself is checked first, so that files outside are not even accessed; then the target of links.
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    let is_inside = plain.starts_with(directory);
    let real = path.canonicalize();
    let (Ok(real), Ok(real_directory)) = (real, directory.canonicalize()) else {
        return Err(match is_inside {
            true => Status::not_found(format!("Batching library path not found: {given}")),
            false => escapes(),
        });
    };
    match real.starts_with(&real_directory) {
        true if real.is_file() => Ok(path),
        true => Err(Status::not_found(format!("Batching library path not found: {given}"))),
        false => Err(escapes()),
    }
}

/// The C handle of a model with a built-in backend.
fn handle_of(context: &Arc<ModelContext>, backend: &str, backend_directory: &Path) -> Arc<ModelHandle> {
    let directory = backend_directory.to_string_lossy();
    let memory = (context.pool.clone(), Arc::clone(&context.gpus));
    let backend = Arc::new(BackendHandle::new(backend, "{}", &directory, memory));
    handle_registry::expose(Arc::as_ptr(&backend));
    let handle = Arc::new(ModelHandle::new(Arc::clone(context), backend));
    handle.is_sealed.store(true, Ordering::Release);
    handle_registry::expose(Arc::as_ptr(&handle));
    handle
}

/// The library of one model.
struct BatchLibrary {
    model: Arc<ModelHandle>,
    /// For messages.
    path: String,
    include: Include,
    begin_batch: BeginBatch,
    end_batch: End,
    end: End,
    /// The library's pointer for the model.
    batcher: AtomicPtr<c_void>,
    /// The library's pointer for the batch under construction.
    batch: AtomicPtr<c_void>,
    is_batch_open: AtomicBool,
    is_open: AtomicBool,
    /// Functions of which a failure was logged.
    told: [AtomicBool; 4],
    /// Never closed: threads and destructors of the library may outlive the model.
    _library: std::mem::ManuallyDrop<Handle>,
}

impl BatchLibrary {
    /// Opens the library. `None`: it has none of the five functions, and batches are formed without it, as in Triton.
    fn open(path: &Path, model: Arc<ModelHandle>) -> Result<Option<BatchLibrary>, Status> {
        let shown = path.display().to_string();
        let cannot = |error: &dyn std::fmt::Display| {
            Status::invalid(format!("unable to load batching library '{shown}': {error}"))
        };
        let library = open_file(path).map_err(|error| cannot(&error))?;
        let library = std::mem::ManuallyDrop::new(library);
        // SAFETY: the symbols are functions of these signatures by the interface's definition.
        let (begin, end, include, begin_batch, end_batch) = unsafe {
            (
                library.get::<Begin>(BATCHER_INITIALIZE).ok().map(|function| *function),
                library.get::<End>(BATCHER_FINALIZE).ok().map(|function| *function),
                library.get::<Include>(INCLUDE_REQUEST).ok().map(|function| *function),
                library.get::<BeginBatch>(BATCH_INITIALIZE).ok().map(|function| *function),
                library.get::<End>(BATCH_FINALIZE).ok().map(|function| *function),
            )
        };
        let has = [begin.is_some(), end.is_some(), include.is_some(), begin_batch.is_some(), end_batch.is_some()];
        let name = &model.context.name;
        if has == [false; 5] {
            tracing::warn!("{shown} defines no custom batching function: model {name} is batched without it");
            return Ok(None);
        }
        let (Some(begin), Some(end), Some(include), Some(begin_batch), Some(end_batch)) =
            (begin, end, include, begin_batch, end_batch)
        else {
            let functions = [BATCHER_INITIALIZE, BATCHER_FINALIZE, INCLUDE_REQUEST, BATCH_INITIALIZE, BATCH_FINALIZE];
            let lacking: Vec<&str> =
                functions.into_iter().zip(has).filter(|(_, has)| !has).map(|(one, _)| one).collect();
            tracing::error!("{shown} does not define {}", lacking.join(", "));
            let text = "does not define all required custom batching functions for model";
            return Err(Status::invalid(format!("{shown} {text} {name}")));
        };
        library_ranges::register(format!("batching library '{shown}'"), begin as *const c_void);
        let mut batcher = std::ptr::null_mut();
        let work = work_for(&shown, &model, BATCHER_INITIALIZE);
        let handle = Arc::as_ptr(&model).cast_mut().cast();
        // SAFETY: both pointers live through the call.
        outcome(guarded(&work, || unsafe { begin(&raw mut batcher, handle) }))?;
        Ok(Some(BatchLibrary {
            model,
            path: shown,
            include,
            begin_batch,
            end_batch,
            end,
            batcher: AtomicPtr::new(batcher),
            batch: AtomicPtr::default(),
            is_batch_open: AtomicBool::new(false),
            is_open: AtomicBool::new(true),
            told: Default::default(),
            _library: library,
        }))
    }

    fn work(&self, call: &'static str) -> ForeignCode<'_> {
        work_for(&self.path, &self.model, call)
    }

    /// Logs the failure of a function, the first time; returns whether the call succeeded.
    fn note(&self, at: usize, call: &str, result: Result<(), Status>) -> bool {
        let Err(status) = result else { return true };
        if self.told.get(at).is_some_and(|told| !told.swap(true, Ordering::Relaxed)) {
            let (path, model) = (&self.path, &self.model.context.name);
            tracing::error!("model '{model}': {call} of '{path}' failed, which is told once: {status}");
        }
        false
    }
}

fn work_for<'a>(path: &'a str, model: &'a ModelHandle, call: &'static str) -> ForeignCode<'a> {
    ForeignCode { kind: "batching library", name: path, model: &model.context.name, instance: "", call }
}

fn outcome(result: Result<*mut c_void, ForeignException>) -> Result<(), Status> {
    let error =
        result.map_err(|thrown| Status::internal(format!("the batching library threw an exception: {thrown}")))?;
    returned(error)
}

impl BatchStrategy for BatchLibrary {
    fn begin(&self) {
        let (batcher, mut batch) = (self.batcher.load(Ordering::Acquire).cast_const(), std::ptr::null_mut());
        // SAFETY: the batcher came from the library, and the pointer to the batch is valid through the call.
        let result = guarded(&self.work(BATCH_INITIALIZE), || unsafe { (self.begin_batch)(batcher, &raw mut batch) });
        // A batch that the library did not begin is not ended by it, nor limited by it.
        let has_begun = self.note(0, BATCH_INITIALIZE, outcome(result));
        self.batch.store(batch, Ordering::Release);
        self.is_batch_open.store(has_begun, Ordering::Release);
    }

    fn includes(&self, request: &Request) -> bool {
        if !self.is_batch_open.load(Ordering::Acquire) {
            return true;
        }
        let (batch, mut should_include) = (self.batch.load(Ordering::Acquire), true);
        handle_registry::expose(request);
        let handle = std::ptr::from_ref(request).cast_mut().cast();
        // SAFETY: the request waits in the batcher until the call is over, and the library only reads it.
        let result =
            guarded(&self.work(INCLUDE_REQUEST), || unsafe { (self.include)(handle, batch, &raw mut should_include) });
        handle_registry::reclaim(request);
        !self.note(1, INCLUDE_REQUEST, outcome(result)) || should_include
    }

    fn end(&self) {
        if !self.is_batch_open.swap(false, Ordering::AcqRel) {
            return;
        }
        let batch = self.batch.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the library made it for this batch, and gets it back once.
        let result = guarded(&self.work(BATCH_FINALIZE), || unsafe { (self.end_batch)(batch) });
        self.note(2, BATCH_FINALIZE, outcome(result));
    }

    fn close(&self) {
        if !self.is_open.swap(false, Ordering::AcqRel) {
            return;
        }
        self.end();
        let batcher = self.batcher.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the library made it for the model, and gets it back once.
        let result = guarded(&self.work(BATCHER_FINALIZE), || unsafe { (self.end)(batcher) });
        self.note(3, BATCHER_FINALIZE, outcome(result));
    }
}

impl Drop for BatchLibrary {
    fn drop(&mut self) {
        self.close();
    }
}
