//! What to do about a model that does not load or serve: usual mistakes in its directory and its configuration.
//!
//! The texts of load errors are Triton's, and clients compare them, so the next step is no part of them: it goes to the
//! log behind the error, and to `nereid check` and `nereid explain` below it. It is found by looking at the model again
//! and not in the error's text: the same mistake has several texts, depending on how far the load came.

use std::collections::BTreeSet;
use std::path::Path;

use tracing::info;

use super::models::ModelMap;
use crate::native_backends::{NATIVE_NAMES, NATIVE_PLATFORMS};
use nereid_backend::python;
use nereid_model_config::layout::{self, IgnoredReason};
use nereid_model_config::normalize::{self, ENSEMBLE_PLATFORM, ModelFile, model_files};
use nereid_model_config::text::suggestion;
use nereid_wire::inference::ModelConfig;

const CONFIGURATION: &str = "config.pbtxt";
/// Backends to which most frameworks can export.
const INTERCHANGE: &str = "onnxruntime";
/// Most entries of a directory that are read: a model's directory with more has no mistake that is described here.
const ENTRIES_MAX: usize = 1024;
/// Most names of one kind in a text.
const NAMES_MAX: usize = 16;

/// A model that does not load.
pub struct FailedModel<'a> {
    directory: &'a Path,
    /// With what its files complete; none if it cannot be read.
    config: Option<ModelConfig>,
    /// `--backend-directory`.
    backend_directory: &'a Path,
}

impl<'a> FailedModel<'a> {
    /// A model with a configuration that passed its poll.
    pub fn new(directory: &'a Path, config: ModelConfig, backend_directory: &'a Path) -> Self {
        FailedModel { directory, config: Some(config), backend_directory }
    }

    /// A model of which only the directory is known. `config_name` is `--model-config-name`.
    pub fn read(name: &str, directory: &'a Path, config_name: Option<&str>, backend_directory: &'a Path) -> Self {
        let read = |file: &Path| {
            let document = nereid_model_config::parse("", &layout::read_config(file).ok()?).ok()?;
            nereid_model_config::from_dynamic(&document.message).ok()
        };
        let mut config = match layout::config_file(directory, config_name) {
            Some(file) => read(&file),
            None => Some(ModelConfig::default()),
        };
        if let (Some(config), Ok(layout)) = (&mut config, layout::scan(directory)) {
            // What it could not complete is what a step is about.
            let _ = normalize::normalize(config, name, &layout);
        }
        FailedModel { directory, config, backend_directory }
    }

    /// The steps, the likeliest mistake first; none if the model has no usual mistake.
    pub fn steps(&self) -> Vec<String> {
        let mut steps = Vec::new();
        let config = self.config.as_ref().filter(|config| config.platform != ENSEMBLE_PLATFORM);
        if let Some(config) = config {
            steps.extend(self.platform(config));
            steps.extend(self.backend(config));
        }
        steps.extend(self.versions());
        steps.extend(self.configuration());
        steps.extend(config.and_then(|config| self.model_file(config)));
        steps
    }

    fn platform(&self, config: &ModelConfig) -> Option<String> {
        let platform = config.platform.as_str();
        let of_files = model_files().flat_map(|file| file.platforms.iter().copied());
        let known: BTreeSet<&str> =
            NATIVE_PLATFORMS.iter().map(|(name, _)| *name).chain(of_files).chain([ENSEMBLE_PLATFORM]).collect();
        if platform.is_empty() || !config.backend.is_empty() && !has(&NATIVE_NAMES, &config.backend) {
            return None;
        }
        if known.contains(platform) {
            return None;
        }
        let near = suggestion(platform, known.into_iter().chain(NATIVE_NAMES));
        let text = format!("no backend has the platform \"{platform}\"{near}");
        Some(match near.is_empty() {
            true => format!("{text}; leave it out and give backend: \"<name>\""),
            false => format!("{text} A platform can be left out where backend is given"),
        })
    }

