//! `nereid runtime install <name>` and `nereid runtime list`.
//!
//! Runtimes are found when needed, not linked (docs/design.md, decision 13); this command installs one where the search
//! finds it: in the user's data folder, without root and without a Python environment of the user's, or in the folder
//! for all users.

pub(super) mod distributions;
mod download;
mod install;
mod progress;
mod python;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use install::{InstallError, InstallOptions, install};
pub use progress::{Progress, Silent, Terminal};
pub use python::{PythonError, PythonOptions, ensure_python, install_python};

use super::Arguments;
use super::check::print;
use super::subcommands::{mistake, unknown_option};
use super::terminal::{self, fitted};
use distributions::Distribution;
use nereid_backend::python as python_backend;
use nereid_backend::runtime_search::{SYSTEM_PREFIX, Surroundings};

const USAGE: &str = "\
Usage: nereid runtime install <runtime> [--version=<version>] [--gpu] [--force] [--system | --prefix=<dir>]
       nereid runtime install python [--version=<3.x>] [--package=<package>]... [--force]
                              [--system | --prefix=<dir>]
       nereid runtime list

  install <runtime>
             Download the library of a runtime into the user's data folder.
             --version=<version>  Another version than the one this build was tested with.
             --gpu                onnxruntime: the build that computes on NVIDIA GPUs too; CUDA and cuDNN must be on the
                                  host.
             --force              Install again what is installed already.
  install python
             Make an environment with numpy for models in Python in the user's data folder.
             --version=<3.x>      Of that version of Python, which must be on the PATH.
             --package=<package>  Install this with pip too, such as tokenizers or torch==2.5.1.
             --force              Make a new one in place of those that are there.
  --system   Install for all users, below /usr/local: for a service, whose user has no home.
  --prefix=<dir>
             Install for all users, below lib in this directory: that of `nereid install`, whose program finds it.
  list       Show which runtimes are found, and which of them are used.

";

/// The usage, with what each runtime is for.
pub(super) fn usage() -> String {
    let runtimes = distributions::ALL.iter().filter(|one| !one.is_for_gpus);
    let rows = runtimes.map(|one| format!("  {:<11} {} {}\n", one.runtime.name, one.runtime.title, one.purpose));
    format!("{USAGE}Runtimes:\n{}  python      an interpreter for models in Python\n", rows.collect::<String>())
}

/// The library of the runtime `name` that would be used now, or a freshly installed one if there is none.
pub fn ensure(name: &str, progress: &mut dyn Progress) -> Result<PathBuf, InstallError> {
    let distribution = distributions::find(name, false).map_err(InstallError::Unknown)?;
    let runtime = distribution.runtime;
    let open = |path: &Path| (distribution.open)(path).map(|_| path.to_path_buf());
    match Surroundings::of_process(runtime, None).find(runtime, open) {
        Ok(path) => Ok(path),
        Err(_) => install(distribution, &InstallOptions::default(), progress),
    }
}

