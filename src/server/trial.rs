//! One load of one model by the code that a server loads it with, in a process that serves nothing.
//!
//! The whole core is started, because a load uses all of it: the devices, the rate limiter, the agents, the calls of
//! models to their server. Only what concerns clients or other hosts is left out: ports, metrics, traces and the
//! response cache, whose entries a trial must not touch.

use std::sync::Arc;

use super::core::Core;
use super::options::{Listen, ModelControl, Options};
use super::{Failure, Libraries, drain};
use crate::repository::{ModelId, UNLOADED, VersionState, store};
use nereid_observe::trace::TraceOptions;

/// A core that has tried to load one model.
pub struct Trial {
    core: Arc<Core>,
    id: ModelId,
}

impl Trial {
    /// Loads the model `name` with the options of a server; of an ensemble also its parts. With namespacing, `location`
    /// is the repository of the model. Repositories that cannot be read are left out.
    pub fn load(options: &Options, libraries: &Libraries, name: &str, location: &str) -> Result<Trial, Failure> {
        let is_readable = |location: &std::path::PathBuf| {
            let open = |location: &str| store::open(location, &|name| std::env::var_os(name));
            location.to_str().is_some_and(|location| open(location).and_then(|store| store.models()).is_ok())
        };
        let options = Options {
            model_repositories: options.model_repositories.iter().filter(|path| is_readable(path)).cloned().collect(),
            model_control: ModelControl::Explicit,
            startup_models: if options.model_namespacing { Vec::new() } else { vec![name.to_owned()] },
            exit_on_error: false,
            cache_settings: Vec::new(),
            traces: TraceOptions::default(),
            metrics: Listen::default(),
            ipc: Default::default(),
            ..options.clone()
        };
        let namespace = if options.model_namespacing { location } else { "" };
        let id = ModelId { name: name.to_owned(), namespace: namespace.to_owned() };
        let core = Core::start_trial(&options, libraries)?;
        if options.model_namespacing {
            // A start would load the model of every repository that has one of this name, also one that crashes.
            if let Err(status) = core.lifecycle.load_from(location, name) {
                tracing::error!("{}", status.message);
            }
        }
        Ok(Trial { core, id })
    }

    /// Why the model does not serve, with the texts of its load; empty if all its versions are ready.
    pub fn problems(&self) -> Vec<String> {
        let lifecycle = &self.core.lifecycle;
        let map = lifecycle.map();
        let entry = map.get(&self.id);
        let mut problems: Vec<String> = entry.map(|entry| entry.reason.clone()).into_iter().collect();
        problems.extend(lifecycle.poll_failure(&self.id).map(|status| status.message.into_owned()));
        problems.retain(|problem| !problem.is_empty());
        for (version, state) in entry.iter().flat_map(|entry| &entry.versions) {
            // A version that was loaded and ended with the others has nothing wrong.
            if let VersionState::Unavailable(reason) = state
                && reason != UNLOADED
            {
                problems.push(format!("version {version} is at UNAVAILABLE state: {reason}"));
            }
        }
        let is_ready = entry.is_some_and(|entry| entry.ready().next().is_some());
        if problems.is_empty() && !is_ready {
            problems.push(format!("failed to load '{}', failed to poll from model repository", self.id.name));
        }
        problems
    }

    /// Ends the model as the end of a server does.
    pub fn end(self) {
        drain::unload(&self.core.lifecycle, self.core.options.exit_timeout_secs);
    }
}
