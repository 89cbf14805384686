//! Two JSON reports side by side: each figure of the load points that both have, its ratio, and whether the difference
//! exceeds the noise, which is how much a run differed from window to window.

use std::collections::BTreeSet;

use serde_json::Value;

use super::figures::{NONE, significant};

/// A run that was read from a file.
#[derive(Debug)]
pub struct Run(Value);

impl Run {
    /// The text is that of `--json`; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Run, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match (value["format"].as_u64(), value["points"].as_array()) {
            (Some(super::json::FORMAT), Some(_)) => Ok(Run(value)),
            (Some(super::json::FORMAT), None) | (None, _) => {
                Err("not a report of nereid perf --json: it has no format or no points".to_owned())
            }
            (Some(format), _) => {
                Err(format!("a report of format {format}; this program reads {}", super::json::FORMAT))
            }
        }
    }

    fn points(&self) -> &[Value] {
        self.0["points"].as_array().map(Vec::as_slice).unwrap_or_default()
    }
}

/// Which way a figure gets better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Higher,
    Lower,
}

/// What the noise of a figure is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noise {
    Rate,
    Latency,
}

/// A figure of a load point: its name and unit, its place in the report, which way it gets better.
struct Figure {
    name: &'static str,
    at: &'static str,
    better: Better,
    noise: Noise,
}

const fn rate(name: &'static str, at: &'static str) -> Figure {
    Figure { name, at, better: Better::Higher, noise: Noise::Rate }
}

const fn latency(name: &'static str, at: &'static str) -> Figure {
    Figure { name, at, better: Better::Lower, noise: Noise::Latency }
}

/// Those that a report does not have are left out.
const FIGURES: [Figure; 13] = [
    rate("inferences/s", "/inferences_per_s"),
    latency("latency avg, us", "/latency/mean_us"),
    latency("latency p50, us", "/latency/percentiles_us/p50"),
    latency("latency p90, us", "/latency/percentiles_us/p90"),
    latency("latency p99, us", "/latency/percentiles_us/p99"),
    latency("latency p99.9, us", "/latency/percentiles_us/p99.9"),
    latency("server queue, us", "/breakdown_us/queue"),
    latency("server compute, us", "/breakdown_us/compute_infer"),
    rate("output tokens/s", "/generation/output_tokens_per_s"),
    latency("first token p50, us", "/generation/first_token/percentiles_us/p50"),
    latency("first token p99, us", "/generation/first_token/percentiles_us/p99"),
    latency("between tokens p50, us", "/generation/between_tokens/percentiles_us/p50"),
    latency("between tokens p99, us", "/generation/between_tokens/percentiles_us/p99"),
];

/// Figures that `--fail-over` judges: what clients see. Rarer latencies than p99 are mostly noise.
const JUDGED: [&str; 9] = [
    "inferences/s",
    "latency avg, us",
    "latency p50, us",
    "latency p90, us",
    "latency p99, us",
    "output tokens/s",
    "first token p50, us",
    "first token p99, us",
    "between tokens p50, us",
];

/// Parts of the set-up that explain a difference: a name, and the place in the report.
const SETTINGS: [(&str, &str); 34] = [
    ("server", "/server/name"),
    ("server version", "/server/version"),
    ("server build", "/server/build"),
    ("program", "/program"),
    ("model", "/plan/model"),
    ("model version", "/model/version"),
    ("platform", "/model/platform"),
    ("max_batch_size", "/model/max_batch_size"),
    ("response cache", "/model/response_cache"),
    ("protocol", "/plan/protocol"),
    ("TLS", "/plan/tls"),
    ("service", "/plan/service"),
    ("interface", "/plan/openai"),
    ("batch size", "/plan/batch_size"),
    ("streams of requests", "/plan/streams"),
    ("different requests", "/plan/requests"),
    ("first request", "/plan/first_request"),
    ("recording", "/plan/recording/file"),
    ("requests with made contents", "/plan/recording/requests_with_made_contents"),
    ("made contents", "/plan/recording/made_contents"),
    ("input format", "/plan/input_tensor_format"),
    ("output format", "/plan/output_tensor_format"),
    ("compression", "/plan/compression"),
    ("shared memory", "/plan/shared_memory"),
    ("sequences", "/plan/sequences"),
    ("priority", "/plan/priority"),
    ("load", "/plan/load"),
    ("window, ms", "/plan/rules/window_ms"),
    ("window, requests", "/plan/rules/window_requests"),
    ("request count", "/plan/rules/request_count"),
    ("client threads", "/plan/client/threads"),
    ("client connections", "/plan/client/connections"),
    ("client CPU", "/machine/cpu"),
    ("client cores", "/machine/cores"),
];

