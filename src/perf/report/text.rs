//! What stands in the terminal: what is measured, a block for each load point, and a table of the sweep.

use std::fmt::Write;

use hdrhistogram::Histogram;

use super::figures::{
    NONE, Phases, deviation_us, doubts, load, max_us, mean_us, percentile_name, quantile_us, significant, usec, whole,
};
use super::{Report, client, generation};
use crate::{
    Compression, Load, LoadPoint, Measurement, Protocol, Recording, Rules, ServerSide, SharedMemory, Spacing, Window,
};

/// Percentiles of a block.
const PERCENTILES: [f64; 5] = [50.0, 90.0, 95.0, 99.0, 99.9];
/// Texts of errors in a block.
const ERRORS_SHOWN: usize = 8;
/// Letters of a text that came from somewhere else.
const FOREIGN_TEXT_MAX: usize = 300;

/// What is about to be measured.
pub fn settings(report: &Report<'_>) -> String {
    let plan = report.plan;
    let work = &plan.work;
    let mut text = String::new();
    let protocol = match plan.target.protocol {
        Protocol::Http => "HTTP",
        Protocol::GrpcUnary => "gRPC, a call for each request",
        Protocol::GrpcStream => "gRPC, a stream for each connection",
        Protocol::Ipc => "shared-memory ring, a call for each request",
    };
    let tls = if plan.target.tls.is_some() { " over TLS" } else { "" };
    let model = plain(&named(&plan.model, &report.model_info.version));
    let at = &plan.target.endpoint;
    let templates: usize = work.streams.iter().map(Vec::len).sum();
    if let Some(openai) = plan.service.openai() {
        let (interface, path) = (generation::interface(openai), &openai.path);
        let _ = writeln!(text, "Model {model} at {at}, {interface} on {path}{tls}");
        text.push_str(&server_line(report));
        text.push_str(&generation::settings(openai, templates));
        return text + &course(report);
    }
    let _ = writeln!(text, "Model {model} at {at}, {protocol}{tls}");
    text.push_str(&server_line(report));
    let plural = if templates == 1 { "" } else { "s" };
    let _ = match &work.recording {
        Some(_) => write!(text, "  Batch sizes as recorded, {templates} different request{plural}"),
        None => write!(text, "  Batch size {}, {templates} different request{plural}", report.batch),
    };
    match work.shared_memory {
        SharedMemory::System { .. } => text.push_str(", tensors in system shared memory"),
        SharedMemory::Arena { .. } => text.push_str(", tensors in the arena of each ring"),
        SharedMemory::None => {}
    }
    match work.compression {
        Compression::None => {}
        Compression::Gzip => text.push_str(", packed with gzip"),
        Compression::Deflate => text.push_str(", packed with deflate"),
    }
    text.push('\n');
    if let Some(recording) = &work.recording {
        recorded(recording, &mut text);
    }
    text + &course(report)
}

/// What of a recording is sent, and what is not.
fn recorded(recording: &Recording, text: &mut String) {
    let (used, left_out) = (recording.used, &recording.left_out);
    let all = used.saturating_add(left_out.total());
    let _ = write!(text, "  Recording {}: {used} of its {all} requests", plain(&recording.file.to_string_lossy()));
    let _ = match recording.made {
        0 => writeln!(text, ", contents as recorded"),
        made if made == used => writeln!(text, ", with made contents"),
        made => writeln!(text, ", {made} of them with made contents"),
    };
    for (reason, count) in left_out.counts.iter().take(ERRORS_SHOWN) {
        let _ = writeln!(text, "  Left out: {count}, {}", plain(reason));
    }
    let shown: u64 = left_out.counts.values().take(ERRORS_SHOWN).sum();
    let rest = left_out.total().saturating_sub(shown);
    if rest > 0 {
        let _ = writeln!(text, "  Left out: {rest} for other reasons");
    }
    if let Some(note) = &recording.note {
        let _ = writeln!(text, "  Note: {note}");
    }
}

