//! A page with everything that a reader of a run wants to see: one file, without scripts, nothing fetched from
//! anywhere.

mod plots;

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use hdrhistogram::Histogram;

use super::figures::{
    NONE, Phases, deviation_us, doubts, load, max_us, mean_us, percentile_name, quantile_us, significant, whole,
};
use super::plot::escape;
use super::{Report, client, generation, text, version};
use crate::openai::OpenAi;
use crate::{LoadPoint, Measurement, ServerSide};

/// Texts of errors and metrics of one point.
const ROWS_MAX: usize = 200;
const PERCENTILES: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];
/// Of this page, and of others with such plots.
pub const STYLE: &str = include_str!("html/style.css");

/// The whole page.
pub fn render(report: &Report<'_>) -> String {
    let points = report.shown();
    let report = &Report { points: &points, ..*report };
    let title = escape(&format!("{} under load", report.plan.model));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    head(report, &mut page);
    if report.points.is_empty() {
        page.push_str("<p class=\"doubt\">Nothing was measured.</p>\n");
    } else {
        summary(report, &mut page);
        plots::all(report, &mut page);
        page.push_str("<h2>Load points</h2>\n");
        for point in report.points {
            details(report, point, &mut page);
        }
    }
    let _ = write!(
        page,
        "<footer>Made by {}. Latency of an open loop counts from the time at which a request was \
         due.</footer>\n</main>\n</body>\n</html>\n",
        escape(&version())
    );
    page
}

fn head(report: &Report<'_>, page: &mut String) {
    page.push_str("<dl class=\"facts\">");
    let mut fact = |name: &str, value: &str| {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    };
    for line in text::settings(report).lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = match line.split_once(' ') {
            Some(("Model", rest)) => ("Model", rest),
            Some(("Server", rest)) => ("Server", rest),
            Some(("Batch", _)) => ("Requests", line),
            Some(("Recording", rest)) => ("Recording", rest),
            Some(("Left", rest)) => ("Left out", rest.trim_start_matches("out: ")),
            Some(("Note:", rest)) => ("Note", rest),
            Some(("Prompts:", rest)) => ("Prompts", rest),
            Some(("Answers:", rest)) => ("Answers", rest),
            Some(("Closed" | "Open", _)) => ("Load", line),
            Some(("Transport:", rest)) => ("Transport", rest),
            Some(("Client:", rest)) => ("Client", rest),
            Some(("Sequences", rest)) => ("Sequences", rest),
            _ => ("Rules", line),
        };
        fact(name, value);
    }
    fact("Began", &utc(report.began));
    page.push_str("</dl>\n");
}

fn cells<'a>(tag: &str, cells: impl IntoIterator<Item = &'a str>, page: &mut String) {
    page.push_str("<tr>");
    for cell in cells {
        let _ = write!(page, "<{tag}>{}</{tag}>", escape(cell));
    }
    page.push_str("</tr>\n");
}

fn summary(report: &Report<'_>, page: &mut String) {
    let what = report.points.first().map_or("Load", |point| load(point.load).0);
    page.push_str("<h2>Summary</h2>\n<div class=\"wide\"><table>\n<thead>");
    match report.plan.service.openai() {
        Some(openai) => table(generation::table(report, openai), page),
        None => inferences(report, what, page),
    }
    page.push_str("</table></div>\n");
    let doubtful = report.points.iter().flat_map(|point| {
        let name = text::heading(point.load);
        let void = client::void(point).map(|reason| format!("void: {reason}"));
        void.into_iter().chain(doubts(point)).map(move |doubt| format!("{name}: {doubt}"))
    });
    for doubt in doubtful {
        let _ = writeln!(page, "<p class=\"doubt\">{}</p>", escape(&doubt));
    }
}

