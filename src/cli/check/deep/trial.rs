//! The process of a deep check that loads one model: a subcommand that only the check itself calls.
//!
//! The result goes to a file, because libraries write what they like to the standard streams. It is written before the
//! model is unloaded, so that the check can tell a model that does not load from one that does not end.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_child_subreaper, set_parent_process_death_signal,
    setrlimit,
};
use serde_json::json;
use tracing::warn;

use super::super::arguments::CheckArguments;
use super::memory;
use crate::abi::{LIBRARIES, crash};
use crate::cli::Arguments;
use crate::cli::options::ServeOptions;
use crate::server::{self, trial::Trial};

/// The first word of the command line.
pub const SUBCOMMAND: &str = "check-one-model";

/// The command line of the process that loads the model `name` of the repository at `location`.
pub fn words(result: &Path, name: &str, location: &str, words_of_serve: &[OsString]) -> Vec<OsString> {
    let parent = getpid().as_raw_nonzero().to_string();
    let own: [OsString; 5] = [SUBCOMMAND.into(), result.into(), name.into(), location.into(), parent.into()];
    own.into_iter().chain(words_of_serve.iter().cloned()).collect()
}

/// Loads the model, writes the result, and unloads the model.
pub fn run(arguments: &Arguments) -> ExitCode {
    match load(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            let _ = writeln!(std::io::stderr(), "error: {text}");
            ExitCode::FAILURE
        }
    }
}

fn load(arguments: &Arguments) -> Result<(), String> {
    let [result, name, location, parent, words @ ..] = arguments.words.as_slice() else {
        return Err(format!("{SUBCOMMAND} is called by nereid check --deep only"));
    };
    prepare(parent)?;
    let arguments = Arguments { program: arguments.program.clone(), words: words.to_vec() };
    let parsed = CheckArguments::parse(&arguments)?.ok_or_else(|| "no help here".to_owned())?;
    // The check reads the log from the standard streams.
    let mut options: ServeOptions = parsed.options;
    options.log.file = None;
    // Before the first thread, as a server does it.
    server::bound_allocator();
    let logger = server::start_log(&options)?;
    if let Err(error) = crash::install() {
        warn!("a crash will leave no stack: {error}");
    }
    let loaded = Trial::load(&options, &LIBRARIES, &name.to_string_lossy(), &location.to_string_lossy());
    let problems = match &loaded {
        Ok(trial) => trial.problems(),
        Err(failure) => vec![failure.to_string()],
    };
    logger.flush();
    write(Path::new(result), &problems).map_err(|error| format!("the result cannot be written: {error}"))?;
    if let Ok(trial) = loaded {
        trial.end();
    }
    (LIBRARIES.report_handles)();
    logger.flush();
    Ok(())
}

/// Ties this process to the check: it ends with it, keeps its own orphans, leaves no core file, and is the first to end
/// when memory runs out.
fn prepare(parent: &OsString) -> Result<(), String> {
    let failed = |error: rustix::io::Errno| format!("the process cannot be prepared: {error}");
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    set_child_subreaper(Some(getpid())).map_err(failed)?;
    let parent = parent.to_str().and_then(|parent| parent.parse().ok()).and_then(Pid::from_raw);
    if getppid() != parent {
        return Err("the check has ended".to_owned());
    }
    memory::volunteer();
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }).map_err(failed)
}

/// Written whole, or not at all.
fn write(path: &Path, problems: &[String]) -> std::io::Result<()> {
    let mut unfinished = PathBuf::from(path).into_os_string();
    unfinished.push(".unfinished");
    std::fs::write(&unfinished, json!({ "problems": problems }).to_string())?;
    std::fs::rename(&unfinished, path)
}