/// The server by its metadata, and the program behind it by its metrics.
fn server_line(report: &Report<'_>) -> String {
    let info = report.model_info;
    let metadata = (!info.server.is_empty())
        .then(|| format!("{}, as its metadata say", plain(&named(&info.server, &info.server_version))));
    let build = (!info.server_build.is_empty()).then(|| format!("{}, as its metrics say", plain(&info.server_build)));
    let known: Vec<String> = metadata.into_iter().chain(build).collect();
    if known.is_empty() { String::new() } else { format!("  Server {}\n", known.join("; ")) }
}

/// How it is measured: the load, the rules, the client.
fn course(report: &Report<'_>) -> String {
    let plan = report.plan;
    let mut text = format!("  {}\n", load_line(&plan.load));
    if let Some(sequences) = &plan.work.sequences {
        let length = sequences.length.map_or("as long as their data".to_owned(), |length| {
            format!("{length} requests long, varied by {} %", significant(sequences.length_variation_percent))
        });
        let _ = writeln!(text, "  Sequences {length}, ids from {}", sequences.first_id);
    }
    let _ = writeln!(text, "  {}", rules_line(&plan.rules));
    let threads = if plan.client.threads == 1 { "1 thread" } else { &format!("{} threads", plan.client.threads) };
    let _ = writeln!(text, "  Transport: {}", client::transport_line(plan));
    let _ = writeln!(text, "  Client: {threads} on {}", report.machine.line());
    text.push('\n');
    text
}

pub fn load_line(load: &Load) -> String {
    let span = |start: String, end: Option<String>, step: String| match end {
        Some(end) if end == start => start,
        Some(end) => format!("{start} to {end} by {step}"),
        None => format!("{start} and up by {step}"),
    };
    match load {
        Load::Concurrency(sweep) => {
            let end = sweep.end.map(|end| end.to_string());
            format!("Closed loop, in flight: {}", span(sweep.start.to_string(), end, sweep.step.to_string()))
        }
        Load::Rate { sweep, spacing } => {
            let (start, step) = (significant(sweep.start), significant(sweep.step));
            let spacing = match spacing {
                Spacing::Constant => "evenly spaced",
                Spacing::Poisson => "spaced by chance (Poisson)",
            };
            format!("Open loop, requests a second: {}, {spacing}", span(start, sweep.end.map(significant), step))
        }
        Load::Intervals(intervals) => format!("Open loop, {} intervals again and again", intervals.len()),
        Load::Recorded(times) => {
            let speed = match times.speed == 1.0 {
                true => String::new(),
                false => format!(", {} times as fast", significant(times.speed)),
            };
            format!("Open loop, {} requests at their recorded times again and again{speed}", times.offsets.len())
        }
    }
}

pub fn rules_line(rules: &Rules) -> String {
    if let Some(count) = rules.request_count {
        return format!("One window of {count} requests");
    }
    let window = match rules.window {
        Window::Time(time) => format!("{} ms", time.as_millis()),
        Window::Count(count) => format!("{count} requests"),
    };
    let judged = rules.percentile.map_or("mean".to_owned(), |percentile| format!("p{}", percentile_name(percentile)));
    let mut line = format!(
        "Windows of {window}, until three in a row are within {} % in rate and {judged} latency, {} at most",
        significant(rules.stability_percent),
        rules.trials_max
    );
    if let Some(threshold) = rules.latency_threshold {
        let _ = write!(line, "; {judged} latency up to {} ms", significant(threshold.as_secs_f64() * 1e3));
    }
    line
}

/// For people: not a number where nothing was measured, or where it is void.
pub fn inferences_per_s(report: &Report<'_>, point: &Measurement) -> f64 {
    client::rate(point, report.inferences_per_s(point))
}

/// A line before a point is measured.
pub fn heading(point: LoadPoint) -> String {
    match point {
        LoadPoint::Concurrency(count) => format!("Request concurrency: {count}"),
        LoadPoint::Rate(rate) => format!("Request rate: {} requests a second", significant(rate)),
        LoadPoint::Intervals(rate) => format!("Request intervals: {} requests a second on average", significant(rate)),
    }
}

