//! One opened plug-in library: its exports, and every call into it, under the exception guard.

use std::cell::RefCell;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use super::loader::Presence;
use super::soname;
use crate::abi::backend::DEVICE_BLOCKING;
use crate::abi::guard::{ForeignCode, ForeignException, guarded};
use crate::abi::handles::{AttributeHandle, BackendHandle};
use crate::abi::server::Error;
use crate::abi::{handle_registry, library_ranges};
use nereid_backend::{Attributes, ExecutionPolicy, elf};
use nereid_request::{Request, Status};

pub(super) type Call = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Describe = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> *mut c_void;
type Execute = unsafe extern "C-unwind" fn(*mut c_void, *mut *mut c_void, u32) -> *mut c_void;

/// The exports of the library (contract/c_api.md section 5); only execution is required.
pub(super) struct Exports {
    finalize: Option<Call>,
    pub model_initialize: Option<Call>,
    pub model_finalize: Option<Call>,
    pub instance_initialize: Option<Call>,
    pub instance_finalize: Option<Call>,
    pub instance_ready: Option<Call>,
    execute: Execute,
}

/// How an execution ended.
pub(super) enum Outcome {
    /// The backend owns the requests.
    Done,
    /// The backend took none: `released` lists those that it released all the same, against the interface's rules.
    Failed { status: Status, released: Vec<*mut Request> },
    /// It threw an exception after it had released these requests.
    Threw { status: Status, released: Vec<*mut Request> },
}

pub(super) struct Library {
    pub handle: Arc<BackendHandle>,
    pub exports: Exports,
    attributes: Attributes,
    /// Never closed: threads and destructors of a plug-in may outlive its last model.
    _library: std::mem::ManuallyDrop<Handle>,
    /// Dropped after the plug-in's end.
    _presence: Presence,
}

/// The requests that the plug-in released during the execution on this thread.
struct Releases {
    is_executing: bool,
    /// The model that executes on this thread, or did last.
    model: String,
    requests: Vec<*mut Request>,
}

thread_local! {
    static RELEASES: RefCell<Releases> = const { RefCell::new(Releases {
        is_executing: false,
        model: String::new(),
        requests: Vec::new(),
    }) };
}

/// Records that a plug-in released `request`, in case the same execution fails or throws afterwards. A plug-in's own
/// threads release without end and have no execution that could fail: nothing is recorded for them.
pub(crate) fn note_release(request: *mut Request) {
    // A thread that is ending has no list any more, and does not execute.
    let _ = RELEASES.try_with(|releases| {
        let mut releases = releases.borrow_mut();
        if releases.is_executing {
            releases.requests.push(request);
        }
    });
}

/// The model that a plug-in executes on this thread.
pub(crate) fn executing_model() -> String {
    RELEASES.try_with(|releases| releases.borrow().model.clone()).unwrap_or_default()
}

/// Starts to record releases.
fn start_noting(model: &str) {
    RELEASES.with_borrow_mut(|releases| {
        releases.is_executing = true;
        if releases.model != model {
            releases.model = model.to_owned();
        }
        releases.requests.clear();
    });
}

/// Stops recording. The list is taken only if `wanted`, so that its memory is used again.
fn stop_noting(wanted: bool) -> Vec<*mut Request> {
    RELEASES.with_borrow_mut(|releases| {
        releases.is_executing = false;
        if wanted { std::mem::take(&mut releases.requests) } else { Vec::new() }
    })
}

fn threw(thrown: &ForeignException) -> Status {
    Status::internal(format!("the backend threw an exception: {thrown}"))
}

/// Takes ownership of an error that a plug-in returned; NULL is success.
pub(super) fn returned(error: *mut c_void) -> Result<(), Status> {
    let error: *mut Error = error.cast();
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: plug-ins make errors with the server's functions only, and give them up by returning them.
    Err(unsafe { Error::returned(error) })
}

impl Library {
    /// Opens the library, resolves its exports, initialises it and queries its attributes. `backend` is the handle that
    /// the plug-in gets for itself.
    pub fn open(path: &Path, backend: BackendHandle, presence: Presence) -> Result<Library, Status> {
        let library = open_file(path);
        let library = library.map_err(|text| Status::not_found(format!("unable to load shared library: {text}")))?;
        let find = |name: &str| {
            // SAFETY: the symbol is a function of this signature by the interface's definition.
            unsafe { library.get::<Call>(name) }.ok().map(|symbol| *symbol)
        };
        // SAFETY: the symbol is a function of this signature by the interface's definition.
        let execute = unsafe { library.get::<Execute>(EXECUTE) };
        let execute = *execute.map_err(|error| {
            let reason = reason_of(&error);
            Status::not_found(format!("unable to find required entrypoint '{EXECUTE}' in shared library: {reason}"))
        })?;
        library_ranges::register(format!("backend '{}'", backend.name.to_string_lossy()), execute as *const c_void);
        // SAFETY: the symbol is a function of this signature by the interface's definition.
        let describe = unsafe { library.get::<Describe>("TRITONBACKEND_GetBackendAttribute") }.ok().map(|found| *found);
        let exports = Exports {
            finalize: find("TRITONBACKEND_Finalize"),
            model_initialize: find("TRITONBACKEND_ModelInitialize"),
            model_finalize: find("TRITONBACKEND_ModelFinalize"),
            instance_initialize: find("TRITONBACKEND_ModelInstanceInitialize"),
            instance_finalize: find("TRITONBACKEND_ModelInstanceFinalize"),
            instance_ready: find("TRITONBACKEND_ModelInstanceReady"),
            execute,
        };
        let initialize = find("TRITONBACKEND_Initialize");
        let library = Library {
            handle: Arc::new(backend),
            exports,
            attributes: Attributes::default(),
            _library: std::mem::ManuallyDrop::new(library),
            _presence: presence,
        };
        handle_registry::expose(Arc::as_ptr(&library.handle));
        library.begin(initialize, describe)
    }

