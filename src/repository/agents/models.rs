//! The agents of one load of one model: called in order for the load, all notified of its end.
//!
//! LOAD goes from agent to agent, and each receives the location that the one before it left. Every agent that was
//! called then receives exactly one of LOAD_COMPLETE and LOAD_FAIL, and after a complete load UNLOAD and
//! UNLOAD_COMPLETE. Dropping this value, when the files are no longer used, sends the calls that are still missing.

use std::any::Any;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::error;

use super::super::store;
use super::{Action, AgentModel, Agents, Location, Task};
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;

/// See the [module](self). Its owner uses the files that the agents left.
pub struct AgentModels {
    model: String,
    directory: PathBuf,
    /// Local copies of files from remote locations.
    copies: Vec<Box<dyn Any + Send + Sync>>,
    chain: Mutex<Chain>,
}

struct Chain {
    /// In the order of the configuration, with the agents' names.
    models: Vec<(String, Box<dyn AgentModel>)>,
    stage: Stage,
    /// Versions that serve from these files.
    serving: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Loading,
    Complete,
    Unloading,
}

impl AgentModels {
    /// Calls the agents of `config` for the model in `directory`; None if it names none. `read` reads the configuration
    /// of a directory, for the agents after one that changed it.
    pub fn load(
        agents: &Agents,
        model: &str,
        directory: &Path,
        config: &ModelConfig,
        read: impl Fn(&Path) -> Option<ModelConfig>,
    ) -> Result<Option<AgentModels>, Status> {
        let named = config.model_repository_agents.as_ref().map_or(&[][..], |agents| &agents.agents);
        if named.is_empty() {
            return Ok(None);
        }
        let chain = Chain { models: Vec::new(), stage: Stage::Loading, serving: 0 };
        // From here on a drop notifies the agents that were called that the load failed.
        let mut loading = AgentModels {
            model: model.to_owned(),
            directory: directory.to_owned(),
            copies: Vec::new(),
            chain: Mutex::new(chain),
        };
        let (mut location, mut config) = (Location::Directory(directory.to_owned()), config.clone());
        for named in named {
            let (agent, parameters) = agents.find(named)?;
            let task = Task { model: model.to_owned(), location: location.clone(), config: config.clone(), parameters };
            let begun = agent.begin(task)?;
            let chain = loading.chain.get_mut().unwrap_or_else(PoisonError::into_inner);
            chain.models.push((named.name.clone(), begun));
            let Some((_, called)) = chain.models.last_mut() else { continue };
            called.act(Action::Load)?;
            let left = called.location();
            if left != location {
                location = left;
                loading.move_to(&location)?;
                config = read(&loading.directory).unwrap_or_default();
            }
        }
        Ok(Some(loading))
    }

    /// The directory that the model is loaded from.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn move_to(&mut self, location: &Location) -> Result<(), Status> {
        match location {
            Location::Directory(path) => path.clone_into(&mut self.directory),
            Location::Remote(location) => {
                let invalid = || Status::invalid(format!("'{location}' is not the location of a model"));
                let (repository, name) = location.trim_end_matches('/').rsplit_once('/').ok_or_else(invalid)?;
                let store = store::open(repository, &|name: &str| -> Option<OsString> { std::env::var_os(name) })?;
                let local = store.localize(name)?;
                local.path().clone_into(&mut self.directory);
                self.copies.push(Box::new(local));
            }
        }
        Ok(())
    }

    /// The model serves.
    pub fn complete(&self) {
        let mut chain = self.chain();
        if chain.stage == Stage::Loading {
            chain.stage = Stage::Complete;
            chain.notify(&self.model, Action::LoadComplete);
        }
    }

    /// Counts one more version that serves from these files.
    pub fn enter(&self) {
        self.chain().serving += 1;
    }

    /// Counts one version less; after the last one the agents receive UNLOAD.
    pub fn leave(&self) {
        let mut chain = self.chain();
        chain.serving = chain.serving.saturating_sub(1);
        if chain.serving == 0 && chain.stage == Stage::Complete {
            chain.stage = Stage::Unloading;
            chain.notify(&self.model, Action::Unload);
        }
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chain {
    /// Notifies every agent: of a beginning in configuration order, of an end in reverse. Errors are logged and change
    /// nothing else.
    fn notify(&mut self, model: &str, action: Action) {
        let call = |(agent, model_of_agent): &mut (String, Box<dyn AgentModel>)| {
            if let Err(status) = model_of_agent.act(action) {
                let action = action.name();
                error!("the agent '{agent}' of model '{model}' returns error on {action}: {status}");
            }
        };
        match action {
            Action::Load | Action::Unload => self.models.iter_mut().for_each(call),
            Action::LoadComplete | Action::LoadFail | Action::UnloadComplete => {
                self.models.iter_mut().rev().for_each(call);
            }
        }
    }
}

impl Drop for AgentModels {
    fn drop(&mut self) {
        let chain = self.chain.get_mut().unwrap_or_else(PoisonError::into_inner);
        match chain.stage {
            Stage::Loading => chain.notify(&self.model, Action::LoadFail),
            Stage::Complete => {
                chain.notify(&self.model, Action::Unload);
                chain.notify(&self.model, Action::UnloadComplete);
            }
            Stage::Unloading => chain.notify(&self.model, Action::UnloadComplete),
        }
    }
}
