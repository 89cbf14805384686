//! `nereid perf compare`: two JSON reports in one table.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::cli::check::print;
use crate::cli::subcommands::CliOption;
use crate::cli::terminal::{self, Table, fitted};
use nereid_perf::report::compare::{self, Comparison, HEAD, Run};

/// The word that asks for it.
pub const WORD: &str = "compare";

pub const USAGE: &str = "\
Usage: nereid perf compare <A.json> <B.json> [--fail-over=<percent>]

Compares two reports of `nereid perf --json`: each figure of the load points that both have, the ratio of B to A, and
whether the difference exceeds the noise, which is how much the counted windows of a run differ from each other. What
differs in the set-ups (model, protocol, load, server, client) is listed too. Load points at which the load generator
was the limit, in one report or both, are not comparable.

  --fail-over=<percent>  End with exit code 3 if throughput, average, p50, p90 or p99 latency, tokens a second or the
                         times to tokens of B are worse by more than that at a load point. One that only A has counts
                         as 100 % worse, and so does one that is not comparable.

Exit codes: 0 compared; 2 a report cannot be read or compared; 3 B is worse than --fail-over allows.
";

const FAIL_OVER: &str = "fail-over";
/// Longest report that is read, in bytes.
const REPORT_BYTES_MAX: u64 = 256 << 20;
/// A report cannot be read.
const UNREADABLE: u8 = 2;
/// B is worse than allowed.
const WORSE: u8 = 3;

/// Its option, for completions and the manual page of perf.
pub fn option() -> CliOption {
    CliOption {
        name: FAIL_OVER.to_owned(),
        letter: None,
        value: Some("percent".to_owned()),
        help: "Of `nereid perf compare`: end with exit code 3 if B is worse than A by more than that.".to_owned(),
    }
}

#[derive(Debug, PartialEq)]
enum Asked {
    Help,
    Compare { files: [OsString; 2], fail_over: Option<f64> },
}

/// The words behind `nereid perf compare`.
pub fn run(words: &[OsString]) -> ExitCode {
    let outcome = parse(words).map_err(|error| format!("{error}\nTry `nereid perf compare --help`."));
    match outcome.and_then(|asked| answer(&asked)) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(UNREADABLE)
        }
    }
}

fn parse(words: &[OsString]) -> Result<Asked, String> {
    let (mut files, mut fail_over) = (Vec::new(), None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let value = match text.split_once('=') {
            _ if text == "--help" || text == "-h" => return Ok(Asked::Help),
            Some(("--fail-over", value)) => value.to_owned(),
            None if text == "--fail-over" => words.next().map(|word| word.to_string_lossy().into()).unwrap_or_default(),
            _ if text.starts_with('-') && text.len() > 1 => return Err(format!("unknown option '{text}'")),
            _ => {
                files.push(word.clone());
                continue;
            }
        };
        let percent = value.parse().ok().filter(|percent: &f64| percent.is_finite() && *percent >= 0.0);
        fail_over = Some(percent.ok_or_else(|| format!("--fail-over: '{value}' is no number of percent from 0 on"))?);
    }
    match <[OsString; 2]>::try_from(files) {
        Ok(files) => Ok(Asked::Compare { files, fail_over }),
        Err(files) => Err(format!("two reports are compared, and {} are given", files.len())),
    }
}

fn answer(asked: &Asked) -> Result<ExitCode, String> {
    let (files, fail_over) = match asked {
        Asked::Help => {
            print(USAGE);
            return Ok(ExitCode::SUCCESS);
        }
        Asked::Compare { files, fail_over } => (files, *fail_over),
    };
    let [a, b] = [read(&files[0])?, read(&files[1])?];
    let comparison = compare::compare(&a, &b)?;
    print(&text(files, &comparison, terminal::columns()));
    let Some((limit, (worse, figure))) = fail_over.zip(comparison.worst) else { return Ok(ExitCode::SUCCESS) };
    if worse <= limit {
        return Ok(ExitCode::SUCCESS);
    }
    let text = format!("B is worse by {worse:.1} % in {figure}; --fail-over allows {limit} %\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
    Ok(ExitCode::from(WORSE))
}

fn read(file: &OsString) -> Result<Run, String> {
    use std::io::Read as _;
    let path = Path::new(file);
    let mut text = String::new();
    let opened = std::fs::File::open(path).map(|file| file.take(REPORT_BYTES_MAX));
    opened
        .and_then(|mut file| file.read_to_string(&mut text))
        .map_err(|error| error.to_string())
        .and_then(|_| Run::parse(&text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn text(files: &[OsString; 2], comparison: &Comparison, columns: Option<usize>) -> String {
    let mut table = Table::new(&HEAD).right([2, 3, 4, 5]);
    comparison.rows.iter().for_each(|row| table.row(row.to_vec()));
    let mut text = format!("A: {}\nB: {}\n\n", files[0].display(), files[1].display());
    text.push_str(&table.text(columns));
    for (title, lines) in [("The set-ups differ (A | B):", &comparison.differences), ("Notes:", &comparison.notes)] {
        if !lines.is_empty() {
            text.push_str(&format!("\n{title}\n"));
            let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
            text.push_str(&fitted(&lines, columns));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Asked, String> {
        parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn two_files_and_a_limit() {
        let files = || [OsString::from("a"), OsString::from("b")];
        assert_eq!(parsed(&["a", "b"]), Ok(Asked::Compare { files: files(), fail_over: None }));
        let limited = Ok(Asked::Compare { files: files(), fail_over: Some(2.5) });
        assert_eq!(parsed(&["a", "--fail-over=2.5", "b"]), limited);
        assert_eq!(parsed(&["a", "b", "--fail-over", "2.5"]), limited);
        assert_eq!(parsed(&["a", "--help"]), Ok(Asked::Help));
        for (words, part) in [
            (&[][..], "0 are given"),
            (&["a"], "1 are given"),
            (&["a", "b", "c"], "3 are given"),
            (&["a", "b", "--fail-over=x"], "'x' is no number"),
            (&["a", "b", "--fail-over=-1"], "'-1' is no number"),
            (&["a", "b", "--fail-over=NaN"], "'NaN' is no number"),
            (&["a", "b", "--fail-over"], "'' is no number"),
            (&["a", "b", "--fast"], "unknown option '--fast'"),
        ] {
            let error = parsed(words).unwrap_err();
            assert!(error.contains(part), "{words:?}: {error}");
        }
    }

    #[test]
    fn the_table_fits_the_terminal() {
        let mut comparison = Comparison::default();
        let row = ["concurrency 1", "latency p99.9, us", "1234.5", "1234.5", "1.000", "12.3 %", "within the noise"];
        comparison.rows.push(row.map(str::to_owned));
        comparison.differences.push("load: a long setting of many words | another long setting of many words".into());
        let files = [OsString::from("a.json"), OsString::from("b.json")];
        let whole = text(&files, &comparison, None);
        assert!(whole.lines().any(|line| line.ends_with("1.000  12.3 %  within the noise")), "{whole}");
        let narrow = text(&files, &comparison, Some(60));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    }
}
