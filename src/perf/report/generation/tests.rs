//! What reports say of generated answers, and what they leave out.

use std::time::Duration;

use super::*;
use crate::generation::{Generation, Usage};
use crate::openai::tests::openai;
use crate::report::samples::{self, Sample};
use crate::report::{html, json, profile, text};
use crate::{LoadPoint, Service};

const MS: u64 = 1_000_000;

/// Answers of ten tokens each: the first after 20 ms, then one each 5 ms.
fn sample(loads: &[LoadPoint], tokens: Option<u64>) -> Sample {
    let mut sample = Sample::new(loads);
    let goals = Goals { first_token: Some(Duration::from_millis(25)), ..Goals::default() };
    sample.plan.service = Service::OpenAi(Box::new(OpenAi { goals, ..openai() }));
    sample.plan.server_statistics = false;
    for point in &mut sample.points {
        point.server = None;
        let mut totals = GenerationTotals::default();
        for _ in 0..point.counts.completed {
            let generation = Generation {
                is_streamed: true,
                times_ns: (0..10).map(|at| (20 + 5 * at) * MS).collect(),
                chunks: 10,
                usage: Usage { input: tokens.map(|_| 100), output: tokens },
            };
            totals.count(&generation, 0, 70 * MS, &goals);
        }
        point.generation = Some(Box::new(totals));
    }
    sample
}

fn block_of(sample: &Sample) -> String {
    text::point(&sample.report(), &sample.points[0], false)
}

fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let line =
        text.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim_start().strip_prefix(name).unwrap().split_whitespace().collect()
}

