//! The one table of subcommands: names, groups, purposes, usage texts, options, and the functions that run them. The
//! command line, its help, the manual pages and the completions follow it.

use std::fmt;
use std::process::ExitCode;

use super::{
    Arguments, check, completion, doctor, explain, flags, help, install, manual, migrate, nearest, perf, quickstart,
    replay, runtime, serve, status, top, tune,
};

/// What the help text lists together, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Serve,
    Check,
    Measure,
    Operate,
    Install,
}

impl Group {
    pub const ALL: [Group; 5] = [Group::Serve, Group::Check, Group::Measure, Group::Operate, Group::Install];

    pub fn title(self) -> &'static str {
        match self {
            Group::Serve => "Serve",
            Group::Check => "Check and explain",
            Group::Measure => "Measure",
            Group::Operate => "Operate",
            Group::Install => "Install",
        }
    }
}

/// One subcommand.
pub struct Subcommand {
    pub name: &'static str,
    pub group: Group,
    /// What it does, on one line without a full stop.
    pub purpose: &'static str,
    /// The text of its `--help`.
    pub usage: fn() -> String,
    /// The words that may follow it, where they are known.
    pub words: fn() -> Vec<&'static str>,
    /// Options of its own, read from a table; `None` where the usage text is all there is.
    table: Option<fn() -> Vec<CliOption>>,
    main: fn(&Arguments) -> ExitCode,
}

impl PartialEq for Subcommand {
    fn eq(&self, other: &Subcommand) -> bool {
        self.name == other.name
    }
}

impl Eq for Subcommand {}

impl fmt::Debug for Subcommand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

/// An option of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliOption {
    /// Without its dashes.
    pub name: String,
    pub letter: Option<char>,
    /// The name of its value, such as `path` or `auto|io_uring|epoll`; `None` if it takes no value.
    pub value: Option<String>,
    /// A sentence for people; empty where the usage text has it.
    pub help: String,
}

impl CliOption {
    /// The values that it can have, where they are few.
    pub fn choices(&self) -> Vec<&str> {
        match self.value.as_deref() {
            Some("boolean") => vec!["true", "false"],
            Some(value) if value.contains('|') && !value.contains(['<', '[', ' ']) => value.split('|').collect(),
            _ => Vec::new(),
        }
    }
}

fn none() -> Vec<&'static str> {
    Vec::new()
}

fn names() -> Vec<&'static str> {
    ALL.iter().map(|one| one.name).collect()
}

/// All of them; those of a group stand together.
pub static ALL: [Subcommand; 17] = [
    Subcommand {
        name: "serve",
        group: Group::Serve,
        purpose: "serve the models of a repository",
        usage: help::serve,
        words: none,
        table: Some(of_serve),
        main: serve::run_named,
    },
    Subcommand {
        name: "quickstart",
        group: Group::Serve,
        purpose: "serve example models, without a repository",
        usage: || quickstart::USAGE.to_owned(),
        words: none,
        table: None,
        main: quickstart::run,
    },
    Subcommand {
        name: "openai",
        group: Group::Serve,
        purpose: "serve a repository to clients of OpenAI",
        usage: super::openai::usage,
        words: none,
        table: None,
        main: super::openai::run,
    },
    Subcommand {
        name: "check",
        group: Group::Check,
        purpose: "check repositories of models",
        usage: || check::arguments::USAGE.to_owned(),
        words: none,
        table: None,
        main: check::run,
    },
    Subcommand {
        name: "explain",
        group: Group::Check,
        purpose: "print the configuration that a model would be served with",
        usage: || explain::USAGE.to_owned(),
        words: none,
        table: None,
        main: explain::run,
    },
    Subcommand {
        name: "migrate",
        group: Group::Check,
        purpose: "report what of a set-up for Triton works here",
        usage: || migrate::USAGE.to_owned(),
        words: none,
        table: None,
        main: migrate::run,
    },
    Subcommand {
        name: "perf",
        group: Group::Measure,
        purpose: "load a server and report how fast it answers",
        usage: perf::usage,
        words: || vec![perf::COMPARE],
        table: Some(perf::options),
        main: perf::run,
    },
    Subcommand {
        name: "replay",
        group: Group::Measure,
        purpose: "send recorded requests to a server and compare its answers",
        usage: replay::usage,
        words: none,
        table: None,
        main: replay::run,
    },
    Subcommand {
        name: "tune",
        group: Group::Measure,
        purpose: "find the configuration with which models serve a load best",
        usage: || tune::USAGE.to_owned(),
        words: none,
        table: None,
        main: tune::run,
    },
    Subcommand {
        name: "top",
        group: Group::Operate,
        purpose: "show the models of a running server with their rates and latencies",
        usage: top::usage,
        words: none,
        table: None,
        main: top::run,
    },
    Subcommand {
        name: "status",
        group: Group::Operate,
        purpose: "report whether a server is ready, and the states of its models",
        usage: status::usage,
        words: none,
        table: None,
        main: status::run,
    },
    Subcommand {
        name: "doctor",
        group: Group::Operate,
        purpose: "check the host for a server: kernel, limits, runtimes, ports, permissions",
        usage: || doctor::USAGE.to_owned(),
        words: none,
        table: None,
        main: doctor::run,
    },
    Subcommand {
        name: "runtime",
        group: Group::Install,
        purpose: "list and install the runtimes that models need",
        usage: runtime::usage,
        words: runtime_words,
        table: None,
        main: runtime::run,
    },
    Subcommand {
        name: "install",
        group: Group::Install,
        purpose: "install the program, its library and the C headers below a directory",
        usage: || install::USAGE.to_owned(),
        words: none,
        table: None,
        main: install::run,
    },
    Subcommand {
        name: "completion",
        group: Group::Install,
        purpose: "print the completions of a shell",
        usage: || completion::USAGE.to_owned(),
        words: || completion::SHELLS.to_vec(),
        table: None,
        main: completion::run,
    },
    Subcommand {
        name: "man",
        group: Group::Install,
        purpose: "print a manual page",
        usage: || manual::USAGE.to_owned(),
        words: names,
        table: None,
        main: manual::run,
    },
    Subcommand {
        name: "help",
        group: Group::Install,
        purpose: "explain the program or a subcommand",
        usage: || help::USAGE.to_owned(),
        words: names,
        table: None,
        main: help::run,
    },
];