/// Runs the subcommand with the arguments behind `nereid runtime`.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let words: Vec<String> = arguments.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    match Command::parse(&words) {
        Ok(Command::Help) => {
            print(&usage());
            ExitCode::SUCCESS
        }
        Ok(Command::List) => {
            let columns = terminal::columns();
            for distribution in distributions::ALL.iter().filter(|one| !one.is_for_gpus) {
                print(&fitted(&list(distribution, &Surroundings::of_process(distribution.runtime, None)), columns));
            }
            print(&fitted(&list_python(&python_backend::Surroundings::of_process()), columns));
            ExitCode::SUCCESS
        }
        Ok(Command::Install(distribution, options)) => installed(install(distribution, &options, &mut Terminal::new())),
        Ok(Command::Python(options)) => installed(install_python(&options, &mut Terminal::new())),
        Err(text) => {
            let _ = std::io::stderr().write_all(mistake("runtime", &text).as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Prints the path of the runtime, for scripts, or the reason why it is missing.
fn installed(outcome: Result<PathBuf, impl std::fmt::Display>) -> ExitCode {
    match outcome {
        Ok(path) => {
            print(&format!("{}\n", path.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, PartialEq)]
enum Command {
    Help,
    List,
    Install(&'static Distribution, InstallOptions),
    Python(PythonOptions),
}

impl Command {
    fn parse(arguments: &[String]) -> Result<Command, String> {
        let mut words = Vec::new();
        let mut gpu = false;
        let mut options = PythonOptions::default();
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let mut value = |value: &str| match argument.contains('=') {
                true => value.to_owned(),
                false => rest.next().unwrap_or_default().to_owned(),
            };
            match argument.split_once('=').unwrap_or((argument, "")) {
                ("--help" | "-h", "") => return Ok(Command::Help),
                ("--gpu", "") if !argument.contains('=') => gpu = true,
                ("--force", "") if !argument.contains('=') => options.force = true,
                ("--system", "") if !argument.contains('=') => options.prefix = Some(SYSTEM_PREFIX.into()),
                ("--prefix", given) => {
                    let prefix = value(given);
                    if prefix.is_empty() {
                        return Err("--prefix needs a directory".to_owned());
                    }
                    options.prefix = Some(prefix.into());
                }
                ("--version", given) => options.version = Some(value(given)),
                ("--package", given) => {
                    let package = value(given);
                    // It becomes a word of pip's command line.
                    if package.is_empty() || package.starts_with('-') {
                        return Err(format!("'{package}' is not a package"));
                    }
                    options.packages.push(package);
                }
                _ if argument.starts_with('-') => return Err(unknown_option("runtime", argument)),
                _ => words.push(argument),
            }
        }
        let is_plain = options == PythonOptions::default() && !gpu;
        match words.as_slice() {
            ["list"] if is_plain => Ok(Command::List),
            ["list"] => Err("'list' takes no options".to_owned()),
            ["install", "python"] if gpu => Err("unknown option '--gpu': Python has none".to_owned()),
            ["install", "python"] => {
                checked(&options.version, "3.12", |text| is_version(text) && text.split('.').count() == 2)?;
                Ok(Command::Python(options))
            }
            ["install", name] => {
                let distribution = distributions::find(name, gpu)?;
                let PythonOptions { version, packages, force, prefix } = options;
                if !packages.is_empty() {
                    return Err("unknown option '--package': a library has none".to_owned());
                }
                checked(&version, distribution.first().tested_version, is_version)?;
                Ok(Command::Install(distribution, InstallOptions { version, force, prefix }))
            }
            ["install"] => Err(format!("which runtime? Known runtimes: {}, python", distributions::names().join(", "))),
            [] => Err("what shall be done?".to_owned()),
            [other, ..] => Err(format!("unknown command '{other}'")),
        }
    }
}

fn checked(version: &Option<String>, example: &str, is_fit: impl Fn(&str) -> bool) -> Result<(), String> {
    match version {
        Some(version) if !is_fit(version) => Err(format!("'{version}' is not a version such as {example}")),
        _ => Ok(()),
    }
}

/// Digits and points: it becomes part of a path and of a requirement for pip.
fn is_version(text: &str) -> bool {
    text.len() <= 32 && text.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Every library that is found, the used one marked; only that one is opened.
fn list(distribution: &Distribution, surroundings: &Surroundings) -> String {
    let runtime = distribution.runtime;
    let open = |path: &Path| Ok((path.to_path_buf(), (distribution.open)(path)?));
    let used = surroundings.find(runtime, open);
    let mut text = String::new();
    for location in surroundings.locations(runtime) {
        for library in &location.libraries {
            let is_used = matches!(&used, Ok((used, _)) if used == library);
            let mark = if is_used { '*' } else { ' ' };
            text.push_str(&format!("{mark} {:<11}  {}  ({})\n", runtime.name, library.display(), location.origin));
        }
    }
    match &used {
        Ok((path, version)) => {
            text.push_str(&format!("{} {version} is used: {}\n", runtime.title, path.display()));
        }
        Err(missing) => text.push_str(&format!("{missing}\n")),
    }
    text
}

/// The interpreters that models without a setting may get. The used one is marked, and is run for its version.
fn list_python(surroundings: &python_backend::Surroundings) -> String {
    use python_backend::Origin;
    let installed = surroundings.installed().map(|program| (Origin::Installed, program));
    let on_path = surroundings.on_path("python3").into_iter().next().map(|program| (Origin::Path, program));
    let used = surroundings.general(None);
    let mut text = String::new();
    for location in installed.into_iter().chain(on_path) {
        let mark = if used.as_ref() == Ok(&location) { '*' } else { ' ' };
        text.push_str(&format!("{mark} python       {}  ({})\n", location.1.display(), location.0));
    }
    let described = used.and_then(|(origin, program)| {
        let about =
            python_backend::examine_interpreter(&program, &[]).map_err(|problem| problem.status(&program, origin))?;
        Ok(format!("Python {about} with numpy {} is used: {}\n", about.numpy, program.display()))
    });
    text + &described.unwrap_or_else(|status| format!("{}\n", status.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Command::parse(&words)
    }

    fn onnxruntime(is_for_gpus: bool) -> &'static Distribution {
        distributions::find("onnxruntime", is_for_gpus).unwrap()
    }

    #[test]
    fn commands_and_their_options() {
        let with = |version: Option<&str>, force| {
            let version = version.map(str::to_owned);
            Ok(Command::Install(onnxruntime(false), InstallOptions { version, force, prefix: None }))
        };
        let python = |version: Option<&str>, packages: &[&str], force| {
            let packages = packages.iter().map(|package| (*package).to_owned()).collect();
            Ok(Command::Python(PythonOptions { version: version.map(str::to_owned), packages, force, prefix: None }))
        };
        assert_eq!(parse("list"), Ok(Command::List));
        assert_eq!(parse("install onnxruntime"), with(None, false));
        assert_eq!(parse("install --force onnxruntime"), with(None, true));
        assert_eq!(parse("install onnxruntime --version=1.20.1 --force"), with(Some("1.20.1"), true));
        assert_eq!(parse("install onnxruntime --version 1.20.1"), with(Some("1.20.1"), false));
        let gpu = Ok(Command::Install(onnxruntime(true), InstallOptions::default()));
        assert_eq!(parse("install onnxruntime --gpu"), gpu);
        let system = InstallOptions { prefix: Some("/usr/local".into()), ..InstallOptions::default() };
        assert_eq!(parse("install onnxruntime --system"), Ok(Command::Install(onnxruntime(false), system)));
        let below = PythonOptions { prefix: Some("/opt/nereid".into()), ..PythonOptions::default() };
        assert_eq!(parse("install python --prefix=/opt/nereid"), Ok(Command::Python(below.clone())));
        assert_eq!(parse("install --prefix /opt/nereid python"), Ok(Command::Python(below)));
        assert_eq!(parse("install --help"), Ok(Command::Help));
        assert_eq!(parse("install python"), python(None, &[], false));
        assert_eq!(parse("install python --version=3.12 --force"), python(Some("3.12"), &[], true));
        let packages = ["torch==2.5.1", "tokenizers"];
        assert_eq!(parse("install --package=torch==2.5.1 python --package tokenizers"), python(None, &packages, false));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, part) in [
            ("", "what shall be done?"),
            ("install", "which runtime?"),
            ("install torch", "unknown runtime 'torch'"),
            ("install python --version=3", "'3' is not a version such as 3.12"),
            ("install python --version=3.12.1", "'3.12.1' is not a version such as 3.12"),
            ("install python --package=--index-url", "'--index-url' is not a package"),
            ("install python --package", "'' is not a package"),
            ("install python --gpu", "unknown option '--gpu'"),
            ("install onnxruntime --gpu=1", "unknown option '--gpu=1'"),
            ("list --gpu", "'list' takes no options"),
            ("install onnxruntime --package=x", "unknown option '--package'"),
            ("list --package=x", "takes no options"),
            ("remove onnxruntime", "unknown command 'remove'"),
            ("install onnxruntime --fast", "unknown option '--fast'"),
            ("install onnxruntime --force=yes", "unknown option '--force=yes'"),
            ("install onnxruntime --version=../../x", "is not a version"),
            ("install onnxruntime --version=1..2", "is not a version"),
            ("install onnxruntime --version", "is not a version"),
            ("list --force", "takes no options"),
            ("list --system", "takes no options"),
            ("install onnxruntime --prefix=", "--prefix needs a directory"),
            ("install onnxruntime --system=yes", "unknown option '--system=yes'"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
