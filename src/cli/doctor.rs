//! `nereid doctor`: checks the host for a server with given flags, before it is started: kernel, limits, runtimes,
//! ports, permissions, GPUs, Python.
//!
//! Nothing is changed, nothing is sent anywhere, and no model is loaded. Permissions are those of the user that the
//! server will run as, which `--user` names: root may read everything, which says nothing of a service.

mod access;
mod arguments;
mod files;
mod host;
mod ports;
mod report;
mod runtimes;

use std::io::Write;
use std::process::ExitCode;

use super::Arguments;
use super::check::print;
use super::options::ServeOptions;
use arguments::DoctorArguments;
pub use arguments::USAGE;
use report::Report;

/// Checks and prints; the exit code is 1 if there is a problem.
pub fn run(arguments: &Arguments) -> ExitCode {
    let parsed = match DoctorArguments::parse(arguments) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => {
            print(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            let _ = std::io::stderr().write_all(text.as_bytes());
            return ExitCode::FAILURE;
        }
    };
    let report = examine(&parsed);
    print(&if parsed.is_json { report.json() } else { report.text() });
    if report.has_problem() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn examine(arguments: &DoctorArguments) -> Report {
    let (options, user): (&ServeOptions, _) = (&arguments.options, &arguments.user);
    let mut report = Report::new(user);
    host::check(&mut report, options, user);
    runtimes::check(&mut report, options, user);
    ports::check(&mut report, options, user);
    files::check(&mut report, options, user);
    report
}
