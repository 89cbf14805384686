//! Which plots a page has, and what they show.

use hdrhistogram::Histogram;
use std::fmt::Write;

use crate::openai::OpenAi;
use crate::report::Report;
use crate::report::figures::{Breakdown, load, quantile_us, significant};
use crate::report::generation::Rates;
use crate::report::plot::{Axis, Bar, Scale, Series, bars, escape, lines};
use crate::{LoadPoint, Measurement, Timeline};

/// Load points that one plot of curves shows; more cannot be distinguished.
const CURVES_MAX: usize = 8;
/// Bars of one plot.
const BARS_MAX: usize = 40;
/// Classes of a distribution for each doubling of the latency.
const CLASSES_PER_OCTAVE: f64 = 4.0;
/// Of latencies, so that p99 and p99.9 lie as far from each other as p90 and p99.
const MARKS: [(f64, &str); 7] = [
    (1.0, "p0"),
    (2.0, "p50"),
    (10.0, "p90"),
    (100.0, "p99"),
    (1_000.0, "p99.9"),
    (10_000.0, "p99.99"),
    (100_000.0, "p99.999"),
];

const LATENCY: &str = "latency, µs";

pub fn all(report: &Report<'_>, page: &mut String) {
    let shown = spread(report.points, CURVES_MAX);
    page.push_str("<h2>Plots</h2>\n<div class=\"plots\">\n");
    let plots = match report.plan.service.openai() {
        Some(openai) => of_generation(report, openai, &shown),
        None => of_inference(report, &shown),
    };
    for (title, plot) in plots {
        let _ = writeln!(page, "<figure><figcaption>{}</figcaption>{plot}</figure>", escape(title));
    }
    page.push_str("</div>\n");
    if shown.len() < report.points.len() {
        let (shown, all) = (shown.len(), report.points.len());
        let _ = writeln!(page, "<p>Plots with a curve for each load point show {shown} of {all} of them.</p>");
    }
}

