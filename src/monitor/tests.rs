//! Readings of pages: ours with histograms, and a page as Triton writes it (docs/contract/metrics.md); views of them.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::index::rows;
use super::*;

const TRITON: &str = include_str!("tests/triton.txt");
const GPU: &str = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

/// A reading `secs` after another one.
fn reading(began: Instant, secs: u64, page: &str, index: &Value) -> Reading {
    Reading {
        at: began + Duration::from_secs(secs),
        clock: SystemTime::UNIX_EPOCH + Duration::from_secs(10_000 + secs),
        address: "host:8000".into(),
        live: true,
        ready: true,
        name: "triton".into(),
        version: "2.75.0".into(),
        index: Ok(rows(index)),
        figures: Ok(Figures::parse(page)),
    }
}

/// A page of ours: one model with so many requests, each of 20 us but for a tenth of 100 us, in batches of 4.
fn page(requests: u64, failures: u64) -> String {
    let fast = requests - requests / 10;
    let sum = fast * 20 + requests / 10 * 100;
    let series = |name: &str, value: u64| format!("{name}{{model=\"m\",version=\"1\"}} {value}\n");
    let bucket = |bound: &str, count: u64| {
        let bucket = "nereid_request_duration_us_bucket";
        format!("{bucket}{{model=\"m\",version=\"1\",le=\"{bound}\"}} {count}\n")
    };
    [
        series("nv_inference_request_success", requests),
        series("nv_inference_request_failure", failures),
        series("nv_inference_count", requests),
        series("nv_inference_exec_count", requests / 4),
        series("nv_inference_request_duration_us", sum),
        series("nv_inference_pending_request_count", 3),
        bucket("16", 0),
        bucket("32", fast),
        bucket("64", fast),
        bucket("128", requests),
        bucket("+Inf", requests),
        series("nereid_request_duration_us_count", requests),
        series("nereid_request_duration_us_sum", sum),
        "nereid_shards 2\nnereid_connections 12\nprocess_start_time_seconds 9000\n".to_owned(),
        "nereid_refused_requests_total{reason=\"queue_full\"} 5\nnereid_build_info{version=\"0.1.0\"} 1\n".to_owned(),
    ]
    .concat()
}

fn index() -> Value {
    json!([{"name": "m", "version": "1", "state": "READY"}])
}

#[test]
fn rates_and_quantiles_are_those_of_the_interval() {
    let began = Instant::now();
    let before = reading(began, 0, &page(1000, 0), &index());
    let now = reading(began, 2, &page(2000, 10), &index());
    let overview = Overview::between(Some(&before), &now);
    let rates = &overview.rows[0].rates;
    assert_eq!((rates.requests_per_s, rates.failures_per_s, rates.batch), (Some(500.0), Some(5.0), Some(4.0)));
    assert_eq!((rates.pending, rates.success_total), (Some(3.0), Some(2000.0)));
    // 1,000 requests of 28 us in 2 s.
    assert_eq!(rates.in_flight, Some(0.014));
    let latency = rates.latency(Phase::Request);
    assert_eq!(latency.mean_us, Some(28.0));
    let near = |quantile: Option<Quantile>, expected: f64| {
        let Some(Quantile::At(value)) = quantile else { panic!("{quantile:?}") };
        assert!((value - expected).abs() < 0.01, "{value}");
    };
    // Half of 900 observations between 16 and 32; 90 of the last 100 between 64 and 128.
    near(latency.p50_us, 16.0 + 16.0 * 500.0 / 900.0);
    near(latency.p99_us, 64.0 + 64.0 * 90.0 / 100.0);
    assert_eq!(rates.latency(Phase::Queue), Latency::default(), "not on the page");
    assert_eq!((overview.server.shards, overview.server.connections), (Some(2.0), Some(12.0)));
    assert_eq!((overview.refused_per_s, overview.uptime_secs), (Some(0.0), Some(1002)));
    assert_eq!(overview.totals.rates.requests_per_s, Some(500.0));
    // One reading gives counts and no rates.
    let alone = Overview::between(None, &now);
    let rates = &alone.rows[0].rates;
    assert_eq!((rates.requests_per_s, rates.success_total, rates.pending), (None, Some(2000.0), Some(3.0)));
    assert_eq!(rates.latency(Phase::Request).p99_us, None);
}