    fn begin(mut self, initialize: Option<Call>, describe: Option<Describe>) -> Result<Library, Status> {
        let library = &mut self;
        let backend_handle = Arc::as_ptr(&library.handle).cast_mut().cast();
        if let Err(status) = library.call(&library.work("TRITONBACKEND_Initialize"), initialize, backend_handle) {
            // A library that failed to initialise is not finalised.
            library.exports.finalize = None;
            return Err(status);
        }
        if let Some(describe) = describe {
            library.describe(describe, backend_handle)?;
        }
        Ok(self)
    }

    fn describe(&mut self, describe: Describe, backend: *mut c_void) -> Result<(), Status> {
        let mut attributes = AttributeHandle::default();
        let into = (&raw mut attributes).cast();
        handle_registry::expose(&raw const attributes);
        let work = self.work("TRITONBACKEND_GetBackendAttribute");
        // SAFETY: both handles live through the call, and the guard keeps exceptions out of Rust.
        let error = guarded(&work, || unsafe { describe(backend, into) });
        handle_registry::reclaim(&raw const attributes);
        returned(error.map_err(|thrown| threw(&thrown))?)?;
        self.attributes = attributes.attributes;
        Ok(())
    }

    /// The attributes that the plug-in set; its execution policy is the last one that it set.
    pub fn attributes(&self) -> Attributes {
        let execution_policy = match self.handle.execution_policy.load(Ordering::Acquire) {
            DEVICE_BLOCKING => ExecutionPolicy::DeviceBlocking,
            _ => ExecutionPolicy::Blocking,
        };
        Attributes { execution_policy, ..self.attributes.clone() }
    }

    /// The foreign code of a `call` that concerns no model.
    fn work(&self, call: &'static str) -> ForeignCode<'_> {
        ForeignCode {
            kind: "backend",
            name: self.handle.name.to_str().unwrap_or_default(),
            call,
            ..ForeignCode::default()
        }
    }

    /// The same for a call on a model, and on an instance unless that is empty.
    pub fn work_on<'a>(&'a self, call: &'static str, model: &'a str, instance: &'a str) -> ForeignCode<'a> {
        ForeignCode { model, instance, ..self.work(call) }
    }

    /// Calls an export that takes one handle; an export that the library lacks counts as a success.
    pub fn call(&self, work: &ForeignCode<'_>, function: Option<Call>, handle: *mut c_void) -> Result<(), Status> {
        let Some(function) = function else { return Ok(()) };
        // SAFETY: the handle is of the kind that this export takes and lives through the call.
        let error = guarded(work, || unsafe { function(handle) });
        returned(error.map_err(|thrown| threw(&thrown))?)
    }

    /// Runs one batch.
    pub fn execute(&self, work: &ForeignCode<'_>, instance: *mut c_void, requests: &mut [*mut Request]) -> Outcome {
        start_noting(work.model);
        let count = requests.len() as u32;
        let list = requests.as_mut_ptr().cast::<*mut c_void>();
        // SAFETY: the requests came from boxes, the instance handle is live, and the guard catches exceptions.
        let outcome = guarded(work, || unsafe { (self.exports.execute)(instance, list, count) });
        let released = stop_noting(!matches!(outcome, Ok(error) if error.is_null()));
        match outcome.map(returned) {
            Err(thrown) => Outcome::Threw { status: threw(&thrown), released },
            Ok(Err(status)) => Outcome::Failed { status, released },
            Ok(Ok(())) => Outcome::Done,
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let handle = Arc::as_ptr(&self.handle).cast_mut().cast();
        if let Err(status) = self.call(&self.work("TRITONBACKEND_Finalize"), self.exports.finalize, handle) {
            tracing::error!("backend '{}' failed to finalize: {status}", self.handle.name.to_string_lossy());
        }
        let (count, bytes) = self.handle.memory.in_use();
        if count > 0 {
            let name = self.handle.name.to_string_lossy();
            tracing::warn!("backend '{name}' ended without freeing {count} allocations of {bytes} bytes");
        }
        handle_registry::report(self.handle.name.to_str().ok());
    }
}

/// The required export.
pub const EXECUTE: &str = "TRITONBACKEND_ModelInstanceExecute";

/// Opens a library of any kind, with its undefined symbols bound to the server's functions. An error names the file and
/// the reason.
pub(crate) fn open_file(path: &Path) -> Result<Handle, String> {
    crate::abi::symbols::keep();
    elf::check_whole(path)?;
    soname::provide_for(path).map_err(|error| format!("cannot provide libtritonserver.so: {error}"))?;
    // SAFETY: loading a library runs its initialisers; the operator or the owner of the repository chose it.
    unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| reason_of(&error))
}

/// The loader's message, without the name of its function before it.
pub(crate) fn reason_of(error: &libloading::Error) -> String {
    // Its own text only names the function that failed.
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