/// Those that are compared where both reports have them: HTTP/1.1 has no frames, and older reports did not state them.
const SETTINGS_OF_BOTH: [(&str, &str); 6] = [
    ("client pinned to", "/plan/client/pinned_to"),
    ("client engine", "/points/0/client/engine"),
    ("client spins", "/plan/client/spin"),
    ("client's HTTP/2 frames, bytes", "/plan/client/http2/frame_bytes_max"),
    ("client's HTTP/2 window of a stream, bytes", "/plan/client/http2/stream_window_bytes"),
    ("client's HTTP/2 window of a connection, bytes", "/plan/client/http2/connection_window_bytes"),
];

/// Letters of a setting that a line shows.
const SETTING_LETTERS_MAX: usize = 120;

/// Stands for a figure of a void point.
const VOID: &str = "void";

/// A row of the table: the load and the figure, both values, their ratio, the noise and the verdict.
pub type Row = [String; 7];

pub const HEAD: [&str; 7] = ["load", "figure", "A", "B", "B/A", "noise", "verdict"];

/// The outcome of a comparison.
#[derive(Debug, Default)]
pub struct Comparison {
    pub rows: Vec<Row>,
    /// What differs in the set-ups, a line for each.
    pub differences: Vec<String>,
    /// What limits the comparison.
    pub notes: Vec<String>,
    /// By how many percent B is worse in its worst judged figure, and which that is. A load point that only A has is
    /// worse by all of it.
    pub worst: Option<(f64, String)>,
}

/// Compares the load points that both runs have; an error if there is none.
pub fn compare(a: &Run, b: &Run) -> Result<Comparison, String> {
    let mut comparison = Comparison { differences: differences(a, b), ..Comparison::default() };
    let mut found = false;
    for point in a.points() {
        let load = load(point);
        match b.points().iter().find(|other| self::load(other) == load) {
            Some(other) => {
                found = true;
                comparison.point(&load, point, other);
            }
            // Else a run that ended before its heaviest load would pass.
            None => {
                comparison.judge(100.0, || format!("every figure at {load}, which is in A only"));
                comparison.notes.push(format!("{load} is in A only"));
            }
        }
    }
    let known: BTreeSet<String> = a.points().iter().map(load).collect();
    let only = b.points().iter().map(load).filter(|load| !known.contains(load));
    comparison.notes.extend(only.map(|load| format!("{load} is in B only")));
    if found { Ok(comparison) } else { Err("no load point is in both reports".to_owned()) }
}

impl Comparison {
    /// Keeps the worst.
    fn judge(&mut self, worse: f64, name: impl FnOnce() -> String) {
        if self.worst.as_ref().is_none_or(|(worst, _)| worse > *worst) {
            self.worst = Some((worse, name()));
        }
    }