/// A line for each point, behind the head of the columns.
fn inferences(report: &Report<'_>, what: &str, page: &mut String) {
    let head =
        [what, "infer/s", "avg µs", "p50", "p90", "p95", "p99", "p99.9", "max", "server µs", "client CPU µs", "failed"];
    cells("th", head, page);
    page.push_str("</thead>\n<tbody>");
    for point in report.points {
        let quantile = |percentile| whole(&point.histograms.latency_ns, |latency| quantile_us(latency, percentile));
        let server = point.server.as_ref().filter(|server| server.success.count > 0);
        let server = server.map_or(NONE.to_owned(), |server| format!("{:.0}", Phases::of(server).request));
        let row = [
            significant(load(point.load).1),
            significant(text::inferences_per_s(report, point)),
            whole(&point.histograms.latency_ns, mean_us),
            quantile(50.0),
            quantile(90.0),
            quantile(95.0),
            quantile(99.0),
            quantile(99.9),
            whole(&point.histograms.latency_ns, max_us),
            server,
            client::cpu(point),
            point.counts.failed.to_string(),
        ];
        cells("td", row.iter().map(String::as_str), page);
    }
    page.push_str("</tbody>\n");
}

/// Rows, of which the first is the head.
fn table(rows: Vec<Vec<String>>, page: &mut String) {
    for (at, row) in rows.iter().enumerate() {
        cells(if at == 0 { "th" } else { "td" }, row.iter().map(String::as_str), page);
        if at == 0 {
            page.push_str("</thead>\n<tbody>");
        }
    }
    page.push_str("</tbody>\n");
}

/// A section for one point, closed until the reader opens it.
fn details(report: &Report<'_>, point: &Measurement, page: &mut String) {
    let _ = writeln!(page, "<details><summary>{}</summary>", escape(&text::heading(point.load)));
    page.push_str("<div class=\"wide\"><table>\n<tbody>");
    let mut row = |name: &str, value: String| cells("td", [name, value.as_str()], page);
    row(
        "Requests",
        format!("{} completed, {} failed, {} sent", point.counts.completed, point.counts.failed, point.counts.sent),
    );
    match report.plan.service.openai() {
        Some(openai) => generated(openai, point, &mut row),
        None => latencies(report, point, &mut row),
    }
    if !matches!(point.load, LoadPoint::Concurrency(_)) {
        row("Sent after it was due", mean_and_p99(&point.histograms.send_lag_ns));
        row("Of that, the client's delay", client::schedule_line(point));
        row("Latency from sending", mean_and_p99(&point.histograms.service_ns));
    }
    if report.plan.work.decoupled {
        row("First response", mean_and_p99(&point.histograms.first_response_ns));
        row("Between responses", mean_and_p99(&point.histograms.between_responses_ns));
    }
    row("Bytes", format!("{} sent, {} received", point.counts.bytes_sent, point.counts.bytes_received));
    row("Client CPU", format!("{} µs a request", client::cpu(point)));
    row("Client threads", client::threads_line(point));
    row("Client transport", client::connections_line(point));
    row("Void", client::void(point).unwrap_or_else(|| "no".to_owned()));
    row("Stable", if point.stable { "yes" } else { "no" }.to_owned());
    for (error, count) in point.errors.counts.iter().take(ROWS_MAX) {
        row("Failed", format!("{count}: {}", text::plain(error)));
    }
    if point.errors.other > 0 {
        row("Failed", format!("{}: other reasons", point.errors.other));
    }
    page.push_str("</tbody>\n</table></div>\n");
    if report.plan.service.openai().is_some() {
        tokens(report, point, page);
    }
    for side in point.server.iter().chain(&point.composing) {
        server(side, page);
    }
    windows(point, page);
    metrics(point, page);
    page.push_str("</details>\n");
}

fn mean_and_p99(histogram: &Histogram<u64>) -> String {
    match histogram.is_empty() {
        true => NONE.to_owned(),
        false => format!("{:.1} µs, p99 {:.1} µs", mean_us(histogram), quantile_us(histogram, 99.0)),
    }
}

