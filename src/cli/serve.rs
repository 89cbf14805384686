//! `nereid [serve]`: Triton's command line.

use std::io::Write;
use std::process::ExitCode;

use nereid_observe::stacks;
use tracing::{info, warn};

use super::Arguments;
use super::options::{CommandLine, WithoutEffect};
use crate::abi::{LIBRARIES, crash};
use crate::server::{self, inherited::InheritedSockets};

/// Parses Triton's flags and serves until a signal comes.
pub fn run(arguments: &Arguments) -> ExitCode {
    match read(arguments) {
        Some(line) => start(&line, ""),
        None => ExitCode::FAILURE,
    }
}

/// The parsed command line; its errors go to stderr.
pub(super) fn read(arguments: &Arguments) -> Option<CommandLine> {
    let line =
        CommandLine::parse(arguments, |name| std::env::var_os(name), |warning| print_error(&format!("{warning}\n")));
    line.map_err(|error| print_error(&error.report())).ok()
}

/// Prints to stderr; its reader may be gone, and `eprint!` would panic then.
fn print_error(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Serves; prints `announcement` once the ports answer.
pub(super) fn start(line: &CommandLine, announcement: &str) -> ExitCode {
    // Before the first thread: it removes variables of the environment.
    let inherited = InheritedSockets::of_service_manager();
    let logger = match server::start_log(&line.options) {
        Ok(logger) => logger,
        Err(error) => {
            print_error(&format!("error: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    for WithoutEffect { flag, reason } in &line.without_effect {
        info!("--{flag} has no effect: {reason}");
    }
    if let Err(error) = crash::install() {
        warn!("a crash will leave no stack: {error}");
    }
    if !stacks::install() {
        warn!(
            "threads that are stuck will leave no stack: the process has another use for signal {}",
            stacks::signal()
        );
    }
    let code = server::run(&line.options, &LIBRARIES, inherited, announcement, line.flags.clone());
    logger.flush();
    code
}
