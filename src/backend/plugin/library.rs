//! One opened plug-in library: its exports, and every call into it behind the exception guard.

use std::cell::RefCell;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use super::elf;
use super::search::Presence;
use super::soname;
use crate::abi::backend::DEVICE_BLOCKING;
use crate::abi::guard::{Thrown, Work, guarded};
use crate::abi::handles::{AttributeHandle, BackendHandle};
use crate::abi::server::Error;
use crate::abi::{ledger, places};
use crate::backend::{Attributes, ExecutionPolicy};
use nereid_request::{Request, Status};

pub(super) type Call = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Describe = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> *mut c_void;
type Execute = unsafe extern "C-unwind" fn(*mut c_void, *mut *mut c_void, u32) -> *mut c_void;

/// What the library offers (contract/c_api.md section 5); only execution is required.
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
    /// It took none: `released` names those that it released all the same, against the interface's rules.
    Failed { status: Status, released: Vec<*mut Request> },
    /// An exception came out of it, after it had released these requests.
    Threw { status: Status, released: Vec<*mut Request> },
}

pub(super) struct Library {
    pub handle: Arc<BackendHandle>,
    pub exports: Exports,
    attributes: Attributes,
    /// Never closed: threads and destructors of a plug-in may outlive its last model.
    _library: std::mem::ManuallyDrop<Handle>,
    /// Behind the plug-in's end.
    _presence: Presence,
}

/// What the plug-in released during the execution on this thread.
struct Releases {
    is_executing: bool,
    /// The model that executes here, or did last.
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

/// Remembers that a plug-in gave `request` back, in case the same execution fails or throws afterwards. Threads of a
/// plug-in's own release without end and have no execution that could fail: nothing is kept for them.
pub(crate) fn note_release(request: *mut Request) {
    // A thread that is ending has no list any more, and is none that executes.
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

/// Begins to remember releases.
fn start_noting(model: &str) {
    RELEASES.with_borrow_mut(|releases| {
        releases.is_executing = true;
        if releases.model != model {
            releases.model = model.to_owned();
        }
        releases.requests.clear();
    });
}

/// Ends it. The list is taken only where it is needed, so that its memory is used again.
fn stop_noting(wanted: bool) -> Vec<*mut Request> {
    RELEASES.with_borrow_mut(|releases| {
        releases.is_executing = false;
        if wanted { std::mem::take(&mut releases.requests) } else { Vec::new() }
    })
}

fn threw(thrown: &Thrown) -> Status {
    Status::internal(format!("the backend threw an exception: {thrown}"))
}

/// Takes over an error that a plug-in returned; NULL is success.
pub(super) fn returned(error: *mut c_void) -> Result<(), Status> {
    let error: *mut Error = error.cast();
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: plug-ins make errors with our functions only, and give them up by returning them.
    Err(unsafe { Error::returned(error) })
}

impl Library {
    /// Opens, looks up, initialises and asks for attributes. `backend` is what the plug-in is told of itself.
    pub fn open(path: &Path, backend: BackendHandle, presence: Presence) -> Result<Library, Status> {
        let library = open_file(path);
        let library = library.map_err(|text| Status::not_found(format!("unable to load shared library: {text}")))?;
        let find = |name: &str| {
            // SAFETY: the symbol is a function of this signature by the interface's definition.
            unsafe { library.get::<Call>(name) }.ok().map(|symbol| *symbol)
        };
        // SAFETY: as above.
        let execute = unsafe { library.get::<Execute>(EXECUTE) };
        let execute = *execute.map_err(|error| {
            let reason = reason_of(&error);
            Status::not_found(format!("unable to find required entrypoint '{EXECUTE}' in shared library: {reason}"))
        })?;
        places::remember(format!("backend '{}'", backend.name.to_string_lossy()), execute as *const c_void);
        // SAFETY: as above.
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
        ledger::expose(Arc::as_ptr(&library.handle));
        library.begin(initialize, describe)
    }

    fn begin(mut self, initialize: Option<Call>, describe: Option<Describe>) -> Result<Library, Status> {
        let library = &mut self;
        let backend_handle = Arc::as_ptr(&library.handle).cast_mut().cast();
        if let Err(status) = library.call(&library.work("TRITONBACKEND_Initialize"), initialize, backend_handle) {
            // What did not initialise is not finalised.
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
        ledger::expose(&raw const attributes);
        let work = self.work("TRITONBACKEND_GetBackendAttribute");
        // SAFETY: both handles live through the call, and the guard keeps exceptions out of Rust.
        let error = guarded(&work, || unsafe { describe(backend, into) });
        ledger::reclaim(&raw const attributes);
        returned(error.map_err(|thrown| threw(&thrown))?)?;
        self.attributes = attributes.attributes;
        Ok(())
    }

    /// What the plug-in said of itself; its execution policy is the last one that it set.
    pub fn attributes(&self) -> Attributes {
        let execution_policy = match self.handle.execution_policy.load(Ordering::Acquire) {
            DEVICE_BLOCKING => ExecutionPolicy::DeviceBlocking,
            _ => ExecutionPolicy::Blocking,
        };
        Attributes { execution_policy, ..self.attributes.clone() }
    }

    /// Who is at work while `call` lasts, as far as it is about no model.
    fn work(&self, call: &'static str) -> Work<'_> {
        Work { kind: "backend", name: self.handle.name.to_str().unwrap_or_default(), call, ..Work::default() }
    }

    /// The same for a model, and for an instance unless that is empty.
    pub fn work_on<'a>(&'a self, call: &'static str, model: &'a str, instance: &'a str) -> Work<'a> {
        Work { model, instance, ..self.work(call) }
    }

    /// Calls an export that takes one handle; one that the library lacks succeeds.
    pub fn call(&self, work: &Work<'_>, function: Option<Call>, handle: *mut c_void) -> Result<(), Status> {
        let Some(function) = function else { return Ok(()) };
        // SAFETY: the handle is of the kind that this export takes and lives through the call.
        let error = guarded(work, || unsafe { function(handle) });
        returned(error.map_err(|thrown| threw(&thrown))?)
    }

    /// Runs one batch.
    pub fn execute(&self, work: &Work<'_>, instance: *mut c_void, requests: &mut [*mut Request]) -> Outcome {
        start_noting(work.model);
        let count = requests.len() as u32;
        let list = requests.as_mut_ptr().cast::<*mut c_void>();
        // SAFETY: the requests came from boxes, the instance handle lives, and exceptions stop at the guard.
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
        ledger::report(self.handle.name.to_str().ok());
    }
}

/// The required export.
const EXECUTE: &str = "TRITONBACKEND_ModelInstanceExecute";

/// Opens a library of whatever kind, which finds the server's own functions. An error says what is wrong with which
/// file.
pub(crate) fn open_file(path: &Path) -> Result<Handle, String> {
    crate::abi::symbols::keep();
    elf::check_whole(path)?;
    soname::provide_for(path).map_err(|error| format!("cannot provide libtritonserver.so: {error}"))?;
    // SAFETY: running a library's initialisers is what loading it means; the operator chose it, or who owns the
    // repository.
    unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| reason_of(&error))
}

/// What the loader says, without the name of its function before it.
pub(crate) fn reason_of(error: &libloading::Error) -> String {
    // What it displays itself is only which function failed.
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
