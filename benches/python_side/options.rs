//! The options of a measurement, from the words behind `cargo bench --bench python --`.

use std::path::PathBuf;
use std::time::Duration;

use super::scenario::{SCENARIOS, Scenario};
use super::side::Kind;

pub const USAGE: &str = "\
usage: cargo bench --bench python -- [options]
  --scenario NAME[,NAME]  only these (a prefix names all that begin with it)
  --side NAME[,NAME]      nereid, official (default both)
  --seconds S             measured seconds a run (default 2)
  --rounds N              runs of each scenario and side; the median one is printed (default 3)
  --server-cores N        cores that a server and its workers are pinned to (default 1)
  --binary FILE           another server binary with the same flags
  --server-arg ARG        one more argument for the server, not for the official one (repeatable)
  --list                  names the scenarios";

pub struct Options {
    pub scenarios: Vec<&'static Scenario>,
    pub sides: Vec<Kind>,
    pub measured: Duration,
    pub rounds: usize,
    pub server_cores: usize,
    pub binary: PathBuf,
    pub server_arguments: Vec<String>,
}

pub enum Command {
    Run(Options),
    Print(String),
}

pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = Options {
        scenarios: Vec::new(),
        sides: Vec::new(),
        measured: Duration::from_secs(2),
        rounds: 3,
        server_cores: 1,
        binary: PathBuf::from(env!("CARGO_BIN_EXE_nereid")),
        server_arguments: Vec::new(),
    };
    let mut from_cargo_bench = false;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--bench" => from_cargo_bench = true,
            "--list" => return Ok(Command::Print(list())),
            "--help" => return Ok(Command::Print(USAGE.to_owned())),
            "--scenario" => add_scenarios(&value()?, &mut options.scenarios)?,
            "--side" => {
                for name in value()?.split(',') {
                    options.sides.push(Kind::named(name).ok_or_else(|| format!("there is no side {name:?}"))?);
                }
            }
            "--seconds" => {
                let text = value()?;
                let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                options.measured = seconds.filter(|it| !it.is_zero()).ok_or(format!("{text} is no time"))?;
            }
            "--rounds" => options.rounds = count(&value()?)?,
            "--server-cores" => options.server_cores = count(&value()?)?,
            "--binary" => options.binary = PathBuf::from(value()?),
            "--server-arg" => options.server_arguments.push(value()?),
            other => return Err(format!("unknown option {other}")),
        }
    }
    if !from_cargo_bench {
        // `cargo test --all-targets` runs this binary too, and a loaded machine is no place to measure.
        return Ok(Command::Print("skipped: this bench runs by `cargo bench --bench python`".to_owned()));
    }
    if options.scenarios.is_empty() {
        options.scenarios = SCENARIOS.iter().collect();
    }
    if options.sides.is_empty() {
        options.sides = vec![Kind::Nereid, Kind::Official];
    }
    Ok(Command::Run(options))
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
    SCENARIOS.iter().map(|scenario| format!("{:14} {}", scenario.name, scenario.about)).collect::<Vec<_>>().join("\n")
}
