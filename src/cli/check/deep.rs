//! `nereid check --deep`: loads every model as a server would, each in a process of its own.
//!
//! A model is code, and its runtime is code of others: either can crash, hang or end its process. A process for each
//! model makes that a finding on this model. Ensembles are loaded after the models that they are made of, and only if
//! these load, so that a mistake is reported with the text that it has in a server, and no crash is reported twice.

mod children;
mod memory;
pub mod trial;

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use super::arguments::DeepSettings;
use super::report::{Load, ModelReport, Report};
use crate::repository::inspect::agent_warning;
use crate::repository::inspect::ensembles::misfits;
use crate::repository::store::scratch::Scratch;
use children::{End, Ended, Job};
use memory::Excess;

/// Begins the report of a crash (`abi::crash`).
const CRASH_REPORT: &str = "Signal (";
/// Most bytes of a result that are read.
const RESULT_BYTES_MAX: u64 = 16 << 20;
/// Most lines of output that are shown, and most letters of one.
const LINES_MAX: usize = 12;
const LETTERS_MAX: usize = 200;

/// Loads the models of the report, and adds what came of it. `words` are those of the command line that serve has too.
/// An error: no model could be loaded, for a reason of this host.
pub fn load_all(
    report: &mut Report,
    words: &[OsString],
    settings: &DeepSettings,
    has_namespaces: bool,
) -> Result<(), String> {
    let mount = std::env::temp_dir();
    let scratch = Scratch::make(&mount, "TMPDIR").map_err(|status| status.message.into_owned())?;
    let check = DeepCheck { scratch: &scratch, words, settings };
    let plain = report.indices(|model| !model.is_ensemble() && model.may_load());
    check.load(report, &plain)?;
    loop {
        let ready = report.indices(|model| {
            let serves = |part: &String| {
                let named = report.models.iter().filter(|other| other.inspection.name == *part);
                // With namespaces, the model of the ensemble's own repository is meant, if there is one.
                let is_own = |other: &&ModelReport| other.repository == model.repository;
                let has_own = has_namespaces && named.clone().any(|other| is_own(&other));
                let mut parts = named.filter(|other| !has_own || is_own(other)).peekable();
                parts.peek().is_some() && parts.all(ModelReport::would_load)
            };
            let waits = model.is_ensemble() && model.may_load() && model.load.is_none();
            waits && model.inspection.parts().iter().all(serves)
        });
        if ready.is_empty() {
            break;
        }
        check.load(report, &ready)?;
    }
    // What is left would wait for models that do not load.
    let left = report.indices(|model| model.problems.is_empty() && model.load.is_none());
    let found = misfits(&report.candidates(), has_namespaces);
    for at in left {
        let none = || "the models that it is made of would not load".to_owned();
        let problem = found.get(&at).cloned().unwrap_or_else(none);
        if let Some(model) = report.models.get_mut(at) {
            model.problems.push(problem);
        }
    }
    Ok(())
}

struct DeepCheck<'a> {
    scratch: &'a std::sync::Arc<Scratch>,
    words: &'a [OsString],
    settings: &'a DeepSettings,
}

impl DeepCheck<'_> {
    /// Loads the models at these indices of the report.
    fn load(&self, report: &mut Report, indices: &[usize]) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("a directory for temporary files cannot be made: {error}");
        let copy = |_: &usize| self.scratch.copy("files");
        let directories: Vec<_> = indices.iter().map(copy).collect::<Result<_, _>>().map_err(failed)?;
        let result = |directory: &Path| directory.with_file_name("result");
        let jobs: Vec<Job> = indices
            .iter()
            .zip(&directories)
            .filter_map(|(at, directory)| {
                let model = report.models.get(*at)?;
                let directory = directory.path();
                let (name, location) = (&model.inspection.name, &model.repository);
                let words = trial::words(&result(directory), name, location, self.words);
                Some(Job { words, directory: directory.to_owned() })
            })
            .collect();
        let ended = children::run(&jobs, self.settings);
        for ((at, directory), ended) in indices.iter().zip(&directories).zip(ended) {
            if let Some(model) = report.models.get_mut(*at) {
                let problems = read(&result(directory.path()));
                model.add_load(ended, problems, self.settings);
            }
        }
        Ok(())
    }
}

/// The problems in a result; `None` if the process did not come so far.
fn read(path: &Path) -> Option<Vec<String>> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(RESULT_BYTES_MAX).read_to_string(&mut text).ok()?;
    let result: Value = serde_json::from_str(&text).ok()?;
    let problems = result.get("problems")?.as_array()?;
    Some(problems.iter().filter_map(|problem| problem.as_str().map(str::to_owned)).collect())
}