    fn point(&mut self, load: &str, a: &Value, b: &Value) {
        let is_void = [a, b].map(is_void);
        if is_void != [false; 2] {
            return self.void_point(load, [a, b], is_void);
        }
        for figure in &FIGURES {
            let of = |point: &Value| point.pointer(figure.at).and_then(Value::as_f64).filter(|value| value.is_finite());
            let (one, other) = (of(a), of(b));
            if one.is_none() && other.is_none() {
                continue;
            }
            let ratio = one.zip(other).filter(|(one, _)| *one > 0.0).map(|(one, other)| other / one);
            let noise = noise(a, figure.noise).zip(noise(b, figure.noise)).map(|(one, other)| one.max(other));
            // A figure that B does not have, because nothing was completed, is worse by all of it.
            let worse = match other {
                Some(_) => ratio.and_then(|ratio| worse(ratio, figure.better)),
                None => Some(100.0),
            };
            if let Some(worse) = worse.filter(|_| JUDGED.contains(&figure.name)) {
                self.judge(worse, || format!("{} at {load}", figure.name));
            }
            self.rows.push([
                load.to_owned(),
                figure.name.to_owned(),
                or_none(one),
                or_none(other),
                ratio.map_or_else(|| NONE.to_owned(), |ratio| format!("{ratio:.3}")),
                noise.map_or_else(|| NONE.to_owned(), |noise| format!("{:.1} %", noise * 100.0)),
                verdict(ratio, noise, figure.better).to_owned(),
            ]);
        }
        for (name, point) in [("A", a), ("B", b)] {
            let failed = point["failed"].as_u64().unwrap_or(0);
            if failed > 0 {
                self.notes.push(format!("{load}: {failed} requests of {name} failed"));
            }
            if point["stable"] == Value::Bool(false) {
                self.notes.push(format!("{load}: {name} was not stable"));
            }
        }
    }

    /// One of the reports has no figures of the server there: nothing can be said of B, and so it does not pass.
    fn void_point(&mut self, load: &str, points: [&Value; 2], is_void: [bool; 2]) {
        for figure in &FIGURES {
            let values = points.map(|point| point.pointer(figure.at).and_then(Value::as_f64));
            if values == [None, None] {
                continue;
            }
            let cell = |at: usize| if is_void[at] { VOID.to_owned() } else { or_none(values[at]) };
            let none = || NONE.to_owned();
            let verdict = "not comparable".to_owned();
            self.rows.push([load.to_owned(), figure.name.to_owned(), cell(0), cell(1), none(), none(), verdict]);
        }
        for ((name, point), _) in ["A", "B"].iter().zip(points).zip(is_void).filter(|(_, is_void)| *is_void) {
            let reason = point["generator_limit"]["evidence"].as_str().map(super::text::plain).unwrap_or_default();
            let reason = if reason.is_empty() { reason } else { format!(": {reason}") };
            self.notes.push(format!("{load}: {name} is void, because the load generator was the limit{reason}"));
            self.judge(100.0, || format!("every figure at {load}, where {name} is void"));
        }
    }
}

/// Whether the load generator was the limit.
fn is_void(point: &Value) -> bool {
    point["void"] == Value::Bool(true)
}

/// How much worse B is, in percent of A. A rate of nought is worse by everything.
fn worse(ratio: f64, better: Better) -> Option<f64> {
    let worse = match better {
        Better::Higher => 1.0 - ratio,
        Better::Lower => ratio - 1.0,
    };
    Some(worse * 100.0).filter(|worse| *worse > 0.0)
}

fn verdict(ratio: Option<f64>, noise: Option<f64>, better: Better) -> &'static str {
    let Some(ratio) = ratio else { return NONE };
    let Some(noise) = noise else { return "noise unknown" };
    match (ratio - 1.0, better) {
        (difference, _) if difference.abs() <= noise => "within the noise",
        (difference, Better::Higher) if difference > 0.0 => "better",
        (difference, Better::Lower) if difference < 0.0 => "better",
        _ => "worse",
    }
}

/// The spread of the counted windows by their mean: of the rate, or of the latency that the rules judge. A run of one
/// window has none.
fn noise(point: &Value, of: Noise) -> Option<f64> {
    let windows = point["windows"].as_array()?;
    let counted = windows.iter().filter(|window| window["counted"] == Value::Bool(true));
    let figure = |window: &Value| match of {
        Noise::Rate => {
            let seconds = window["seconds"].as_f64().filter(|seconds| *seconds > 0.0)?;
            Some(window["completed"].as_f64()? / seconds)
        }
        Noise::Latency => window["judged_us"].as_f64(),
    };
    let figures: Vec<f64> = counted.filter_map(figure).collect();
    let mean = figures.iter().sum::<f64>() / figures.len() as f64;
    if figures.len() < 2 || mean <= 0.0 {
        return None;
    }
    let (low, high) = figures.iter().fold((f64::MAX, 0.0f64), |(low, high), one| (low.min(*one), high.max(*one)));
    Some((high - low) / mean)
}

