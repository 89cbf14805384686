//! The command line of a check: its own words, and options of serve.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::super::Arguments;
use super::super::getopt::{Item, Items};
use super::super::options::{OptionsError, ServeOptions};
use super::super::subcommands::mistake;

pub const USAGE: &str = "\
Usage: nereid check <repository>... [--deep] [--model=<name>]... [--format=text|json] [options of serve]

Lists what a server would load from these repositories, and all findings on them. Without --deep no model is opened:
exit code 0 says that all models are consistent, and a consistent model may still fail to load, because of the contents
of its files. Exit code 1 says that a model has findings.

  --deep               Load every model as the server would, each in a process of its own, with its instances and
                       warm-up, and unload it: exit code 0 says that all models would load. A model that crashes its
                       runtime, or does not load in time, is a finding too. Models run their code.
  --model=<name>       Check this model only, and the models that an ensemble is made of. Can be repeated.
  --timeout-secs=<n>   With --deep: the longest time for one model. Default: 120.
  --jobs=<n>           With --deep: how many models are loaded at the same time. Default: half of the CPUs, at most 4.
  --memory-mib=<n>     With --deep: the most memory that one model may take, with all processes that it starts. Without
                       it, the largest is stopped when the host has less than a twentieth of its memory left.
  --format=text|json   The form of the report. Default: text.

These options of serve set what is loaded, how and where: --model-repository, --model-config-name, --model-namespacing,
--model-control-mode with --load-model, --disable-auto-complete-config, --backend-directory, --backend-config,
--host-policy, --io-cores, --spin-us, --spin-percent; with --deep all that models can notice.
";

const TIMEOUT: Duration = Duration::from_secs(120);
const TIMEOUT_SECS_MAX: u64 = 7 * 24 * 3600;
const MEMORY_MIB_MAX: u64 = 1 << 30;
const JOBS_MAX: usize = 64;
/// Models can be large, so that more of them at a time may not fit into memory.
const DEFAULT_JOBS_MAX: usize = 4;

/// The words of a command line, and serve's options.
pub struct CheckArguments {
    pub options: ServeOptions,
    /// The command line without the words of a check.
    pub words_of_serve: Vec<OsString>,
    /// `--model`; empty: all.
    pub models: Vec<String>,
    pub is_json: bool,
    pub deep: Option<DeepSettings>,
}

/// The settings of `--deep`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeepSettings {
    /// For each model.
    pub timeout: Duration,
    /// Models that are loaded at the same time, at least 1.
    pub jobs_max: usize,
    /// The most bytes of memory of one model.
    pub memory_max: Option<u64>,
}

impl Default for DeepSettings {
    fn default() -> DeepSettings {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        DeepSettings { timeout: TIMEOUT, jobs_max: (cpus / 2).clamp(1, DEFAULT_JOBS_MAX), memory_max: None }
    }
}

impl CheckArguments {
    /// `None` if help is requested. The error is the whole text for stderr.
    pub fn parse(arguments: &Arguments) -> Result<Option<CheckArguments>, String> {
        let wrong = |what: String| mistake("check", &what);
        let (mut is_json, mut is_deep, mut needs_deep) = (false, false, None);
        let (mut deep, mut models, mut words) = (DeepSettings::default(), Vec::new(), Vec::new());
        for word in &arguments.words {
            let Some((name, value)) = word.to_str().map(|word| word.split_once('=').unwrap_or((word, ""))) else {
                words.push(word.clone());
                continue;
            };
            let number = |most: u64| {
                let number = value.parse().ok().filter(|number| (1..=most).contains(number));
                number.ok_or_else(|| wrong(format!("{name}: '{value}' is no number from 1 to {most}")))
            };
            match (name, value) {
                ("--help" | "-h", "") => return Ok(None),
                ("--format", "json") => is_json = true,
                ("--format", "text") => is_json = false,
                ("--format", value) => return Err(wrong(format!("--format={value}: the formats are text and json"))),
                ("--deep", "") => is_deep = true,
                ("--model", "") => return Err(wrong("--model needs a name: --model=<name>".to_owned())),
                ("--model", name) => models.push(name.to_owned()),
                ("--timeout-secs", _) => {
                    deep.timeout = Duration::from_secs(number(TIMEOUT_SECS_MAX)?);
                    needs_deep = Some(name);
                }
                ("--memory-mib", _) => {
                    deep.memory_max = Some(number(MEMORY_MIB_MAX)? << 20);
                    needs_deep = Some(name);
                }
                ("--jobs", _) => {
                    deep.jobs_max = usize::try_from(number(JOBS_MAX as u64)?).unwrap_or(JOBS_MAX);
                    needs_deep = Some(name);
                }
                _ => words.push(word.clone()),
            }
        }
        if let (Some(name), false) = (needs_deep, is_deep) {
            return Err(wrong(format!("{name} has no meaning without --deep")));
        }
        let (repositories, mut options) =
            split(&Arguments { program: arguments.program.clone(), words: words.clone() })?;
        options.model_repositories.extend(repositories.into_iter().map(PathBuf::from));
        if options.model_repositories.is_empty() {
            return Err(wrong("missing <repository>: the directory that holds the models".to_owned()));
        }
        let deep = is_deep.then_some(deep);
        Ok(Some(CheckArguments { options, words_of_serve: words, models, is_json, deep }))
    }
}

