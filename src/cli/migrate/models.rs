//! What of the models of a set-up works, by the inspection that `nereid check` makes.

use std::path::Path;

use super::container::Container;
use super::differences as rows;
use super::libraries;
use super::report::{Outcome, Report};
use crate::abi::{agents, plugin};
use crate::cli::check::report::{ModelReport, backend, numbers};
use crate::cli::options::ServeOptions;
use crate::repository::agents::library_of;
use crate::repository::inspect::{BackendLocation, Inspection};
use nereid_backend::python;
use nereid_model_config::layout::{self, IgnoredReason};
use nereid_model_config::support;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::model_sequence_batching::{ControlInput, control};
use nereid_wire::inference::{DataType, ModelConfig};

/// The parameter of a Python model that names its environment.
const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";

/// The server that the models would be served by.
pub struct Around<'a> {
    pub options: &'a ServeOptions,
    pub has_gpus: bool,
    pub container: Option<&'a Container>,
}

impl Around<'_> {
    /// Adds what is known of a model.
    pub fn look_at(&self, model: &ModelReport, report: &mut Report) {
        let seen = &model.inspection;
        let subject = format!("model {}", seen.name);
        let mut libraries = Report::default();
        self.libraries(&subject, seen, &mut libraries);
        if model.problems.is_empty() && libraries.outcome() != Outcome::Missing {
            report.works(&*subject, format!("{}, versions {}", backend(seen), numbers(&seen.chosen)));
        }
        for (index, problem) in model.problems.iter().enumerate() {
            // The steps are those of the whole model.
            let instead = if index == 0 { self.replacements(model) } else { Vec::new() };
            report.missing(&*subject, problem, instead);
        }
        for id in self.differences(seen) {
            report.differs_as_listed(&*subject, id);
        }
        without_effect(&subject, seen, report);
        report.findings.append(&mut libraries.findings);
    }

    /// What replaces a model that would not load.
    fn replacements(&self, model: &ModelReport) -> Vec<String> {
        let seen = &model.inspection;
        let config = &seen.stages.normalized;
        let mut instead = model.next_steps.clone();
        if !self.has_gpus && config.instance_group.iter().any(|group| group.kind() == Kind::Gpu) {
            instead.push("on a host without a GPU give kind: KIND_CPU, or leave instance_group out".to_owned());
        }
        let Some(container) = self.container else { return instead };
        if seen.backend == BackendLocation::Unknown && !config.backend.is_empty() {
            instead.push(format!(
                "if the image {} has the backend, copy its folder /opt/tritonserver/backends/{} out of it into a \
                 folder of this host, and give that folder as --backend-directory",
                container.image, config.backend
            ));
        }
        let environment = config.parameters.get(ENVIRONMENT).map(|value| value.string_value.as_str());
        if let Some(path) = environment.filter(|path| path.starts_with('/') && !Path::new(path).exists()) {
            instead.push(match container.host_path(path) {
                Some(host) => format!("{ENVIRONMENT} is a path inside the container; on this host it is {host}"),
                None => format!("{ENVIRONMENT} is a path inside the image: copy {path} out of it"),
            });
        }
        instead
    }

    /// The rows of the page that the model's directory and configuration show.
    fn differences(&self, seen: &Inspection) -> Vec<&'static str> {
        let config = &seen.stages.normalized;
        let is_python = config.backend == python::NAME;
        let policy = config.model_transaction_policy.as_ref();
        let is_decoupled = policy.is_some_and(|policy| policy.decoupled);
        let has_kind = |wanted: Kind| config.instance_group.iter().any(|group| group.kind() == wanted);
        let could_not_be_parsed = seen.file.is_some() && seen.positions.is_none() && !seen.problems.is_empty();
        let conditions = [
            (rows::MISTAKE_PLACE, could_not_be_parsed),
            (rows::NO_VERSION, *config != ModelConfig::default() && seen.chosen.is_empty()),
            (rows::HUGE_VERSION, has_huge_version(&seen.directory)),
            (rows::HUGE_SHAPE, has_huge_shape(config)),
            (rows::BUILT_IN, seen.unused_library.is_some()),
            (rows::GPUS, has_kind(Kind::Gpu) && !self.has_gpus),
            (rows::AGENT_LIFE, config.model_repository_agents.iter().any(|agents| !agents.agents.is_empty())),
            (rows::CACHE_KEY, self.caches_by_requests(config)),
            (rows::SLOW_READERS, is_decoupled),
            (rows::DECOUPLED_VALUE, is_decoupled && is_python),
            (rows::POLICY, policy.is_some() && !is_decoupled && is_python),
            (rows::NO_SCRIPT, is_python && lacks_file(seen)),
            (rows::ENVIRONMENT, is_python && config.parameters.contains_key(ENVIRONMENT)),
        ];
        let mut found: Vec<_> = conditions.into_iter().filter(|(_, is_so)| *is_so).map(|(id, _)| id).collect();
        match &config.scheduling_choice {
            Some(SchedulingChoice::EnsembleScheduling(_)) => {
                found.push(rows::EXECUTIONS);
                found.extend((config.output.len() > 1).then_some(rows::OUTPUT_ORDER));
            }
            Some(SchedulingChoice::SequenceBatching(batching)) => {
                let has_ids = |is_text| has_ids(&batching.control_input, is_text);
                found.extend(has_ids(true).then_some(rows::TEXT_IDS));
                found.extend((has_ids(true) || has_ids(false)).then_some(rows::ID_TYPES));
                found.extend(batching.iterative_sequence.then_some(rows::SEQUENCE_ENDS));
            }
            Some(SchedulingChoice::DynamicBatching(_)) | None => {}
        }
        found
    }

    /// Whether its responses are cached by this server's own key.
    fn caches_by_requests(&self, config: &ModelConfig) -> bool {
        let is_wanted = config.response_cache.as_ref().is_some_and(|cache| cache.enable);
        is_wanted && self.options.cache_facts().is_some_and(|cache| !cache.has_tritons_key)
    }

    /// The code that the model brings along: a backend's and its agents'.
    fn libraries(&self, subject: &str, seen: &Inspection, report: &mut Report) {
        if let BackendLocation::Library(file) = &seen.backend {
            libraries::look_at(&format!("{subject}, its backend"), file, &[plugin::EXECUTE], report);
        }
        let agents = seen.stages.normalized.model_repository_agents.iter().flat_map(|agents| &agents.agents);
        for agent in agents {
            let subject = format!("{subject}, its agent {}", agent.name);
            match library_of(agent).map(|file| agents::find(&agent.name, file, &self.options.agent_directory)) {
                None => report.works(subject, "built in"),
                Some(Ok(file)) => libraries::look_at(&subject, &file, &[agents::ACTION], report),
                Some(Err(status)) => {
                    let instead = vec![
                        "copy the folder of agents out of the image, and give it as --repoagent-directory".to_owned(),
                    ];
                    report.missing(subject, status.message, instead);
                }
            }
        }
    }
}