#[test]
fn a_block_has_every_figure() {
    let text = block_of(&sample(&[LoadPoint::Concurrency(4)], Some(10)));
    for part in [
        "    Request count: 1000\n",
        "    Request throughput: 333.333 requests/sec\n",
        "    Output token throughput: 3333.33 tokens/sec\n",
        "    Input token throughput: 33333.3 tokens/sec\n",
        "    Goodput: 333.333 requests/sec, 100 % of all requests\n",
        "    Note: output tokens are those of the server's usage\n",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(!text.contains("infer/sec") && !text.contains("Avg latency"), "{text}");
    assert_eq!(row(&text, "avg"), ["p50", "p90", "p95", "p99", "max"]);
    let figures = row(&text, "Time to first token, ms");
    assert_eq!(figures.len(), 6);
    assert!(figures.iter().all(|figure| figure.starts_with("20.0") || figure.starts_with("19.9")), "{figures:?}");
    assert!(row(&text, "Inter-token latency, ms")[1].starts_with("5.0"));
    assert!(row(&text, "Time per output token, ms")[1].starts_with("5.0"));
    assert_eq!(row(&text, "Output tokens"), ["10.0"; 6]);
    assert_eq!(row(&text, "Input tokens"), ["100.0"; 6]);
}

#[test]
fn what_nobody_counted_is_said() {
    let mut sample = sample(&[LoadPoint::Concurrency(4)], None);
    let text = block_of(&sample);
    for part in [
        "Note: output tokens are chunks with text: the server reported no usage",
        "Note: the server reported no input tokens",
        "Input token throughput: n/a tokens/sec",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert_eq!(row(&text, "Input tokens"), ["n/a"; 6]);
    sample.points[0] = samples::empty(LoadPoint::Concurrency(4));
    let text = block_of(&sample);
    assert_eq!(row(&text, "Time to first token, ms"), ["n/a"; 6]);
    assert!(text.contains("Output token throughput: n/a") && text.contains("Goodput: n/a"), "{text}");
    sample.points[0].counts.failed = 3;
    assert!(block_of(&sample).contains("Goodput: 0 requests/sec, 0 % of all requests"));
    let line = text::table(&sample.report()).lines().nth(1).unwrap().to_owned();
    assert_eq!(line.split_whitespace().filter(|cell| *cell == "n/a").count(), 7, "{line}");
}

#[test]
fn notes_tell_what_the_tokens_are() {
    let point = samples::point(LoadPoint::Concurrency(1), 100);
    let notes_with = |streaming: bool, counts: crate::GenerationCounts| {
        let mut totals = GenerationTotals { counts, ..GenerationTotals::default() };
        totals.input_tokens.record(1).unwrap();
        let point = Measurement { generation: Some(Box::new(totals)), ..point.clone() };
        notes(&OpenAi { streaming, ..openai() }, &point).join("\n")
    };
    let none = crate::GenerationCounts::default();
    let mixed = crate::GenerationCounts { by_usage: 5, by_chunks: 3, uncounted: 2, without_text: 1, ..none };
    let text = notes_with(true, mixed);
    assert!(text.contains("of 5 answers are those of the server's usage, of 3 they are chunks"), "{text}");
    assert!(text.contains("2 answers have no count of tokens") && text.contains("1 answers had no text"), "{text}");
    let large = crate::GenerationCounts { by_usage: 1, streamed_tokens: 25, streamed_chunks: 10, ..none };
    assert!(notes_with(true, large).contains("a chunk has 2.50 tokens on average"));
    let small = crate::GenerationCounts { by_usage: 1, streamed_tokens: 10, streamed_chunks: 10, ..none };
    assert!(!notes_with(true, small).contains("on average"));
    assert!(notes_with(false, small).contains("answers were not streamed"));
}

#[test]
fn settings_tell_what_is_asked_for() {
    let mut sample = sample(&[], None);
    sample.plan.work.streams = vec![vec![crate::Template::default(); 3]];
    let lines = |sample: &Sample| text::settings(&sample.report());
    let text = lines(&sample);
    for part in [
        "Model identity, version 1 at localhost:8000, OpenAI's chats on /v1/chat/completions\n",
        "  Prompts: 3 different ones of 5 words by chance\n",
        "  Answers: streamed, as long as the server lets them; good ones: time to first token up to 25 ms\n",
        "  Closed loop, in flight: 1 to 2 by 1\n",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    let given = OpenAi {
        streaming: false,
        output: Some(Length { mean: 9, deviation: 2 }),
        is_output_exact: true,
        prompts: crate::openai::Prompts { source: PromptSource::File("a\nb".into()), shared_prefix: 7 },
        ..openai()
    };
    sample.plan.service = Service::OpenAi(Box::new(given));
    let text = lines(&sample);
    for part in [
        "  Prompts: 3 different ones from a?b, behind 7 words that all share\n",
        "  Answers: not streamed, of exactly 9 (deviation 2) tokens\n",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
}

#[test]
fn the_table_and_the_csv_have_a_line_for_each_point() {
    let mut sample = sample(&[LoadPoint::Rate(2.0), LoadPoint::Rate(1.0)], Some(10));
    sample.points[1].generation = None;
    sample.points[0].counts.completed *= 2;
    let table = text::table(&sample.report());
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[0].contains("req/sec  tokens/sec  TTFT p50"), "{table}");
    let csv = super::super::csv::render(&sample.report(), false);
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{csv}");
    let column =
        |name: &str| rows[0].iter().position(|column| *column == name).unwrap_or_else(|| panic!("{name}: {csv}"));
    assert_eq!((rows[1][0], rows[2][0]), ("1", "2"), "in the order of throughput");
    assert_eq!(rows[1][column("Time to first token p50 (ms)")], "n/a");
    assert!(rows[2][column("Time to first token p50 (ms)")].starts_with("20.0"));
    assert_eq!(rows[2][column("Output tokens max")], "10");
    assert_eq!(rows[2][column("Counted By Usage")], "1000");
}

#[test]
fn programs_read_the_same() {
    let sample = sample(&[LoadPoint::Concurrency(1)], Some(10));
    let value = json::render(&sample.report());
    assert_eq!(
        (&value["plan"]["service"], &value["plan"]["openai"]["interface"]),
        (&"openai".into(), &"chat/completions".into())
    );
    assert_eq!(value["plan"]["openai"]["goals_ms"]["first_token"], 25.0);
    let point = &value["points"][0];
    assert_eq!(point["breakdown_us"], serde_json::Value::Null, "the server's time is not the network's");
    let generation = &point["generation"];
    assert_eq!((&generation["output_tokens"], &generation["counted"]["by_usage"]), (&10_000.into(), &1000.into()));
    assert_eq!((&generation["good"], &generation["good_part"]), (&1000.into(), &1.0.into()));
    assert_eq!(
        (&generation["first_token"]["count"], &generation["between_tokens"]["count"]),
        (&1000.into(), &9000.into())
    );
    assert_eq!(generation["output_tokens_per_request"]["percentiles"]["p99"], 10);
    assert_eq!(generation["output_tokens_per_request"]["buckets"], serde_json::json!([[10, 1000]]));
    let mut bytes = Vec::new();
    profile::write(&sample.report(), &mut bytes).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((&value["service_kind"], &value["endpoint"]), (&"openai".into(), &"v1/chat/completions".into()));
    // Inferences have none of it.
    let value = json::render(&Sample::new(&[LoadPoint::Concurrency(1)]).report());
    assert_eq!(
        (&value["points"][0]["generation"], &value["plan"]["service"]),
        (&serde_json::Value::Null, &"triton".into())
    );
}

#[test]
fn the_page_shows_tokens() {
    let mut sample = sample(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)], Some(10));
    sample.points[1].generation = None;
    let page = html::render(&sample.report());
    for part in [
        "Output tokens over load",
        "Distribution of time to first token",
        "Distribution of inter-token latency",
        "<td>Time per output token, ms</td>",
        "<td>Goodput</td>",
        "<dt>Prompts</dt>",
        "<th>TTFT p50</th>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("Where the time went") && !page.contains("infer/s") && !page.contains("NaN"));
    assert_eq!(page.matches("<svg ").count(), 9);
    assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
    assert_eq!(page.matches("<tbody>").count(), page.matches("</tbody>").count());
    sample.plan.service = Service::OpenAi(Box::new(OpenAi { streaming: false, ..openai() }));
    assert_eq!(html::render(&sample.report()).matches("<svg ").count(), 5);
}
