//! `nereid [serve]`: Triton's command line.

use std::process::ExitCode;

use super::Arguments;
use super::options::ServeOptions;
use crate::server;

/// Parses Triton's flags and serves until a signal comes.
pub fn run(arguments: &Arguments) -> ExitCode {
    match ServeOptions::parse(arguments, |name| std::env::var_os(name)) {
        Ok(options) => start(&options, ""),
        Err(error) => {
            eprint!("{}", error.report());
            ExitCode::FAILURE
        }
    }
}

/// Serves with `options`; says `announcement` once the ports answer.
pub(super) fn start(options: &ServeOptions, announcement: &str) -> ExitCode {
    let logger = match server::start_log(options) {
        Ok(logger) => logger,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = server::run(options, announcement);
    logger.flush();
    code
}
