//! The options of a measurement, from the words behind `cargo bench --bench server --`.

use std::path::PathBuf;
use std::time::Duration;

use super::scenario::{SCENARIOS, Scenario};
use crate::side::floor::FLOOR;

pub const USAGE: &str = "\
usage: cargo bench --bench server -- [options]
  --scenario NAME[,NAME]  only these (repeatable; a prefix names all that begin with it)
  --engine NAME[,NAME]    --io-engine of the server: io_uring, epoll, auto; floor is a plain echo instead of a server
                          (default io_uring,epoll,floor)
  --seconds S             measured seconds a run (default 3)
  --rounds N              runs of each scenario and engine; the median one is printed (default 3)
  --server-cores N        cores that the server is pinned to (default 1: one saturated core)
  --binary FILE           another server binary with the same flags
  --server-arg ARG        one more argument for the server (repeatable)
  --json FILE             writes every run there
  --list                  names the scenarios";

pub struct Options {
    pub scenarios: Vec<&'static Scenario>,
    pub engines: Vec<String>,
    pub measured: Duration,
    pub rounds: usize,
    pub server_cores: usize,
    pub binary: PathBuf,
    pub server_arguments: Vec<String>,
    pub json: Option<PathBuf>,
}

pub enum Command {
    Run(Options),
    Print(String),
}

pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = Options {
        scenarios: Vec::new(),
        engines: Vec::new(),
        measured: Duration::from_secs(3),
        rounds: 3,
        server_cores: 1,
        binary: PathBuf::from(env!("CARGO_BIN_EXE_nereid")),
        server_arguments: Vec::new(),
        json: None,
    };
    let mut from_cargo_bench = false;
    let mut arguments = arguments.flat_map(split_at_equals);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--bench" => from_cargo_bench = true,
            "--list" => return Ok(Command::Print(list())),
            "--help" => return Ok(Command::Print(USAGE.to_owned())),
            "--scenario" => add_scenarios(&value()?, &mut options.scenarios)?,
            "--engine" => options.engines.extend(value()?.split(',').map(str::to_owned)),
            "--seconds" => options.measured = seconds(&value()?)?,
            "--rounds" => options.rounds = count(&value()?)?,
            "--server-cores" => options.server_cores = count(&value()?)?,
            "--binary" => options.binary = PathBuf::from(value()?),
            "--server-arg" => options.server_arguments.push(value()?),
            "--json" => options.json = Some(PathBuf::from(value()?)),
            other => return Err(format!("unknown option {other}")),
        }
    }
    if !from_cargo_bench {
        // `cargo test --all-targets` runs this binary too, and a loaded machine is no place to measure.
        return Ok(Command::Print("skipped: the server bench runs by `cargo bench --bench server`".to_owned()));
    }
    if options.scenarios.is_empty() {
        options.scenarios = SCENARIOS.iter().collect();
    }
    if options.engines.is_empty() {
        options.engines = ["io_uring", "epoll", FLOOR].map(str::to_owned).to_vec();
    }
    Ok(Command::Run(options))
}

/// `--flag=value` is `--flag value`; flags of the server stay whole.
fn split_at_equals(argument: String) -> Vec<String> {
    match argument.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") && USAGE.contains(&format!("  {flag} ")) => {
            vec![flag.to_owned(), value.to_owned()]
        }
        _ => vec![argument],
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|seconds| !seconds.is_zero()).ok_or_else(|| format!("--seconds {text} is no time"))
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| format!("{text} is no count"))
}

fn add_scenarios(names: &str, into: &mut Vec<&'static Scenario>) -> Result<(), String> {
    for name in names.split(',') {
        let before = into.len();
        into.extend(SCENARIOS.iter().filter(|scenario| scenario.name.starts_with(name)));
        if into.len() == before {
            return Err(format!("no scenario begins with {name:?}:\n{}", list()));
        }
    }
    Ok(())
}

fn list() -> String {
    SCENARIOS.iter().map(|scenario| format!("{:16} {}", scenario.name, scenario.about)).collect::<Vec<_>>().join("\n")
}
