//! The [`Screen`] during a measurement: a bar on a terminal, plain lines elsewhere, and a block for each point when it
//! is done.
//!
//! Progress goes to stderr, results go to stdout, so that the results can be piped.

use std::io::{IsTerminal, Write};
use std::time::SystemTime;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::terminal::{self, fitted};
use nereid_perf::report::{Report, text};
use nereid_perf::{LoadPoint, Measurement, Progress, Stage, Step};

/// Parts of the bar.
const STEPS: u64 = 1000;
const TEMPLATE: &str = "{prefix} [{bar:24}] {msg}";

pub struct Screen<'a> {
    /// Without points.
    frame: Report<'a>,
    verbose: bool,
    bar: Option<ProgressBar>,
    /// The point and stage of the last plain line.
    last_printed: Option<(LoadPoint, Stage)>,
    point: Option<LoadPoint>,
    /// When each point began.
    pub began: Vec<SystemTime>,
    /// Kept for reports of a run that ends with an error.
    pub measured: Vec<Measurement>,
}

impl<'a> Screen<'a> {
    pub fn new(frame: Report<'a>, verbose: bool) -> Screen<'a> {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(STEPS);
            if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
                bar.set_style(style);
            }
            bar
        });
        Screen { frame, verbose, bar, last_printed: None, point: None, began: Vec::new(), measured: Vec::new() }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Screen<'_> {
    fn point(&mut self, load: LoadPoint) {
        self.began.push(SystemTime::now());
        self.point = Some(load);
        if let Some(bar) = &self.bar {
            bar.set_prefix(text::heading(load));
            bar.set_position(0);
            bar.set_message(String::new());
        }
    }

    fn step(&mut self, step: Step) {
        let Some(point) = self.point else { return };
        match &self.bar {
            Some(bar) => {
                bar.set_position((step.done.clamp(0.0, 1.0) * STEPS as f64) as u64);
                bar.set_message(message(&step));
            }
            // A line for each stage, when it begins.
            None if self.last_printed != Some((point, step.stage)) => {
                self.last_printed = Some((point, step.stage));
                let _ = writeln!(std::io::stderr(), "{}: {}", text::heading(point), stage(step.stage));
            }
            None => {}
        }
    }

    fn measured(&mut self, measurement: &Measurement) {
        let block = fitted(&text::point(&self.frame, measurement, self.verbose), terminal::columns());
        match &self.bar {
            Some(bar) => bar.suspend(|| crate::cli::check::print(&block)),
            None => crate::cli::check::print(&block),
        }
        self.measured.push(measurement.clone());
    }
}

fn stage(stage: Stage) -> String {
    match stage {
        Stage::WarmUp => "warm-up".to_owned(),
        Stage::Trial(number) => format!("window {number}"),
        Stage::Drain => "waiting for the last answers".to_owned(),
    }
}

fn message(step: &Step) -> String {
    let failed = if step.failed > 0 { format!(", {} failed", step.failed) } else { String::new() };
    format!("{}: {} done{failed}, {:.0}/s", stage(step.stage), step.completed, step.rate)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn steps_in_words() {
        let step = Step {
            stage: Stage::Trial(2),
            elapsed: Duration::from_secs(1),
            completed: 500,
            failed: 0,
            rate: 499.6,
            done: 0.2,
        };
        assert_eq!(message(&step), "window 2: 500 done, 500/s");
        assert_eq!(message(&Step { failed: 3, stage: Stage::WarmUp, ..step }), "warm-up: 500 done, 3 failed, 500/s");
    }
}
