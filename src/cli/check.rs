//! `nereid check`: checks whether repositories are consistent, and reports all findings on all models at once, for
//! people and for scripts that read the exit code.
//!
//! Without `--deep` no model is loaded: no library of a backend is opened and no model file is read. With it the models
//! without findings are loaded by the code of a server, in processes of their own.

pub(super) mod arguments;
pub(super) mod deep;
pub(super) mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use super::Arguments;
use super::options::ServeOptions;
use super::terminal::{self, fitted};
use crate::abi::LIBRARIES;
use crate::repository::inspect::ensembles::misfits;
use crate::repository::inspect::{Inspection, Inspector};
use crate::repository::next_steps::{self, FailedModel};
use crate::repository::store::{self, Store};
use crate::server::options::WILDCARD;
use arguments::{CheckArguments, USAGE};
use nereid_gpu::Gpus;
use nereid_shard::placement::{Cores, Placement};
use report::{Instances, ModelReport, Report};

/// Checks and prints; the exit code is 0 if all are consistent, with `--deep` if all would load.
pub fn run(arguments: &Arguments) -> ExitCode {
    let parsed = match CheckArguments::parse(arguments) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => {
            print(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            let _ = std::io::stderr().write_all(text.as_bytes());
            return ExitCode::FAILURE;
        }
    };
    let report = match check(&parsed) {
        Ok(report) => report,
        Err(text) => {
            let _ = writeln!(std::io::stderr(), "error: {text}");
            return ExitCode::FAILURE;
        }
    };
    print(&match parsed.is_json {
        true => report.json(),
        false => fitted(&report.text(), terminal::columns()),
    });
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints; errors are ignored, because the reader may be gone.
pub(super) fn print(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The placement of the threads of a server with these options.
pub(super) fn place(options: &ServeOptions) -> Result<(Cores, Placement), String> {
    let cores = Cores::of_this_process().map_err(|error| format!("cannot read the cores: {error}"))?;
    let arranged = cores.arrange(options.io_cores.as_ref(), options.spin_flags());
    let (placement, _) = arranged.map_err(|error| error.to_string())?;
    Ok((cores, placement))
}

/// The number of CPUs that workers may run on, for runtimes.
pub(super) fn worker_cpu_count(cores: &Cores, placement: &Placement) -> usize {
    if placement.workers.is_empty() { cores.quota } else { placement.workers.len() }
}

fn check(arguments: &CheckArguments) -> Result<Report, String> {
    let options = &arguments.options;
    // Those that are named on the command line stand for what the server would load at its start.
    let (flag, wanted) = match arguments.models.is_empty() {
        true => ("--load-model", &options.startup_models),
        false => ("--model", &arguments.models),
    };
    let is_all = wanted.is_empty() || wanted.iter().any(|name| name == WILDCARD);
    let names = if is_all { &[] } else { wanted.as_slice() };
    let mut report = inspect_all(options, &Wanted { flag, names, is_all })?;
    report.is_deep = arguments.deep.is_some();
    match &arguments.deep {
        Some(settings) => {
            deep::load_all(&mut report, &arguments.words_of_serve, settings, options.model_namespacing)?;
        }
        None => fit_ensembles(&mut report, options.model_namespacing),
    }
    Ok(report)
}

/// The models that are inspected.
pub(super) struct Wanted<'a> {
    /// The flag that names them.
    pub flag: &'static str,
    pub names: &'a [String],
    /// These are not the only ones.
    pub is_all: bool,
}

/// Inspects models of all repositories; nothing is loaded. Ensembles are not yet held against their parts.
pub(super) fn inspect_all(options: &ServeOptions, wanted: &Wanted<'_>) -> Result<Report, String> {
    let (cores, placement) = place(options)?;
    let settings = |backend: &str| options.settings_of(backend);
    let inspector = Inspector::new(
        options.model_config_name.as_deref(),
        options.auto_complete_config,
        &options.backend_directory,
        &settings,
        worker_cpu_count(&cores, &placement),
        Gpus::discover(&options.gpu_settings()),
        LIBRARIES.plugins,
    );
    let mut report = Report::default();
    let found = find_models(options, &mut report)?;
    let Wanted { flag, names: wanted, is_all } = *wanted;
    let absent = wanted.iter().filter(|model| !found.contains_key(*model));
    for model in absent {
        report.problems.push(format!("model '{model}' of {flag} is in no repository"));
        report.next_steps.push(next_steps::of_unknown_model(model, &found.keys().cloned().collect()));
    }
    let mut pending: Vec<&String> = found.keys().filter(|name| is_all || wanted.contains(*name)).collect();
    let mut seen: BTreeSet<&String> = pending.iter().copied().collect();
    while let Some(name) = pending.pop() {
        let Some(stores) = found.get(name) else { continue };
        let is_ambiguous = stores.len() > 1 && !options.model_namespacing;
        for store in stores {
            let mut model = inspect(&inspector, options, &**store, name);
            if is_ambiguous {
                model.problems.insert(0, "model appears in two or more repositories".to_owned());
            }
            model.instances = Instances::of(&model.inspection, options, &placement);
            // An ensemble is loaded with its parts.
            let parts = model.inspection.parts();
            let parts = parts.iter().filter_map(|part| Some(found.get_key_value(part)?.0));
            pending.extend(parts.filter(|part| seen.insert(*part)));
            report.models.push(model);
        }
    }
    // Stable: those of one name stay in the order of the repositories.
    report.models.sort_by(|one, other| one.inspection.name.cmp(&other.inspection.name));
    Ok(report)
}

/// The models of all repositories by name, each with the repositories that have it. Those that cannot be read are
/// problems of the report.
fn find_models(options: &ServeOptions, report: &mut Report) -> Result<BTreeMap<String, Vec<Box<dyn Store>>>, String> {
    let mut found: BTreeMap<String, Vec<Box<dyn Store>>> = BTreeMap::new();
    let mut locations = Vec::new();
    for location in &options.model_repositories {
        let Some(location) = location.to_str() else {
            let shown = location.display();
            report.problems.push(format!("the model repository's location '{shown}' is not UTF-8"));
            continue;
        };
        // The same location given twice is one repository.
        if locations.contains(&location) {
            continue;
        }
        locations.push(location);
        report.next_steps.extend(next_steps::of_repository(Path::new(location)));
        let open = || store::open(location, &|name| std::env::var_os(name));
        match open().and_then(|store| store.models()) {
            Ok(models) => {
                for model in models {
                    let store = open().map_err(|status| status.message.into_owned())?;
                    found.entry(model).or_default().push(store);
                }
            }
            Err(status) => report.problems.push(format!("{location}: {}", status.message)),
        }
    }
    Ok(found)
}

/// Adds findings on ensembles that come from the models of their steps.
pub(super) fn fit_ensembles(report: &mut Report, has_namespaces: bool) {
    for (at, problem) in misfits(&report.candidates(), has_namespaces) {
        report.models[at].problems.push(problem);
    }
}

fn inspect(inspector: &Inspector<'_>, options: &ServeOptions, store: &dyn Store, name: &str) -> ModelReport {
    let repository = store.location().to_owned();
    match store.localize(name) {
        Ok(local) => {
            let inspection = inspector.inspect(name, local.path(), None);
            let problems = inspection.problems.iter().map(ToString::to_string).collect();
            // Now: a copy from a bucket is gone when a deep check has loaded the model.
            let config_name = options.model_config_name.as_deref();
            let next_steps = FailedModel::read(name, local.path(), config_name, &options.backend_directory).steps();
            ModelReport { repository, problems, next_steps, inspection, ..ModelReport::default() }
        }
        Err(status) => ModelReport {
            repository,
            problems: vec![status.message.into_owned()],
            inspection: Inspection { name: name.to_owned(), ..Inspection::default() },
            ..ModelReport::default()
        },
    }
}