type Plots = Vec<(&'static str, String)>;

/// A distribution of a point, if it has one.
type Pick = fn(&Measurement) -> Option<&Histogram<u64>>;

fn latency(point: &Measurement) -> Option<&Histogram<u64>> {
    Some(&point.histograms.latency_ns)
}

fn of_inference(report: &Report<'_>, shown: &[&Measurement]) -> Plots {
    vec![
        ("Latency over load", over_load(report, "Latency over load", LATENCY, latency)),
        ("Throughput over load", throughput_over_load(report)),
        ("Percentiles of latency", percentiles(shown)),
        ("Distribution of latency", distribution(shown, "Distribution of latency", LATENCY, latency)),
        ("Where the time went", breakdown(report)),
        ("Rate over time", rate_over_time(shown)),
    ]
}

/// Without parts of the time: the server does not tell of any.
fn of_generation(report: &Report<'_>, openai: &OpenAi, shown: &[&Measurement]) -> Plots {
    let first: Pick = |point| point.generation.as_ref().map(|totals| &totals.first_token_ns);
    let between: Pick = |point| point.generation.as_ref().map(|totals| &totals.between_tokens_ns);
    let mut plots = vec![("Output tokens over load", tokens_over_load(report, openai))];
    if openai.streaming {
        for (over, distributed, unit, pick) in [
            ("Time to first token over load", "Distribution of time to first token", "time to first token, µs", first),
            (
                "Inter-token latency over load",
                "Distribution of inter-token latency",
                "inter-token latency, µs",
                between,
            ),
        ] {
            plots.push((over, over_load(report, over, unit, pick)));
            plots.push((distributed, distribution(shown, distributed, unit, pick)));
        }
    }
    plots.extend([
        ("Latency over load", over_load(report, "Latency over load", LATENCY, latency)),
        ("Distribution of latency", distribution(shown, "Distribution of latency", LATENCY, latency)),
        ("Percentiles of latency", percentiles(shown)),
        ("Rate over time", rate_over_time(shown)),
    ]);
    plots
}

fn tokens_over_load(report: &Report<'_>, openai: &OpenAi) -> String {
    let tokens = |point: &Measurement| Rates::of(openai, point).output_tokens.unwrap_or(f64::NAN);
    let series = [Series { name: "output tokens".into(), points: by_load(report, tokens) }];
    let x = Axis { title: load_title(report), scale: Scale::Linear, marks: None };
    let y = Axis { title: "tokens a second", scale: Scale::Linear, marks: None };
    lines("Output tokens over load", &x, &y, &series)
}

/// So many of them at most, the first and the last included.
fn spread(points: &[Measurement], most: usize) -> Vec<&Measurement> {
    if points.len() <= most || most < 2 {
        return points.iter().take(most).collect();
    }
    (0..most).filter_map(|at| points.get(at * (points.len() - 1) / (most - 1))).collect()
}

fn name(point: &Measurement) -> String {
    match point.load {
        LoadPoint::Concurrency(count) => format!("{count} in flight"),
        LoadPoint::Rate(rate) => format!("{}/s", significant(rate)),
        LoadPoint::Intervals(_) => "intervals".to_owned(),
    }
}

fn load_title(report: &Report<'_>) -> &'static str {
    match report.points.first().map(|point| point.load) {
        Some(LoadPoint::Concurrency(_)) | None => "requests in flight",
        Some(_) => "requests a second",
    }
}

/// By the load, so that lines do not run back and forth after a search.
fn by_load(report: &Report<'_>, figure: impl Fn(&Measurement) -> f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = report.points.iter().map(|point| (load(point.load).1, figure(point))).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

fn over_load(report: &Report<'_>, title: &str, unit: &str, pick: Pick) -> String {
    let series = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)].map(|(name, percentile)| Series {
        name: name.to_owned(),
        points: by_load(report, |point| {
            let histogram = pick(point).filter(|histogram| !histogram.is_empty());
            histogram.map_or(f64::NAN, |histogram| quantile_us(histogram, percentile))
        }),
    });
    let x = Axis { title: load_title(report), scale: Scale::Linear, marks: None };
    lines(title, &x, &Axis { title: unit, scale: Scale::Log, marks: None }, &series)
}

fn throughput_over_load(report: &Report<'_>) -> String {
    let series =
        [Series { name: "inferences".into(), points: by_load(report, |point| report.inferences_per_s(point)) }];
    let x = Axis { title: load_title(report), scale: Scale::Linear, marks: None };
    let y = Axis { title: "inferences a second", scale: Scale::Linear, marks: None };
    lines("Throughput over load", &x, &y, &series)
}

fn latency_axis() -> Axis<'static> {
    Axis { title: LATENCY, scale: Scale::Log, marks: None }
}

fn percentiles(points: &[&Measurement]) -> String {
    let curve = |point: &&Measurement| {
        let histogram = &point.histograms.latency_ns;
        let mut curve = Vec::new();
        // 12 steps for each factor of 10 in how rare a latency is, as far as there were enough requests.
        for step in 0..=60 {
            let rarity = 10f64.powf(f64::from(step) / 12.0);
            if histogram.is_empty() || rarity > histogram.len() as f64 {
                break;
            }
            curve.push((rarity, quantile_us(histogram, (1.0 - 1.0 / rarity) * 100.0)));
        }
        Series { name: name(point), points: curve }
    };
    let series: Vec<Series> = points.iter().map(curve).collect();
    let x = Axis { title: "percentile", scale: Scale::Log, marks: Some(&MARKS) };
    lines("Percentiles of latency", &x, &latency_axis(), &series)
}

