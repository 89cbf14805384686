//! `nereid runtime install onnxruntime`, `nereid runtime install python` and `nereid runtime list`.
//!
//! Runtimes are found when needed, not linked (docs/design.md, decision 13); this command installs one where the search
//! finds it: in the user's data folder, without root and without a Python environment of the user's, or in the folder
//! for all users.

mod download;
mod install;
mod progress;
mod python;

use std::path::PathBuf;
use std::process::ExitCode;

pub use install::{InstallError, InstallOptions, install_onnxruntime};
pub use progress::{Progress, Silent, Terminal};
pub use python::{PythonError, PythonOptions, ensure_python, install_python};

use nereid_backend::onnxruntime::{Inspected, SYSTEM_PREFIX, Surroundings, locate};
use nereid_backend::python as python_backend;

const USAGE: &str = "\
Usage: nereid runtime install onnxruntime [--version=<version>] [--gpu] [--force] [--system | --prefix=<dir>]
       nereid runtime install python [--version=<3.x>] [--package=<package>]... [--force]
                              [--system | --prefix=<dir>]
       nereid runtime list

  install onnxruntime
             Download the library for ONNX models into the user's data folder.
             --version=<version>  Another version than the one this build was tested with.
             --gpu                The one that computes on NVIDIA GPUs too; CUDA and cuDNN must be on the host.
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

/// The library that would be used now, or a freshly installed one if there is none.
pub fn ensure_onnxruntime(progress: &mut dyn Progress) -> Result<PathBuf, InstallError> {
    let surroundings = Surroundings::of_process(None);
    match locate(&surroundings) {
        Ok(Inspected { path, .. }) => Ok(path),
        Err(_) => install_onnxruntime(&InstallOptions::default(), progress),
    }
}

/// Runs the subcommand with the arguments behind `nereid runtime`.
pub fn run(arguments: &[String]) -> ExitCode {
    match Command::parse(arguments) {
        Ok(Command::Help) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Command::List) => {
            print!("{}", list(&Surroundings::of_process(None)));
            print!("{}", list_python(&python_backend::Surroundings::of_process()));
            ExitCode::SUCCESS
        }
        Ok(Command::Onnxruntime(options)) => installed(install_onnxruntime(&options, &mut Terminal::new())),
        Ok(Command::Python(options)) => installed(install_python(&options, &mut Terminal::new())),
        Err(text) => {
            eprint!("error: {text}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the path of the runtime, for scripts, or the reason why it is missing.
fn installed(outcome: Result<PathBuf, impl std::fmt::Display>) -> ExitCode {
    match outcome {
        Ok(path) => {
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Help,
    List,
    Onnxruntime(InstallOptions),
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
                _ if argument.starts_with('-') => return Err(format!("unknown option '{argument}'")),
                _ => words.push(argument),
            }
        }
        let is_plain = options == PythonOptions::default() && !gpu;
        match words.as_slice() {
            ["list"] if is_plain => Ok(Command::List),
            ["list"] => Err("'list' takes no options".to_owned()),
            ["install", "onnxruntime"] => {
                let PythonOptions { version, packages, force, prefix } = options;
                if !packages.is_empty() {
                    return Err("unknown option '--package': a library has none".to_owned());
                }
                checked(&version, "1.31.1", is_version)?;
                Ok(Command::Onnxruntime(InstallOptions { version, gpu, force, prefix }))
            }
            ["install", "python"] if gpu => Err("unknown option '--gpu': Python has none".to_owned()),
            ["install", "python"] => {
                checked(&options.version, "3.12", |text| is_version(text) && text.split('.').count() == 2)?;
                Ok(Command::Python(options))
            }
            ["install", other] => Err(format!("unknown runtime '{other}'; known runtimes: onnxruntime, python")),
            ["install"] => Err("which runtime? Known runtimes: onnxruntime, python".to_owned()),
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
fn list(surroundings: &Surroundings) -> String {
    let used = locate(surroundings);
    let mut text = String::new();
    for location in surroundings.locations() {
        for library in &location.libraries {
            let is_used = matches!(&used, Ok(used) if library.canonicalize().is_ok_and(|path| path == used.path));
            let mark = if is_used { '*' } else { ' ' };
            text.push_str(&format!("{mark} onnxruntime  {}  ({})\n", library.display(), location.origin));
        }
    }
    match &used {
        Ok(used) => text.push_str(&format!("onnxruntime {} is used: {}\n", used.version, used.path.display())),
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

    #[test]
    fn commands_and_their_options() {
        let with = |version: Option<&str>, force| {
            Ok(Command::Onnxruntime(InstallOptions {
                version: version.map(str::to_owned),
                force,
                ..InstallOptions::default()
            }))
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
        let gpu = InstallOptions { gpu: true, ..InstallOptions::default() };
        assert_eq!(parse("install onnxruntime --gpu"), Ok(Command::Onnxruntime(gpu)));
        let system = InstallOptions { prefix: Some("/usr/local".into()), ..InstallOptions::default() };
        assert_eq!(parse("install onnxruntime --system"), Ok(Command::Onnxruntime(system)));
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