/// A block for one point.
pub fn point(report: &Report<'_>, point: &Measurement, verbose: bool) -> String {
    let mut text = format!("{}\n", heading(point.load));
    if let Some(void) = client::void(point) {
        let _ = writeln!(text, "  VOID: {void}");
    }
    let shown = point.is_void().then(|| point.shown());
    let point = shown.as_ref().unwrap_or(point);
    if verbose {
        for (at, window) in point.windows.iter().enumerate() {
            let rate = window.completed as f64 / window.wall.as_secs_f64();
            let latency = if window.completed == 0 { NONE.to_owned() } else { format!("{:.0}", window.mean_ns / 1e3) };
            let counted = if window.counted { "" } else { " (not counted)" };
            let _ = writeln!(
                text,
                "  Pass [{}] throughput: {} requests/s, avg latency {latency} usec, {} failed{counted}",
                at + 1,
                significant(rate),
                window.failed,
            );
        }
    }
    of_client(report, point, &mut text);
    if let Some(server) = &point.server {
        text.push_str("  Server:\n");
        side(server, "    ", &mut text);
    }
    for server in &point.composing {
        let _ = writeln!(text, "  Composing model {}:", plain(&named(&server.model, &server.version)));
        side(server, "    ", &mut text);
    }
    if !point.metrics.is_empty() {
        text.push_str("  Server metrics (mean, max):\n");
        for (name, figures) in point.metrics.iter().filter(|(name, _)| name.starts_with("nv_gpu_")) {
            let _ = writeln!(text, "    {}: {}, {}", plain(name), significant(figures.mean), significant(figures.max));
        }
        let _ = writeln!(text, "    {} in all; --json and --html list them", point.metrics.len());
    }
    for doubt in doubts(point) {
        let _ = writeln!(text, "  WARNING: {doubt}");
    }
    text.push('\n');
    text
}

fn p99(histogram: &Histogram<u64>) -> f64 {
    quantile_us(histogram, 99.0)
}

fn of_client(report: &Report<'_>, point: &Measurement, text: &mut String) {
    let _ = writeln!(text, "  Client:\n    Request count: {}", point.counts.completed);
    if report.plan.work.sequences.is_some() {
        let _ = writeln!(text, "    Sequence count: {}", point.counts.sequences);
    }
    match report.plan.service.openai() {
        Some(openai) => generation::block(report, openai, point, text),
        None => latencies(report, point, text),
    }
    if !matches!(point.load, LoadPoint::Concurrency(_)) {
        let _ = writeln!(
            text,
            "    Late by {} on average, p99 {}; latency from the time of sending: avg {}, p99 {}",
            usec(&point.histograms.send_lag_ns, mean_us),
            usec(&point.histograms.send_lag_ns, p99),
            usec(&point.histograms.service_ns, mean_us),
            usec(&point.histograms.service_ns, p99),
        );
        let _ = writeln!(text, "    Of that, the client's own delay: {}", client::schedule_line(point));
    }
    if report.plan.work.decoupled {
        for (what, histogram) in [
            ("First response", &point.histograms.first_response_ns),
            ("Between responses", &point.histograms.between_responses_ns),
        ] {
            let (mean, p99) = (usec(histogram, mean_us), usec(histogram, p99));
            let p50 = usec(histogram, |histogram| quantile_us(histogram, 50.0));
            let _ = writeln!(text, "    {what}: avg {mean}, p50 {p50}, p99 {p99}");
        }
    }
    let megabytes = |bytes| client::megabytes(point, bytes);
    let (sent, received) = (megabytes(point.counts.bytes_sent), megabytes(point.counts.bytes_received));
    let _ = writeln!(text, "    Sent {sent} MB/s, received {received} MB/s");
    let _ = writeln!(
        text,
        "    Client CPU: {} usec a request (send and receive), {}\n    Client transport: {}",
        client::cpu(point),
        client::threads_line(point),
        client::connections_line(point)
    );
    for (error, count) in point.errors.counts.iter().take(ERRORS_SHOWN) {
        let _ = writeln!(text, "    {count} failed: {}", plain(error));
    }
    let shown: u64 = point.errors.counts.values().take(ERRORS_SHOWN).sum();
    let rest = point.errors.total().saturating_sub(shown);
    if rest > 0 {
        let _ = writeln!(text, "    {rest} failed for other reasons");
    }
}