fn distribution(points: &[&Measurement], title: &str, unit: &str, pick: Pick) -> String {
    let curve = |point: &&Measurement| {
        let Some(histogram) = pick(point) else { return Series { name: name(point), points: Vec::new() } };
        let mut classes: std::collections::BTreeMap<i32, u64> = std::collections::BTreeMap::new();
        for bucket in histogram.iter_recorded() {
            let us = (bucket.value_iterated_to().max(1) as f64 / 1e3).max(1e-3);
            let class = (us.log2() * CLASSES_PER_OCTAVE).floor() as i32;
            *classes.entry(class).or_default() += bucket.count_since_last_iteration();
        }
        // Classes without requests between others are drawn as such.
        let (first, last) = (classes.keys().next().copied(), classes.keys().next_back().copied());
        let classes = first.zip(last).into_iter().flat_map(|(first, last)| first - 1..=last + 1).map(|class| {
            let count = classes.get(&class).copied().unwrap_or(0);
            let middle = ((f64::from(class) + 0.5) / CLASSES_PER_OCTAVE).exp2();
            (middle, count as f64 / histogram.len().max(1) as f64 * 100.0)
        });
        Series { name: name(point), points: classes.collect() }
    };
    let series: Vec<Series> = points.iter().map(curve).collect();
    let x = Axis { title: unit, scale: Scale::Log, marks: None };
    let y = Axis { title: "% of them", scale: Scale::Linear, marks: None };
    lines(title, &x, &y, &series)
}

fn breakdown(report: &Report<'_>) -> String {
    let shown = spread(report.points, BARS_MAX);
    let names = Breakdown::default().parts().map(|(name, _)| name);
    let rows: Vec<Bar> = shown
        .iter()
        .map(|point| Bar {
            name: name(point),
            parts: Breakdown::known(point).map(|(_, us)| us.unwrap_or(f64::NAN)).to_vec(),
        })
        .collect();
    bars("Where the time of the mean request went", "µs", &names, &rows)
}

fn rate_over_time(points: &[&Measurement]) -> String {
    let series: Vec<Series> =
        points.iter().map(|point| Series { name: name(point), points: steps(&point.timeline) }).collect();
    let x = Axis { title: "seconds", scale: Scale::Linear, marks: None };
    let y = Axis { title: "requests a second", scale: Scale::Linear, marks: None };
    lines("Rate over time", &x, &y, &series)
}

/// A step for each slot, as long as the time that it covers: the last one of a window may be longer or shorter.
fn steps(timeline: &Timeline) -> Vec<(f64, f64)> {
    let (mut steps, mut began) = (Vec::new(), 0.0);
    for (count, covered) in timeline.completed.iter().zip(&timeline.covered) {
        let seconds = covered.as_secs_f64();
        if seconds > 0.0 {
            let rate = *count as f64 / seconds;
            steps.extend([(began, rate), (began + seconds, rate)]);
            began += seconds;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::samples::Sample;

    #[test]
    fn long_sweeps_are_thinned_out() {
        let loads: Vec<LoadPoint> = (1..=100).map(LoadPoint::Concurrency).collect();
        let sample = Sample::new(&loads);
        let shown: Vec<f64> = spread(&sample.points, 8).iter().map(|point| load(point.load).1).collect();
        assert_eq!((shown.len(), shown[0], shown[7]), (8, 1.0, 100.0));
        assert_eq!(spread(&sample.points[..3], 8).len(), 3);
        let mut page = String::new();
        all(&sample.report(), &mut page);
        assert!(page.contains("show 8 of 100 of them"), "{page}");
    }

    #[test]
    fn slots_are_as_long_as_they_lasted() {
        let timeline = Timeline {
            slot: Duration::from_secs(1),
            completed: vec![10, 5, 0, 8],
            covered: [1000, 500, 0, 2000].map(Duration::from_millis).to_vec(),
        };
        let expected = [(0.0, 10.0), (1.0, 10.0), (1.0, 10.0), (1.5, 10.0), (1.5, 4.0), (3.5, 4.0)];
        assert_eq!(steps(&timeline), expected);
    }

    #[test]
    fn lines_follow_the_load() {
        let sample = Sample::new(&[LoadPoint::Concurrency(8), LoadPoint::Concurrency(2), LoadPoint::Concurrency(4)]);
        let points = by_load(&sample.report(), |point| load(point.load).1 * 10.0);
        assert_eq!(points, [(2.0, 20.0), (4.0, 40.0), (8.0, 80.0)]);
    }
}
