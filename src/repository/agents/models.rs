//! The agents of one load of one model: asked one after the other, told together how it went.
//!
//! LOAD goes from agent to agent, each of which sees the location that the one before it left. Then every agent that
//! was asked hears exactly one of LOAD_COMPLETE and LOAD_FAIL, and after a complete load UNLOAD and UNLOAD_COMPLETE.
//! What is left of that when nobody needs the files any more is made up for at the end of this value.

use std::any::Any;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::error;

use super::super::store;
use super::{Action, AgentModel, Agents, Location, Task};
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;

/// See the [module](self). Whoever holds it uses the files that the agents left.
pub struct AgentModels {
    model: String,
    directory: PathBuf,
    /// Copies of files that lay elsewhere.
    copies: Vec<Box<dyn Any + Send + Sync>>,
    chain: Mutex<Chain>,
}

struct Chain {
    /// In the order of the configuration, by their names.
    models: Vec<(String, Box<dyn AgentModel>)>,
    stage: Stage,
    /// Versions that serve out of these files.
    serving: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Loading,
    Complete,
    Unloading,
}

impl AgentModels {
    /// Lets the agents of `config` act on the model in `directory`; None if it names none. `read` reads the
    /// configuration of a directory, for the agents that come behind one that changed it.
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
        // From here on its end tells those that were asked that the load failed.
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
            let Some((_, asked)) = chain.models.last_mut() else { continue };
            asked.act(Action::Load)?;
            let left = asked.location();
            if left != location {
                location = left;
                loading.move_to(&location)?;
                config = read(&loading.directory).unwrap_or_default();
            }
        }
        Ok(Some(loading))
    }

    /// Where the model is loaded from.
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
            chain.tell(&self.model, Action::LoadComplete);
        }
    }

    /// One version more serves out of these files.
    pub fn enter(&self) {
        self.chain().serving += 1;
    }

    /// One less. The model goes with the last one.
    pub fn leave(&self) {
        let mut chain = self.chain();
        chain.serving = chain.serving.saturating_sub(1);
        if chain.serving == 0 && chain.stage == Stage::Complete {
            chain.stage = Stage::Unloading;
            chain.tell(&self.model, Action::Unload);
        }
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chain {
    /// Tells every agent: what begins in their order, what is over in the opposite one. What they answer changes
    /// nothing any more.
    fn tell(&mut self, model: &str, action: Action) {
        let tell = |(agent, asked): &mut (String, Box<dyn AgentModel>)| {
            if let Err(status) = asked.act(action) {
                let action = action.name();
                error!("the agent '{agent}' of model '{model}' returns error on {action}: {status}");
            }
        };
        match action {
            Action::Load | Action::Unload => self.models.iter_mut().for_each(tell),
            Action::LoadComplete | Action::LoadFail | Action::UnloadComplete => {
                self.models.iter_mut().rev().for_each(tell);
            }
        }
    }
}

impl Drop for AgentModels {
    fn drop(&mut self) {
        let chain = self.chain.get_mut().unwrap_or_else(PoisonError::into_inner);
        match chain.stage {
            Stage::Loading => chain.tell(&self.model, Action::LoadFail),
            Stage::Complete => {
                chain.tell(&self.model, Action::Unload);
                chain.tell(&self.model, Action::UnloadComplete);
            }
            Stage::Unloading => chain.tell(&self.model, Action::UnloadComplete),
        }
    }
}