/// Figures of inferences.
fn latencies(report: &Report<'_>, point: &Measurement, text: &mut String) {
    let _ = writeln!(text, "    Throughput: {} infer/sec", significant(inferences_per_s(report, point)));
    if point.counts.responses != point.counts.completed {
        let rate = client::rate(point, point.response_rate());
        let _ = writeln!(text, "    Response throughput: {} responses/sec", significant(rate));
    }
    let (mean, deviation) =
        (usec(&point.histograms.latency_ns, mean_us), usec(&point.histograms.latency_ns, deviation_us));
    let _ = writeln!(text, "    Avg latency: {mean} (standard deviation {deviation})");
    let mut percentiles = PERCENTILES.to_vec();
    percentiles.extend(report.percentiles().iter().filter(|percentile| !PERCENTILES.contains(percentile)));
    percentiles.sort_by(f64::total_cmp);
    for percentile in percentiles {
        let us = usec(&point.histograms.latency_ns, |latency| quantile_us(latency, percentile));
        let _ = writeln!(text, "    p{} latency: {us}", percentile_name(percentile));
    }
    let _ = writeln!(text, "    Max latency: {}", usec(&point.histograms.latency_ns, max_us));
}

fn side(server: &ServerSide, indent: &str, text: &mut String) {
    let _ = writeln!(
        text,
        "{indent}Inference count: {}\n{indent}Execution count: {}, {} inferences each\n{indent}Successful request \
         count: {}",
        server.inferences,
        server.executions,
        if server.executions == 0 { NONE.to_owned() } else { significant(server.mean_batch()) },
        server.success.count
    );
    if server.fail.count > 0 {
        let _ = writeln!(text, "{indent}Failed request count: {}", server.fail.count);
    }
    if server.cache_hit.count + server.cache_miss.count > 0 {
        let _ = writeln!(
            text,
            "{indent}Cache hit count: {}, miss count: {}",
            server.cache_hit.count, server.cache_miss.count
        );
    }
    if server.success.count == 0 {
        let _ = writeln!(text, "{indent}Avg request latency: {NONE}");
        return;
    }
    let phases = Phases::of(server);
    let _ = write!(
        text,
        "{indent}Avg request latency: {:.0} usec (overhead {:.0} usec + queue {:.0} usec + compute input {:.0} usec + \
         compute infer {:.0} usec + compute output {:.0} usec",
        phases.request,
        phases.overhead(),
        phases.queue,
        phases.compute_input,
        phases.compute_infer,
        phases.compute_output
    );
    if phases.cache_hit + phases.cache_miss > 0.0 {
        let _ = write!(text, " + cache hit {:.0} usec + cache miss {:.0} usec", phases.cache_hit, phases.cache_miss);
    }
    text.push_str(")\n");
}

/// A line for each point, after all are measured.
pub fn table(report: &Report<'_>) -> String {
    let Some(first) = report.points.first() else { return String::new() };
    let rows = match report.plan.service.openai() {
        Some(openai) => generation::table(report, openai),
        None => rows(report, first.load),
    };
    aligned(&rows) + &best(report).unwrap_or_default()
}

