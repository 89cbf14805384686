//! perf_analyzer's CSV: the same columns in the same order, so that scripts that read them go on.
//!
//! Where the meaning differs: our client hands requests of many connections to the kernel in one call, so that what it
//! spends on sending and on receiving one of them cannot be separated. `Client Send` has both, and `Client Recv` is 0.

use std::fmt::Write;

use super::figures::{Breakdown, NONE, load, mean_us, percentile_name, quantile_us, significant, whole};
use super::{Report, client, text};
use crate::{LoadPoint, Measurement, MetricFigures};

/// Name in the CSV, metric, and which of its figures.
type MetricColumn = (&'static str, &'static str, fn(&MetricFigures) -> f64);

/// The GPU columns of `--collect-metrics`.
const METRIC_COLUMNS: [MetricColumn; 4] = [
    ("Avg GPU Utilization", "nv_gpu_utilization", |figures| figures.mean),
    ("Avg GPU Power Usage", "nv_gpu_power_usage", |figures| figures.mean),
    ("Max GPU Memory Usage", "nv_gpu_memory_used_bytes", |figures| figures.max),
    ("Total GPU Memory", "nv_gpu_memory_total_bytes", |figures| figures.max),
];

/// The whole file. Its lines are in the order of rising throughput.
pub fn render(report: &Report<'_>, verbose: bool) -> String {
    if let Some(openai) = report.plan.service.openai() {
        return super::generation::csv::render(report, openai);
    }
    let has_cache = report.model_info.response_cache;
    let has_server = report.plan.server_statistics;
    let decoupled = report.plan.work.decoupled;
    let mut columns: Vec<String> = vec![
        match report.points.first().map(|point| point.load) {
            Some(LoadPoint::Rate(_) | LoadPoint::Intervals(_)) => "Request Rate".into(),
            _ => "Concurrency".into(),
        },
        "Inferences/Second".into(),
    ];
    let mut add = |names: &[&str]| columns.extend(names.iter().map(|name| (*name).to_owned()));
    add(if decoupled { &["Response Throughput", "Client Send"] } else { &["Client Send"] });
    if has_server {
        add(&[
            "Network+Server Send/Recv",
            "Server Queue",
            "Server Compute Input",
            "Server Compute Infer",
            "Server Compute Output",
        ]);
    }
    if has_server && has_cache {
        add(&["Server Cache Hit", "Server Cache Miss"]);
    }
    add(&["Client Recv"]);
    for percentile in report.percentiles() {
        columns.push(format!("p{} latency", percentile_name(percentile)));
    }
    if verbose {
        let mut add = |names: &[&str]| columns.extend(names.iter().map(|name| (*name).to_owned()));
        if report.plan.rules.percentile.is_none() {
            add(&["Avg latency"]);
        }
        add(&["request/response", "response wait"]);
        if report.plan.metrics.is_some() {
            METRIC_COLUMNS.iter().for_each(|(name, ..)| add(&[name]));
        }
    }
    columns.extend(void_column(report));
    let mut text = columns.join(",");
    text.push('\n');
    let shown = report.shown();
    let mut points: Vec<&Measurement> = shown.iter().collect();
    points.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
    for point in points {
        let mut cells = row(report, point, verbose);
        cells.extend(void_cell(report, point));
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

/// A column that perf_analyzer does not have: it is there only if a load point is void.
pub(super) fn void_column(report: &Report<'_>) -> Option<String> {
    report.points.iter().any(Measurement::is_void).then(|| "Void".to_owned())
}

/// How the load generator was the limit; empty of a point that counts.
pub(super) fn void_cell(report: &Report<'_>, point: &Measurement) -> Option<String> {
    void_column(report).map(|_| point.limits.generator.map_or_else(String::new, |limit| limit.name().to_owned()))
}

fn row(report: &Report<'_>, point: &Measurement, verbose: bool) -> Vec<String> {
    let rounded = |us: Option<f64>| us.map_or_else(|| NONE.to_owned(), |us| format!("{us:.0}"));
    let latency = &point.histograms.latency_ns;
    let known = Breakdown::known(point);
    let part = |name: &str| known.iter().find(|(known, _)| *known == name).and_then(|(_, us)| *us);
    let parts = |names: &[&'static str]| names.iter().map(|name| rounded(part(name))).collect::<Vec<_>>();
    let mut cells = vec![significant(load(point.load).1), significant(text::inferences_per_s(report, point))];
    if report.plan.work.decoupled {
        cells.push(significant(client::rate(point, point.response_rate())));
    }
    cells.push(rounded(part("client")));
    if report.plan.server_statistics {
        // perf_analyzer counts the server's overhead to the network.
        cells.push(rounded(part("network").map(|network| network + part("server overhead").unwrap_or(0.0))));
        cells.extend(parts(&["queue", "compute input", "compute infer", "compute output"]));
        if report.model_info.response_cache {
            cells.extend(parts(&["cache hit", "cache miss"]));
        }
    }
    cells.push("0".into());
    let percentiles = report.percentiles();
    cells.extend(percentiles.iter().map(|rank| whole(latency, |latency| quantile_us(latency, *rank))));
    if verbose {
        if report.plan.rules.percentile.is_none() {
            cells.push(whole(latency, mean_us));
        }
        let wait = part("client").map(|client| (mean_us(latency) - client).max(0.0));
        cells.extend([rounded(part("client")), rounded(wait)]);
        if report.plan.metrics.is_some() {
            cells.extend(METRIC_COLUMNS.iter().map(|(_, metric, figure)| of_devices(point, metric, *figure)));
        }
    }
    cells
}

/// `<uuid>:<value>;` for each device.
fn of_devices(point: &Measurement, metric: &str, figure: fn(&MetricFigures) -> f64) -> String {
    let mut cell = String::new();
    for (name, figures) in &point.metrics {
        let Some(labels) = name.strip_prefix(metric).and_then(|rest| rest.strip_prefix('{')) else { continue };
        let uuid = labels.split("gpu_uuid=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        // A label may hold anything; a cell holds no separators.
        let uuid: String = uuid.chars().filter(|letter| !",;:\"\n\r".contains(*letter)).collect();
        let _ = write!(cell, "{uuid}:{};", significant(figure(figures)));
    }
    if cell.is_empty() { NONE.to_owned() } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::{self, Sample};

    fn lines(sample: &Sample, verbose: bool) -> Vec<Vec<String>> {
        let text = render(&sample.report(), verbose);
        text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn columns_are_those_of_perf_analyzer() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        let plain = "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute \
                     Input,Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 \
                     latency,p99 latency";
        let head = |sample: &Sample, verbose| lines(sample, verbose)[0].join(",");
        assert_eq!(head(&sample, false), plain);
        assert_eq!(head(&sample, true), format!("{plain},Avg latency,request/response,response wait"));
        sample.plan.rules.percentile = Some(85.0);
        sample.plan.metrics = Some(samples::metrics_source());
        let verbose = head(&sample, true);
        assert!(verbose.contains(",p50 latency,p85 latency,p90 latency,"), "{verbose}");
        let tail = ",request/response,response wait,Avg GPU Utilization,Avg GPU Power Usage,Max GPU Memory Usage,Total \
                    GPU Memory";
        assert!(verbose.ends_with(tail) && !verbose.contains("Avg latency"), "{verbose}");
        sample.plan.work.decoupled = true;
        assert!(head(&sample, false).starts_with("Concurrency,Inferences/Second,Response Throughput,Client Send,"));
        sample.model_info.response_cache = true;
        assert!(
            head(&sample, false).contains(",Server Compute Output,Server Cache Hit,Server Cache Miss,Client Recv,")
        );
        sample.plan.server_statistics = false;
        assert!(head(&sample, false).contains(",Client Send,Client Recv,p50 latency,"));
        let sample = Sample::new(&[LoadPoint::Rate(5.0)]);
        assert!(head(&sample, false).starts_with("Request Rate,"));
    }

    #[test]
    fn every_line_has_every_column() {
        for decoupled in [false, true] {
            for verbose in [false, true] {
                let mut sample = Sample::new(&[LoadPoint::Rate(1.5), LoadPoint::Rate(3.0), LoadPoint::Rate(2.0)]);
                sample.plan.work.decoupled = decoupled;
                sample.plan.metrics = Some(samples::metrics_source());
                sample.model_info.response_cache = verbose;
                let lines = lines(&sample, verbose);
                assert_eq!(lines.len(), 4);
                assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{lines:?}");
            }
        }
    }

    #[test]
    fn what_was_not_measured_is_no_zero() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1)]);
        sample.points[0].server = None;
        let columns = lines(&sample, false);
        let cell = |name: &str| columns[0].iter().position(|column| column == name).map(|at| columns[1][at].clone());
        assert_eq!(cell("Server Queue").as_deref(), Some("n/a"));
        assert_ne!(cell("Network+Server Send/Recv").as_deref(), Some("n/a"));
        sample.points[0] = samples::empty(LoadPoint::Concurrency(1));
        let lines = lines(&sample, true);
        // Its load, and the cell that is always 0.
        assert_eq!(lines[1].iter().filter(|cell| *cell != "n/a").count(), 2, "{lines:?}");
    }

    #[test]
    fn lines_are_in_the_order_of_throughput() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        sample.points[0].counts.completed *= 10;
        let lines = lines(&sample, false);
        assert_eq!([&lines[1][0], &lines[2][0]], ["2", "1"]);
    }

    #[test]
    fn throughput_counts_inferences() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1)]);
        sample.batch = 4;
        let per_request = sample.points[0].rate();
        let found: f64 = lines(&sample, false)[1][1].parse().expect("a number");
        assert!((found / (per_request * 4.0) - 1.0).abs() < 1e-4, "{found}");
    }

    #[test]
    fn devices_stand_in_one_cell() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1)]);
        sample.plan.metrics = Some(samples::metrics_source());
        let figures = |mean| MetricFigures { mean, max: 2.0 * mean, ..MetricFigures::default() };
        let metrics = &mut sample.points[0].metrics;
        metrics.insert("nv_gpu_utilization{gpu_uuid=\"GPU-1\"}".into(), figures(0.5));
        metrics.insert("nv_gpu_utilization{gpu_uuid=\"GPU,2\"}".into(), figures(0.25));
        metrics.insert("nv_gpu_utilization_other{gpu_uuid=\"GPU-1\"}".into(), figures(9.0));
        metrics.insert("nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-1\"}".into(), figures(4.0));
        let lines = lines(&sample, true);
        let tail: Vec<&str> = lines[1].iter().rev().take(4).rev().map(String::as_str).collect();
        assert_eq!(tail, ["GPU2:0.25;GPU-1:0.5;", "n/a", "GPU-1:8;", "n/a"]);
    }
}
