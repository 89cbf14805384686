//! `nereid perf`: loads a server and reports the results, with perf_analyzer's flags.
//!
//! This module reads flags and prints; [`nereid_perf`] makes and sends the requests.

mod address;
mod compare;
mod flags;
mod given;
mod mistake;
mod openai;
mod plan;
mod screen;
mod usage;
mod value;
mod words;

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use super::Arguments;
use super::check::print;
use super::subcommands::CliOption;
use super::terminal::{self, fitted};
pub(super) use compare::{USAGE as COMPARE_USAGE, WORD as COMPARE};
use given::{Given, PerfCommand};
use mistake::Mistake;
use nereid_perf::report::{Machine, Report, csv, html, json, profile, text};
use nereid_perf::{Measurement, ModelInfo, PerfError};
use openai::{KEY_VARIABLE, ServiceKind};
use plan::PlanError;
use screen::Screen;
pub(super) use usage::usage;

/// Requests failed.
const FAILED: u8 = 1;
/// perf_analyzer's, when figures are not stable.
const UNSTABLE: u8 = 2;
/// A load point is void: the load generator was the limit. perf_analyzer's 3 is for options that it refuses.
const VOID: u8 = 4;
/// perf_analyzer's exit code for all other failures.
const NOT_MEASURED: u8 = 99;

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}\nTry `nereid perf --help`.")]
    Mistake(#[from] Mistake),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Perf(#[from] PerfError),
    #[error("the run was ended before anything was measured")]
    Nothing,
    #[error("{path}: {source}")]
    Report { path: String, source: std::io::Error },
}

/// Measures and prints; the exit code is the outcome.
pub fn run(arguments: &Arguments) -> ExitCode {
    if let Some((word, words)) = arguments.words.split_first()
        && word == compare::WORD
    {
        return compare::run(words);
    }
    match measure(arguments) {
        Ok(code) => code,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            ExitCode::from(NOT_MEASURED)
        }
    }
}

/// The options, without those of perf_analyzer that are refused.
pub(super) fn options() -> Vec<CliOption> {
    let taken = flags::flags().filter(|flag| !matches!(flag.action, flags::Action::Refuse(_)));
    let option = |flag: &'static flags::Flag| CliOption {
        name: flag.name.to_owned(),
        letter: flag.letter,
        value: flag.value.map(str::to_owned),
        help: flag.help.to_owned(),
    };
    taken.map(option).chain([compare::option()]).collect()
}

fn measure(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut given = match PerfCommand::parse(&arguments.words)? {
        PerfCommand::Measure(given) => *given,
        PerfCommand::Help => {
            print(&usage());
            return Ok(ExitCode::SUCCESS);
        }
        PerfCommand::Version => {
            print(&super::version());
            return Ok(ExitCode::SUCCESS);
        }
    };
    for note in given.notes() {
        let _ = writeln!(std::io::stderr(), "note: {note}");
    }
    if given.take_key(std::env::var(KEY_VARIABLE).ok())? {
        let _ = writeln!(std::io::stderr(), "note: the key in {KEY_VARIABLE} is sent to the server");
    }
    look_at_reports(&given)?;
    let target = given.target()?;
    let mut model_info = match given.service {
        ServiceKind::Triton => nereid_perf::inspect(&target, &given.model, &given.version, &given.headers)?,
        ServiceKind::OpenAi => ModelInfo::named(&given.model),
    };
    if let Some(source) = given.build_source(&target) {
        model_info.server_build = nereid_perf::server_build(&source).unwrap_or_default();
    }
    let machine = Machine::here();
    let plan = given.plan(target, &model_info, machine.cores)?;
    let frame = Report {
        plan: &plan,
        model_info: &model_info,
        batch: given.batch,
        machine: &machine,
        began: SystemTime::now(),
        points: &[],
        point_began: &[],
    };
    print(&fitted(&text::settings(&frame), terminal::columns()));
    let mut screen = Screen::new(frame, given.verbose);
    let outcome = nereid_perf::run(&plan, &mut screen);
    screen.finish();
    let (points, error) = match outcome {
        Ok(points) => (points, None),
        // The points that were measured before the error are reported.
        Err(error) => (std::mem::take(&mut screen.measured), Some(error)),
    };
    let report = Report { points: &points, point_began: &screen.began, ..frame };
    if points.len() > 1 {
        print(&fitted(&format!("{}\n", text::table(&report)), terminal::columns()));
    }
    if !points.is_empty() {
        print(&text::summary(&report));
        write_reports(&given, &report)?;
    }
    match error {
        Some(error) => Err(error.into()),
        None if points.is_empty() => Err(Failure::Nothing),
        None => Ok(ExitCode::from(code(&points))),
    }
}

fn code(points: &[Measurement]) -> u8 {
    if points.iter().any(|point| point.counts.failed > 0) {
        FAILED
    } else if points.iter().any(Measurement::is_void) {
        VOID
    } else if points.iter().any(|point| !point.stable || point.limits.unsustainable) {
        UNSTABLE
    } else {
        0
    }
}

/// A run of many minutes should not end with a report that has no place.
fn look_at_reports(given: &Given) -> Result<(), Failure> {
    let reports = &given.reports;
    for path in [&reports.csv, &reports.json, &reports.html, &reports.profile].into_iter().flatten() {
        let failed = |source| Failure::Report { path: path.display().to_string(), source };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !std::fs::metadata(parent).map_err(failed)?.is_dir() {
            return Err(failed(std::io::ErrorKind::NotADirectory.into()));
        }
        if path.is_dir() {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
    }
    Ok(())
}

fn write_reports(given: &Given, report: &Report<'_>) -> Result<(), Failure> {
    let reports = &given.reports;
    let write = |path: &Path, content: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>| {
        let file = std::fs::File::create(path).and_then(|file| {
            let mut file = BufWriter::new(file);
            content(&mut file)?;
            file.flush()
        });
        file.map_err(|source| Failure::Report { path: path.display().to_string(), source })
    };
    if let Some(path) = &reports.csv {
        write(path, &mut |file| file.write_all(csv::render(report, reports.verbose_csv).as_bytes()))?;
    }
    if let Some(path) = &reports.json {
        write(path, &mut |file| writeln!(file, "{:#}", json::render(report)))?;
    }
    if let Some(path) = &reports.html {
        write(path, &mut |file| file.write_all(html::render(report).as_bytes()))?;
    }
    if let Some(path) = &reports.profile {
        write(path, &mut |file| profile::write(report, file))?;
    }
    Ok(())
}
