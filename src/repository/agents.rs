//! Repository agents, named in a model's `model_repository_agents` (contract/c_api.md section 6).
//!
//! The server calls an agent before it completes the model's configuration. The agent may replace the model's files,
//! and it is notified of the end of the load and of the unload. A built-in agent wins over a library of the same name
//! unless its parameter `library` names a file; that parameter is not passed to any agent.

mod checksum;
mod models;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use checksum::Checksum;
pub use models::AgentModels;
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_repository_agents;

/// A step in the life of a model, as agents are notified of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Load = 0,
    LoadComplete = 1,
    LoadFail = 2,
    Unload = 3,
    UnloadComplete = 4,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::Load => "TRITONREPOAGENT_ACTION_LOAD",
            Action::LoadComplete => "TRITONREPOAGENT_ACTION_LOAD_COMPLETE",
            Action::LoadFail => "TRITONREPOAGENT_ACTION_LOAD_FAIL",
            Action::Unload => "TRITONREPOAGENT_ACTION_UNLOAD",
            Action::UnloadComplete => "TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE",
        }
    }
}

/// Location of a model's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    Directory(PathBuf),
    /// Written like the location of a repository, with the model's directory appended.
    Remote(String),
}

/// One model, as it is passed to an agent.
#[derive(Debug, Clone)]
pub struct Task {
    pub model: String,
    pub location: Location,
    /// As read at this location, before anything completes it.
    pub config: ModelConfig,
    pub parameters: Parameters,
}

/// An agent. One value serves all its models.
pub trait Agent: Send + Sync {
    /// Where its code lies, for the log.
    fn code_location(&self) -> String;

    /// Prepares for one model. The agent has not acted yet.
    fn begin(self: Arc<Self>, task: Task) -> Result<Box<dyn AgentModel>, Status>;
}

/// An agent's state for one load of one model. Dropping it ends the agent's part in the model.
pub trait AgentModel: Send {
    fn act(&mut self, action: Action) -> Result<(), Status>;

    /// Where the model's files are now.
    fn location(&self) -> Location;
}

/// Opens the library of an agent, by the agent's name and, where a parameter gives it, the library's file.
pub type OpenLibrary = Box<dyn Fn(&str, Option<&str>) -> Result<Arc<dyn Agent>, Status> + Send + Sync>;

/// The agents of a server. Each is opened by the first model that names it, and kept until the server ends.
pub struct Agents {
    library: OpenLibrary,
    open: Mutex<BTreeMap<AgentKey, Arc<dyn Agent>>>,
}

/// Key of an agent: its name, and the file of its library where a parameter names one.
type AgentKey = (String, Option<String>);
type Parameters = Vec<(String, String)>;

/// The parameter of a built-in agent that names the library to be used in its place.
const LIBRARY: &str = "library";

/// Libraries that models may name, each opened once.
const AGENTS_MAX: usize = 1024;

/// With the built-in agents only.
impl Default for Agents {
    fn default() -> Agents {
        Agents::new(Box::new(|name, _| Err(Status::invalid(format!("there is no repository agent '{name}'")))))
    }
}

impl Agents {
    pub fn new(library: OpenLibrary) -> Agents {
        Agents { library, open: Mutex::default() }
    }

    /// The open agents: their names, and where their code lies.
    pub fn code_locations(&self) -> Vec<(String, String)> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().map(|((name, _), agent)| (name.clone(), agent.code_location())).collect()
    }

    /// Drops all agents, because the server ends.
    pub fn close(&self) {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        drop(open);
    }

    /// The agent that a configuration names, and the parameters that are passed to it.
    fn find(&self, named: &model_repository_agents::Agent) -> Result<(Arc<dyn Agent>, Parameters), Status> {
        let is_built_in = named.name == checksum::NAME;
        let is_passed = |parameter: &(&String, &String)| !(is_built_in && parameter.0 == LIBRARY);
        let passed = named.parameters.iter().filter(is_passed);
        let parameters = passed.map(|(name, value)| (name.clone(), value.clone())).collect();
        let library = library_of(named);
        let key = (named.name.clone(), library.flatten().map(str::to_owned));
        // Under the lock: a library is initialised once, and by one thread.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = open.get(&key) {
            return Ok((Arc::clone(agent), parameters));
        }
        if open.len() == AGENTS_MAX {
            return Err(Status::unavailable(format!("{AGENTS_MAX} repository agents are open already")));
        }
        let agent = match library {
            None => Arc::new(Checksum) as Arc<dyn Agent>,
            Some(file) => (self.library)(&key.0, file)?,
        };
        open.insert(key, Arc::clone(&agent));
        Ok((agent, parameters))
    }
}

/// The library of an agent: the file that a parameter names, else the one of the usual name; `None` if the agent is
/// built in.
pub fn library_of(named: &model_repository_agents::Agent) -> Option<Option<&str>> {
    if named.name != checksum::NAME {
        return Some(None);
    }
    named.parameters.get(LIBRARY).map(|file| Some(file.as_str()))
}

/// The path without `.` and `..`, if it stays inside the directory that it is relative to.
fn inside(path: &str) -> Option<PathBuf> {
    use std::path::Component;
    let mut normal = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(part) => normal.push(part),
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!normal.as_os_str().is_empty() && !path.contains('\0')).then_some(normal)
}

#[cfg(test)]
mod tests;
