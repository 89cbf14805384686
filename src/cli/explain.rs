//! `nereid explain`: the configuration that a model would be served with, and the source of each value.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::Arguments;
use super::check::arguments::split;
use super::check::report::{backend, numbers};
use super::check::{place, print, worker_cpu_count};
use super::runtime::distributions;
use super::subcommands::mistake;
use super::terminal::{self, fitted};
use crate::abi::LIBRARIES;
use crate::repository::inspect::{BackendLocation, Inspection, Inspector};
use crate::repository::next_steps::FailedModel;
use nereid_backend::runtime_search::Surroundings;
use nereid_gpu::Gpus;
use nereid_model_config::provenance::{self, Field, Source};

pub(super) const USAGE: &str = "\
Usage: nereid explain <model directory> [--override=<file>] [options of serve]

Prints the configuration that the model would be served with, and where each value comes from: a place in the file, the
model's own file as its backend reads it, an override, or a default with its rule. Exit code 0 if the model could be
loaded, else 1 after all that is wrong with it.

  --override=<file>  The JSON text that a load request would bring, in place of the configuration file.

These options of serve set how the model is loaded: --model-config-name, --disable-auto-complete-config,
--backend-directory, --backend-config.
";

/// The widest value that the sources of others are aligned with.
const WIDTH_MAX: usize = 64;
/// Longest override that is read, in bytes; the JSON reader has its own, smaller bound.
const OVERRIDE_BYTES_MAX: u64 = 16 << 20;

/// Explains and prints.
pub fn run(arguments: &Arguments) -> ExitCode {
    match explain(arguments) {
        Ok(None) => {
            print(USAGE);
            ExitCode::SUCCESS
        }
        Ok(Some(Explained { seen, runtime, next_steps })) => {
            print(&fitted(&text(&seen, runtime.as_deref()), terminal::columns()));
            for problem in &seen.problems {
                let _ = writeln!(std::io::stderr(), "error: {problem}");
            }
            for step in &next_steps {
                let _ = writeln!(std::io::stderr(), "next step: {step}");
            }
            if seen.would_load() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(text) => {
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// A model and the runtime of its backend.
struct Explained {
    seen: Inspection,
    /// The library of a backend that searches for one.
    runtime: Option<String>,
    /// What to do about usual mistakes, if there is a problem.
    next_steps: Vec<String>,
}

/// `None` if help is requested.
fn explain(arguments: &Arguments) -> Result<Option<Explained>, String> {
    let mut given = None;
    let mut words = Vec::new();
    for word in &arguments.words {
        let text = word.to_string_lossy();
        if text == "--help" || text == "-h" {
            return Ok(None);
        }
        match text.strip_prefix("--override=") {
            Some(file) => given = Some(PathBuf::from(file)),
            None => words.push(word.clone()),
        }
    }
    let (words, options) = split(&Arguments { program: arguments.program.clone(), words })?;
    let [directory] = words.as_slice() else {
        return Err(mistake("explain", "missing <model directory>: exactly one is explained"));
    };
    let directory = Path::new(directory);
    let failed = |path: &Path, error: &std::io::Error| format!("error: {}: {error}\n", path.display());
    // `.` has a name too.
    let whole = directory.canonicalize().map_err(|error| failed(directory, &error))?;
    let Some(name) = whole.file_name().and_then(|name| name.to_str()) else {
        return Err(format!("error: {}: not the directory of a model\n", directory.display()));
    };
    let given = given.map(|file| read(&file).map_err(|error| failed(&file, &error))).transpose()?;
    let (cores, placement) = place(&options).map_err(|text| format!("error: {text}\n"))?;
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
    let mut seen = inspector.inspect(name, directory, given.as_deref());
    inspector.complete(&mut seen);
    let runtime = (seen.backend == BackendLocation::BuiltIn).then(|| runtime(&seen.stages.resolved.backend, &settings));
    let next_steps = match seen.would_load() {
        true => Vec::new(),
        false => {
            let config_name = options.model_config_name.as_deref();
            FailedModel::read(name, directory, config_name, &options.backend_directory).steps()
        }
    };
    Ok(Some(Explained { seen, runtime: runtime.flatten(), next_steps }))
}

/// The library of the framework whose backend this is, as a model would open it.
fn runtime(backend: &str, settings: &dyn Fn(&str) -> Vec<(String, String)>) -> Option<String> {
    let framework = distributions::ALL.iter().find(|one| one.runtime.name == backend)?;
    let given = settings(backend);
    let library = given.iter().rev().find(|(key, _)| key == "library").map(|(_, value)| value.as_str());
    let (kind, mut found) = (framework.runtime, None);
    let version = Surroundings::of_process(kind, library).find(kind, |path| {
        found = path.canonicalize().ok();
        (framework.open)(path)
    });
    Some(format!("{} {}, {}", kind.title, version.ok()?, found?.display()))
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    std::fs::File::open(file)?.take(OVERRIDE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

fn text(seen: &Inspection, runtime: Option<&str>) -> String {
    let mut text = format!("Model {}\n", seen.name);
    // Writing to a String cannot fail, here and below.
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "  {what:<13} {value}");
    };
    line("directory", &seen.directory.display().to_string());
    let configuration = match (&seen.file, seen.has_config) {
        (Some(file), _) => file.display().to_string(),
        (None, true) => "an override".to_owned(),
        (None, false) => "none".to_owned(),
    };
    line("configuration", &configuration);
    line("versions", &format!("{} of {}", numbers(&seen.chosen), numbers(&seen.versions)));
    line("backend", &backend(seen));
    if let Some(runtime) = runtime {
        line("runtime", runtime);
    }
    if let Some(spec) = &seen.spec {
        let names: Vec<&str> = spec.instances.iter().map(|instance| instance.name.as_str()).collect();
        line("instances", &names.join(", "));
    }
    for labels in &seen.labels {
        line("labels", &format!("{}: {}, {} labels", labels.output, labels.file, labels.labels));
    }
    for warning in &seen.warnings {
        line("warning", warning);
    }
    match provenance::fields(&seen.stages, seen.positions.as_ref()) {
        Ok(fields) if seen.stages.resolved.name.is_empty() => drop(fields),
        Ok(fields) => push_fields(&fields, seen.file.as_deref(), &mut text),
        Err(error) => {
            let _ = writeln!(text, "\n  {error}");
        }
    }
    text
}

/// Values and sources in two columns.
fn push_fields(fields: &[Field], file: Option<&Path>, text: &mut String) {
    let lines: Vec<(String, &Source)> =
        fields.iter().map(|field| (format!("{}: {}", field.path, field.value), &field.source)).collect();
    let widths = lines.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= WIDTH_MAX);
    let width = widths.max().unwrap_or(WIDTH_MAX);
    text.push('\n');
    for (line, source) in lines {
        let _ = match source {
            Source::File(place) => {
                let file = file.map(|file| file.display().to_string()).unwrap_or_default();
                writeln!(text, "  {line:<width$}  {file}:{}:{}", place.field.line, place.field.column)
            }
            Source::Override => writeln!(text, "  {line:<width$}  override"),
            Source::ModelFile => writeln!(text, "  {line:<width$}  model file"),
            Source::Default("") => writeln!(text, "  {line:<width$}  default"),
            Source::Default(rule) => writeln!(text, "  {line:<width$}  default: {rule}"),
        };
    }
}
