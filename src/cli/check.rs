//! `nereid check`: checks whether repositories are consistent, and reports all findings on all models at once, for
//! people and for scripts that read the exit code.
//!
//! No model is loaded: no library of a backend is opened and no model file is read.

pub(super) mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use super::Arguments;
use super::getopt::{Item, Items};
use super::options::{OptionsError, ServeOptions};
use crate::abi::LIBRARIES;
use crate::repository::inspect::ensembles::{Candidate, misfits};
use crate::repository::inspect::{Inspection, Inspector};
use crate::repository::store::{self, Store};
use crate::server::options::WILDCARD;
use nereid_gpu::Gpus;
use nereid_shard::placement::{Cores, Placement};
use report::{Instances, ModelReport, Report};

const USAGE: &str = "\
Usage: nereid check <repository>... [--format=text|json] [options of serve]

Lists what a server would load from these repositories, and all findings on them as far as they show without
opening a model. Exit code 0 if all models are consistent, else 1; a consistent model may still fail to load, because
of the contents of its files. These options of serve set what is loaded, how and where:
--model-repository, --model-config-name, --model-namespacing, --model-control-mode with --load-model,
--disable-auto-complete-config, --backend-directory, --backend-config, --host-policy, --io-cores, --spin-us.
";

/// Checks and prints; the exit code is 0 if all are consistent.
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
    let report = match check(&parsed.options) {
        Ok(report) => report,
        Err(text) => {
            let _ = writeln!(std::io::stderr(), "error: {text}");
            return ExitCode::FAILURE;
        }
    };
    print(&if parsed.json { report.json() } else { report.text() });
    if report.is_consistent() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints; errors are ignored, because the reader may be gone.
