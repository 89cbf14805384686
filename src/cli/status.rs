//! `nereid status`: whether a server is live and ready and which of its models serve, for people and for scripts that
//! read the exit code.

use std::io::Write;
use std::process::ExitCode;

use super::Arguments;
use super::check::print;
use super::server_flags::{self, ServerFlags, Words};
use nereid_monitor::{Source, StatusReport};

/// The server is not ready, or one of its models is unavailable.
const NOT_READY: u8 = 1;
/// No server answers at the address.
const UNREACHABLE: u8 = 2;
/// The command line is of no use.
const MISTAKE: u8 = 3;

const INTRODUCTION: &str = "\
Usage: nereid status [-u <address>] [--format=text|json] [options]

Reports whether a server is live and ready, and the state of each of its models. A model that was unloaded on purpose,
or never loaded, is not unavailable.

  --format=text|json   The form of the report. Default: text.
";

const EXIT_CODES: &str = "
Exit codes: 0 the server is ready and all models that it loaded are; 1 it is not ready, a model is unavailable, or the
index of models cannot be read; 2 no server answers at the address; 3 the command line has a mistake.
";

pub fn usage() -> String {
    format!("{INTRODUCTION}{}{EXIT_CODES}", server_flags::usage())
}

/// Reads the server once and prints the report.
pub fn run(arguments: &Arguments) -> ExitCode {
    let (mut source, is_json) = match parse(arguments) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => {
            print(&usage());
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            let _ = writeln!(std::io::stderr(), "error: {mistake}\nTry `nereid status --help`.");
            return ExitCode::from(MISTAKE);
        }
    };
    match source.read() {
        Ok(reading) => {
            let report = StatusReport::new(&reading);
            print(&if is_json { report.json() } else { report.text() });
            if report.is_good() { ExitCode::SUCCESS } else { ExitCode::from(NOT_READY) }
        }
        Err(unreachable) => {
            if is_json {
                print(&StatusReport::json_of(&unreachable));
            }
            let next = "is the server running, and is this its HTTP port (-u)?";
            let _ = writeln!(std::io::stderr(), "error: {unreachable}; {next}");
            ExitCode::from(UNREACHABLE)
        }
    }
}

/// None if help is requested.
fn parse(arguments: &Arguments) -> Result<Option<(Source, bool)>, String> {
    let (mut server, mut is_json) = (ServerFlags::default(), false);
    let mut words = Words::new(&arguments.words);
    while let Some(name) = words.next_flag()? {
        match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--format" => {
                is_json = match words.value()?.as_str() {
                    "json" => true,
                    "text" => false,
                    other => return Err(format!("--format={other}: the formats are text and json")),
                }
            }
            name if server.take(name, &mut words)? => {}
            _ => return Err(words.unknown()),
        }
    }
    Ok(Some((server.source()?, is_json)))
}
