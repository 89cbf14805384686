//! The command line: the subcommand and its arguments.
//!
//! Without a subcommand it is `serve`, so that `nereid` can stand where `tritonserver` stood in a script.

mod check;
mod completion;
mod doctor;
mod explain;
mod flags;
mod getopt;
mod given;
mod help;
mod install;
mod manual;
mod migrate;
mod nearest;
mod openai;
pub mod options;
mod perf;
mod quickstart;
mod replay;
pub mod runtime;
mod serve;
mod server_flags;
mod shown_flags;
mod status;
mod subcommands;
mod terminal;
mod top;
mod trace;
mod tune;
mod values;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use crate::server::build_facts;
use options::OptionsError;
use subcommands::Subcommand;
pub use values::ValueError;

/// The arguments behind a subcommand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The program's name as its caller wrote it; getopt's messages start with it.
    pub program: OsString,
    pub words: Vec<OsString>,
}

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The flags of `serve` without its name, as Triton's program takes them.
    Serve(Arguments),
    /// One of [`subcommands::ALL`].
    Subcommand(&'static Subcommand, Arguments),
    /// A process that a deep check has started.
    CheckOneModel(Arguments),
    /// The server that `nereid tune` has started.
    ServeForTune(Arguments),
    Help,
    Version,
    /// A first word that is none of these.
    Unknown(Arguments, String),
}

impl Command {
    /// From the whole command line, the program's name first.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Command {
        let mut args = args.into_iter();
        let program = args.next().unwrap_or_else(|| "nereid".into());
        let mut words: Vec<OsString> = args.collect();
        let first = words.first().and_then(|word| word.to_str()).unwrap_or_default();
        let subcommand = subcommands::find(first);
        match first {
            "-h" => Command::Help,
            "--version" | "-V" => Command::Version,
            check::deep::trial::SUBCOMMAND => {
                words.remove(0);
                Command::CheckOneModel(Arguments { program, words })
            }
            tune::SERVER => {
                words.remove(0);
                Command::ServeForTune(Arguments { program, words })
            }
            "" => Command::Serve(Arguments { program, words }),
            word if word.starts_with('-') => Command::Serve(Arguments { program, words }),
            word => match subcommand {
                Some(subcommand) => {
                    words.remove(0);
                    Command::Subcommand(subcommand, Arguments { program, words })
                }
                None => {
                    let word = word.to_owned();
                    Command::Unknown(Arguments { program, words }, word)
                }
            },
        }
    }
}

/// The whole program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Command::from_args(args) {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Subcommand(subcommand, arguments) => subcommand.run(&arguments),
        Command::CheckOneModel(arguments) => check::deep::trial::run(&arguments),
        Command::ServeForTune(arguments) => tune::serve_for_tune(&arguments),
        Command::Help => {
            check::print(&help::program());
            ExitCode::SUCCESS
        }
        Command::Version => {
            check::print(&version());
            ExitCode::SUCCESS
        }
        Command::Unknown(arguments, word) => {
            let text = match help::is_triton(&arguments.program) {
                true => OptionsError::Unexpected(word).report(),
                false => help::unknown(&word),
            };
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// The text of `nereid --version`: the version, and what is known of the build.
pub fn version() -> String {
    format!(
        "nereid {}\nrevision: {}\ntarget: {}\nprofile: {}\ncompatible with: Triton {}\n",
        env!("CARGO_PKG_VERSION"),
        build_facts::REVISION,
        build_facts::TARGET,
        build_facts::PROFILE,
        build_facts::TRITON_VERSION
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Command {
        Command::from_args(words.iter().map(OsString::from))
    }

    fn arguments(words: &[&str]) -> Arguments {
        Arguments { program: "nereid".into(), words: words.iter().map(OsString::from).collect() }
    }

    #[test]
    fn serving_needs_no_subcommand() {
        assert_eq!(command(&["nereid"]), Command::Serve(arguments(&[])));
        assert_eq!(command(&["nereid", "--id=x"]), Command::Serve(arguments(&["--id=x"])));
        let serve = |words: &[&str]| Command::Subcommand(&subcommands::ALL[0], arguments(words));
        assert_eq!(command(&["nereid", "serve", "--id=x"]), serve(&["--id=x"]));
        assert_eq!(command(&["nereid", "serve", "serve"]), serve(&["serve"]));
        assert_eq!(command(&["nereid", "--help"]), Command::Serve(arguments(&["--help"])));
        assert_eq!(command(&["nereid", "nonsense"]), Command::Unknown(arguments(&["nonsense"]), "nonsense".to_owned()));
        assert_eq!(command(&["nereid", "-x"]), Command::Serve(arguments(&["-x"])));
        assert_eq!(command(&["nereid", ""]), Command::Serve(arguments(&[""])));
        assert_eq!(command(&["nereid", "--id", "help"]), Command::Serve(arguments(&["--id", "help"])));
        assert_eq!(command(&[]), Command::Serve(arguments(&[])));
    }

    #[test]
    fn the_first_word_chooses() {
        for one in &subcommands::ALL {
            let expected = Command::Subcommand(one, arguments(&["word", "--x"]));
            assert_eq!(command(&["nereid", one.name, "word", "--x"]), expected, "{}", one.name);
        }
        assert_eq!(command(&["nereid", "-h"]), Command::Help);
        assert_eq!(command(&["nereid", "--version"]), Command::Version);
        assert_eq!(command(&["nereid", "-V"]), Command::Version);
        let trial = check::deep::trial::SUBCOMMAND;
        assert_eq!(command(&["nereid", trial, "x"]), Command::CheckOneModel(arguments(&["x"])));
    }

    #[test]
    fn the_version_stands_on_a_line_of_its_own() {
        let text = version();
        assert_eq!(text.lines().next(), Some(concat!("nereid ", env!("CARGO_PKG_VERSION"))));
        for fact in ["\nrevision: ", "\ntarget: ", "\nprofile: ", "\ncompatible with: Triton "] {
            assert!(text.contains(fact), "{text}");
        }
    }
}