/// Whether correlation ids are passed to the model, as text or as a number.
fn has_ids(inputs: &[ControlInput], is_text: bool) -> bool {
    let mut controls = inputs.iter().flat_map(|input| &input.control);
    controls.any(|control| {
        control.kind() == control::Kind::ControlSequenceCorrid
            && (control.data_type() == DataType::TypeString) == is_text
    })
}

fn has_huge_version(directory: &Path) -> bool {
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let layout = layout::scan(directory).unwrap_or_default();
    layout.ignored.iter().any(|ignored| ignored.reason == IgnoredReason::NotANumber && is_number(&ignored.name))
}

fn has_huge_shape(config: &ModelConfig) -> bool {
    let inputs = config.input.iter().map(|input| &input.dims);
    let mut shapes = inputs.chain(config.output.iter().map(|output| &output.dims));
    // Dimensions of any size count as one.
    shapes.any(|dims| dims.iter().try_fold(1_i64, |product, dim| product.checked_mul((*dim).max(1))).is_none())
}

/// Whether the file that a configuration names is in no version that would be served.
fn lacks_file(seen: &Inspection) -> bool {
    let name = &seen.stages.written.default_model_filename;
    let is_absent = |version: &i64| !layout::version_dir(&seen.directory, *version).join(name).exists();
    !name.is_empty() && seen.chosen.iter().any(is_absent)
}

/// Adds what is written in the configuration and changes nothing. What normalisation fills in is not the user's.
fn without_effect(subject: &str, seen: &Inspection, report: &mut Report) {
    let written = &seen.stages.written;
    let mut names: Vec<String> = Vec::new();
    let hints = written.optimization.as_ref().map(support::without_effect).unwrap_or_default();
    names.extend(hints.iter().map(|name| format!("optimization {{ {name} }}")));
    if seen.stages.normalized.backend == nereid_fil::RUNTIME.name {
        let given = nereid_fil::OF_GPUS.iter().filter(|name| written.parameters.contains_key(**name));
        names.extend(given.map(|name| format!("the parameter {name}")));
    }
    if !names.is_empty() {
        let verb = if names.len() == 1 { "has" } else { "have" };
        report.differs(subject, rows::IDLE_FIELDS, format!("{} {verb} no effect", names.join(", ")));
    }
}