#[test]
fn counters_that_begin_again_make_no_negative_rates() {
    let began = Instant::now();
    let before = reading(began, 0, &page(1000, 7), &index());
    let reloaded = reading(began, 1, &page(40, 0), &index());
    let rates = Overview::between(Some(&before), &reloaded).rows[0].rates.clone();
    assert_eq!((rates.requests_per_s, rates.failures_per_s), (Some(40.0), Some(0.0)));
    // Another process: nothing can be said about the interval.
    let restarted = page(40, 0).replace("seconds 9000", "seconds 9999");
    let restarted = reading(began, 1, &restarted, &index());
    let overview = Overview::between(Some(&before), &restarted);
    assert_eq!((overview.rows[0].rates.requests_per_s, overview.secs), (None, 0.0));
}

#[test]
fn a_page_of_triton_gives_what_it_has() {
    let began = Instant::now();
    let later = TRITON.replace("version=\"1\"} 1200\n", "version=\"1\"} 1300\n").replace("} 3000000\n", "} 3200000\n");
    let index = json!([
        {"name": "ensemble", "version": "3", "state": "READY"},
        {"name": "resnet", "version": "1", "state": "READY"},
        {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "failed to load"},
        {"name": "old", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]);
    let (before, now) = (reading(began, 0, TRITON, &index), reading(began, 1, &later, &index));
    let overview = Overview::between(Some(&before), &now);
    let row = |name: &str| overview.rows.iter().find(|row| row.key.name == name).unwrap();
    assert_eq!(overview.rows.len(), 4, "the ensemble has one row, with its state");
    assert_eq!(row("ensemble").state.as_ref().map(|state| state.word()), Some("READY"));
    let rates = &row("resnet").rates;
    // The series of the device counts too; 1,200 became 1,300 in three families.
    assert_eq!((rates.success_total, rates.requests_per_s), (Some(1600.0), Some(100.0)));
    assert_eq!((rates.failure_total, rates.refused_per_s, rates.pending), (Some(3.0), None, Some(7.0)));
    let latency = rates.latency(Phase::Request);
    assert_eq!(latency.mean_us, Some(2000.0));
    assert_eq!((latency.p50_us, latency.p99_us), (Some(Quantile::At(1800.0)), Some(Quantile::At(4100.0))));
    assert_eq!(row("ensemble").rates.latency(Phase::Request).p99_us, None, "NaN is no figure");
    assert_eq!(rates.latency(Phase::Output), Latency::default());
    assert_eq!((overview.server.shards, overview.uptime_secs, overview.refused_per_s), (None, None, None));
    let (uuid, gpu) = &overview.gpus[0];
    assert_eq!((uuid.as_str(), gpu.utilization, gpu.power_limit_watts), (GPU, Some(0.42), None));
    let totals = &overview.totals;
    assert_eq!((totals.ready, totals.unavailable, totals.unloaded), (2, 1, 1));
    // All of it is shown, missing figures as n/a.
    let mut view = View::new("host:8000".into());
    view.update(overview);
    let screen = text(&view.lines(120, 30));
    for part in ["shards n/a", "connections n/a", "up n/a", "GPU GPU-0a1b2c3d", "use 42%", "4 GiB of 16 GiB"] {
        assert!(screen.contains(part), "{part:?} in\n{screen}");
    }
    assert!(screen.contains("62 W of n/a"), "{screen}");
}

#[test]
fn what_a_page_holds_is_bounded() {
    let many = |count: usize| -> String {
        (0..count).map(|at| format!("nv_inference_count{{model=\"m{at}\",version=\"1\"}} 1\n")).collect()
    };
    let figures = Figures::parse(&many(figures::MODELS_MAX + 10));
    assert_eq!((figures.models.len(), figures.left_out), (figures::MODELS_MAX, 10));
    let long = format!("nv_inference_count{{model=\"{}\",version=\"1\"}} 1\n", "x".repeat(100_000));
    let figures = Figures::parse(&long);
    assert_eq!(figures.models.keys().next().map(|key| key.name.len()), Some(figures::TEXT_BYTES_MAX));
    let gpus: String = (0..300).map(|at| format!("nv_gpu_utilization{{gpu_uuid=\"{at}\"}} 0.5\n")).collect();
    assert_eq!(Figures::parse(&gpus).gpus.len(), figures::GPUS_MAX);
    // Nonsense is left out.
    let nonsense = "nv_inference_count{model=\"a\",version=\"1\"} NaN\nnv_gpu_utilization 1\n{} 1\n{model=\"} 2\n";
    assert_eq!(Figures::parse(nonsense).models.values().next().map(|model| model.inferences), Some(None));
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| line.text() + "\n").collect()
}

