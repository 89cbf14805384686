//! The runtimes that models need, and the Python of models: found, and fit.

use std::path::Path;

use super::access::{Need, User};
use super::report::{Area, Level, Report};
use crate::cli::options::ServeOptions;
use crate::cli::runtime::distributions;
use nereid_backend::python as python_backend;
use nereid_backend::runtime_search::Surroundings;

pub fn check(report: &mut Report, options: &ServeOptions, user: &User) {
    let needed = Needed::of(options);
    for distribution in distributions::ALL.iter().filter(|one| !one.is_for_gpus) {
        let runtime = distribution.runtime;
        let open = |path: &Path| Ok((path.to_path_buf(), (distribution.open)(path)?));
        let models = needed.by(runtime.name);
        match Surroundings::of_process(runtime, None).find(runtime, open) {
            Ok((path, version)) => {
                let what = format!("{} {version}, {}", runtime.title, path.display());
                found(report, runtime.name, what, &path, &models, user);
            }
            Err(_) if models.is_empty() => {
                let what = format!("not installed; {}: {}", distribution.purpose, runtime.install_command());
                report.ok(Area::Runtimes, runtime.name, what);
            }
            Err(_) => report.bad(
                Level::Problem,
                Area::Runtimes,
                runtime.name,
                format!("not installed, and these models need it: {models}"),
                format!("run `{}`", runtime.install_command()),
            ),
        }
    }
    python(report, options, &needed, user);
}

/// The caller's search has found this; another user may not reach it.
fn found(report: &mut Report, name: &str, what: String, path: &Path, models: &str, user: &User) {
    // A bare name is resolved by the loader.
    let refusal = Some(path).filter(|path| path.is_absolute()).and_then(|path| user.reaches(path, &[Need::Read]).err());
    match refusal {
        None => report.ok(Area::Runtimes, name, what),
        Some(refusal) => {
            let level = if models.is_empty() { Level::Warning } else { Level::Problem };
            let next = format!("run `nereid runtime install {name} --system`, which installs it for all users");
            report.bad(level, Area::Runtimes, name, format!("{what}: {}", refusal.text(user)), next);
        }
    }
}

fn python(report: &mut Report, options: &ServeOptions, needed: &Needed, user: &User) {
    let settings = options.settings_of("python");
    let setting = settings.iter().rev().find(|(key, value)| key == "interpreter" && !value.is_empty());
    let surroundings = python_backend::Surroundings::of_process();
    let used = surroundings.general(setting.map(|(_, path)| Path::new(path)));
    let found = used.and_then(|(origin, program)| {
        let info = python_backend::examine_interpreter(&program, &[]);
        let info = info.map_err(|problem| problem.status(&program, origin))?;
        Ok((format!("Python {info} with numpy {}, {}", info.numpy, program.display()), program))
    });
    let models = needed.by("python");
    match found {
        Ok((what, program)) => self::found(report, "python", what, &program, &models, user),
        Err(status) => {
            let level = if models.is_empty() { Level::Warning } else { Level::Problem };
            let next = "run `nereid runtime install python`, which makes an environment with numpy";
            report.bad(level, Area::Runtimes, "python", status.message.into_owned(), next);
        }
    }
}

/// Models of the repositories by what runs them, as far as their configurations say.
struct Needed(Vec<(String, String)>);

/// Models that are named in one finding.
const NAMED_MAX: usize = 5;
/// Models of a repository whose configurations are read.
const MODELS_MAX: usize = 10_000;
/// Bytes of a configuration that are read.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

impl Needed {
    fn of(options: &ServeOptions) -> Needed {
        let mut models = Vec::new();
        for repository in &options.model_repositories {
            let Ok(entries) = std::fs::read_dir(repository) else { continue };
            for directory in entries.flatten().map(|entry| entry.path()).take(MODELS_MAX) {
                if let (Some(name), Some(backend)) = (directory.file_name(), backend_of(&directory)) {
                    models.push((backend, name.to_string_lossy().into_owned()));
                }
            }
        }
        models.sort();
        Needed(models)
    }

    /// Names of the models that need a runtime; empty if none does.
    fn by(&self, runtime: &str) -> String {
        let names: Vec<&str> =
            self.0.iter().filter(|(backend, _)| backend == runtime).map(|(_, name)| name.as_str()).collect();
        let more = names.len().saturating_sub(NAMED_MAX);
        let shown = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    }
}

/// The runtime that a model needs: what its configuration names, or else what its files are.
fn backend_of(directory: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open(directory.join("config.pbtxt")) {
        // One that cannot be read is a finding of the repository.
        let _ = file.take(CONFIG_BYTES_MAX).read_to_string(&mut text);
    }
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        Some(line.trim().split('"').nth(1)?.to_owned())
    };
    let named = value("backend").filter(|backend| !backend.is_empty()).or_else(|| {
        let platform = value("platform")?;
        platform.split_once('_').map(|(runtime, _)| runtime.to_owned())
    });
    let has = |file: &str| {
        let versions = std::fs::read_dir(directory).into_iter().flatten().flatten();
        versions.map(|entry| entry.path().join(file)).any(|path| path.exists())
    };
    named.or_else(|| match () {
        () if has("model.onnx") => Some("onnxruntime".to_owned()),
        () if has("model.py") => Some("python".to_owned()),
        () => None,
    })
}