pub(super) fn print(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A command line of words and serve's options.
struct CheckArguments {
    options: ServeOptions,
    json: bool,
}

impl CheckArguments {
    /// `None` if help is requested. The error is the whole text for stderr.
    fn parse(arguments: &Arguments) -> Result<Option<CheckArguments>, String> {
        let mut json = false;
        let mut words = Vec::new();
        for word in &arguments.words {
            match word.to_str() {
                Some("--help" | "-h") => return Ok(None),
                Some("--format=json") => json = true,
                Some("--format=text") => json = false,
                Some(format) if format.starts_with("--format=") => {
                    return Err(format!("{USAGE}\nerror: {format}: the formats are text and json\n"));
                }
                _ => words.push(word.clone()),
            }
        }
        let (repositories, mut options) = split(&Arguments { program: arguments.program.clone(), words })?;
        options.model_repositories.extend(repositories.into_iter().map(PathBuf::from));
        if options.model_repositories.is_empty() {
            return Err(format!("{USAGE}\nerror: which repository?\n"));
        }
        Ok(Some(CheckArguments { options, json }))
    }
}

/// Takes the words out of a command line; the rest are options of serve. The error is a text for stderr.
pub(super) fn split(arguments: &Arguments) -> Result<(Vec<OsString>, ServeOptions), String> {
    let mut words = Vec::new();
    for item in Items::new(&arguments.program, &arguments.words) {
        if let Item::Word(word) = item.map_err(|line| format!("{line}\n"))? {
            words.push(word);
        }
    }
    // By position, not by text: a flag's value may equal a word.
    let is_word = |given: &OsString| words.iter().any(|word| std::ptr::eq(*word, given.as_os_str()));
    let rest = arguments.words.iter().filter(|given| !is_word(given)).cloned().collect();
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    let arguments = Arguments { program: arguments.program.clone(), words: rest };
    let options = ServeOptions::parse(&arguments, |name| std::env::var_os(name)).map_err(|error| match error {
        OptionsError::Getopt(line) => format!("{line}\n"),
        error => format!("{error}\n"),
    })?;
    Ok((words, options))
}

/// The placement of the threads of a server with these options.
pub(super) fn place(options: &ServeOptions) -> Result<(Cores, Placement), String> {
    let cores = Cores::of_this_process().map_err(|error| format!("cannot read the cores: {error}"))?;
    let arranged = cores.arrange(options.io_cores.as_ref(), options.spin_us);
    let (placement, _) = arranged.map_err(|error| error.to_string())?;
    Ok((cores, placement))
}

/// The number of CPUs that workers may run on, for runtimes.
pub(super) fn worker_cpu_count(cores: &Cores, placement: &Placement) -> usize {
    if placement.workers.is_empty() { cores.quota } else { placement.workers.len() }
}

fn check(options: &ServeOptions) -> Result<Report, String> {
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
    let wanted = &options.startup_models;
    if !wanted.is_empty() && !wanted.iter().any(|name| name == WILDCARD) {
        let absent = wanted.iter().filter(|model| !found.contains_key(*model));
        report.problems.extend(absent.map(|model| format!("model '{model}' of --load-model is in no repository")));
    }
    let is_wanted = |name: &String| wanted.is_empty() || wanted.iter().any(|other| other == WILDCARD || other == name);
    let mut pending: Vec<&String> = found.keys().filter(|name| is_wanted(name)).collect();
    let mut seen: BTreeSet<&String> = pending.iter().copied().collect();
    while let Some(name) = pending.pop() {
        let Some(stores) = found.get(name) else { continue };
        let is_ambiguous = stores.len() > 1 && !options.model_namespacing;
        for store in stores {
            let mut model = inspect(&inspector, &**store, name);
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
    fit_ensembles(&mut report, options.model_namespacing);
    Ok(report)
}

/// Adds findings on ensembles that come from the models of their steps.
fn fit_ensembles(report: &mut Report, has_namespaces: bool) {
    let candidate = |model: &ModelReport| model.problems.first().cloned();
    let problems: Vec<_> = report.models.iter().map(candidate).collect();
    let models = report.models.iter().zip(problems);
    let candidates = models.map(|(ModelReport { repository, inspection, .. }, problem)| Candidate {
        repository,
        inspection,
        problem,
    });
    let candidates: Vec<Candidate<'_>> = candidates.collect();
    for (at, problem) in misfits(&candidates, has_namespaces) {
        report.models[at].problems.push(problem);
    }
}

fn inspect(inspector: &Inspector<'_>, store: &dyn Store, name: &str) -> ModelReport {
    let repository = store.location().to_owned();
    match store.localize(name) {
        Ok(local) => {
            let inspection = inspector.inspect(name, local.path(), None);
            let problems = inspection.problems.iter().map(ToString::to_string).collect();
            ModelReport { repository, problems, inspection, instances: Instances::default() }
        }
        Err(status) => ModelReport {
            repository,
            problems: vec![status.message.into_owned()],
            inspection: Inspection { name: name.to_owned(), ..Inspection::default() },
            instances: Instances::default(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<CheckArguments>, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        CheckArguments::parse(&Arguments { program: "nereid".into(), words })
    }

    #[test]
    fn repositories_are_words_or_flags() {
        let parsed = |line: &str| {
            let Ok(Some(parsed)) = parse(line) else { panic!("{line}") };
            let repositories: Vec<String> =
                parsed.options.model_repositories.iter().map(|path| path.display().to_string()).collect();
            (repositories.join(" "), parsed.json, parsed.options.auto_complete_config)
        };
        assert_eq!(parsed("a b"), ("a b".into(), false, true));
        assert_eq!(parsed("--format=json a --model-repository=c b"), ("c a b".into(), true, true));
        assert_eq!(parsed("a --model-repository a"), ("a a".into(), false, true));
        assert_eq!(parsed("--model-repository a a --disable-auto-complete-config"), ("a a".into(), false, false));
        assert_eq!(parsed("--format=json --format=text a"), ("a".into(), false, true));
    }

    #[test]
    fn invalid_arguments_are_reported() {
        assert!(matches!(parse("a --help"), Ok(None)));
        for (line, part) in [
            ("", "which repository?"),
            ("a --format=xml", "--format=xml: the formats are text and json"),
            ("a --nonsense", "unrecognized option '--nonsense'"),
            ("a --io-cores=x", "Bad option"),
        ] {
            let Err(error) = parse(line) else { panic!("{line}") };
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