    /// Steps for a backend that is neither built in nor there as a library or script.
    fn backend(&self, config: &ModelConfig) -> Vec<String> {
        let backend = config.backend.as_str();
        if backend.is_empty() || has(&NATIVE_NAMES, backend) || !config.runtime.is_empty() {
            return Vec::new();
        }
        let library = format!("libtriton_{backend}.so");
        let own = self.backend_directory.join(backend);
        let mut places = self.version_directories();
        places.push(String::new());
        let is_there = places.iter().any(|place| self.directory.join(place).join(&library).exists())
            || [library.as_str(), python::SCRIPT].iter().any(|file| own.join(file).exists());
        if is_there {
            return Vec::new();
        }
        let installed = directories(self.backend_directory);
        let known = NATIVE_NAMES.into_iter().chain(installed.iter().map(String::as_str));
        let near = suggestion(backend, known);
        let mut steps = Vec::new();
        if !near.is_empty() {
            steps.push(format!("no backend is called \"{backend}\"{near}"));
        }
        let model = self.directory.display();
        let version = self.version_directories().into_iter().next().unwrap_or_else(|| "<version>".to_owned());
        steps.push(format!(
            "the backend \"{backend}\" is not built in; searched were {library} in {model}/{version}, {model} and \
             {own}, and {} in {own}: put one there, or name another directory with --backend-directory",
            python::SCRIPT,
            own = own.display(),
        ));
        let is_framework = model_files().any(|file| file.backend == backend);
        if is_framework && let Some(file) = model_files().find(|file| file.backend == INTERCHANGE) {
            steps.push(format!(
                "or export the model to ONNX as {version}/{}, for backend: \"{INTERCHANGE}\", which is built in",
                file.name
            ));
        }
        steps
    }