impl ModelReport {
    fn is_ensemble(&self) -> bool {
        !self.inspection.parts().is_empty()
    }

    /// A model with findings is not loaded, unless an agent may still correct its files.
    fn may_load(&self) -> bool {
        self.problems.is_empty() || self.has_agents()
    }

    fn has_agents(&self) -> bool {
        self.agent_names().next().is_some()
    }

    fn agent_names(&self) -> impl Iterator<Item = &str> {
        let agents = self.inspection.stages.written.model_repository_agents.iter();
        agents.flat_map(|agents| &agents.agents).map(|agent| agent.name.as_str())
    }

    /// `problems`: those of a load that came to an end.
    fn add_load(&mut self, ended: Ended, problems: Option<Vec<String>>, settings: &DeepSettings) {
        let backend = self.inspection.stages.resolved.backend.as_str();
        let backend = if backend.is_empty() { "unknown" } else { backend };
        let secs = settings.timeout.as_secs();
        let (problems, warning) = match (problems, &ended.end) {
            (Some(problems), End::Exited(0)) => (problems, None),
            (Some(problems), End::Exited(code)) => (problems, Some(format!("the process then ended with code {code}"))),
            (Some(problems), End::Signal(signal)) => {
                let signal = signal_name(*signal);
                let text = format!("the runtime crashes when the model is unloaded ({signal} in backend {backend})");
                (problems, Some(text))
            }
            (Some(problems), End::Memory(excess)) => {
                let text = excess_of(*excess);
                (problems, Some(format!("the process {text} when the model is unloaded (backend {backend})")))
            }
            (Some(problems), End::TimedOut | End::NotStarted(_)) => {
                (problems, Some(format!("the model was not unloaded within {secs} s of the start of its load")))
            }
            (None, end) => {
                let problem = match end {
                    End::Exited(code) => {
                        format!("the model ends the process that loads it (exit code {code}, backend {backend})")
                    }
                    End::Signal(9) => format!(
                        "the process that loads the model is killed (signal 9 in backend {backend}), as the kernel \
                         does when the host has not enough memory"
                    ),
                    End::Signal(signal) => {
                        format!("the model crashes the runtime ({} in backend {backend})", signal_name(*signal))
                    }
                    End::TimedOut => format!(
                        "the model is not loaded within {secs} s (backend {backend}); --timeout-secs sets another limit"
                    ),
                    End::Memory(excess) => {
                        let text = excess_of(*excess);
                        let more = match excess {
                            Excess::Limit { .. } => "; --memory-mib sets another limit",
                            Excess::Host { .. } => "",
                        };
                        format!("the process that loads the model {text} (backend {backend}){more}")
                    }
                    End::NotStarted(cause) => format!("the process that would load the model does not start: {cause}"),
                };
                (vec![problem], None)
            }
        };
        let is_abnormal = ended.end != End::Exited(0);
        let output = if is_abnormal { telling_lines(&ended.output) } else { Vec::new() };
        // Its agents were called.
        let outdated: Vec<String> = self.agent_names().map(agent_warning).collect();
        self.inspection.warnings.retain(|known| !outdated.contains(known));
        self.inspection.warnings.extend(warning);
        self.problems = problems;
        self.load = Some(Load { secs: ended.duration.as_secs_f64(), output });
    }

    fn would_load(&self) -> bool {
        self.load.is_some() && self.problems.is_empty()
    }
}

/// What a process that was stopped has done.
fn excess_of(excess: Excess) -> String {
    let mib = |bytes: u64| bytes >> 20;
    match excess {
        Excess::Limit { used, limit } => {
            format!("takes {} MiB of memory where {} MiB are allowed", mib(used), mib(limit))
        }
        Excess::Host { used, available } => {
            let (used, available) = (mib(used), mib(available));
            format!("takes {used} MiB of memory, of which the host has only {available} MiB left")
        }
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGABRT => ", SIGABRT",
        libc::SIGBUS => ", SIGBUS",
        libc::SIGFPE => ", SIGFPE",
        libc::SIGILL => ", SIGILL",
        libc::SIGKILL => ", SIGKILL",
        libc::SIGSEGV => ", SIGSEGV",
        libc::SIGSYS => ", SIGSYS",
        libc::SIGTERM => ", SIGTERM",
        libc::SIGTRAP => ", SIGTRAP",
        _ => "",
    };
    format!("signal {signal}{name}")
}

