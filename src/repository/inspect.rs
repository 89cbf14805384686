//! A model's directory as loading would read it, without serving it: every stage of its configuration, and all problems
//! at once.
//!
//! The steps are those of a load (`poll`, `version`). They continue after an error as far as they make sense, because a
//! user who checks a repository wants to correct all of it. Nothing is executed here: what a backend would add to a
//! configuration is available only after [`Inspector::complete`], which opens the model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::traffic;
use crate::native_backends::{COMPLETING, NATIVE_NAMES, NativeBackends, check_version};
use nereid_backend::plugin::{Located, MakePluginLoader, PluginSettings, Plugins};
use nereid_backend::python;
use nereid_backend::{Attributes, Backend, ModelContext};
use nereid_gpu::Gpus;
use nereid_memory::Pool;
use nereid_model_config::normalize;
use nereid_model_config::provenance::Stages;
use nereid_model_config::text::{Position, Positions};
use nereid_model_config::validate::{self, Finding, Findings};
use nereid_model_config::{Error, ModelSpec, VersionPolicy, json, labels, layout, support};
use nereid_observe::metrics::Registry;
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;

mod complete;
pub mod ensembles;

/// Most pool memory that opening a model may take.
const POOL_BYTES: usize = 64 << 20;

/// How models would be loaded.
pub struct Inspector<'a> {
    /// `--model-config-name`.
    pub config_name: Option<&'a str>,
    /// `--disable-auto-complete-config` was not given.
    pub auto_complete: bool,
    /// The settings of a backend from `--backend-config`.
    pub backend_settings: &'a dyn Fn(&str) -> Vec<(String, String)>,
    /// CPUs that workers may run on.
    pub worker_cpu_count: usize,
    /// The devices that models may use.
    pub gpus: Arc<Gpus>,
    plugins: Plugins,
    backends: NativeBackends,
    pool: Pool,
    metrics: Arc<Registry>,
}

/// Result of an inspection.
#[derive(Debug, Clone, Default)]
pub struct Inspection {
    pub name: String,
    pub directory: PathBuf,
    /// The configuration file that was read; none if there is none or an override stands in for it.
    pub file: Option<PathBuf>,
    /// Positions of the values in the file.
    pub positions: Option<Positions>,
    /// A configuration was given, even an empty one.
    pub has_config: bool,
    pub stages: Stages,
    /// On disk, ascending.
    pub versions: Vec<i64>,
    /// The versions that the version policy chooses, ascending.
    pub chosen: Vec<i64>,
    /// Suspicious, but no reason not to load.
    pub warnings: Vec<String>,
    pub backend: BackendLocation,
    /// A library of the name of the built-in backend, which is not used.
    pub unused_library: Option<PathBuf>,
    pub labels: Vec<LabelFile>,
    /// None while there is a problem.
    pub spec: Option<Arc<ModelSpec>>,
    /// All problems; a model without any would be loaded.
    pub problems: Vec<Problem>,
}

/// Where the code that runs a model is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BackendLocation {
    #[default]
    Unknown,
    /// An ensemble needs no backend.
    NotNeeded,
    BuiltIn,
    Library(PathBuf),
    /// The script of a Python-based backend.
    Script(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelFile {
    pub output: String,
    pub file: String,
    pub labels: usize,
}

/// One reason not to load a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The configuration file or another file; empty for the model as a whole.
    pub file: String,
    pub position: Option<Position>,
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
            if let Some(Position { line, column }) = self.position {
                write!(f, "{line}:{column}:")?;
            }
            f.write_str(" ")?;
        }
        f.write_str(&self.message)
    }
}