/// Head and lines of the table.
fn rows(report: &Report<'_>, first: LoadPoint) -> Vec<Vec<String>> {
    let head = [load(first).0, "infer/sec", "avg usec", "p50", "p90", "p99", "p99.9", "max", "client CPU", "notes"];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    for point in report.shown().iter() {
        let quantile = |percentile| whole(&point.histograms.latency_ns, |latency| quantile_us(latency, percentile));
        rows.push(vec![
            significant(load(point.load).1),
            significant(inferences_per_s(report, point)),
            whole(&point.histograms.latency_ns, mean_us),
            quantile(50.0),
            quantile(90.0),
            quantile(99.0),
            quantile(99.9),
            whole(&point.histograms.latency_ns, max_us),
            client::cpu(point),
            notes_of(point).join(", "),
        ]);
    }
    rows
}

/// What is wrong with a point, in few words.
pub(super) fn notes_of(point: &Measurement) -> Vec<String> {
    let (limits, is_void) = (&point.limits, point.is_void());
    let flags = [
        (is_void, "void: the load generator was the limit"),
        (limits.unsustainable && !is_void, "not sustainable"),
        (limits.behind_schedule && !is_void, "client-bound"),
        (!point.stable && !limits.unsustainable && !is_void, "unstable"),
        (!point.within_threshold && !is_void, "over the threshold"),
    ];
    let mut notes: Vec<String> = flags.iter().filter(|(is_so, _)| *is_so).map(|(_, note)| (*note).to_owned()).collect();
    if point.counts.failed > 0 {
        notes.push(format!("{} failed", point.counts.failed));
    }
    notes
}