/// The lines that tell most of what a process wrote, for people: those from the report of a crash on, else the last
/// ones; without control characters, and each of bounded length.
fn telling_lines(output: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    // The stack begins with the code that crashed, and ends in the program's start.
    let report = lines.iter().rposition(|line| line.starts_with(CRASH_REPORT));
    let first = report.unwrap_or(lines.len().saturating_sub(LINES_MAX));
    let plain = |line: &&str| line.chars().filter(|letter| !letter.is_control()).take(LETTERS_MAX).collect();
    lines.iter().skip(first).take(LINES_MAX).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn loaded(end: End, problems: Option<&[&str]>) -> ModelReport {
        let mut model = ModelReport::default();
        model.inspection.stages.resolved.backend = "b".to_owned();
        let ended = Ended { end, output: b"one\n\n\x1b[1mtwo\n".to_vec(), duration: Duration::from_millis(1500) };
        let problems = problems.map(|problems| problems.iter().map(|problem| (*problem).to_owned()).collect());
        model.add_load(
            ended,
            problems,
            &DeepSettings { timeout: Duration::from_secs(7), jobs_max: 1, memory_max: None },
        );
        model
    }

    #[test]
    fn every_end_of_a_process_is_a_result() {
        for (end, problems, expected) in [
            (End::Exited(0), Some(&["p"][..]), &["p"][..]),
            (End::Exited(0), Some(&[]), &[]),
            (End::Exited(3), Some(&[]), &[]),
            (End::Exited(0), None, &["the model ends the process that loads it (exit code 0, backend b)"]),
            (End::Signal(11), None, &["the model crashes the runtime (signal 11, SIGSEGV in backend b)"]),
            (End::Signal(11), Some(&["p"]), &["p"]),
            (End::TimedOut, Some(&[]), &[]),
        ] {
            let model = loaded(end.clone(), problems);
            assert_eq!(model.problems, expected, "{end:?}");
            assert_eq!(model.would_load(), expected.is_empty(), "{end:?}");
            let load = model.load.expect("a load");
            assert_eq!(load.output.is_empty(), end == End::Exited(0), "{end:?}");
        }
        let late = loaded(End::TimedOut, None);
        assert_eq!(
            late.problems,
            ["the model is not loaded within 7 s (backend b); --timeout-secs sets another limit"]
        );
        let killed = loaded(End::Signal(9), None);
        assert!(killed.problems[0].contains("not enough memory"), "{:?}", killed.problems);
        let limit = Excess::Limit { used: 700 << 20, limit: 512 << 20 };
        let host = Excess::Host { used: 700 << 20, available: 10 << 20 };
        for (excess, text) in [
            (
                limit,
                "the process that loads the model takes 700 MiB of memory where 512 MiB are allowed (backend b); \
                 --memory-mib sets another limit",
            ),
            (
                host,
                "the process that loads the model takes 700 MiB of memory, of which the host has only 10 MiB left \
                 (backend b)",
            ),
        ] {
            assert_eq!(loaded(End::Memory(excess), None).problems, [text]);
        }
        let late = loaded(End::Memory(limit), Some(&[]));
        let text =
            "the process takes 700 MiB of memory where 512 MiB are allowed when the model is unloaded (backend b)";
        assert_eq!((late.problems.len(), &*late.inspection.warnings), (0, &[text.to_owned()][..]));
        let crashing = loaded(End::Signal(6), Some(&[]));
        assert_eq!(
            crashing.inspection.warnings,
            ["the runtime crashes when the model is unloaded (signal 6, SIGABRT in backend b)"]
        );
    }

    #[test]
    fn output_is_shown_plain_and_bounded() {
        assert_eq!(telling_lines(b"one\n\n\x1b[1mtwo\n"), ["one", "[1mtwo"]);
        let many: String = (0..50).map(|number| format!("{number}\n")).collect();
        assert_eq!(telling_lines(many.as_bytes()).len(), LINES_MAX);
        assert_eq!(telling_lines(many.as_bytes()).last().map(String::as_str), Some("49"));
        let crashed = format!("{many}Signal (11) received.\nfirst frame\n{many}");
        assert_eq!(telling_lines(crashed.as_bytes())[..3], ["Signal (11) received.", "first frame", "0"]);
        assert_eq!(telling_lines("x".repeat(1000).as_bytes())[0].len(), LETTERS_MAX);
    }
}