/// Rows of inferences.
fn latencies(report: &Report<'_>, point: &Measurement, row: &mut impl FnMut(&str, String)) {
    row("Throughput", format!("{} infer/s", significant(text::inferences_per_s(report, point))));
    if point.counts.responses != point.counts.completed {
        let rate = client::rate(point, point.response_rate());
        row("Responses", format!("{}, {} a second", point.counts.responses, significant(rate)));
    }
    if report.plan.work.sequences.is_some() {
        row("Sequences", point.counts.sequences.to_string());
    }
    let latency = |text: String| if point.histograms.latency_ns.is_empty() { NONE.to_owned() } else { text };
    let (mean, deviation) = (mean_us(&point.histograms.latency_ns), deviation_us(&point.histograms.latency_ns));
    row("Latency, mean", latency(format!("{mean:.1} µs ± {deviation:.1}")));
    for percentile in PERCENTILES {
        let us = quantile_us(&point.histograms.latency_ns, percentile);
        row(&format!("Latency, p{}", percentile_name(percentile)), latency(format!("{us:.1} µs")));
    }
    row("Latency, max", latency(format!("{:.1} µs", max_us(&point.histograms.latency_ns))));
}

/// Rows of generated answers.
fn generated(openai: &OpenAi, point: &Measurement, row: &mut impl FnMut(&str, String)) {
    let rates = generation::Rates::of(openai, point);
    row("Request throughput", format!("{} requests/s", significant(client::rate(point, point.rate()))));
    row("Output token throughput", format!("{} tokens/s", generation::or_none(rates.output_tokens)));
    row("Input token throughput", format!("{} tokens/s", generation::or_none(rates.input_tokens)));
    if !openai.goals.is_empty() {
        row("Goodput", generation::goodput(&rates));
    }
    for note in generation::notes(openai, point) {
        row("Note", note);
    }
}

/// The distributions of generated answers.
fn tokens(report: &Report<'_>, point: &Measurement, page: &mut String) {
    let mut percentiles = PERCENTILES[..5].to_vec();
    percentiles.extend(report.percentiles().iter().filter(|own| !PERCENTILES[..5].contains(own)));
    percentiles.sort_by(f64::total_cmp);
    let mut rows = vec![[String::new()].into_iter().chain(generation::columns(&percentiles)).collect::<Vec<_>>()];
    for figure in generation::figures(point) {
        rows.push([figure.title()].into_iter().chain(figure.cells(&percentiles)).collect());
    }
    page.push_str("<h3>Tokens</h3>\n<div class=\"wide\"><table>\n<thead>");
    table(rows, page);
    page.push_str("</table></div>\n");
}

fn server(side: &ServerSide, page: &mut String) {
    let name = escape(&text::plain(&format!("Server: {}", text::named(&side.model, &side.version))));
    let _ = write!(page, "<h3>{name}</h3>\n<div class=\"wide\"><table>\n<thead>");
    cells("th", ["phase", "requests", "µs each"], page);
    page.push_str("</thead>\n<tbody>");
    for (name, phase) in [
        ("success", side.success),
        ("fail", side.fail),
        ("queue", side.queue),
        ("cache hit", side.cache_hit),
        ("cache miss", side.cache_miss),
        ("compute input", side.compute_input),
        ("compute infer", side.compute_infer),
        ("compute output", side.compute_output),
    ] {
        let mean = if phase.count == 0 { NONE.to_owned() } else { format!("{:.1}", phase.mean_us()) };
        cells("td", [name, &phase.count.to_string(), &mean], page);
    }
    let batch = if side.executions == 0 { NONE.to_owned() } else { significant(side.mean_batch()) };
    cells("td", ["batches executed", &side.executions.to_string(), &format!("{batch} inferences each")], page);
    page.push_str("</tbody>\n</table></div>\n");
}

