//! `nereid [serve]`: Triton's command line.

use std::io::Write;
use std::process::ExitCode;

use nereid_observe::stacks;
use tracing::{info, warn};

use super::options::{CommandLine, OptionsError, WithoutEffect};
use super::{Arguments, help};
use crate::abi::{LIBRARIES, crash};
use crate::server::{self, inherited::InheritedSockets};

/// Parses Triton's flags and serves until a signal comes.
pub fn run(arguments: &Arguments) -> ExitCode {
    let has_nothing =
        arguments.words.is_empty() && std::env::var_os("AIP_STORAGE_URI").is_none_or(|uri| uri.is_empty());
    if has_nothing && !help::is_triton(&arguments.program) {
        print_error(help::GREETING);
        return ExitCode::FAILURE;
    }
    serve(arguments, help::program)
}

/// The same under its name, `nereid serve`.
pub fn run_named(arguments: &Arguments) -> ExitCode {
    serve(arguments, help::serve)
}

fn serve(arguments: &Arguments, help: fn() -> String) -> ExitCode {
    match read(arguments, help) {
        Ok(line) => start(&line, ""),
        Err(code) => code,
    }
}

/// The parsed command line. If there is none the program ends with the exit code, and its text is printed: `help` on
/// stdout, an error on stderr; under Triton's name the usage text on stderr, as Triton does it.
pub(super) fn read(arguments: &Arguments, help: fn() -> String) -> Result<CommandLine, ExitCode> {
    let line =
        CommandLine::parse(arguments, |name| std::env::var_os(name), |warning| print_error(&format!("{warning}\n")));
    line.map_err(|error| {
        match error {
            error if help::is_triton(&arguments.program) => print_error(&error.report()),
            OptionsError::Help => {
                super::check::print(&help());
                return ExitCode::SUCCESS;
            }
            error => print_error(&error.brief()),
        }
        ExitCode::FAILURE
    })
}

/// Prints to stderr; its reader may be gone, and `eprint!` would panic then.
fn print_error(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Serves; prints `announcement` once the ports answer.
pub(super) fn start(line: &CommandLine, announcement: &str) -> ExitCode {
    // Before the first thread: it removes variables of the environment.
    let inherited = InheritedSockets::of_service_manager();
    // The same: the log has the first thread.
    server::bound_allocator();
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
