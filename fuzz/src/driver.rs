//! Runs fuzz targets without libFuzzer: the inputs of the corpus, and mutations of them.
//!
//! The inputs follow from the seed alone, so a run says the same each time. An input that a target refuses is written
//! to a file, which the argument `replay` runs again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, panic};

use crate::{Dice, TARGETS, Target, mutator};

const USAGE: &str = "usage: nereid-fuzz [--runs N | --seconds N] [--seed N] [TARGET...]
       nereid-fuzz replay TARGET FILE...
       nereid-fuzz seeds            writes the inputs that the corpus begins with";

/// Does what the words of a command line say; without words, each target gets its corpus and its own number of
/// mutations. An error names the target, and the file of an input at which it panicked.
pub fn drive(words: &[&str]) -> Result<(), String> {
    match *words {
        ["seeds"] => write_seeds().map_err(|error| error.to_string()),
        ["replay", name, ref files @ ..] => named(name).and_then(|target| replay(target, files)),
        _ => Plan::read(words).and_then(|plan| plan.run()),
    }
}

fn named(name: &str) -> Result<&'static Target, String> {
    TARGETS.iter().find(|target| target.name == name).ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        format!("no target '{name}'; there are {}\n{USAGE}", names.join(", "))
    })
}

fn corpus_of(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

fn write_seeds() -> io::Result<()> {
    for target in &TARGETS {
        fs::create_dir_all(corpus_of(target))?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(corpus_of(target).join(format!("seed-{number:02}")), seed)?;
        }
    }
    Ok(())
}

fn replay(target: &Target, files: &[&str]) -> Result<(), String> {
    for file in files {
        let input = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        let passed = (target.run)(&input);
        println!("{file}: {}", if passed { "passed" } else { "refused" });
    }
    Ok(())
}

/// What a run does.
struct Plan {
    targets: Vec<&'static Target>,
    runs: Option<u64>,
    time: Option<Duration>,
    seed: u64,
}

impl Plan {
    fn read(words: &[&str]) -> Result<Plan, String> {
        let mut plan = Plan { targets: Vec::new(), runs: None, time: None, seed: 1 };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut number = || {
                let value = words.next().and_then(|value| value.parse().ok());
                value.ok_or_else(|| format!("{word} needs a number\n{USAGE}"))
            };
            match *word {
                "--runs" => plan.runs = Some(number()?),
                "--seconds" => plan.time = Some(Duration::from_secs(number()?)),
                "--seed" => plan.seed = number()?,
                name => plan.targets.push(named(name)?),
            }
        }
        if plan.targets.is_empty() {
            plan.targets = TARGETS.iter().collect();
        }
        Ok(plan)
    }

    fn run(&self) -> Result<(), String> {
        for target in &self.targets {
            // A stack of its own size for each: what recurses too far shows here.
            let outcome = std::thread::scope(|scope| scope.spawn(|| self.fuzz(target)).join());
            outcome.unwrap_or_else(|_| Err(format!("{}: the driver panicked", target.name)))?;
        }
        Ok(())
    }

    fn fuzz(&self, target: &Target) -> Result<(), String> {
        let corpus = read_corpus(target)?;
        let begun = Instant::now();
        let mut counts = Counts::default();
        for input in &corpus {
            counts.add(execute(target, input)?);
        }
        let mut dice = Dice::new(self.seed);
        let runs = if self.time.is_some() { u64::MAX } else { self.runs.unwrap_or(target.runs) };
        for _ in 0..runs {
            if self.time.is_some_and(|time| begun.elapsed() >= time) {
                break;
            }
            counts.add(execute(target, &mutator::mutate(&corpus, target.words, &mut dice))?);
        }
        let Counts { executions, passed } = counts;
        println!("{:12} {executions} executions, {passed} passed, {:.1} s", target.name, begun.elapsed().as_secs_f64());
        if passed == 0 {
            return Err(format!("{}: no input passed, so nothing was tested", target.name));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Counts {
    executions: u64,
    passed: u64,
}

impl Counts {
    fn add(&mut self, passed: bool) {
        self.executions += 1;
        self.passed += u64::from(passed);
    }
}

fn read_corpus(target: &Target) -> Result<Vec<Vec<u8>>, String> {
    let folder = corpus_of(target);
    let read = |error: io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).map_err(read)? {
        files.push(entry.map_err(read)?.path());
    }
    // The order of a folder differs between machines.
    files.sort();
    let corpus: Result<Vec<_>, _> = files.iter().map(|file| fs::read(file).map_err(read)).collect();
    corpus.and_then(|corpus| if corpus.is_empty() { Err(format!("{} is empty", folder.display())) } else { Ok(corpus) })
}

fn execute(target: &Target, input: &[u8]) -> Result<bool, String> {
    panic::catch_unwind(|| (target.run)(input)).map_err(|_| {
        let file = std::env::temp_dir().join(format!("nereid-fuzz-{}-{}", target.name, std::process::id()));
        let written = fs::write(&file, input);
        format!("{}: the input of the panic is {} ({written:?})\n{}", target.name, file.display(), input.escape_ascii())
    })
}