/// `concurrency 4`, `rate 100`.
fn load(point: &Value) -> String {
    let value = point["load"]["value"].as_f64().map(significant).unwrap_or_default();
    super::text::plain(&format!("{} {value}", point["load"]["kind"].as_str().unwrap_or("load")))
}

fn differences(a: &Run, b: &Run) -> Vec<String> {
    let shown = |value: &Value| match value {
        Value::Null => NONE.to_owned(),
        Value::String(text) => short(text),
        other => short(&other.to_string()),
    };
    let of = |run: &'_ Run, at: &str| run.0.pointer(at).cloned().unwrap_or_default();
    let values = |(name, at): &(&'static str, &str)| (*name, of(a, at), of(b, at));
    let of_both = SETTINGS_OF_BOTH.iter().map(values).filter(|(_, one, other)| !one.is_null() && !other.is_null());
    let differing = SETTINGS.iter().map(values).chain(of_both).filter(|(_, one, other)| one != other);
    differing.map(|(name, one, other)| format!("{name}: {} | {}", shown(&one), shown(&other))).collect()
}

/// Fit for a line of a terminal.
fn short(text: &str) -> String {
    let text = super::text::plain(text);
    match text.chars().count() > SETTING_LETTERS_MAX {
        true => text.chars().take(SETTING_LETTERS_MAX).chain(['…']).collect(),
        false => text,
    }
}

fn or_none(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), significant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadPoint;
    use crate::report::samples::Sample;

    fn run(sample: &Sample) -> Run {
        Run::parse(&super::super::json::render(&sample.report()).to_string()).expect("a report")
    }

    fn row<'a>(comparison: &'a Comparison, figure: &str) -> &'a Row {
        comparison.rows.iter().find(|row| row[1] == figure).unwrap_or_else(|| panic!("{figure}: {comparison:?}"))
    }

    #[test]
    fn equal_runs_do_not_differ() {
        let sample = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        let found = compare(&run(&sample), &run(&sample)).expect("a comparison");
        assert_eq!(found.differences, Vec::<String>::new());
        assert_eq!((found.notes.len(), found.worst.is_none()), (0, true));
        assert!(found.rows.iter().all(|row| row[4] == "1.000" && row[6] == "within the noise"), "{found:?}");
        assert_eq!(found.rows.iter().filter(|row| row[0] == "concurrency 2").count(), found.rows.len() / 2);
    }

    #[test]
    fn a_difference_counts_beyond_the_noise() {
        let (a, mut b) = (Sample::new(&[LoadPoint::Concurrency(1)]), Sample::new(&[LoadPoint::Concurrency(1)]));
        b.points[0].counts.completed = 900;
        let found = compare(&run(&a), &run(&b)).expect("a comparison");
        let rate = row(&found, "inferences/s");
        assert_eq!((&*rate[4], &*rate[5], &*rate[6]), ("0.900", "0.0 %", "worse"));
        let (worse, name) = found.worst.expect("B is worse");
        assert!((worse - 10.0).abs() < 0.01 && name == "inferences/s at concurrency 1", "{worse} {name}");
        // Windows that differ by a third hide it.
        for (window, completed) in b.points[0].windows.iter_mut().zip([200, 300, 300]) {
            window.completed = completed;
        }
        let found = compare(&run(&a), &run(&b)).expect("a comparison");
        assert_eq!(row(&found, "inferences/s")[6], "within the noise");
        let back = compare(&run(&b), &run(&a)).expect("a comparison");
        assert_eq!(back.worst, None, "A is the better one");
        b.points[0].windows.truncate(1);
        let found = compare(&run(&a), &run(&b)).expect("a comparison");
        assert_eq!((&*row(&found, "inferences/s")[5], &*row(&found, "inferences/s")[6]), ("n/a", "noise unknown"));
    }

    #[test]
    fn set_ups_and_points_that_differ_are_named() {
        let a = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        let mut b = Sample::new(&[LoadPoint::Concurrency(2), LoadPoint::Concurrency(4)]);
        b.plan.model = "other".into();
        b.plan.target.protocol = crate::Protocol::GrpcUnary;
        b.points[0].counts.failed = 3;
        b.points[0].client.engine = nereid_shard::EngineKind::IoUring;
        let found = compare(&run(&a), &run(&b)).expect("a comparison");
        let differences = ["model: identity | other", "protocol: http | grpc", "client engine: epoll | io_uring"];
        assert_eq!(found.differences, differences);
        let notes =
            ["concurrency 1 is in A only", "concurrency 2: 3 requests of B failed", "concurrency 4 is in B only"];
        assert!(notes.iter().all(|note| found.notes.iter().any(|found| found == note)), "{:?}", found.notes);
        let worst = (100.0, "every figure at concurrency 1, which is in A only".to_owned());
        assert_eq!(found.worst, Some(worst));
        let c = Sample::new(&[LoadPoint::Rate(2.0)]);
        assert_eq!(compare(&run(&a), &run(&c)).unwrap_err(), "no load point is in both reports");
    }

    #[test]
    fn made_contents_are_part_of_the_set_up() {
        let mut a = Sample::new(&[LoadPoint::Concurrency(1)]);
        a.record();
        let mut b = Sample::new(&[LoadPoint::Concurrency(1)]);
        b.record();
        let recording = b.plan.work.recording.as_mut().expect("a recording");
        (recording.made, recording.contents) = (4, nereid_recording::Contents::Zero);
        let found = compare(&run(&a), &run(&b)).expect("a comparison");
        assert_eq!(found.differences, ["requests with made contents: 3 | 4", "made contents: random | zeros"]);
    }

    #[test]
    fn a_void_point_is_not_comparable() {
        let a = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        let mut b = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        b.points[1].limits.generator = Some(crate::GeneratorLimit::Saturated { thread: 0, busy: 0.99 });
        for (one, other, name) in [(&a, &b, "B"), (&b, &a, "A")] {
            let found = compare(&run(one), &run(other)).expect("a comparison");
            let (void, good): (Vec<_>, Vec<_>) = found.rows.iter().partition(|row| row[0] == "concurrency 2");
            assert!(good.iter().all(|row| row[6] == "within the noise"), "{good:?}");
            let at = if name == "B" { 3 } else { 2 };
            let is_void = |row: &&Row| row[at] == "void" && row[5 - at] != "void" && row[4] == "n/a";
            assert!(void.iter().all(|row| is_void(row) && row[6] == "not comparable"), "{void:?}");
            assert_eq!(void.len(), good.len());
            let note = format!(
                "concurrency 2: {name} is void, because the load generator was the limit: its thread 0 used 99 % of a \
                 core"
            );
            assert_eq!(found.notes, [note]);
            assert_eq!(found.worst, Some((100.0, format!("every figure at concurrency 2, where {name} is void"))));
        }
    }

    #[test]
    fn nothing_measured_is_no_figure() {
        let a = Sample::new(&[LoadPoint::Concurrency(1)]);
        let mut b = Sample::new(&[LoadPoint::Concurrency(1)]);
        b.points[0] = crate::report::samples::empty(LoadPoint::Concurrency(1));
        let found = compare(&run(&a), &run(&b)).expect("a comparison");
        let p50 = row(&found, "latency p50, us");
        assert_eq!((&*p50[3], &*p50[4], &*p50[6]), ("n/a", "n/a", "n/a"));
        assert_eq!(found.worst.map(|(worse, _)| worse), Some(100.0));
    }

    #[test]
    fn other_files_are_refused() {
        for (text, part) in [
            ("", "EOF"),
            ("{}", "not a report of nereid perf --json"),
            ("[1]", "not a report"),
            (r#"{"format":1,"points":7}"#, "not a report"),
            (r#"{"format":9,"points":[]}"#, "a report of format 9; this program reads 1"),
        ] {
            let error = Run::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let hostile = r#"{"format":1,"points":[{"load":7,"windows":[{"counted":true,"seconds":0}]},null]}"#;
        let hostile = Run::parse(hostile).unwrap();
        let _ = compare(&hostile, &hostile);
    }
}
