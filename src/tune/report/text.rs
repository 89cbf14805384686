//! The terminal: a line for each burst while it goes on, and at the end a small table, the diff and a sentence.

use std::fmt::Write;

use super::super::outcome::{Outcome, Verdict};
use super::super::point::{Point, pareto};
use super::super::space::Level;
use super::{gain, mib, number, optional, plus_minus};

/// Lines of the table, without its head.
const LINES_MAX: usize = 5;
/// Letters of a configuration in it.
const LETTERS_MAX: usize = 60;

fn cut(text: &str, letters: usize) -> String {
    match text.chars().count() > letters {
        true => text.chars().take(letters - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Foreign texts, on one line.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn describe(point: &Point) -> String {
    match point.changes.is_empty() {
        true => "present configuration".to_owned(),
        false => {
            let changes: Vec<String> = point.changes.iter().map(|(name, value)| format!("{name}={value}")).collect();
            plain(&changes.join(" "))
        }
    }
}

fn load(point: &Point) -> String {
    match (point.concurrency, point.rate) {
        (Some(concurrency), _) => format!("{concurrency} at once"),
        (_, Some(rate)) => format!("{}/s", number(rate)),
        _ => plain(&point.load),
    }
}

/// A line about a burst.
pub fn progress(point: &Point) -> String {
    let what = format!("#{} {}", point.number, describe(point));
    match &point.failure {
        Some(reason) => format!("{what}: failed: {}", plain(reason)),
        None => format!(
            "{what}, {}: {} requests/s, p99 {} ms, {} MiB",
            load(point),
            plus_minus(point.throughput()),
            optional(point.p99_ms()),
            optional(mib(point.memory_bytes()))
        ),
    }
}

/// The points that are worth a line: the present configuration, the best, and others of the front.
fn shown(outcome: &Outcome) -> Vec<&Point> {
    let mut numbers: Vec<usize> = [outcome.baseline, outcome.best].into_iter().flatten().collect();
    let mut front: Vec<&Point> = pareto(&outcome.points).into_iter().filter_map(|at| outcome.points.get(at)).collect();
    let rate = |point: &Point| point.throughput().map_or(0.0, |interval| interval.mean);
    front.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    numbers.extend(front.iter().map(|point| point.number));
    let mut seen = Vec::new();
    for number in numbers {
        if !seen.contains(&number) {
            seen.push(number);
        }
    }
    seen.into_iter().take(LINES_MAX).filter_map(|number| outcome.point(Some(number))).collect()
}

fn table(outcome: &Outcome) -> String {
    let head = ["", "configuration", "load", "requests/s", "p99 ms", "MiB", "CPU ms/request"].map(str::to_owned);
    let mut rows = vec![head];
    for point in shown(outcome) {
        let mark = match Some(point.number) {
            number if number == outcome.best && outcome.verdict == Verdict::Better => "best",
            number if number == outcome.baseline => "now",
            _ => "",
        };
        rows.push([
            mark.to_owned(),
            cut(&describe(point), LETTERS_MAX),
            load(point),
            plus_minus(point.throughput()),
            optional(point.p99_ms()),
            optional(mib(point.memory_bytes())),
            optional(point.cpu_per_request().map(|seconds| seconds * 1e3)),
        ]);
    }
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

/// Everything at the end.
pub fn summary(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        text,
        "\n{} of {} configurations in {:.0} s, for {}\n",
        outcome.points.len(),
        outcome.choices,
        outcome.seconds,
        outcome.plan.goal.describe()
    );
    text.push_str(&table(outcome));
    text.push('\n');
    match outcome.verdict {
        Verdict::Better => better(outcome, &mut text),
        Verdict::NothingBetter => {
            let measured = outcome.gain.map(|measured| format!(": the best candidate has {}", gain(measured)));
            let known = if outcome.ended_early.is_some() { "Nothing is known to be" } else { "Nothing is" };
            let _ = writeln!(
                text,
                "{known} better than the present configuration beyond noise{}.",
                measured.unwrap_or_default()
            );
        }
        Verdict::LimitsNotMet => limits_not_met(outcome, &mut text),
        Verdict::Interrupted => text.push_str("Interrupted; what was measured is kept.\n"),
    }
    if let Some(reason) = outcome.ended_early.as_ref().filter(|_| outcome.verdict != Verdict::Interrupted) {
        let _ = writeln!(text, "note: {reason}");
    }
    if outcome.is_unstable() {
        let _ = writeln!(
            text,
            "warning: unstable: the present configuration changed by {:.0} % during the run; stop other programs, or \
             give a longer --budget",
            outcome.drift * 100.0
        );
    }
    text
}

fn better(outcome: &Outcome, text: &mut String) {
    for one in &outcome.recommendations {
        text.push_str(&one.diff);
    }
    if let Some(flag) = &outcome.server_flag {
        let _ = writeln!(text, "server flag: {flag}");
    }
    let _ = writeln!(text, "\n{}", outcome.why);
    if outcome.is_kept_alone {
        text.push_str("It keeps the limits, which the present configuration does not.\n");
    }
    if let Some(measured) = outcome.gain.filter(|gain| gain.low > 1.0) {
        let _ = writeln!(text, "Expected gain in {}: {}.", outcome.plan.goal.objective.name(), gain(measured));
    }
}

fn limits_not_met(outcome: &Outcome, text: &mut String) {
    let wanted = outcome.space.loads.levels.first().map(Level::to_string).unwrap_or_default();
    let which = if outcome.ended_early.is_some() { "that was measured keeps" } else { "keeps" };
    let _ = writeln!(text, "No configuration {which} the limits ({}) at {wanted}.", outcome.plan.goal.describe());
    match (&outcome.capacity, outcome.point(outcome.best)) {
        (Some(capacity), _) => {
            let _ = writeln!(
                text,
                "Capacity within the limits: {} requests/s, at {} (p99 {} ms).",
                number(capacity.throughput),
                capacity.load,
                optional(capacity.p99_ms)
            );
        }
        (None, Some(point)) => {
            let _ = writeln!(
                text,
                "Capacity within the limits: 0 requests/s; the nearest has a p99 of {} ms with {}: {}.",
                optional(point.p99_ms()),
                load(point),
                describe(point)
            );
        }
        (None, None) => text.push_str("Capacity within the limits: 0 requests/s.\n"),
    }
}
