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
mod install;
mod manual;
mod migrate;
mod nearest;
mod openai;
pub mod options;
mod perf;
mod quickstart;
pub mod runtime;
mod serve;
mod server_flags;
mod status;
mod subcommands;
mod top;
mod trace;
mod values;

use std::ffi::OsString;
use std::process::ExitCode;

pub use values::ValueError;

/// The arguments behind a subcommand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The program's name as its caller wrote it; getopt's messages start with it.
    pub program: OsString,
    pub words: Vec<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// For [`options::ServeOptions::parse`].
    Serve(Arguments),
    Quickstart(Arguments),
    Runtime(Arguments),
    Check(Arguments),
    /// A process that a deep check has started.
    CheckOneModel(Arguments),
    Explain(Arguments),
    Install(Arguments),
    Migrate(Arguments),
    /// The command line of Triton's front end for OpenAI's clients.
    OpenAi(Arguments),
    Perf(Arguments),
    Top(Arguments),
    Status(Arguments),
    Doctor(Arguments),
    Completion(Arguments),
    Manual(Arguments),
    Help,
    Version,
    /// A first word that is none of these.
    Unknown(String),
}

const SUBCOMMANDS: [&str; 15] = [
    "serve",
    "quickstart",
    "runtime",
    "check",
    "explain",
    "install",
    "migrate",
    "openai",
    "perf",
    "top",
    "status",
    "doctor",
    "completion",
    "man",
    "help",
];

impl Command {
    /// From the whole command line, the program's name first.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Command {
        let mut args = args.into_iter();
        let program = args.next().unwrap_or_else(|| "nereid".into());
        let mut words: Vec<OsString> = args.collect();
        let subcommand: fn(Arguments) -> Command = match words.first().and_then(|word| word.to_str()) {
            Some("serve") => Command::Serve,
            Some("quickstart") => Command::Quickstart,
            Some("runtime") => Command::Runtime,
            Some("check") => Command::Check,
            Some(check::deep::trial::SUBCOMMAND) => Command::CheckOneModel,
            Some("explain") => Command::Explain,
            Some("install") => Command::Install,
            Some("migrate") => Command::Migrate,
            Some("openai") => Command::OpenAi,
            Some("perf") => Command::Perf,
            Some("top") => Command::Top,
            Some("status") => Command::Status,
            Some("doctor") => Command::Doctor,
            Some("completion") => Command::Completion,
            Some("man") => Command::Manual,
            Some("help" | "-h") => return Command::Help,
            Some("--version" | "-V") => return Command::Version,
            Some(word) if !word.is_empty() && !word.starts_with('-') => return Command::Unknown(word.to_owned()),
            _ => return Command::Serve(Arguments { program, words }),
        };
        words.remove(0);
        subcommand(Arguments { program, words })
    }
}

/// The whole program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Command::from_args(args) {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Quickstart(arguments) => quickstart::run(&arguments),
        Command::Runtime(arguments) => {
            let words: Vec<String> = arguments.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            runtime::run(&words)
        }
        Command::Check(arguments) => check::run(&arguments),
        Command::CheckOneModel(arguments) => check::deep::trial::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Install(arguments) => install::run(&arguments),
        Command::Migrate(arguments) => migrate::run(&arguments),
        Command::OpenAi(arguments) => openai::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Completion(arguments) => completion::run(&arguments),
        Command::Manual(arguments) => manual::run(&arguments),
        Command::Help => {
            check::print(&help());
            ExitCode::SUCCESS
        }
        Command::Version => {
            check::print(&version());
            ExitCode::SUCCESS
        }
        Command::Unknown(word) => {
            eprintln!("{}", unknown(&word));
            ExitCode::FAILURE
        }
    }
}

/// The message for an unknown subcommand. It begins as Triton's message does.
fn unknown(word: &str) -> String {
    let meant = nearest::nearest(word, SUBCOMMANDS).map(|name| format!("; did you mean '{name}'?"));
    format!("Unexpected argument: {word}{} `nereid help` lists the subcommands.", meant.as_deref().unwrap_or("."))
}

/// The line of `nereid --version`.
pub fn version() -> String {
    format!("nereid {}\n", env!("CARGO_PKG_VERSION"))
}

