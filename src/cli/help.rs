//! `nereid help`, and what the program says without a command: the subcommands in their groups, then the flags of serve
//! by the group of what they set, Nereid's own beside Triton's.
//!
//! Under the name `tritonserver` the program keeps Triton's texts, streams and exit codes ([`is_triton`]).

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::check::print;
use super::flags::{Action, Flag, flags};
use super::subcommands::{self, ALL, Group};
use super::{Arguments, perf, terminal};

pub const USAGE: &str = "\
Usage: nereid help [<subcommand>]

Explains the program, or a subcommand as `nereid <subcommand> --help` does.
";

/// Blanks before the explanation of a flag.
const INDENT: usize = 8;

const HEAD: &str = "Nereid, an inference server with the interfaces of NVIDIA Triton Inference Server.\n";

/// What the program says when it is started with nothing to do.
pub const GREETING: &str = "\
Nereid, an inference server with the interfaces of NVIDIA Triton Inference Server. It was given nothing to serve.

  Try it:              nereid quickstart
  Serve a repository:  nereid --model-repository=<path>
  Coming from Triton:  nereid migrate -- tritonserver --model-repository=<path> [options]
  Help:                nereid help
";

/// The groups of flags in the order of the text (docs/contract/cli.md, section 2), and behind them those that only
/// Nereid has.
const SECTIONS: [(&str, &[&str]); 14] = [
    ("Server", &["Server"]),
    ("Logging", &["Logging"]),
    ("Model repository", &["Model repository"]),
    ("HTTP", &["HTTP"]),
    ("gRPC", &["gRPC"]),
    ("SageMaker and Vertex AI", &["SageMaker", "Vertex AI"]),
    ("Metrics", &["Metrics"]),
    ("Tracing", &["Tracing"]),
    ("Backends, repository agents and caches", &["Backends", "Repository agents", "Caches"]),
    ("Rate limiting, memory and host", &["Rate limiting", "Memory and host"]),
    (THREADS, &[]),
    (LIMITS, &["Nereid"]),
    ("OpenAI's interface", &["OpenAI"]),
    ("Deprecated", &["Deprecated"]),
];
const THREADS: &str = "I/O threads";
const LIMITS: &str = "Limits of peers and requests";

/// Whether the program stands in Triton's place: it was started under the name of Triton's program.
pub fn is_triton(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "tritonserver")
}

