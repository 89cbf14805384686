//! An agent library behind the trait of the life cycle.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::error;

use super::{AgentHandle, AgentModelHandle};
use crate::abi::border::{give, take};
use crate::abi::foreign::{Library, call, locate};
use crate::abi::guard::ForeignCode;
use crate::abi::library_ranges;
use crate::abi::server::Error;
use crate::repository::agents::{Action, Agent, AgentModel, Location, OpenLibrary, Task};
use nereid_request::Status;

type OnAgent = unsafe extern "C-unwind" fn(*mut AgentHandle) -> *mut Error;
type OnModel = unsafe extern "C-unwind" fn(*mut AgentHandle, *mut AgentModelHandle) -> *mut Error;
type OnAction = unsafe extern "C-unwind" fn(*mut AgentHandle, *mut AgentModelHandle, u32) -> *mut Error;

/// The required export.
pub const ACTION: &str = "TRITONREPOAGENT_ModelAction";

struct LibraryAgent {
    name: String,
    handle: *mut AgentHandle,
    /// Whether `TRITONREPOAGENT_Initialize` succeeded: only then `TRITONREPOAGENT_Finalize` is called.
    is_initialized: bool,
    exports: Exports,
    library: Library,
}

/// The exports of a library; only the model action is required.
struct Exports {
    finalize: Option<OnAgent>,
    model_initialize: Option<OnModel>,
    model_finalize: Option<OnModel>,
    model_action: OnAction,
}

// SAFETY: the handle is shared with the library, which the interface calls from several threads; it is freed once.
unsafe impl Send for LibraryAgent {}
// SAFETY: the handle is shared with the library, which the interface calls from several threads; it is freed once.
unsafe impl Sync for LibraryAgent {}

/// One model's use of one agent.
struct LibraryModel {
    agent: Arc<LibraryAgent>,
    handle: *mut AgentModelHandle,
    /// For messages.
    model: String,
    /// As `LibraryAgent::is_initialized`, for this model.
    is_initialized: bool,
}

// SAFETY: the handle belongs to this value alone and moves between threads with it.
unsafe impl Send for LibraryModel {}

/// Returns the function that opens agents from the folders of `directory`, which is `--repoagent-directory`.
pub fn libraries(directory: PathBuf) -> OpenLibrary {
    Box::new(move |name, file| LibraryAgent::open(name, file, &directory).map(|agent| Arc::new(agent) as Arc<_>))
}

/// The library of the agent `name`, which is `file` or has its usual name; nothing is opened.
pub fn find(name: &str, file: Option<&str>, directory: &Path) -> Result<PathBuf, Status> {
    let file = file.map_or_else(|| format!("libtritonrepoagent_{name}.so"), str::to_owned);
    locate(directory, name, &file).ok_or_else(|| {
        let searched = directory.display();
        Status::invalid(format!("unable to find '{file}' for repo agent '{name}', searched: {searched}"))
    })
}

impl LibraryAgent {
    fn open(name: &str, file: Option<&str>, directory: &Path) -> Result<LibraryAgent, Status> {
        let library = Library::open(&find(name, file, directory)?)?;
        // SAFETY: the interface defines these functions with these types.
        let (initialize, exports) = unsafe {
            let exports = Exports {
                finalize: library.find("TRITONREPOAGENT_Finalize"),
                model_initialize: library.find("TRITONREPOAGENT_ModelInitialize"),
                model_finalize: library.find("TRITONREPOAGENT_ModelFinalize"),
                model_action: library.require(ACTION)?,
            };
            (library.find::<OnAgent>("TRITONREPOAGENT_Initialize"), exports)
        };
        library_ranges::register(format!("repository agent '{name}'"), exports.model_action as *const c_void);
        let handle = give(AgentHandle::default());
        let mut agent = LibraryAgent { name: name.to_owned(), handle, is_initialized: false, exports, library };
        if let Some(initialize) = initialize {
            // SAFETY: the handle lives as long as the agent.
            call(&agent.work("TRITONREPOAGENT_Initialize", ""), || unsafe { initialize(handle) })?;
        }
        agent.is_initialized = true;
        Ok(agent)
    }

    fn work<'a>(&'a self, call: &'static str, model: &'a str) -> ForeignCode<'a> {
        ForeignCode { kind: "repository agent", name: &self.name, model, call, ..ForeignCode::default() }
    }
}

impl Agent for LibraryAgent {
    fn code_location(&self) -> String {
        self.library.path.display().to_string()
    }

    fn begin(self: Arc<Self>, task: Task) -> Result<Box<dyn AgentModel>, Status> {
        let model = task.model.clone();
        let handle = give(AgentModelHandle::new(self.handle, task));
        let mut begun = LibraryModel { agent: self, handle, model, is_initialized: false };
        begun.call("TRITONREPOAGENT_ModelInitialize", begun.agent.exports.model_initialize)?;
        begun.is_initialized = true;
        Ok(Box::new(begun))
    }
}

impl Drop for LibraryAgent {
    fn drop(&mut self) {
        if let Some(finalize) = self.exports.finalize.filter(|_| self.is_initialized) {
            // SAFETY: the handle is live, and no other call uses it any more.
            let outcome = call(&self.work("TRITONREPOAGENT_Finalize", ""), || unsafe { finalize(self.handle) });
            if let Err(status) = outcome {
                error!("the repository agent '{}' failed to finalize: {status}", self.name);
            }
        }
        // SAFETY: the handle was given to C when the agent was opened.
        drop(unsafe { take(self.handle, "agent") });
    }
}

impl LibraryModel {
    /// Calls an export that takes agent and model; an export that the library lacks counts as a success.
    fn call(&self, name: &'static str, function: Option<OnModel>) -> Result<(), Status> {
        let Some(function) = function else { return Ok(()) };
        let work = self.agent.work(name, &self.model);
        // SAFETY: both handles live through the call.
        call(&work, || unsafe { function(self.agent.handle, self.handle) })
    }

    fn handle(&self) -> &AgentModelHandle {
        // SAFETY: the handle was given to C when the model's load began, and is taken back when this value is dropped.
        unsafe { &*self.handle }
    }
}

impl AgentModel for LibraryModel {
    fn act(&mut self, action: Action) -> Result<(), Status> {
        self.handle().enter(action);
        let work = self.agent.work("TRITONREPOAGENT_ModelAction", &self.model);
        let function = self.agent.exports.model_action;
        // SAFETY: both handles live through the call.
        call(&work, || unsafe { function(self.agent.handle, self.handle, action as u32) })
    }

    fn location(&self) -> Location {
        self.handle().location()
    }
}

impl Drop for LibraryModel {
    fn drop(&mut self) {
        if self.is_initialized {
            let outcome = self.call("TRITONREPOAGENT_ModelFinalize", self.agent.exports.model_finalize);
            if let Err(status) = outcome {
                let (agent, model) = (&self.agent.name, &self.model);
                error!("the agent '{agent}' of model '{model}' failed to finalize it: {status}");
            }
        }
        // SAFETY: the handle was given to C when the model's load began. Dropping it removes an acquired directory.
        drop(unsafe { take(self.handle, "model") });
    }
}