    /// A step for a model without version directories.
    fn versions(&self) -> Option<String> {
        let layout = layout::scan(self.directory).ok()?;
        if !layout.versions.is_empty() {
            return None;
        }
        let model = self.directory.display();
        let Some(ignored) = layout.ignored.first() else {
            return Some(format!("make a version directory, {model}/1, and put the model's files into it"));
        };
        let number = match ignored.reason {
            IgnoredReason::LeadingZero => ignored.name.trim_start_matches('0'),
            IgnoredReason::NotANumber => ignored.name.trim_matches(|letter: char| !letter.is_ascii_digit()),
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = if is_number { number.trim_start_matches('0') } else { "" };
        let number = if number.is_empty() { "1" } else { number };
        Some(format!(
            "the name of a version directory is a number without leading zeros: rename {model}/{} to {model}/{number}",
            ignored.name
        ))
    }

    /// A step for a configuration that lies in a version directory.
    fn configuration(&self) -> Option<String> {
        let inside = |version: &String| self.directory.join(version).join(CONFIGURATION).is_file();
        let version = self.version_directories().into_iter().find(inside)?;
        let model = self.directory.display();
        Some(match self.directory.join(CONFIGURATION).is_file() {
            true => format!("{model}/{version}/{CONFIGURATION} is not read, {model}/{CONFIGURATION} is: merge the two"),
            false => format!(
                "a model has one configuration for all versions: move {model}/{version}/{CONFIGURATION} to \
                 {model}/{CONFIGURATION}"
            ),
        })
    }

    /// A step for a model file in the wrong place or with another name.
    fn model_file(&self, config: &ModelConfig) -> Option<String> {
        let backend = config.backend.as_str();
        let of_backend = |file: &ModelFile| backend.is_empty() || file.backend == backend;
        let given = config.default_model_filename.as_str();
        // The name that a model without any configuration gets is none that a backend expects.
        let wanted: Vec<&str> = match given.is_empty() || given == format!("model.{backend}") {
            true => model_files().filter(of_backend).map(|file| file.name).collect(),
            false => vec![given],
        };
        let versions = self.version_directories();
        let version = versions.iter().find(|version| {
            let place = self.directory.join(version);
            !wanted.iter().any(|file| place.join(file).exists())
        });
        let model = self.directory.display();
        let version = match (version, versions.is_empty()) {
            (Some(version), _) => version.as_str(),
            // The first version is yet to be made.
            (None, true) => "1",
            (None, false) => return None,
        };
        let beside = entries(self.directory);
        let lies_beside = |name: &&str| beside.iter().any(|entry| entry == *name);
        if let Some(file) = wanted.iter().copied().find(lies_beside) {
            return Some(format!(
                "a model's file belongs into its version directory: move {model}/{file} to {model}/{version}/{file}"
            ));
        }
        let has_form_of = |entry: &str, file: &str| {
            let form = |name: &str| Path::new(name).extension().map(|extension| extension.to_ascii_lowercase());
            form(file).is_some() && form(entry) == form(file)
        };
        let fits = |entry: &&String| wanted.iter().any(|file| has_form_of(entry, file));
        if let Some(entry) = beside.iter().find(fits) {
            let file = wanted.iter().find(|file| has_form_of(entry, file)).copied().unwrap_or_default();
            return Some(format!(
                "a model's file belongs into its version directory: move {model}/{entry} to {model}/{version}/{file}"
            ));
        }
        if versions.is_empty() {
            return None;
        }
        let inside = entries(&self.directory.join(version));
        if let Some(entry) = inside.iter().find(fits) {
            let file = wanted.iter().find(|file| has_form_of(entry, file)).copied().unwrap_or_default();
            return Some(format!(
                "{model}/{version} has no {file}: rename {entry} to {file}, or give default_model_filename: \"{entry}\""
            ));
        }
        if backend.is_empty() {
            let known = model_files().map(|file| format!("{} ({})", file.name, file.backend));
            let known: Vec<String> = known.collect();
            return Some(format!(
                "give backend: \"<name>\" in {model}/{CONFIGURATION}, or name the file in {model}/{version} as its \
                 backend does: {}",
                known.join(", ")
            ));
        }
        if wanted.is_empty() {
            return None;
        }
        let what = wanted.join(" or ");
        Some(format!("put the model's file, {what}, into {model}/{version}"))
    }

    /// Names of the version directories, the lowest first.
    fn version_directories(&self) -> Vec<String> {
        let layout = layout::scan(self.directory).unwrap_or_default();
        layout.versions.iter().map(i64::to_string).collect()
    }
}

/// Writes the steps for a model into the log.
pub fn log(model: &str, steps: &[String]) {
    for step in steps {
        info!("next step for model '{model}': {step}");
    }
}

/// The step for a model that no repository has: `known` are the names in the repositories.
pub fn of_unknown_model(name: &str, known: &BTreeSet<String>) -> String {
    let near = suggestion(name, known.iter().map(String::as_str));
    let text = format!("no repository has a directory '{name}'{near}");
    match (near.is_empty(), known.is_empty()) {
        (false, _) => text,
        (true, true) => format!("{text}; the repositories have no models"),
        (true, false) => format!("{text}; the repositories have {}", listed(known.iter().map(String::as_str))),
    }
}

/// The step for a repository that is the directory of a model.
pub fn of_repository(directory: &Path) -> Option<String> {
    let is_model = directory.join(CONFIGURATION).is_file();
    is_model.then(|| {
        let shown = directory.display();
        format!(
            "a repository has a directory for each model, and {shown}/{CONFIGURATION} makes {shown} a model: give \
                 the directory above it"
        )
    })
}

/// The step for a request to a model or version that does not serve.
pub fn of_request(models: &ModelMap, name: &[u8], version: Option<i64>) -> String {
    let named: Vec<_> = models.iter().filter(|(id, _)| id.name.as_bytes() == name).map(|(_, entry)| entry).collect();
    let shown = String::from_utf8_lossy(name);
    let entry = match named.as_slice() {
        [] => {
            let known: BTreeSet<&str> = models.iter().map(|(id, _)| id.name.as_str()).collect();
            let near = suggestion(&shown, known.iter().copied());
            let text = format!("no model is called '{shown}'{near}");
            return match (near.is_empty(), known.is_empty()) {
                (false, _) => text,
                (true, true) => format!("{text}; the server has no models"),
                (true, false) => format!("{text}; the server has {}", listed(known.into_iter())),
            };
        }
        [entry] => entry,
        _ => return format!("several repositories have a model '{shown}': give the namespace, or remove all but one"),
    };
    let is_asked = |other: &&i64| version.is_none_or(|version| version == **other);
    let states: Vec<String> = entry
        .versions
        .iter()
        .filter(|(version, _)| is_asked(version))
        .map(|(version, state)| match state.reason() {
            "" => format!("version {version} is {}", state.name()),
            reason => format!("version {version} is {}: {reason}", state.name()),
        })
        .collect();
    if !states.is_empty() {
        return format!("model '{shown}': {}; POST /v2/repository/index reports it at any time", states.join("; "));
    }
    let versions: Vec<String> = entry.versions.keys().map(i64::to_string).collect();
    match (entry.reason.as_str(), versions.is_empty()) {
        ("", true) => format!("model '{shown}' has no version; its last load is in the log"),
        (reason, true) => format!("model '{shown}' is not loaded: {reason}"),
        (_, false) => format!("model '{shown}' has the versions {}", listed(versions.iter().map(String::as_str))),
    }
}

/// `a, b, c`, and how many more there are.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let rest = names.len().saturating_sub(NAMES_MAX);
    let names: Vec<&str> = names.take(NAMES_MAX).collect();
    let names = names.join(", ");
    if rest == 0 { names } else { format!("{names} and {rest} more") }
}

fn has(names: &[&str], name: &str) -> bool {
    names.contains(&name)
}

/// Names in a directory, sorted; none if it cannot be read.
fn entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.take(ENTRIES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

fn directories(directory: &Path) -> Vec<String> {
    entries(directory).into_iter().filter(|name| directory.join(name).is_dir()).collect()
}

#[cfg(test)]
mod tests;