/// The text of `nereid help`.
pub fn help() -> String {
    "\
Nereid, an inference server with the interfaces of NVIDIA Triton Inference Server.

Usage:
  nereid [serve] --model-repository=<path> [options]
        Serve the models of a repository. `nereid --help` lists the options.
  nereid quickstart [--with chat] [--with minilm]
        Serve example models, to try the server without a repository; with chat, a very small language model behind
        OpenAI's interface, and with minilm, which makes embeddings of text, too.
  nereid runtime list
        List the runtimes that are found on this machine.
  nereid runtime install onnxruntime
        Fetch the runtime that ONNX models need.
  nereid runtime install python
        Make an environment with numpy for models in Python.
  nereid check <repository>... [--deep]
        Check repositories: list what would be loaded, and all findings; with --deep by loading every model.
        `nereid check --help` lists the options.
  nereid explain <model directory>
        Print the configuration that a model would be served with, and where each value comes from.
  nereid install --prefix=<directory>
        Install the program, its library and the C headers where other programs search for them.
  nereid migrate <repository>... | <command line>
        Report what of a set-up for Triton works here, what differs and what is missing.
        `nereid migrate --help` lists the options.
  nereid openai --model-repository=<path> [options]
        Serve a repository to clients of OpenAI, by the flags of Triton's front end for them.
        `nereid openai --help` lists the options.
  nereid perf -m <model> [options]
        Load a server, and report how fast it answers. `nereid perf --help` lists the options.
  nereid top [-u <address>] [--once]
        Show the models of a running server: states, rates, latencies.
  nereid status [-u <address>]
        Report whether a server is ready, and the states of its models.
  nereid doctor [--model-repository=<path>] [--user=<name>]
        Check the host for a server: kernel, limits, runtimes, ports, permissions.
  nereid completion bash|zsh|fish
        Print the completions of a shell.
  nereid man [<subcommand>]
        Print a manual page.
  nereid --version
  nereid help
"
    .to_owned()
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
        assert_eq!(command(&["nereid", "serve", "--id=x"]), Command::Serve(arguments(&["--id=x"])));
        assert_eq!(command(&["nereid", "serve", "serve"]), Command::Serve(arguments(&["serve"])));
        assert_eq!(command(&["nereid", "--help"]), Command::Serve(arguments(&["--help"])));
        assert_eq!(command(&["nereid", "nonsense"]), Command::Unknown("nonsense".to_owned()));
        assert_eq!(command(&["nereid", "-x"]), Command::Serve(arguments(&["-x"])));
        assert_eq!(command(&["nereid", ""]), Command::Serve(arguments(&[""])));
        assert_eq!(command(&["nereid", "--id", "help"]), Command::Serve(arguments(&["--id", "help"])));
        assert_eq!(command(&[]), Command::Serve(arguments(&[])));
    }

    #[test]
    fn the_first_word_chooses() {
        assert_eq!(command(&["nereid", "quickstart", "--x"]), Command::Quickstart(arguments(&["--x"])));
        let install = arguments(&["install", "onnxruntime"]);
        assert_eq!(command(&["nereid", "runtime", "install", "onnxruntime"]), Command::Runtime(install));
        assert_eq!(command(&["nereid", "check", "repository"]), Command::Check(arguments(&["repository"])));
        assert_eq!(command(&["nereid", "explain", "model"]), Command::Explain(arguments(&["model"])));
        assert_eq!(command(&["nereid", "install", "--x"]), Command::Install(arguments(&["--x"])));
        assert_eq!(command(&["nereid", "migrate", "x"]), Command::Migrate(arguments(&["x"])));
        assert_eq!(command(&["nereid", "perf", "-m", "x"]), Command::Perf(arguments(&["-m", "x"])));
        assert_eq!(command(&["nereid", "completion", "bash"]), Command::Completion(arguments(&["bash"])));
        assert_eq!(command(&["nereid", "man", "perf"]), Command::Manual(arguments(&["perf"])));
        assert_eq!(command(&["nereid", "help"]), Command::Help);
        assert_eq!(command(&["nereid", "-h"]), Command::Help);
        assert_eq!(command(&["nereid", "--version"]), Command::Version);
        assert_eq!(command(&["nereid", "-V"]), Command::Version);
    }

    #[test]
    fn a_mistyped_subcommand_is_named_with_the_one_that_was_meant() {
        let text = "Unexpected argument: quikstart; did you mean 'quickstart'? `nereid help` lists the subcommands.";
        assert_eq!(unknown("quikstart"), text);
        assert_eq!(unknown("nonsense"), "Unexpected argument: nonsense. `nereid help` lists the subcommands.");
        for name in SUBCOMMANDS {
            assert!(!matches!(command(&["nereid", name]), Command::Unknown(_)), "{name}");
        }
    }

    #[test]
    fn texts_name_every_subcommand() {
        for name in [
            "serve",
            "quickstart",
            "runtime list",
            "runtime install onnxruntime",
            "runtime install python",
            "check",
            "explain",
            "migrate",
            "completion",
            "man",
            "--version",
            "help",
        ] {
            assert!(help().contains(name), "{name}");
        }
        assert!(version().starts_with("nereid ") && version().ends_with('\n'));
    }
}
