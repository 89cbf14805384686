//! The handles of an agent library: the agent, and a model that it works on.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::handles::{UserState, c_string};
use crate::repository::agents::{Action, Location, Task};
use crate::repository::store::{ModelCopy, Scratch};
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;

/// `TRITONREPOAGENT_ARTIFACT_…`.
const FILESYSTEM: u32 = 0;
const REMOTE_FILESYSTEM: u32 = 1;

/// Bound on the texts of one model that an agent may still hold pointers to.
const TEXTS_MAX: usize = 256;

/// `TRITONREPOAGENT_Agent`.
#[derive(Debug, Default)]
pub struct AgentHandle {
    pub state: UserState,
    /// The directory of its temporary directories, created when the agent acquires the first.
    scratch: OnceLock<Result<Arc<Scratch>, Status>>,
}

/// `TRITONREPOAGENT_AgentModel`.
#[derive(Debug)]
pub struct AgentModelHandle {
    agent: *const AgentHandle,
    name: String,
    pub parameters: Vec<(CString, CString)>,
    pub config: ModelConfig,
    pub state: UserState,
    present: Mutex<Present>,
}

// SAFETY: the agent's handle outlives those of its models, and is shared between threads itself.
unsafe impl Send for AgentModelHandle {}
// SAFETY: the agent's handle outlives those of its models, and is shared between threads itself.
unsafe impl Sync for AgentModelHandle {}

#[derive(Debug)]
struct Present {
    action: Option<Action>,
    artifact_type: u32,
    /// All texts that were handed out; `at` is the index of the present location.
    texts: Vec<CString>,
    at: usize,
    acquired: Option<Acquired>,
}

#[derive(Debug)]
struct Acquired {
    copy: ModelCopy,
    at: usize,
}

impl AgentModelHandle {
    pub fn new(agent: *const AgentHandle, task: Task) -> AgentModelHandle {
        let (artifact_type, location) = match &task.location {
            Location::Directory(path) => (FILESYSTEM, c_bytes(path.as_os_str())),
            Location::Remote(location) => (REMOTE_FILESYSTEM, c_string(location)),
        };
        let present = Present { action: None, artifact_type, texts: vec![location], at: 0, acquired: None };
        let parameters = task.parameters.iter().map(|(name, value)| (c_string(name), c_string(value)));
        AgentModelHandle {
            agent,
            parameters: parameters.collect(),
            name: task.model,
            config: task.config,
            state: UserState::default(),
            present: Mutex::new(present),
        }
    }

    pub fn is_of(&self, agent: *const AgentHandle) -> bool {
        self.agent == agent
    }

    /// The model's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the action that the model is in from now on.
    pub fn enter(&self, action: Action) {
        self.present().action = Some(action);
    }

    pub fn location(&self) -> Location {
        let present = self.present();
        let text = present.texts.get(present.at).map(CString::as_bytes).unwrap_or_default();
        match present.artifact_type {
            FILESYSTEM => Location::Directory(PathBuf::from(OsStr::from_bytes(text))),
            _ => Location::Remote(String::from_utf8_lossy(text).into_owned()),
        }
    }

    /// Type and text of the present location.
    pub fn place(&self) -> (u32, *const c_char) {
        let present = self.present();
        (present.artifact_type, present.text(present.at))
    }

    /// Returns a directory for the agent's use: the same one until it is released.
    pub fn acquire(&self, artifact_type: u32) -> Result<*const c_char, Status> {
        if artifact_type != FILESYSTEM {
            let text = "Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'";
            return Err(Status::invalid(text));
        }
        let mut present = self.present();
        if let Some(Acquired { at, .. }) = present.acquired {
            return Ok(present.text(at));
        }
        // SAFETY: the agent's handle outlives those of its models.
        let agent = unsafe { &*self.agent };
        let scratch = agent.scratch.get_or_init(|| Scratch::make(&std::env::temp_dir(), "TMPDIR")).clone()?;
        let copy = scratch.copy(&self.name).map_err(|error| {
            Status::internal(format!("failed to make a directory for the agents of model '{}': {error}", self.name))
        })?;
        let at = present.keep(c_bytes(copy.path().as_os_str()))?;
        let text = present.text(at);
        present.acquired = Some(Acquired { copy, at });
        Ok(text)
    }

    /// Removes the directory that was acquired.
    pub fn release(&self, location: &CStr) -> Result<(), Status> {
        let mut present = self.present();
        match present.acquired.take() {
            None => Err(Status::unavailable("No mutable location to be deleted")),
            Some(acquired) if acquired.copy.path().as_os_str().as_bytes() != location.to_bytes() => {
                present.acquired = Some(acquired);
                let text = format!("'{}' is not the location that was acquired", location.to_string_lossy());
                Err(Status::invalid(text))
            }
            Some(acquired) => {
                drop(acquired);
                Ok(())
            }
        }
    }

    /// Sets the location that the model is loaded from.
    pub fn update(&self, artifact_type: u32, location: &CStr) -> Result<(), Status> {
        let mut present = self.present();
        if present.action != Some(Action::Load) {
            let action = present.action.map_or("not set", Action::name);
            return Err(Status::invalid(format!(
                "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is {action}"
            )));
        }
        if !matches!(artifact_type, FILESYSTEM | REMOTE_FILESYSTEM) {
            return Err(Status::invalid(format!("unknown artifact type {artifact_type}")));
        }
        if location.is_empty() || (artifact_type == REMOTE_FILESYSTEM && location.to_str().is_err()) {
            return Err(Status::invalid("the location of a model must be a text"));
        }
        present.at = present.keep(location.to_owned())?;
        present.artifact_type = artifact_type;
        Ok(())
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Present {
    fn text(&self, at: usize) -> *const c_char {
        self.texts.get(at).map_or(c"".as_ptr(), |text| text.as_ptr())
    }

    /// Keeps a text as long as the handle, because the agent may keep a pointer to it.
    fn keep(&mut self, text: CString) -> Result<usize, Status> {
        if self.texts.len() == TEXTS_MAX {
            return Err(Status::unavailable(format!("the locations of a model may change {TEXTS_MAX} times")));
        }
        self.texts.push(text);
        Ok(self.texts.len() - 1)
    }
}

fn c_bytes(text: &OsStr) -> CString {
    // A path of the file system has no zero in it.
    CString::new(text.as_bytes()).unwrap_or_default()
}