/// A view of `count` models; model `m7` has 7 requests a second.
fn view_of(count: u64) -> View {
    let began = Instant::now();
    let page = |factor: u64| -> String {
        let series = |at| format!("nv_inference_request_success{{model=\"m{at}\",version=\"1\"}} {}\n", at * factor);
        (0..count).map(series).collect()
    };
    let (before, now) = (reading(began, 0, &page(1), &json!([])), reading(began, 1, &page(2), &json!([])));
    let mut view = View::new("host:8000".into());
    view.update(Overview::between(Some(&before), &now));
    view
}

#[test]
fn a_thousand_models_scroll_on_any_screen() {
    let mut view = view_of(1000);
    let shown = |view: &mut View, width, height| {
        let lines = view.lines(width, height);
        assert_eq!(lines.len(), height);
        assert!(lines.iter().all(|line| line.text().chars().count() <= width), "{}", text(&lines));
        text(&lines)
    };
    let screen = shown(&mut view, 80, 24);
    assert!(screen.contains("\nm999 ") && screen.contains("1-17 of 1000") && !screen.contains("\nm900 "), "{screen}");
    for column in ["MODEL", "STATE", "REQ/S▼", "QUEUE", "MEAN", "P99"] {
        assert!(screen.contains(column), "{column} in\n{screen}");
    }
    assert!(!screen.contains("P50"), "no room for it\n{screen}");
    assert!(shown(&mut view, 200, 50).contains("P50"));
    // To the end and back by a page.
    view.key(Key::End);
    assert!(shown(&mut view, 80, 24).contains("984-1000 of 1000"));
    view.key(Key::PageUp);
    let screen = shown(&mut view, 80, 24);
    assert!(screen.contains("983-999 of 1000"), "{screen}");
    view.key(Key::Home);
    assert!(shown(&mut view, 80, 24).contains("1-17 of 1000"));
    // Small screens show what they can.
    for (width, height) in [(1, 1), (5, 2), (20, 3), (40, 6)] {
        shown(&mut view, width, height);
        view.key(Key::Enter);
        shown(&mut view, width, height);
        view.key(Key::Escape);
    }
}