/// The one of that name.
pub fn find(name: &str) -> Option<&'static Subcommand> {
    ALL.iter().find(|one| one.name == name)
}

/// The name that a mistyped one was meant to be.
pub fn nearest_name(word: &str) -> Option<&'static str> {
    nearest::nearest(word, ALL.iter().map(|one| one.name))
}

/// The text on stderr about a mistake in the command line of a subcommand: what is wrong, and where help is.
pub fn mistake(subcommand: &str, what: &str) -> String {
    format!("error: {what}\n`nereid help {subcommand}` explains the options.\n")
}

/// What is wrong with an option that a subcommand does not have, with the nearest that it has.
pub fn unknown_option(subcommand: &str, given: &str) -> String {
    let letters = given.trim_start_matches('-');
    let letters = letters.split_once('=').map_or(letters, |(name, _)| name);
    let options = find(subcommand).map(Subcommand::options).unwrap_or_default();
    let meant = nearest::nearest(letters, options.iter().map(|option| option.name.as_str()));
    let meant = meant.map(|name| format!("; did you mean '--{name}'?")).unwrap_or_default();
    format!("unknown option '{given}'{meant}")
}

impl Subcommand {
    /// Runs it; help is the same text for all that ask for it.
    pub fn run(&self, arguments: &Arguments) -> ExitCode {
        match arguments.words.as_slice() {
            [word] if word == "--help" || word == "-h" => {
                check::print(&(self.usage)());
                ExitCode::SUCCESS
            }
            _ => (self.main)(arguments),
        }
    }

    /// Whether files may follow its words.
    pub fn takes_files(&self) -> bool {
        matches!(self.name, "perf" | "replay" | "tune")
    }

    pub fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// Its own options, and those of `serve` where it takes them.
    pub fn options(&self) -> Vec<CliOption> {
        let Some(table) = self.table else {
            let usage = (self.usage)();
            let mut options = of_text(&usage);
            if usage.contains("options of serve") {
                let more = of_serve().into_iter().filter(|more| options.iter().all(|one| one.name != more.name));
                let more: Vec<CliOption> = more.collect();
                options.extend(more);
            }
            return options;
        };
        table()
    }
}

fn of_serve() -> Vec<CliOption> {
    let option = |flag: &'static flags::Flag| CliOption {
        name: flag.name.to_owned(),
        letter: None,
        value: flag.value.map(str::to_owned),
        help: match flag.action {
            flags::Action::Idle(_, reason) => format!("{} Without effect: {reason}.", flag.help),
            flags::Action::Help | flags::Action::Set(_) | flags::Action::ForGpus(_) => flag.help.to_owned(),
        },
    };
    flags::flags().map(option).collect()
}

fn runtime_words() -> Vec<&'static str> {
    let mut words = vec!["list", "install", "python"];
    words.extend(runtime::distributions::names());
    words
}