impl<'a> Inspector<'a> {
    pub fn new(
        config_name: Option<&'a str>,
        auto_complete: bool,
        backend_directory: &Path,
        backend_settings: &'a dyn Fn(&str) -> Vec<(String, String)>,
        worker_cpu_count: usize,
        gpus: Arc<Gpus>,
        make_loader: MakePluginLoader,
    ) -> Inspector<'a> {
        let pool = Pool::new(POOL_BYTES);
        // Libraries are located and never opened.
        let plugins = PluginSettings {
            directory: backend_directory.to_owned(),
            auto_complete,
            min_compute_capability: gpus.min_compute_capability(),
            pool: pool.clone(),
            gpus: Arc::default(),
        };
        Inspector {
            config_name,
            auto_complete,
            backend_settings,
            worker_cpu_count,
            gpus,
            plugins: Plugins::new(plugins, make_loader),
            backends: NativeBackends::default(),
            pool,
            metrics: Arc::default(),
        }
    }

    /// Inspects the model `name` in `directory`; nothing is opened. `given` stands in for the configuration file, as
    /// the JSON text of a load override does.
    pub fn inspect(&self, name: &str, directory: &Path, given: Option<&[u8]>) -> Inspection {
        let mut seen = Inspection { name: name.to_owned(), directory: directory.to_owned(), ..Inspection::default() };
        let layout = match layout::scan(directory) {
            Ok(layout) => layout,
            Err(error) => {
                seen.refuse(&error);
                return seen;
            }
        };
        seen.warnings.extend(layout.ignored.iter().map(layout::IgnoredDirectory::warning));
        if let Err(error) = self.read(&mut seen, given) {
            seen.refuse(&error);
        }
        if !seen.problems.is_empty() && seen.stages.written == ModelConfig::default() {
            // Nothing was read, so there is nothing more to check.
            return seen;
        }
        let mut config = seen.stages.written.clone();
        for agent in config.model_repository_agents.iter().flat_map(|agents| &agents.agents) {
            seen.warnings.push(agent_warning(&agent.name));
        }
        let normalized = normalize::normalize(&mut config, name, &layout);
        seen.stages.normalized = config.clone();
        if let Err(error) = normalized {
            seen.refuse(&error);
            return seen;
        }
        let findings = validate::findings_at_poll(&config, name, !self.auto_complete);
        self.choose_versions(&mut seen, &layout.versions);
        seen.stages.completed = config;
        let attributes = self.find_backend(&mut seen);
        // A library or a script may still complete the tensors.
        let is_python = seen.stages.completed.backend == python::NAME;
        let may_complete = self.auto_complete
            && (is_python || matches!(seen.backend, BackendLocation::Library(_) | BackendLocation::Script(_)));
        self.resolve(&mut seen, findings, attributes, may_complete);
        if seen.problems.is_empty() {
            self.examine(&mut seen);
        }
        if !seen.would_load() {
            seen.spec = None;
        }
        seen
    }

    /// Reads the configuration and refuses what this version does not honour.
    fn read(&self, seen: &mut Inspection, given: Option<&[u8]>) -> Result<(), Error> {
        let is_built_in = |backend: &str| NATIVE_NAMES.contains(&backend);
        if let Some(given) = given {
            seen.has_config = true;
            seen.stages.written = json::read(given)?;
            let message = nereid_model_config::to_dynamic(&seen.stages.written)?;
            for refused in support::check_all(&message, None, is_built_in) {
                seen.problem(String::new(), None, refused.to_string());
            }
            return Ok(());
        }
        let Some(file) = layout::config_file(&seen.directory, self.config_name) else {
            if !self.auto_complete {
                return Err(no_configuration(&seen.name));
            }
            return Ok(());
        };
        seen.has_config = true;
        seen.file = Some(file.clone());
        let shown = file.to_string_lossy().into_owned();
        let text = layout::read_config(&file)?;
        match nereid_model_config::parse_all(&shown, &text) {
            Ok(document) => {
                for refused in support::check_all(&document.message, Some(&document.positions), is_built_in) {
                    let message = format!("'{}' is not supported by this version of Nereid", refused.field);
                    seen.problem(shown.clone(), refused.position, message);
                }
                seen.stages.written = nereid_model_config::from_dynamic(&document.message)?;
                seen.positions = Some(document.positions);
            }
            Err(errors) => {
                for error in errors {
                    let position = Position { line: error.line, column: error.column };
                    seen.problem(shown.clone(), Some(position), error.message);
                }
            }
        }
        Ok(())
    }

    fn choose_versions(&self, seen: &mut Inspection, on_disk: &[i64]) {
        seen.versions = on_disk.to_vec();
        let policy = VersionPolicy::from_config(seen.stages.normalized.version_policy.as_ref());
        let selection = policy.select(on_disk);
        seen.warnings.extend(
            selection.absent.iter().map(|version| format!("version {version} of the version policy is not there")),
        );
        match selection.at_least_one(&seen.name) {
            Ok(chosen) => {
                if let Err(wrong) = traffic::check(&seen.stages.normalized, &chosen) {
                    seen.problem(String::new(), None, wrong.message.into_owned());
                }
                seen.chosen = chosen;
            }
            Err(error) => seen.finding(Finding { path: "version_policy".into(), error }),
        }
    }

    /// Finds where the backend lies, and its preferences as far as they can be read without opening it.
    fn find_backend(&self, seen: &mut Inspection) -> Attributes {
        let config = &seen.stages.normalized;
        if config.platform == normalize::ENSEMBLE_PLATFORM {
            seen.backend = BackendLocation::NotNeeded;
            return Attributes::default();
        }
        if config.backend.is_empty() {
            // The validation reports an empty backend.
            return Attributes::default();
        }
        let version = seen.chosen.last().copied().unwrap_or_default();
        let version_directory = layout::version_dir(&seen.directory, version);
        let locate = |runtime: &str| {
            self.plugins.locate(&config.backend, runtime, &seen.directory, &version_directory, &config.name)
        };
        if let Some(native) = self.native(config) {
            seen.unused_library = match locate("") {
                Ok(Located::Library { file, .. }) => Some(file),
                Ok(Located::Script { .. }) | Err(_) => None,
            };
            seen.backend = BackendLocation::BuiltIn;
            if !seen.has_config && !COMPLETING.contains(&config.backend.as_str()) {
                seen.refuse(&no_configuration(&seen.name));
            }
            return native.attributes();
        }
        let found = check_version(&config.backend, &(self.backend_settings)(&config.backend))
            .and_then(|()| locate(&config.runtime));
        match found {
            Ok(Located::Library { file, .. }) => seen.backend = BackendLocation::Library(file),
            Ok(Located::Script { directory }) => {
                seen.backend = BackendLocation::Script(directory.join(python::SCRIPT));
                return self.backends.python_based(directory).attributes();
            }
            Err(status) => {
                let path = if config.runtime.is_empty() { "backend" } else { "runtime" };
                seen.finding(Finding { path: path.into(), error: Error::invalid(status.message) });
            }
        }
        Attributes::default()
    }

    fn native(&self, config: &ModelConfig) -> Option<Arc<dyn Backend>> {
        self.backends.named(&config.backend, &config.runtime)
    }

    /// Fills in the defaults and checks the result; its tensors only if no backend completes them later.
    fn resolve(&self, seen: &mut Inspection, mut findings: Findings, attributes: Attributes, may_complete: bool) {
        let mut config = seen.stages.completed.clone();
        normalize::fill_defaults(&mut config);
        let gpus = super::supported_gpus(&self.gpus);
        normalize::instance_groups(&mut config, &attributes.preferred_groups, &gpus);
        seen.stages.resolved = config.clone();
        let mut at_load = validate::findings_at_load(&config, &gpus);
        if may_complete {
            at_load.retain(|finding| !["input[", "output["].iter().any(|start| finding.path.starts_with(start)));
        }
        findings.extend(at_load);
        findings.extend(validate::data_files(&config, &seen.directory));
        self.read_labels(seen, &config, &mut findings);
        for finding in findings {
            seen.finding(finding);
        }
        seen.spec = None;
        if !seen.problems.is_empty() {
            // It would report the same problems again.
            return;
        }
        match ModelSpec::new(config) {
            Ok(spec) => seen.spec = Some(Arc::new(spec)),
            Err(error) => seen.refuse(&error),
        }
    }

    fn read_labels(&self, seen: &mut Inspection, config: &ModelConfig, findings: &mut Findings) {
        seen.labels.clear();
        for (index, output) in config.output.iter().enumerate() {
            let path = format!("output[{index}].label_filename");
            match labels::load(&seen.name, &seen.directory, std::slice::from_ref(output)) {
                Ok(read) => seen.labels.extend(read.into_iter().map(|(name, labels)| LabelFile {
                    output: name,
                    file: output.label_filename.clone(),
                    labels: labels.len(),
                })),
                Err(error) => findings.push(path, error),
            }
        }
    }

    /// Adds the backend's own objections to the model.
    fn examine(&self, seen: &mut Inspection) {
        let known = match &seen.backend {
            BackendLocation::Script(script) => {
                let directory = script.parent().map(Path::to_owned).unwrap_or_default();
                Some(self.backends.python_based(directory))
            }
            _ => self.native(&seen.stages.resolved),
        };
        let Some(backend) = known else { return };
        for version in seen.chosen.clone() {
            let context = self.context(seen, version, seen.stages.resolved.clone(), backend.name());
            if let Err(status) = backend.examine(&context) {
                // Mostly the same message for all versions.
                if seen.problems.iter().all(|known| known.message != *status.message) {
                    seen.refuse_status(&status);
                }
            }
        }
    }

    fn context(&self, seen: &Inspection, version: i64, config: ModelConfig, backend: &str) -> ModelContext {
        ModelContext {
            name: seen.name.clone(),
            version,
            directory: seen.directory.clone(),
            version_directory: layout::version_dir(&seen.directory, version),
            settings: (self.backend_settings)(backend),
            backend_directory: self.plugins.directory().to_owned(),
            config,
            auto_complete: self.auto_complete,
            statistics: Arc::default(),
            metrics: Arc::clone(&self.metrics),
            pool: self.pool.clone(),
            worker_cpu_count: self.worker_cpu_count,
            host: Default::default(),
            load: Default::default(),
            gpus: Arc::clone(&self.gpus),
        }
    }
}

/// The warning about an agent that an inspection does not call.
pub fn agent_warning(agent: &str) -> String {
    format!("the repository agent '{agent}' is not asked here, only when the model is loaded")
}

fn no_configuration(model: &str) -> Error {
    Error::not_found(format!("model configuration is not provided for model '{model}'"))
}

impl Inspection {
    /// True if there are no problems.
    pub fn would_load(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, file: String, position: Option<Position>, message: String) {
        let problem = Problem { file, position, message };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Adds a problem that concerns no field.
    fn refuse(&mut self, error: &Error) {
        self.problem(String::new(), None, error.to_string());
    }

    fn refuse_status(&mut self, status: &Status) {
        self.problem(String::new(), None, status.message.clone().into_owned());
    }

    fn finding(&mut self, Finding { path, error }: Finding) {
        let file = self.file.as_ref().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
        let place = self.positions.as_ref().and_then(|positions| positions.nearest(&path));
        self.problem(file, place.map(|place| place.field), error.to_string());
    }
}

#[cfg(test)]
mod tests;
