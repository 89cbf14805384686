//! `nereid runtime install onnxruntime` and `nereid runtime list`.
//!
//! Runtimes are found when needed, not linked (DESIGN, decision 13); this is the command that puts one where it is
//! found: into the user's own data folder, without root and without a Python environment.

mod download;
mod install;
mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

pub use install::{InstallError, InstallOptions, install_onnxruntime};
pub use progress::{Progress, Silent, Terminal};

use crate::backend::onnxruntime::{Inspected, Surroundings, locate};

const USAGE: &str = "\
Usage: nereid runtime install onnxruntime [--version=<version>] [--force]
       nereid runtime list

  install    Download a runtime library into the user's data folder.
             --version=<version>  Another version than the one this build was tested with.
             --force              Install again what is installed already.
  list       Show which runtime libraries are found, and which of them is used.
";

/// The library that would be used now, or a freshly installed one if there is none.
pub fn ensure_onnxruntime(progress: &mut dyn Progress) -> Result<PathBuf, InstallError> {
    let surroundings = Surroundings::of_process(None);
    match locate(&surroundings) {
        Ok(Inspected { path, .. }) => Ok(path),
        Err(_) => install_onnxruntime(&InstallOptions::default(), progress),
    }
}

/// Runs the subcommand with what stands behind `nereid runtime`.
pub fn run(arguments: &[String]) -> ExitCode {
    match Command::parse(arguments) {
        Ok(Command::Help) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Command::List) => {
            print!("{}", list(&Surroundings::of_process(None)));
            ExitCode::SUCCESS
        }
        Ok(Command::Install(options)) => match install_onnxruntime(&options, &mut Terminal::new()) {
            Ok(path) => {
                println!("{}", path.display());
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        },
        Err(text) => {
            eprint!("error: {text}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Help,
    List,
    Install(InstallOptions),
}

impl Command {
    fn parse(arguments: &[String]) -> Result<Command, String> {
        let mut words = Vec::new();
        let mut options = InstallOptions::default();
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            match argument.split_once('=').unwrap_or((argument, "")) {
                ("--help" | "-h", "") => return Ok(Command::Help),
                ("--force", "") if !argument.contains('=') => options.force = true,
                ("--version", value) => {
                    let value = match argument.contains('=') {
                        true => value,
                        false => rest.next().unwrap_or_default(),
                    };
                    if !is_version(value) {
                        return Err(format!("'{value}' is not a version such as 1.31.1"));
                    }
                    options.version = Some(value.to_owned());
                }
                _ if argument.starts_with('-') => return Err(format!("unknown option '{argument}'")),
                _ => words.push(argument),
            }
        }
        let plain = options == InstallOptions::default();
        match words.as_slice() {
            ["list"] if plain => Ok(Command::List),
            ["list"] => Err("'list' takes no options".to_owned()),
            ["install", "onnxruntime"] => Ok(Command::Install(options)),
            ["install", other] => Err(format!("unknown runtime '{other}'; known runtimes: onnxruntime")),
            ["install"] => Err("which runtime? Known runtimes: onnxruntime".to_owned()),
            [] => Err("what shall be done?".to_owned()),
            [other, ..] => Err(format!("unknown command '{other}'")),
        }
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
    for place in surroundings.places() {
        for library in &place.libraries {
            let is_used = matches!(&used, Ok(used) if library.canonicalize().is_ok_and(|path| path == used.path));
            let mark = if is_used { '*' } else { ' ' };
            text.push_str(&format!("{mark} onnxruntime  {}  ({})\n", library.display(), place.origin));
        }
    }
    match &used {
        Ok(used) => text.push_str(&format!("onnxruntime {} is used: {}\n", used.version, used.path.display())),
        Err(missing) => text.push_str(&format!("{missing}\n")),
    }
    text
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
            Ok(Command::Install(InstallOptions { version: version.map(str::to_owned), force }))
        };
        assert_eq!(parse("list"), Ok(Command::List));
        assert_eq!(parse("install onnxruntime"), with(None, false));
        assert_eq!(parse("install --force onnxruntime"), with(None, true));
        assert_eq!(parse("install onnxruntime --version=1.20.1 --force"), with(Some("1.20.1"), true));
        assert_eq!(parse("install onnxruntime --version 1.20.1"), with(Some("1.20.1"), false));
        assert_eq!(parse("install --help"), Ok(Command::Help));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, part) in [
            ("", "what shall be done?"),
            ("install", "which runtime?"),
            ("install torch", "unknown runtime 'torch'"),
            ("remove onnxruntime", "unknown command 'remove'"),
            ("install onnxruntime --fast", "unknown option '--fast'"),
            ("install onnxruntime --force=yes", "unknown option '--force=yes'"),
            ("install onnxruntime --version=../../x", "is not a version"),
            ("install onnxruntime --version=1..2", "is not a version"),
            ("install onnxruntime --version", "is not a version"),
            ("list --force", "takes no options"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
