//! The poll of a model's directory, before any backend is touched: its configuration, completed by rule and checked,
//! and the versions to serve (contract/model_config.md sections 4 to 6, stage "poll").

use std::path::Path;
use std::sync::Arc;

use tracing::{error, warn};

use super::Settings;
use super::agents::AgentModels;
use super::version::Directory;
use crate::native_backends::NATIVE_NAMES;
use nereid_model_config::provenance::Written;
use nereid_model_config::{layout, normalize, support, validate};
use nereid_observe::log::verbose;
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;

/// A directory that passed its poll.
#[derive(Debug, Clone, PartialEq)]
pub struct Polled {
    /// Normalised, before the backend completes it.
    pub config: ModelConfig,
    /// The versions that the version policy chooses, ascending; may be empty.
    pub versions: Vec<i64>,
    /// A configuration was given, even an empty one, so a backend need not complete it.
    pub has_config: bool,
    /// The configuration as it was given, where the sources of its values are kept.
    pub written: Option<Arc<Written>>,
}

/// Reads, completes by rule and checks the configuration of the model `name` in `directory`. `given` stands in for the
/// file. `renamed`: the model is served as `name`, whatever name its configuration has.
///
/// The agents of the model are called in between. The directory that they left its files in is returned too; its
/// configuration stays the one that named them (contract/model_config.md section 7, "Agents").
pub fn poll(
    settings: &Settings,
    name: &str,
    directory: Directory,
    given: Option<&ModelConfig>,
    renamed: bool,
) -> Result<(Directory, Polled), Status> {
    let file = layout::config_file(&directory.path, settings.config_name.as_deref());
    let has_config = given.is_some() || file.is_some();
    let written = match (given, &file) {
        (Some(given), _) => {
            honoured(given).map_err(|text| Status::unsupported(format!("Invalid config override: {text}")))?;
            Written { config: given.clone(), is_override: true, ..Written::default() }
        }
        (None, Some(file)) => read(file)?,
        (None, None) if settings.auto_complete => Written::default(),
        (None, None) => {
            let path = directory.path.join("config.pbtxt");
            let text = format!("failed to open text file for read {}: No such file or directory", path.display());
            return Err(Status::not_found(text));
        }
    };
    let (mut config, written) = match settings.keeps_provenance {
        true => (written.config.clone(), Some(Arc::new(written))),
        false => (written.config, None),
    };
    if renamed {
        name.clone_into(&mut config.name);
    }
    let directory = after_agents(settings, name, directory, &config)?;
    let layout = layout::scan(&directory.path)?;
    for ignored in &layout.ignored {
        warn!("model '{name}': {}", ignored.warning());
    }
    normalize::normalize(&mut config, name, &layout)?;
    validate::at_poll(&config, name, !settings.auto_complete)?;
    if settings.auto_complete {
        verbose!(1, object = %shown(&config), "Server side auto-completed config: ");
    }
    let policy = nereid_model_config::VersionPolicy::from_config(config.version_policy.as_ref());
    let selection = policy.select(&layout.versions);
    for absent in &selection.absent {
        error!("version {absent} is specified for model '{name}', but the version directory is not present");
    }
    Ok((directory, Polled { config, versions: selection.versions, has_config, written }))
}

/// Calls the agents of `config`, if there are any.
fn after_agents(
    settings: &Settings,
    name: &str,
    directory: Directory,
    config: &ModelConfig,
) -> Result<Directory, Status> {
    let read_at = |place: &Path| {
        let file = layout::config_file(place, settings.config_name.as_deref())?;
        read(&file).ok().map(|written| written.config)
    };
    let acted = AgentModels::load(&settings.agents, name, &directory.path, config, read_at)?;
    Ok(match acted.map(Arc::new) {
        None => directory,
        Some(agents) => Directory { path: agents.directory().to_owned(), keep: directory.keep, agents: Some(agents) },
    })
}

/// The configuration as text, for the log.
pub(super) fn shown(config: &ModelConfig) -> String {
    nereid_model_config::to_dynamic(config)
        .map(|message| nereid_model_config::text::print(&message))
        .unwrap_or_default()
}

fn read(file: &Path) -> Result<Written, Status> {
    let shown = file.to_string_lossy();
    let text = layout::read_config(file)?;
    let document = nereid_model_config::parse(&shown, &text).map_err(|error| {
        let error = error.to_string();
        // The error begins with the file, which is named once.
        let place = error.strip_prefix(&format!("{shown}:")).unwrap_or(&error);
        Status::internal(format!("failed to read text proto from {shown}: {place}"))
    })?;
    support::check(&document.message, Some(&document.positions), is_built_in)
        .map_err(|error| Status::unsupported(error.to_string()))?;
    Ok(Written {
        config: nereid_model_config::from_dynamic(&document.message)?,
        file: Some(shown.into_owned()),
        positions: Some(document.positions),
        is_override: false,
    })
}

/// Checks that this build supports all of a configuration that is not from a file.
pub fn honoured(config: &ModelConfig) -> Result<(), String> {
    let message = nereid_model_config::to_dynamic(config).map_err(|error| error.to_string())?;
    support::check(&message, None, is_built_in).map_err(|error| error.to_string())
}

fn is_built_in(backend: &str) -> bool {
    NATIVE_NAMES.contains(&backend)
}