/// The options that a usage text explains, a line for each: `  --name=<value>  Help`. Those of others, which it only
/// mentions, stand inside of lines.
fn of_text(usage: &str) -> Vec<CliOption> {
    let mut options: Vec<CliOption> = Vec::new();
    for line in usage.lines() {
        let Some(given) = line.trim_start().strip_prefix("--").filter(|_| line.starts_with(' ')) else { continue };
        let end = given.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(given.len());
        let (name, rest) = given.split_at(end);
        // A line of prose that begins with an option goes on with a comma or a word.
        let value = match rest.strip_prefix(['=', ' ']) {
            Some(value) if value.starts_with('<') => value.split_once('>').map(|(value, _)| value[1..].to_owned()),
            Some(value) if rest.starts_with('=') => value.split_whitespace().next().map(str::to_owned),
            Some(value) if value.starts_with(' ') => None,
            None if rest.is_empty() => None,
            _ => continue,
        };
        if options.iter().all(|one| one.name != name) {
            options.push(CliOption { name: name.to_owned(), letter: None, value, help: String::new() });
        }
    }
    let help = CliOption { name: "help".to_owned(), letter: Some('h'), value: None, help: String::new() };
    options.push(help);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Vec<CliOption> {
        ALL.iter().find(|one| one.name == name).unwrap().options()
    }

    #[test]
    fn a_group_stands_together() {
        let mut groups: Vec<Group> = ALL.iter().map(|one| one.group).collect();
        groups.dedup();
        assert_eq!(groups, Group::ALL.into_iter().filter(|group| groups.contains(group)).collect::<Vec<_>>());
    }

    #[test]
    fn the_nearest_option_is_named() {
        assert_eq!(unknown_option("install", "--prefx=/x"), "unknown option '--prefx=/x'; did you mean '--prefix'?");
        assert_eq!(unknown_option("check", "--dep"), "unknown option '--dep'; did you mean '--deep'?");
        assert_eq!(unknown_option("install", "--colour"), "unknown option '--colour'");
        assert_eq!(mistake("man", "x"), "error: x\n`nereid help man` explains the options.\n");
    }

    #[test]
    fn every_subcommand_is_described() {
        for one in &ALL {
            let usage = (one.usage)();
            assert!(usage.starts_with("Usage: ") && usage.ends_with('\n'), "{}", one.name);
            assert!(!one.purpose.ends_with('.') && one.purpose.len() < 80, "{}", one.name);
        }
    }

    #[test]
    fn options_are_those_of_the_usage_texts() {
        let brief = |name: &str| -> Vec<(String, Option<String>)> {
            let all = named(name);
            let serve = of_serve();
            let own = all.into_iter().filter(|one| !serve.contains(one));
            own.map(|one| (one.name, one.value)).collect()
        };
        let with = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        let without = |name: &str| (name.to_owned(), None);
        assert_eq!(
            brief("install"),
            [with("prefix", "directory"), with("library", "file"), without("force"), without("help")]
        );
        assert_eq!(brief("quickstart"), [with("with", "chat|minilm"), without("help")]);
        assert_eq!(
            brief("check"),
            [
                without("deep"),
                with("model", "name"),
                with("timeout-secs", "n"),
                with("jobs", "n"),
                with("memory-mib", "n"),
                with("format", "text|json"),
                without("help"),
            ]
        );
        assert_eq!(
            brief("runtime"),
            [
                with("version", "version"),
                without("gpu"),
                without("force"),
                with("package", "package"),
                without("system"),
                with("prefix", "dir"),
                without("help"),
            ]
        );
        assert!(named("check").iter().any(|one| one.name == "model-repository"));
        assert!(named("explain").iter().any(|one| one.name == "backend-config"));
        assert!(!named("install").iter().any(|one| one.name == "http-port"));
        assert_eq!(named("serve").len(), flags::flags().count());
        let perf = named("perf");
        assert!(perf.iter().any(|one| (one.name.as_str(), one.letter) == ("concurrency-range", None)));
        assert!(perf.iter().any(|one| one.letter == Some('m')), "{perf:?}");
    }

    #[test]
    fn choices_are_few_known_values() {
        let option = |value: &str| CliOption {
            name: String::new(),
            letter: None,
            value: Some(value.to_owned()),
            help: String::new(),
        };
        assert_eq!(option("boolean").choices(), ["true", "false"]);
        assert_eq!(option("auto|io_uring|epoll").choices(), ["auto", "io_uring", "epoll"]);
        assert!(option("path").choices().is_empty() && option("<a|b>,<c>").choices().is_empty());
    }
}