#[test]
fn keys_sort_filter_pause_and_open_a_model() {
    let mut view = view_of(30);
    let first = |view: &mut View| {
        let lines = view.lines(120, 40);
        let at = lines.iter().position(|line| line.text().starts_with("MODEL")).unwrap();
        lines[at + 1].text().split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(first(&mut view), "m29");
    view.key(Key::Char('r'));
    assert_eq!(first(&mut view), "m0");
    // Left of the requests: state, version, then the name.
    (0..3).for_each(|_| assert_eq!(view.key(Key::Left), Command::Continue));
    assert_eq!(first(&mut view), "m0");
    view.key(Key::Char('r'));
    assert_eq!(first(&mut view), "m9");
    for key in ['/', 'M', '1', '7', 'q'] {
        assert_eq!(view.key(Key::Char(key)), Command::Continue, "q belongs to the filter");
    }
    assert!(text(&view.lines(120, 40)).contains("filter: M17q_") && text(&view.lines(120, 40)).contains("no model"));
    view.key(Key::Backspace);
    view.key(Key::Enter);
    assert_eq!(first(&mut view), "m17");
    view.key(Key::Down);
    view.key(Key::Enter);
    let detail = text(&view.lines(100, 30));
    for part in ["m17  version 1", "requests/s", "17", "phase", "queue", "█"] {
        assert!(detail.contains(part), "{part:?} in\n{detail}");
    }
    view.key(Key::Escape);
    view.key(Key::Escape);
    // A paused view keeps its figures; a server that is away is named, and the figures stay.
    view.key(Key::Char('p'));
    let Some(later) = view_of(1).lines(120, 40).first().map(|line| line.text()) else { panic!("a line") };
    assert!(later.contains("host:8000"));
    let began = Instant::now();
    view.update(Overview::between(None, &reading(began, 0, "", &json!([]))));
    let screen = text(&view.lines(120, 40));
    assert!(screen.contains("PAUSED") && screen.contains("m17"), "{screen}");
    view.lose("cannot connect to host:8000: refused".into());
    let screen = text(&view.lines(120, 40));
    assert!(screen.contains("AWAY") && screen.contains("figures are old, trying again: cannot"), "{screen}");
    view.key(Key::Char(' '));
    view.update(Overview::between(None, &reading(began, 0, "", &json!([]))));
    let screen = text(&view.lines(120, 40));
    assert!(screen.contains("no models") && screen.contains("READY"), "{screen}");
    assert_eq!(view.key(Key::Char('q')), Command::Quit);
    assert_eq!(View::new("x".into()).key(Key::Interrupt), Command::Quit);
}

#[test]
fn names_of_models_do_not_steer_the_terminal() {
    let index = json!([{"name": "a\u{1b}[2J", "version": "1", "state": "READY\u{7}", "reason": "b\u{9b}"}]);
    let overview = Overview::between(None, &reading(Instant::now(), 0, "", &index));
    let mut view = View::new("x".into());
    view.update(overview);
    view.key(Key::Down);
    let table = text(&view.lines(120, 20));
    view.key(Key::Enter);
    let both = table + &text(&view.lines(120, 20)) + &view.plain();
    assert!(both.contains("a?[2J") && !both.contains(['\u{1b}', '\u{9b}', '\u{7}']), "{both:?}");
}

#[test]
fn the_table_for_scripts_cuts_nothing() {
    let long = "x".repeat(100);
    let page = format!("nv_inference_request_success{{model=\"{long}\",version=\"12\"}} 5\n");
    let (began, index) = (Instant::now(), json!([{"name": "b", "version": "1", "state": "LOADING"}]));
    let (before, now) = (reading(began, 0, &page, &index), reading(began, 1, &page, &index));
    let mut view = View::new("x".into());
    view.update(Overview::between(Some(&before), &now));
    let table = view.plain();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0].len(), 12);
    assert_eq!(lines[1][..5], [&long, "12", "-", "0", "n/a"]);
    assert_eq!(lines[2][..4], ["b", "1", "LOADING", "n/a"]);
    assert_eq!(lines[3][0], "TOTAL");
}

#[test]
fn a_status_tells_good_from_bad() {
    let began = Instant::now();
    let good = reading(began, 0, &page(10, 1), &index());
    let report = StatusReport::new(&good);
    assert!(report.is_good());
    let text = report.text();
    for part in ["host:8000: live, ready", "server: triton 2.75.0, build 0.1.0", "uptime: 16m 40s", "m  1  READY"] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    let totals =
        "1 ready, 0 loading or unloading, 0 unavailable, 0 unloaded; 10 requests answered, 1 failed, 3 waiting";
    assert!(text.contains(totals), "{text}");
    let document: Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(document["server"]["ready"], true);
    assert_eq!((&document["models"][0]["requests"], &document["totals"]["requests"]), (&json!(10), &json!(10)));
    // One that failed, one that was unloaded on purpose.
    let failed = json!([
        {"name": "m", "version": "1", "state": "READY"},
        {"name": "n", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]);
    assert!(StatusReport::new(&reading(began, 0, "", &failed)).is_good());
    let failed = json!([{"name": "n", "version": "1", "state": "UNAVAILABLE", "reason": "no such file"}]);
    let failed = reading(began, 0, "", &failed);
    let report = StatusReport::new(&failed);
    assert!(!report.is_good() && report.text().contains("FAILED     no such file"), "{}", report.text());
    // Without the index nothing is known of the models, whatever has metrics.
    let hidden = Reading { index: Err("403".into()), ..reading(began, 0, &page(10, 1), &index()) };
    let report = StatusReport::new(&hidden);
    assert!(!report.is_good() && report.text().contains("\nn/a ready, "), "{}", report.text());
    assert!(report.text().contains("note: no repository index: 403"), "{}", report.text());
    // What a server does not show is null, and a note.
    let poor = Reading { figures: Err("refused".into()), index: Err("403".into()), ready: false, ..good };
    let report = StatusReport::new(&poor);
    let document: Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!((&document["totals"]["requests"], &document["server"]["uptime_secs"]), (&Value::Null, &Value::Null));
    assert_eq!(document["totals"]["ready"], Value::Null);
    assert!(!report.is_good() && report.text().contains("note: no metrics: refused"), "{}", report.text());
}