/// Columns as wide as their widest cell, numbers to the right; the last column to the left.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match at + 1 == columns {
                true => write!(line, "  {cell}"),
                false if at == 0 => write!(line, "{cell:>width$}"),
                false => write!(line, "  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A line for each point in perf_analyzer's form, which scripts search for.
pub fn summary(report: &Report<'_>) -> String {
    let percentile = report.plan.rules.percentile;
    let latency = percentile.map_or("Average".to_owned(), |percentile| format!("p{}", percentile_name(percentile)));
    let mut text = format!("Inferences/Second vs. Client {latency} Batch Latency\n");
    for point in report.shown().iter() {
        let judged =
            |latency: &Histogram<u64>| percentile.map_or_else(|| mean_us(latency), |rank| quantile_us(latency, rank));
        let us = usec(&point.histograms.latency_ns, judged);
        let (name, value) = load(point.load);
        let rate = significant(inferences_per_s(report, point));
        let _ = writeln!(text, "{name}: {}, throughput: {rate} infer/sec, latency {us}", significant(value));
    }
    text
}

/// The highest load within the latency threshold.
fn best(report: &Report<'_>) -> Option<String> {
    let threshold = report.plan.rules.latency_threshold?;
    let is_good = |point: &&Measurement| point.within_threshold && !point.limits.unsustainable && !point.is_void();
    let good = report.points.iter().filter(is_good);
    let best = good.max_by(|one, other| load(one.load).1.total_cmp(&load(other.load).1));
    let limit = significant(threshold.as_secs_f64() * 1e3);
    let highest = best.map_or(0.0, |point| load(point.load).1);
    let mut text = match best {
        Some(point) => format!("Highest load within {limit} ms: {}\n", heading(point.load)),
        None => format!("No load was within {limit} ms\n"),
    };
    // The server may be able to do more than that.
    if report.points.iter().any(|point| point.is_void() && load(point.load).1 > highest) {
        text.push_str("A higher load is void: the load generator was the limit\n");
    }
    Some(text)
}

/// A model, and its version if it has one.
pub fn named(model: &str, version: &str) -> String {
    if version.is_empty() { model.to_owned() } else { format!("{model}, version {version}") }
}

/// Foreign text, made fit for a terminal: without control characters, and of bounded length.
pub fn plain(text: &str) -> String {
    let shown = text.chars().take(FOREIGN_TEXT_MAX);
    let mut shown: String = shown.map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    if text.chars().nth(FOREIGN_TEXT_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::samples::Sample;
    use crate::{MetricFigures, Sequences};

    #[test]
    fn a_block_tells_everything_of_a_point() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(4)]);
        sample.batch = 2;
        sample.points[0].errors.count_many("no \x1b[31mway\n", 3);
        sample.points[0].counts.failed = 3;
        let text = point(&sample.report(), &sample.points[0], true);
        for part in [
            "Request concurrency: 4\n",
            "  Pass [3] throughput: 333 requests/s, avg latency 120 usec, 0 failed\n",
            "    Request count: 1000\n",
            "    Throughput: 666.667 infer/sec\n",
            "    p50 latency: 1",
            "    p99.9 latency: ",
            "    Max latency: ",
            "    Client CPU: 3.99 usec a request",
            "    Client transport: 4 connections, epoll\n",
            "    3 failed: no ?[31mway?\n",
            "    Execution count: 500, 2 inferences each\n",
            "Avg request latency: 30 usec (overhead 12 usec + queue 5 usec + compute input 1 usec + compute infer 10 \
             usec + compute output 2 usec)",
            "  WARNING: 3 requests failed\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(!text.contains("First response") && !text.contains("Sequence count") && !text.contains("Late by"));
        assert!(!point(&sample.report(), &sample.points[0], false).contains("Pass ["));
    }

    #[test]
    fn what_was_not_measured_is_no_zero() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1)]);
        let empty = &mut sample.points[0];
        (empty.counts.completed, empty.counts.failed) = (0, 7);
        empty.histograms.latency_ns.reset();
        let server = empty.server.as_mut().expect("statistics");
        (server.success.count, server.executions) = (0, 0);
        let block = point(&sample.report(), &sample.points[0], false);
        for part in [
            "    Avg latency: n/a (standard deviation n/a)\n",
            "    p99 latency: n/a\n",
            "    Max latency: n/a\n",
            "    Client CPU: n/a usec a request",
            "    Execution count: 0, n/a inferences each\n",
            "    Avg request latency: n/a\n",
        ] {
            assert!(block.contains(part), "{part:?} in\n{block}");
        }
        let line = table(&sample.report()).lines().nth(1).expect("a line").to_owned();
        assert_eq!(line.split_whitespace().filter(|cell| *cell == "n/a").count(), 7, "{line}");
        assert!(summary(&sample.report()).contains("infer/sec, latency n/a\n"));
    }

    #[test]
    fn what_only_some_runs_have() {
        let mut sample = Sample::new(&[LoadPoint::Rate(50.0)]);
        sample.plan.work.decoupled = true;
        let sequences =
            Sequences { at_once: 4, length: Some(20), length_variation_percent: 20.0, first_id: 1, end_id: None };
        sample.plan.work.sequences = Some(sequences);
        sample.plan.rules.percentile = Some(85.0);
        sample.plan.rules.latency_threshold = Some(Duration::from_millis(5));
        sample.points[0].counts.responses = 4000;
        sample.points[0]
            .metrics
            .insert("nv_gpu_power_usage{}".into(), MetricFigures { mean: 3.5, ..Default::default() });
        let composing = sample.points[0].server.clone().expect("statistics");
        sample.points[0].composing = vec![ServerSide { model: "inner".into(), ..composing }];
        let text = point(&sample.report(), &sample.points[0], false);
        for part in [
            "Request rate: 50 requests a second\n",
            "    Sequence count: 0\n",
            "    Response throughput: 1333.33 responses/sec\n",
            "    p85 latency: ",
            "    Late by n/a on average",
            "    Of that, the client's own delay: n/a on average",
            "    First response: avg n/a, p50 n/a, p99 n/a\n",
            "  Composing model inner, version 1:\n",
            "    nv_gpu_power_usage{}: 3.5, 0\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        let text = settings(&sample.report());
        for part in [
            "20 requests long, varied by 20 %",
            "p85 latency up to 5 ms",
            "Model identity, version 1 at",
            "  Transport: HTTP/1.1; ",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn a_recording_says_what_it_gives_and_what_not() {
        let mut sample = Sample::new(&[LoadPoint::Intervals(2.0)]);
        sample.record();
        let text = settings(&sample.report());
        for part in [
            "  Batch sizes as recorded, 0 different requests\n",
            "  Recording monday.rec: 4 of its 6 requests, 3 of them with made contents\n",
            "  Left out: 2, it is of another model\n",
            "  Note: the file ends\n",
            "  Open loop, 3 requests at their recorded times again and again, 2 times as fast\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_point() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(16)]);
        sample.points[1].stable = false;
        sample.points[1].limits.behind_schedule = true;
        let text = table(&sample.report());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("Concurrency  infer/sec  avg usec"), "{text}");
        assert!(lines[2].ends_with("  client-bound, unstable"), "{text}");
        assert_eq!(lines[1].find("333.333"), lines[2].find("333.333"), "{text}");
        sample.plan.rules.latency_threshold = Some(Duration::from_micros(2500));
        assert!(table(&sample.report()).ends_with("Highest load within 2.5 ms: Request concurrency: 16\n"));
        sample.points[1].within_threshold = false;
        let text = table(&sample.report());
        assert!(
            text.contains(", over the threshold\n") && text.ends_with(" 2.5 ms: Request concurrency: 1\n"),
            "{text}"
        );
        sample.points[0].limits.unsustainable = true;
        assert!(table(&sample.report()).ends_with("No load was within 2.5 ms\n"));
        sample.points[1].limits.generator = Some(crate::GeneratorLimit::Outrun);
        assert!(table(&sample.report()).ends_with("A higher load is void: the load generator was the limit\n"));
        sample.points.clear();
        assert_eq!(table(&sample.report()), "");
    }

    #[test]
    fn the_summary_has_the_lines_that_scripts_look_for() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Rate(2.5)]);
        let mean = mean_us(&sample.points[0].histograms.latency_ns);
        let text = summary(&sample.report());
        let line = format!("\nConcurrency: 1, throughput: 333.333 infer/sec, latency {mean:.0} usec\n");
        assert!(
            text.starts_with("Inferences/Second vs. Client Average Batch Latency\n") && text.contains(&line),
            "{text}"
        );
        assert!(text.contains("\nRequest Rate: 2.5, throughput: "), "{text}");
        sample.plan.rules.percentile = Some(95.0);
        assert!(summary(&sample.report()).starts_with("Inferences/Second vs. Client p95 Batch Latency\n"));
    }

    #[test]
    fn loads_and_rules_in_words() {
        use crate::Sweep;
        for (load, line) in [
            (Load::Concurrency(Sweep { start: 4, end: Some(4), step: 1 }), "Closed loop, in flight: 4"),
            (Load::Concurrency(Sweep { start: 1, end: Some(8), step: 2 }), "Closed loop, in flight: 1 to 8 by 2"),
            (Load::Concurrency(Sweep { start: 1, end: None, step: 2 }), "Closed loop, in flight: 1 and up by 2"),
            (
                Load::Rate { sweep: Sweep { start: 0.5, end: Some(2.0), step: 0.5 }, spacing: Spacing::Poisson },
                "Open loop, requests a second: 0.5 to 2 by 0.5, spaced by chance (Poisson)",
            ),
            (Load::Intervals(vec![Duration::ZERO; 3]), "Open loop, 3 intervals again and again"),
        ] {
            assert_eq!(load_line(&load), line);
        }
        let rules = Rules { request_count: Some(7), ..Rules::default() };
        assert_eq!(rules_line(&rules), "One window of 7 requests");
        let line = rules_line(&Rules { window: Window::Count(50), ..Rules::default() });
        assert_eq!(
            line,
            "Windows of 50 requests, until three in a row are within 10 % in rate and mean latency, 10 at most"
        );
    }

    #[test]
    fn foreign_texts_are_cut() {
        assert_eq!(plain(&"x".repeat(301)), format!("{}…", "x".repeat(300)));
        assert_eq!(plain("a\tb\u{7}ä"), "a?b?ä");
    }
}