/// Takes the words out of a command line; the rest are options of serve. The error is a text for stderr.
pub fn split(arguments: &Arguments) -> Result<(Vec<OsString>, ServeOptions), String> {
    let mut words = Vec::new();
    for item in Items::new(&arguments.program, &arguments.words) {
        if let Item::Word(word) = item.map_err(|line| format!("{line}\n"))? {
            words.push(word);
        }
    }
    // By position, not by text: a flag's value may equal a word.
    let is_word = |given: &OsString| words.iter().any(|word| std::ptr::eq(*word, given.as_os_str()));
    let rest = arguments.words.iter().filter(|given| !is_word(given)).cloned().collect();
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    let arguments = Arguments { program: arguments.program.clone(), words: rest };
    let options = ServeOptions::parse(&arguments, |name| std::env::var_os(name)).map_err(|error| match error {
        OptionsError::Getopt(line) => format!("{line}\n"),
        error => format!("{error}\n"),
    })?;
    Ok((words, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<CheckArguments>, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        CheckArguments::parse(&Arguments { program: "nereid".into(), words })
    }

    #[test]
    fn repositories_are_words_or_flags() {
        let parsed = |line: &str| {
            let Ok(Some(parsed)) = parse(line) else { panic!("{line}") };
            let repositories: Vec<String> =
                parsed.options.model_repositories.iter().map(|path| path.display().to_string()).collect();
            (repositories.join(" "), parsed.is_json, parsed.options.auto_complete_config)
        };
        assert_eq!(parsed("a b"), ("a b".into(), false, true));
        assert_eq!(parsed("--format=json a --model-repository=c b"), ("c a b".into(), true, true));
        assert_eq!(parsed("a --model-repository a"), ("a a".into(), false, true));
        assert_eq!(parsed("--model-repository a a --disable-auto-complete-config"), ("a a".into(), false, false));
        assert_eq!(parsed("--format=json --format=text a"), ("a".into(), false, true));
    }

    #[test]
    fn the_words_of_a_deep_check_are_taken_out() {
        let line = "a --deep --model=x --timeout-secs=3 --model=y --jobs=2 --memory-mib=5 --exit-timeout-secs=5";
        let Ok(Some(parsed)) = parse(line) else {
            panic!("a valid line");
        };
        assert_eq!(
            parsed.deep,
            Some(DeepSettings { timeout: Duration::from_secs(3), jobs_max: 2, memory_max: Some(5 << 20) })
        );
        assert_eq!(parsed.models, ["x", "y"]);
        assert_eq!(parsed.words_of_serve, ["a", "--exit-timeout-secs=5"]);
        let Ok(Some(parsed)) = parse("a --deep") else { panic!("a valid line") };
        assert_eq!(parsed.deep, Some(DeepSettings::default()));
        assert_eq!(DeepSettings::default().timeout, Duration::from_secs(120));
    }

    #[test]
    fn invalid_arguments_are_reported() {
        assert!(matches!(parse("a --help"), Ok(None)));
        for (line, part) in [
            ("", "missing <repository>"),
            ("a --format=xml", "--format=xml: the formats are text and json"),
            ("a --nonsense", "unrecognized option '--nonsense'"),
            ("a --io-cores=x", "Bad option"),
            ("a --model", "--model needs a name"),
            ("a --deep --jobs=0", "--jobs: '0' is no number from 1 to 64"),
            ("a --deep --timeout-secs=x", "--timeout-secs: 'x' is no number from 1 to 604800"),
            ("a --deep --memory-mib=0", "--memory-mib: '0' is no number from 1 to 1073741824"),
            ("a --memory-mib=2", "--memory-mib has no meaning without --deep"),
            ("a --jobs=2", "--jobs has no meaning without --deep"),
        ] {
            let Err(error) = parse(line) else { panic!("{line}") };
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
