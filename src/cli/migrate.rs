//! `nereid migrate`: what of a set-up for Triton works here as it is, what differs, and what is missing.
//!
//! It reads: no model is started, no library is opened, nothing is written, and no GPU is needed. What it reports comes
//! from the server's own tables and checks: flags are read as `serve` reads them, models as `check` inspects them.

mod container;
mod differences;
mod invocation;
mod libraries;
mod models;
mod report;
mod server;
mod shell;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::Arguments;
use super::check::{self, Wanted, print};
use super::options::{ServeOptions, Survey};
use super::subcommands::mistake;
use super::terminal::{self, fitted};
use crate::server::options::WILDCARD;
use invocation::Invocation;
use models::Around;
use nereid_gpu::Gpus;
use report::{Outcome, Report};

pub const USAGE: &str = "\
Usage: nereid migrate [--json] [--all] <repository>...
       nereid migrate [--json] [--all] [--] <command line>

Reports what of a set-up for Triton works here, what differs (with the place in docs/differences.md), and what is
missing (with what replaces it). A command line is that of tritonserver, also behind docker run, mpirun, a shell or
another program that starts it; it may be one quoted word. Its flags are read as the server reads them, and then the
models of its repositories, with a container's mounts and ports as this host's. The report ends with the command that
replaces it.

  --json  Print the report as JSON.
  --all   List what works, too.

Nothing is started, opened for writing or changed. Models in buckets are not read.

Exit code 0: all works. 1: something differs or was not looked into. 2: something is missing or cannot be read.
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct MigrateArguments {
    is_json: bool,
    is_all: bool,
    setup: Setup,
}

#[derive(Debug, PartialEq, Eq)]
enum Setup {
    Repositories(Vec<PathBuf>),
    CommandLine(Vec<String>),
}

/// Looks and prints; the exit code is that of the report.
pub fn run(arguments: &Arguments) -> ExitCode {
    let variables = |name: &str| std::env::var_os(name);
    match MigrateArguments::parse(&arguments.words) {
        Ok(None) => print(USAGE),
        Ok(Some(parsed)) => match look_at(&parsed.setup, &variables) {
            Ok(report) => {
                print(&match parsed.is_json {
                    true => report.json(),
                    false => in_terminal(&report.text(parsed.is_all)),
                });
                return report.outcome().into();
            }
            Err(text) => return refuse(&format!("error: {text}\n")),
        },
        Err(text) => return refuse(&mistake("migrate", &text)),
    }
    ExitCode::SUCCESS
}

/// The command stays whole: it is to be copied.
fn in_terminal(text: &str) -> String {
    let command = text.find("\nCommand: ").unwrap_or(text.len());
    let (findings, command) = text.split_at(command);
    fitted(findings, terminal::columns()) + command
}

fn refuse(text: &str) -> ExitCode {
    let _ = std::io::stderr().write_all(text.as_bytes());
    Outcome::Missing.into()
}

impl MigrateArguments {
    /// `None` if help is requested.
    fn parse(words: &[OsString]) -> Result<Option<MigrateArguments>, String> {
        let (mut is_json, mut is_all) = (false, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let rest = || words.clone();
            let setup = match word.to_str() {
                Some("--json") => {
                    is_json = true;
                    continue;
                }
                Some("--all") => {
                    is_all = true;
                    continue;
                }
                Some("--help" | "-h") => return Ok(None),
                Some("--") => Setup::CommandLine(texts(rest())?),
                Some(option) if option.starts_with("--") => {
                    return Err(format!("unknown option '{option}'; a command line stands behind --"));
                }
                // A name of a directory may have blanks, too.
                Some(text) if !Path::new(word).is_dir() && is_command_line(text) => {
                    Setup::CommandLine(texts(std::iter::once(word).chain(rest()))?)
                }
                _ => {
                    let mut locations = Vec::new();
                    for word in std::iter::once(word).chain(rest()) {
                        match word.to_str() {
                            Some("--json") => is_json = true,
                            Some("--all") => is_all = true,
                            Some(option) if option.starts_with("--") => {
                                return Err(format!("unknown option '{option}' behind a repository"));
                            }
                            _ => locations.push(PathBuf::from(word)),
                        }
                    }
                    Setup::Repositories(locations)
                }
            };
            return Ok(Some(MigrateArguments { is_json, is_all, setup }));
        }
        Err("missing <repository> or <command line>".to_owned())
    }
}

fn is_command_line(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    text.trim().contains(char::is_whitespace) || invocation::begins(first)
}

fn texts<'a>(words: impl Iterator<Item = &'a OsString>) -> Result<Vec<String>, String> {
    let text = |word: &OsString| word.to_str().map(str::to_owned);
    words.map(|word| text(word).ok_or_else(|| format!("'{}' is not UTF-8", word.display()))).collect()
}

/// Looks at a set-up. The error is a sentence for the user.
fn look_at(setup: &Setup, variables: &dyn Fn(&str) -> Option<OsString>) -> Result<Report, String> {
    let mut report = Report::default();
    let invocation = match setup {
        Setup::Repositories(locations) => {
            let none = Arguments { program: "nereid".into(), words: Vec::new() };
            let mut options = Survey::of(&none, variables).options;
            options.model_repositories.clone_from(locations);
            look_at_models(options, None, &mut report);
            return Ok(report);
        }
        Setup::CommandLine(words) => {
            Invocation::read(words, &|name| variables(name).and_then(|value| value.into_string().ok()))?
        }
    };
    let is_contained = invocation.container.is_some();
    let environment = |name: &str| {
        let own = invocation.environment.get(name).map(OsString::from);
        own.or_else(|| if is_contained { None } else { variables(name) })
    };
    let options = server::look_at(&invocation, &environment, &mut report);
    look_at_models(options, invocation.container.as_ref(), &mut report);
    Ok(report)
}

/// Adds what is known of the models in the repositories.
fn look_at_models(mut options: ServeOptions, container: Option<&container::Container>, report: &mut Report) {
    let has_buckets = server::leave_buckets_out(&mut options, report);
    let is_any = options.startup_models.iter().any(|name| name == WILDCARD);
    // They may be in a bucket. Clients may load the others, too, so all are inspected.
    let names = if is_any || has_buckets { &[] } else { &*options.startup_models };
    let mut found = match check::inspect_all(&options, &Wanted { flag: "--load-model", names, is_all: true }) {
        Ok(found) => found,
        Err(text) => {
            report.missing("command line", text, Vec::new());
            return;
        }
    };
    check::fit_ensembles(&mut found, options.model_namespacing);
    for problem in &found.problems {
        report.missing("repository", problem, std::mem::take(&mut found.next_steps));
    }
    let has_gpus = !Gpus::discover(&options.gpu_settings()).ids().is_empty();
    let around = Around { options: &options, has_gpus, container };
    found.models.iter().for_each(|model| around.look_at(model, report));
}
