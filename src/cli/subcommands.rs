//! The subcommands as manual pages and completions describe them: names, purposes, usage texts and options, read from
//! the tables and texts that the subcommands themselves use.

use super::{
    check, completion, doctor, explain, flags, install, manual, migrate, perf, quickstart, runtime, status, top,
};

/// One subcommand, for readers of its manual page and for shells.
pub struct Subcommand {
    pub name: &'static str,
    /// What it does, on one line without a full stop.
    pub purpose: &'static str,
    /// The text of its `--help`.
    pub usage: fn() -> String,
    /// The words that may follow it, where they are known.
    pub words: fn() -> Vec<&'static str>,
    /// Options of its own, read from a table; `None` where the usage text is all there is.
    table: Option<fn() -> Vec<CliOption>>,
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

/// All but `help`, which has no options.
pub static ALL: [Subcommand; 14] = [
    Subcommand {
        name: "serve",
        purpose: "serve the models of a repository",
        usage: super::options::usage,
        words: none,
        table: Some(of_serve),
    },
    Subcommand {
        name: "quickstart",
        purpose: "serve example models",
        usage: || quickstart::USAGE.to_owned(),
        words: none,
        table: None,
    },
    Subcommand {
        name: "runtime",
        purpose: "list and install the runtimes that models need",
        usage: runtime::usage,
        words: runtime_words,
        table: None,
    },
    Subcommand {
        name: "check",
        purpose: "check repositories of models",
        usage: || check::arguments::USAGE.to_owned(),
        words: none,
        table: None,
    },
    Subcommand {
        name: "explain",
        purpose: "print the configuration that a model would be served with",
        usage: || explain::USAGE.to_owned(),
        words: none,
        table: None,
    },
    Subcommand {
        name: "install",
        purpose: "install the program, its library and the C headers below a directory",
        usage: || install::USAGE.to_owned(),
        words: none,
        table: None,
    },
    Subcommand {
        name: "migrate",
        purpose: "report what of a set-up for Triton works here",
        usage: || migrate::USAGE.to_owned(),
        words: none,
        table: None,
    },
    Subcommand {
        name: "openai",
        purpose: "serve a repository to clients of OpenAI",
        usage: super::openai::usage,
        words: none,
        table: None,
    },
    Subcommand {
        name: "perf",
        purpose: "load a server and report how fast it answers",
        usage: perf::usage,
        words: none,
        table: Some(perf::options),
    },
    Subcommand {
        name: "top",
        purpose: "show the models of a running server with their rates and latencies",
        usage: top::usage,
        words: none,
        table: None,
    },
    Subcommand {
        name: "status",
        purpose: "report whether a server is ready, and the states of its models",
        usage: status::usage,
        words: none,
        table: None,
    },
    Subcommand {
        name: "doctor",
        purpose: "check the host for a server: kernel, limits, runtimes, ports, permissions",
        usage: || doctor::USAGE.to_owned(),
        words: none,
        table: None,
    },
    Subcommand {
        name: "completion",
        purpose: "print the completions of a shell",
        usage: || completion::USAGE.to_owned(),
        words: || completion::SHELLS.to_vec(),
        table: None,
    },
    Subcommand {
        name: "man",
        purpose: "print a manual page",
        usage: || manual::USAGE.to_owned(),
        words: || ALL.iter().map(|one| one.name).collect(),
        table: None,
    },
];

impl Subcommand {
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
    fn every_subcommand_is_described() {
        let names: Vec<&str> = ALL.iter().map(|one| one.name).chain(["help"]).collect();
        assert_eq!(names, super::super::SUBCOMMANDS, "in the order of SUBCOMMANDS");
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