/// Prints the help of the subcommand that the words name.
pub fn run(arguments: &Arguments) -> ExitCode {
    let words: Vec<String> = arguments.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some(name) = words.iter().find(|word| !word.starts_with('-')) else {
        print(&program());
        return ExitCode::SUCCESS;
    };
    match subcommands::find(name) {
        Some(one) if one.name == "perf" && words.iter().any(|word| word == perf::COMPARE) => {
            print(perf::COMPARE_USAGE);
            ExitCode::SUCCESS
        }
        Some(one) => {
            print(&(one.usage)());
            ExitCode::SUCCESS
        }
        None => {
            let _ = std::io::stderr().write_all(unknown(name).as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// The message for an unknown subcommand. It begins as Triton's message does.
pub fn unknown(word: &str) -> String {
    let meant = subcommands::nearest_name(word).map(|name| format!("; did you mean '{name}'?"));
    format!("Unexpected argument: {word}{}\n`nereid help` lists the subcommands.\n", meant.as_deref().unwrap_or(""))
}

/// The text of `nereid --help`.
pub fn program() -> String {
    let mut text = format!("{HEAD}\n{}", summary());
    text.push_str("\nFlags of `nereid serve`, also without its name:\n");
    text.push_str(&sections(terminal::text_columns()));
    text
}

/// Usage, and a line for each subcommand.
pub fn summary() -> String {
    let mut text = "\
Usage: nereid <subcommand> [options]
       nereid --model-repository=<path> [options]  the same as `nereid serve`
       nereid --version
"
    .to_owned();
    let width = ALL.iter().map(|one| one.name.len()).max().unwrap_or(0);
    for group in Group::ALL {
        let mut members = ALL.iter().filter(|one| one.group == group).peekable();
        if members.peek().is_some() {
            let _ = writeln!(text, "\n{}:", group.title());
        }
        for one in members {
            let _ = writeln!(text, "  {:<width$}  {}", one.name, one.purpose);
        }
    }
    text.push_str("\n`nereid help <subcommand>` explains a subcommand.\n");
    text
}

/// The text of `nereid help serve`.
pub fn serve() -> String {
    let mut text = "\
Usage: nereid [serve] --model-repository=<path> [options]

Serves the models of a repository by HTTP, gRPC and, if that is switched on, OpenAI's interface, until a signal ends it.
A flag may be shortened as long as only one begins so, and its value may be the next word.
"
    .to_owned();
    text.push_str(&sections(terminal::text_columns()));
    text
}

/// All flags, each in one section.
fn sections(columns: usize) -> String {
    let mut text = String::new();
    for (title, _) in SECTIONS {
        let _ = writeln!(text, "\n{title}:");
        flags().filter(|flag| section(flag) == title).for_each(|flag| entry(flag, columns, &mut text));
    }
    text
}

/// The section of a flag: that of its group, and for Nereid's own, that of what it sets.
fn section(flag: &Flag) -> &'static str {
    let of_group = |group: &str| {
        let found = SECTIONS.iter().find(|(_, groups)| groups.contains(&group));
        found.map_or("OpenAI's interface", |(title, _)| *title)
    };
    if flag.group != "Nereid" {
        return of_group(flag.group);
    }
    match flag.name {
        "drain-delay" | "take-over" | "stall-timeout" | "strict-device-liveness" | "audit-log" => "Server",
        name if name == "record" || name.starts_with("record-") => "Server",
        "io-cores" | "io-engine" | "spin-us" | "spin-percent" => THREADS,
        "run-to-completion" | "request-plan-cache" => THREADS,
        "orca" | "engine-metrics" => "Metrics",
        name if name.starts_with("http-") => "HTTP",
        name if name.starts_with("grpc-") || name.starts_with("ipc-") => "gRPC",
        name if name.starts_with("python-") => of_group("Backends"),
        _ => LIMITS,
    }
}

/// The flag with its value, as it is written.
pub fn synopsis(flag: &Flag) -> String {
    match flag.value {
        Some(value) if value.contains('<') => format!("--{} {value}", flag.name),
        Some(value) => format!("--{} <{value}>", flag.name),
        None => format!("--{}", flag.name),
    }
}

fn entry(flag: &Flag, columns: usize, text: &mut String) {
    let _ = writeln!(text, "  {}", synopsis(flag));
    let mut help = flag.help.to_owned();
    if let Action::Idle(_, reason) = flag.action {
        let _ = write!(help, " Without effect: {reason}.");
    }
    text.push_str(&terminal::indented(&help, INDENT, columns));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_and_every_subcommand_has_its_line() {
        let text = program();
        for flag in flags() {
            let line = format!("\n  {}\n", synopsis(flag));
            assert_eq!(text.matches(&line).count(), 1, "{line}");
        }
        let ends = text.find("\nFlags of").unwrap();
        for one in &ALL {
            let line = format!("\n  {} ", one.name);
            assert_eq!(text[..ends].matches(&line).count(), 1, "{line}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert!(serve().starts_with("Usage: nereid [serve] "));
    }

    #[test]
    fn own_flags_stand_with_what_they_set() {
        let of = |name: &str| section(flags().find(|flag| flag.name == name).unwrap());
        assert_eq!(of("http-use-ssl"), "HTTP");
        assert_eq!((of("grpc-unix-socket"), of("ipc-path")), ("gRPC", "gRPC"));
        assert_eq!(of("drain-delay"), "Server");
        assert_eq!(of("io-cores"), THREADS);
        assert_eq!(of("slow-peer-secs"), LIMITS);
        assert_eq!(of("openai-port"), "OpenAI's interface");
        assert_eq!(of("vertex-ai-port"), "SageMaker and Vertex AI");
    }

    #[test]
    fn only_tritons_name_stands_for_triton() {
        assert!(is_triton("tritonserver".as_ref()) && is_triton("/opt/tritonserver/bin/tritonserver".as_ref()));
        assert!(!is_triton("nereid".as_ref()) && !is_triton("/opt/tritonserver/nereid".as_ref()));
    }

    #[test]
    fn a_mistyped_subcommand_is_named_with_the_one_that_was_meant() {
        let text = "Unexpected argument: quikstart; did you mean 'quickstart'?\n`nereid help` lists the subcommands.\n";
        assert_eq!(unknown("quikstart"), text);
        assert_eq!(unknown("nonsense"), "Unexpected argument: nonsense\n`nereid help` lists the subcommands.\n");
    }
}