fn windows(point: &Measurement, page: &mut String) {
    if point.windows.is_empty() {
        return;
    }
    page.push_str("<h3>Windows</h3>\n<div class=\"wide\"><table>\n<thead>");
    cells("th", ["window", "seconds", "completed", "failed", "mean µs", "counted"], page);
    page.push_str("</thead>\n<tbody>");
    for (at, window) in point.windows.iter().enumerate().take(ROWS_MAX) {
        let row = [
            (at + 1).to_string(),
            format!("{:.3}", window.wall.as_secs_f64()),
            window.completed.to_string(),
            window.failed.to_string(),
            if window.completed == 0 { NONE.to_owned() } else { format!("{:.1}", window.mean_ns / 1e3) },
            if window.counted { "yes" } else { "no" }.to_owned(),
        ];
        cells("td", row.iter().map(String::as_str), page);
    }
    page.push_str("</tbody>\n</table></div>\n");
}

fn metrics(point: &Measurement, page: &mut String) {
    if point.metrics.is_empty() {
        return;
    }
    page.push_str("<h3>Metrics of the server</h3>\n<div class=\"wide\"><table>\n<thead>");
    cells("th", ["metric", "first", "last", "mean", "max"], page);
    page.push_str("</thead>\n<tbody>");
    for (name, figures) in point.metrics.iter().take(ROWS_MAX) {
        let [first, last, mean, max] = [figures.first, figures.last, figures.mean, figures.max].map(significant);
        cells("td", [text::plain(name).as_str(), &first, &last, &mean, &max], page);
    }
    page.push_str("</tbody>\n</table></div>\n");
}

/// `2026-11-22 02:07:35 UTC`.
fn utc(time: SystemTime) -> String {
    let secs = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let time = i64::try_from(secs).ok().and_then(|secs| DateTime::<Utc>::from_timestamp(secs, 0)).unwrap_or_default();
    time.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::samples::Sample;

    #[test]
    fn dates() {
        for (secs, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(secs)), text);
        }
    }

    #[test]
    fn a_page_stands_alone_and_shows_every_plot() {
        let sample = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        let page = render(&sample.report());
        for part in [
            "Latency over load",
            "Throughput over load",
            "Percentiles",
            "Distribution",
            "Where the time went",
            "Rate over time",
            "Request concurrency: 2",
            "prefers-color-scheme",
            "@media print",
            "width=device-width",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg ").count(), 6);
        let without_names = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for foreign in ["http://", "https://", "<script", "<link", "@import", "url("] {
            assert!(!without_names.contains(foreign), "{foreign}");
        }
        assert!(!page.contains("secret") && !page.contains("NaN"));
    }

    #[test]
    fn names_of_models_do_nothing() {
        let mut sample = Sample::new(&[LoadPoint::Rate(5.0)]);
        let evil = "\"><img src=x onerror='alert(1)'>";
        sample.plan.model = evil.into();
        sample.model_info.version = evil.into();
        sample.model_info.server = evil.into();
        sample.points[0].errors.count(evil);
        sample.points[0].server.as_mut().expect("statistics").model = evil.into();
        sample.points[0].metrics.insert(evil.into(), crate::MetricFigures::default());
        let page = render(&sample.report());
        assert!(!page.contains("<img"), "{page}");
        assert!(page.matches("&lt;img").count() >= 5);
    }

    #[test]
    fn a_recording_is_named_with_what_is_left_out() {
        let mut sample = Sample::new(&[LoadPoint::Intervals(2.0)]);
        sample.record();
        let page = render(&sample.report());
        for part in [
            "<dt>Recording</dt><dd>monday.rec: 4 of its 6 requests, 3 of them with made contents</dd>",
            "<dt>Left out</dt><dd>2, it is of another model</dd>",
            "<dt>Note</dt><dd>the file ends</dd>",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn nothing_measured_is_said() {
        let sample = Sample::new(&[]);
        assert!(render(&sample.report()).contains("Nothing was measured."));
        let mut sample = Sample::new(&[LoadPoint::Rate(5.0)]);
        sample.points[0] = crate::report::samples::empty(LoadPoint::Rate(5.0));
        let page = render(&sample.report());
        assert!(!page.contains("NaN") && !page.contains("inf "), "{page}");
    }
}
