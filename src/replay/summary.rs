//! What came of a replay: counts, latencies, the first differences; as text and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::worker::{Done, Verdict};
use nereid_recording::Record;

/// Differences that are shown.
const SHOWN_MAX: usize = 10;
/// Reasons for leaving records out that are shown.
const REASONS_MAX: usize = 5;
/// Of times in histograms.
const LONGEST_NS: u64 = 3_600_000_000_000;
const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// A difference, or a failure.
struct Shown {
    number: u64,
    model: String,
    text: String,
}

/// What a replay says of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every answer is as it was recorded.
    Equal,
    /// An answer differs or did not come, or what the file has beyond its damage was not compared.
    Different,
    /// No answer was compared, so nothing is known.
    NotCompared,
}

pub struct Summary {
    compares: bool,
    records: u64,
    equal: u64,
    different: u64,
    failed: u64,
    skipped: u64,
    not_compared: u64,
    shown: Vec<Shown>,
    reasons: Vec<Shown>,
    answered: Histogram<u64>,
    recorded: Histogram<u64>,
    /// How much later than at their times requests were sent.
    delays: Histogram<u64>,
    took: Duration,
    note: Option<String>,
    is_damaged: bool,
}

fn histogram() -> Histogram<u64> {
    // With these bounds it can always be made.
    Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap_or_else(|_| Histogram::new(3).expect("three digits"))
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl Summary {
    pub(crate) fn new(compares: bool) -> Summary {
        Summary {
            compares,
            records: 0,
            equal: 0,
            different: 0,
            failed: 0,
            skipped: 0,
            not_compared: 0,
            shown: Vec::new(),
            reasons: Vec::new(),
            answered: histogram(),
            recorded: histogram(),
            delays: histogram(),
            took: Duration::ZERO,
            note: None,
            is_damaged: false,
        }
    }

    pub(crate) fn note_delay(&mut self, delay: Duration) {
        self.delays.saturating_record(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    pub(crate) fn note_recorded(&mut self, record: &Record) {
        self.records += 1;
        if record.head.answer.is_some() {
            self.recorded.saturating_record(record.head.took_ns.max(1));
        }
    }

    pub(crate) fn note(&mut self, done: Done) {
        let Done { number, model, verdict, took_ns, .. } = done;
        if let Some(took_ns) = took_ns {
            self.answered.saturating_record(took_ns.max(1));
        }
        let (list, most, text) = match verdict {
            Verdict::Equal => return self.equal += 1,
            Verdict::NotCompared => return self.not_compared += 1,
            Verdict::Different(text) => {
                self.different += 1;
                (&mut self.shown, SHOWN_MAX, text)
            }
            Verdict::Failed(text) => {
                self.failed += 1;
                (&mut self.shown, SHOWN_MAX, format!("no answer: {text}"))
            }
            Verdict::Skipped(text) => {
                self.skipped += 1;
                (&mut self.reasons, REASONS_MAX, text)
            }
        };
        if list.len() < most {
            list.push(Shown { number, model, text });
        }
    }

    pub(crate) fn finish(&mut self, took: Duration, note: Option<String>, is_damaged: bool) {
        (self.took, self.note, self.is_damaged) = (took, note, is_damaged);
    }

    pub fn outcome(&self) -> Outcome {
        match (self.different + self.failed, self.equal) {
            (1.., _) => Outcome::Different,
            (0, 0) => Outcome::NotCompared,
            (0, _) if self.is_damaged => Outcome::Different,
            (0, _) => Outcome::Equal,
        }
    }

    fn sent(&self) -> u64 {
        self.records.saturating_sub(self.skipped)
    }

    fn rate(&self) -> f64 {
        self.sent() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        let what = if self.compares { "answers" } else { "statuses" };
        let _ = writeln!(
            text,
            "{} requests sent in {:.3} s ({:.1} a second), {} left out",
            self.sent(),
            self.took.as_secs_f64(),
            self.rate(),
            self.skipped
        );
        let _ = writeln!(
            text,
            "{what}: {} equal, {} different, {} without an answer, {} without a recorded answer\n",
            self.equal, self.different, self.failed, self.not_compared
        );
        let _ = writeln!(text, "{:<14}{}", "latency (ms)", QUANTILES.map(|(name, _)| format!("{name:>10}")).concat());
        let rows = [("replayed", &self.answered), ("recorded", &self.recorded), ("sent late by", &self.delays)];
        for (name, histogram) in rows {
            let cell = |(_, quantile)| match histogram.is_empty() {
                true => format!("{:>10}", "n/a"),
                false => format!("{:>10.3}", ms(histogram.value_at_quantile(quantile))),
            };
            let _ = writeln!(text, "{name:<14}{}", QUANTILES.map(cell).concat());
        }
        let lists = [("first differences", &self.shown), ("left out", &self.reasons)];
        for (title, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            let _ = writeln!(text, "\n{title}:");
            for Shown { number, model, text: what } in list {
                let _ = writeln!(text, "  record {number}, model '{}': {}", plain(model), plain(what));
            }
        }
        if let Some(note) = &self.note {
            let _ = writeln!(text, "\nnote: {}", plain(note));
        }
        text
    }

    pub fn json(&self) -> Value {
        let latency = |histogram: &Histogram<u64>| match histogram.is_empty() {
            true => Value::Null,
            false => {
                let one =
                    |(name, quantile): (&str, f64)| (name.to_owned(), json!(ms(histogram.value_at_quantile(quantile))));
                Value::Object(QUANTILES.into_iter().map(one).collect())
            }
        };
        let list = |list: &[Shown]| -> Value {
            list.iter().map(|one| json!({"record": one.number, "model": one.model, "what": one.text})).collect()
        };
        json!({
            "records": self.records,
            "sent": self.sent(),
            "equal": self.equal,
            "different": self.different,
            "failed": self.failed,
            "skipped": self.skipped,
            "not_compared": self.not_compared,
            "compared": if self.compares { "answers" } else { "statuses" },
            "is_equal": self.outcome() == Outcome::Equal,
            "took_s": self.took.as_secs_f64(),
            "requests_per_s": self.rate(),
            "latency_ms": {
                "replayed": latency(&self.answered),
                "recorded": latency(&self.recorded),
                "sent_late_by": latency(&self.delays),
            },
            "differences": list(&self.shown),
            "left_out": list(&self.reasons),
            "note": self.note,
        })
    }
}

/// What a server or a file chose, without what a terminal acts on.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_recording::Protocol;

    fn done(number: u64, verdict: Verdict) -> Done {
        let (model, protocol) = ("m\u{1b}".to_owned(), Protocol::Http);
        Done { worker: 0, number, model, protocol, verdict, took_ns: Some(2_000_000) }
    }

    #[test]
    fn the_first_differences_are_shown_and_all_are_counted() {
        let mut summary = Summary::new(true);
        assert!(summary.text().contains("n/a") && summary.json()["latency_ms"]["replayed"].is_null());
        summary.note(done(1, Verdict::Equal));
        assert_eq!(summary.outcome(), Outcome::Equal);
        for number in 2..40 {
            summary.note(done(number, Verdict::Different(format!("text\n{number}"))));
        }
        summary.note(done(40, Verdict::Failed("gone".to_owned())));
        summary.finish(Duration::from_secs(2), Some("cut".to_owned()), false);
        assert_eq!(summary.outcome(), Outcome::Different);
        let text = summary.text();
        assert!(text.contains("1 equal, 38 different, 1 without an answer"), "{text}");
        assert!(text.contains("record 2, model 'm ': text 2\n") && !text.contains("record 12,"), "{text}");
        assert!(text.contains("note: cut"));
        let json = summary.json();
        assert_eq!((&json["different"], &json["is_equal"]), (&38.into(), &false.into()));
        assert_eq!(json["differences"].as_array().map(Vec::len), Some(10));
    }

    #[test]
    fn what_was_not_compared_is_not_equal() {
        let outcome = |verdicts: Vec<Verdict>, is_damaged| {
            let mut summary = Summary::new(false);
            verdicts.into_iter().for_each(|verdict| summary.note(done(1, verdict)));
            summary.finish(Duration::ZERO, None, is_damaged);
            summary.outcome()
        };
        let skipped = || Verdict::Skipped(String::new());
        assert_eq!(outcome(vec![skipped(), Verdict::NotCompared], false), Outcome::NotCompared);
        assert_eq!(outcome(vec![skipped()], true), Outcome::NotCompared);
        assert_eq!(outcome(vec![skipped(), Verdict::Equal], false), Outcome::Equal);
        assert_eq!(outcome(vec![Verdict::Equal], true), Outcome::Different);
        assert_eq!(outcome(vec![Verdict::Failed(String::new())], false), Outcome::Different);
    }
}
