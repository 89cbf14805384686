//! The times of single requests, in the form of perf_analyzer's `--profile-export-file`.
//!
//! Written piece by piece: a run may have recorded a million requests for each load point.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

use super::{Report, version};
use crate::{LoadPoint, Measurement, Record};

#[derive(Serialize)]
struct Profile<'a, E> {
    experiments: E,
    endpoint: &'a str,
    service_kind: &'static str,
    version: String,
}

#[derive(Serialize)]
struct Experiment<R> {
    experiment: Load,
    requests: R,
    window_boundaries: Vec<u64>,
    requests_not_recorded: u64,
}

#[derive(Serialize)]
struct Load {
    mode: &'static str,
    value: Level,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Level {
    Concurrency(usize),
    Rate(f64),
}

#[derive(Serialize)]
struct Request<T> {
    timestamp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_id: Option<u64>,
    response_timestamps: T,
    success: bool,
    /// This and the next are Nereid's own.
    due_timestamp: u64,
    template: usize,
}

/// A list whose elements are made as they are written.
struct Each<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Each<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

pub fn write(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let experiments = report.points.iter().enumerate().map(|(at, point)| {
        let began = report.point_began.get(at).copied().unwrap_or(report.began);
        experiment(point, nanoseconds(began))
    });
    let openai = report.plan.service.openai();
    let profile = Profile {
        experiments: Each(experiments),
        // Without its first slash, as perf_analyzer has it.
        endpoint: openai.map_or("", |openai| openai.path.trim_start_matches('/')),
        service_kind: if openai.is_some() { "openai" } else { "triton" },
        version: version(),
    };
    serde_json::to_writer(&mut *out, &profile)?;
    out.write_all(b"\n")
}

fn experiment(point: &Measurement, began_ns: u64) -> impl Serialize {
    let (mode, value) = match point.load {
        LoadPoint::Concurrency(count) => ("concurrency", Level::Concurrency(count)),
        LoadPoint::Rate(rate) | LoadPoint::Intervals(rate) => ("request_rate", Level::Rate(rate)),
    };
    // Records begin with the counted windows, which follow each other.
    let first = point.records.iter().map(|record| record.sent_ns.min(record.due_ns)).min().unwrap_or(0);
    let mut boundary = Duration::from_nanos(first);
    let mut window_boundaries = Vec::new();
    for wall in [Duration::ZERO].into_iter().chain(point.windows.iter().filter(|w| w.counted).map(|w| w.wall)) {
        boundary = boundary.saturating_add(wall);
        window_boundaries.push(began_ns.saturating_add(u64::try_from(boundary.as_nanos()).unwrap_or(u64::MAX)));
    }
    Experiment {
        experiment: Load { mode, value },
        requests: Each(point.records.iter().map(move |record| request(record, began_ns))),
        window_boundaries,
        requests_not_recorded: point.records_dropped,
    }
}

fn request(record: &Record, began_ns: u64) -> impl Serialize {
    let at = move |ns: u64| began_ns.saturating_add(ns);
    Request {
        timestamp: at(record.sent_ns),
        sequence_id: record.sequence_id,
        response_timestamps: Each(record.responses_ns.iter().map(move |response| at(*response))),
        success: !record.failed,
        due_timestamp: at(record.due_ns),
        template: record.template,
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::report::samples::Sample;

    #[test]
    fn requests_have_the_times_of_the_wall() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(3), LoadPoint::Concurrency(4)]);
        let record = |due_ns, id| Record {
            due_ns,
            sent_ns: due_ns + 5,
            responses_ns: vec![due_ns + 10, due_ns + 20],
            sequence_id: id,
            template: 1,
            failed: id.is_some(),
        };
        sample.points[0].records = vec![record(0, None), record(100, Some(7))];
        sample.points[0].records_dropped = 2;
        let mut bytes = Vec::new();
        write(&sample.report(), &mut bytes).expect("memory takes it");
        let value: Value = serde_json::from_slice(&bytes).expect("JSON");
        let began = 1_700_000_000_000_000_000u64;
        let first = &value["experiments"][0];
        assert_eq!(first["experiment"], json!({ "mode": "concurrency", "value": 3 }));
        assert_eq!(
            first["requests"],
            json!([
                {
                    "timestamp": began + 5, "response_timestamps": [began + 10, began + 20], "success": true,
                    "due_timestamp": began, "template": 1
                },
                {
                    "timestamp": began + 105, "sequence_id": 7, "response_timestamps": [began + 110, began + 120],
                    "success": false, "due_timestamp": began + 100, "template": 1
                },
            ])
        );
        let second = 1_000_000_000u64;
        assert_eq!(first["window_boundaries"], json!([began, began + second, began + 2 * second, began + 3 * second]));
        assert_eq!(first["requests_not_recorded"], json!(2));
        assert_eq!(value["experiments"][1]["requests"], json!([]));
        assert_eq!(value["version"], json!(version()));
    }

    /// Scripts read it that were written for perf_analyzer's.
    #[test]
    fn a_file_is_the_same_byte_for_byte() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(3), LoadPoint::Rate(2.5)]);
        let answered =
            Record { due_ns: 0, sent_ns: 5, responses_ns: vec![10, 20], sequence_id: None, template: 1, failed: false };
        let lost = Record { responses_ns: Vec::new(), sequence_id: Some(7), failed: true, ..answered.clone() };
        sample.points[0].records = vec![answered, lost];
        sample.points[0].records_dropped = 2;
        let mut bytes = Vec::new();
        write(&sample.report(), &mut bytes).expect("memory takes it");
        let expected = concat!(
            r#"{"experiments":[{"experiment":{"mode":"concurrency","value":3},"requests":["#,
            r#"{"timestamp":1700000000000000005,"response_timestamps":[1700000000000000010,1700000000000000020],"#,
            r#""success":true,"due_timestamp":1700000000000000000,"template":1},"#,
            r#"{"timestamp":1700000000000000005,"sequence_id":7,"response_timestamps":[],"#,
            r#""success":false,"due_timestamp":1700000000000000000,"template":1}],"#,
            r#""window_boundaries":[1700000000000000000,1700000001000000000,1700000002000000000,"#,
            r#"1700000003000000000],"requests_not_recorded":2},"#,
            r#"{"experiment":{"mode":"request_rate","value":2.5},"requests":[],"#,
            r#""window_boundaries":[1700000000000000000,1700000001000000000,1700000002000000000,"#,
            r#"1700000003000000000],"requests_not_recorded":0}],"#,
            r#""endpoint":"","service_kind":"triton","version":"VERSION"}"#,
            "\n",
        );
        let expected = expected.replace("VERSION", &version());
        assert_eq!(String::from_utf8(bytes).expect("a text"), expected);
    }
}
