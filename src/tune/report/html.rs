//! `report.html`: one file, without scripts, nothing fetched from anywhere, with the style and the plots of the load
//! generator's page.

use std::fmt::Write;

use super::super::outcome::{Outcome, Verdict};
use super::super::point::{Point, pareto};
use super::super::statistics::Interval;
use super::{gain, mib, number, optional, plus_minus};
use nereid_perf::report::html::STYLE;
use nereid_perf::report::plot::{Axis, Bar, Scale, Series, bars, escape, lines};

/// Points that the table has.
const ROWS_MAX: usize = 500;
/// Bars of a plot.
const BARS_MAX: usize = 12;

pub fn render(outcome: &Outcome) -> String {
    let title = escape(&format!("Tuning of {}", outcome.plan.models.join(", ")));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    facts(outcome, &mut page);
    recommendation(outcome, &mut page);
    if !outcome.points.is_empty() {
        plots(outcome, &mut page);
        points(outcome, &mut page);
    }
    let _ = write!(
        page,
        "<footer>Made by {}. Intervals are those of Student's t over slices of time, at 95 %.</footer>\n</main>\n\
         </body>\n</html>\n",
        escape(&nereid_perf::report::version())
    );
    page
}

fn facts(outcome: &Outcome, page: &mut String) {
    let plan = &outcome.plan;
    let tuned: Vec<&str> = outcome.tuned.iter().map(|facts| facts.name.as_str()).collect();
    let mut list = vec![
        ("Goal", plan.goal.describe()),
        ("Result", outcome.verdict.name().to_owned()),
        ("Models", tuned.join(", ")),
        ("Load", plan.load.name()),
        ("Search", plan.search.name().to_owned()),
        ("Points", format!("{} of {} configurations", outcome.points.len(), outcome.choices)),
        ("Time", format!("{:.0} s", outcome.seconds)),
        ("Seed", plan.seed.to_string()),
        ("Machine", outcome.facts.machine.line()),
    ];
    let is_claimed = |gain: &Interval| outcome.verdict != Verdict::Better || gain.low > 1.0;
    if let Some(measured) = outcome.gain.filter(is_claimed) {
        list.insert(2, ("Gain", gain(measured)));
    }
    page.push_str("<dl class=\"facts\">");
    for (name, value) in list {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    page.push_str("</dl>\n");
    if outcome.is_unstable() {
        let _ = writeln!(
            page,
            "<p class=\"doubt\">Unstable: the present configuration changed by {:.0} % during the run.</p>",
            outcome.drift * 100.0
        );
    }
    if let Some(reason) = &outcome.ended_early {
        let _ = writeln!(page, "<p class=\"doubt\">{}</p>", escape(reason));
    }
}

fn recommendation(outcome: &Outcome, page: &mut String) {
    if outcome.verdict != Verdict::Better {
        return;
    }
    page.push_str("<h2>Recommended</h2>\n");
    for one in &outcome.recommendations {
        // Line feeds stay in a text that is shown as it is.
        let lines: Vec<String> = one.diff.lines().map(escape).collect();
        let _ = writeln!(page, "<pre>{}</pre>", lines.join("\n"));
    }
    if let Some(flag) = &outcome.server_flag {
        let _ = writeln!(page, "<p>Flag of the server: <code>{}</code></p>", escape(flag));
    }
    let _ = writeln!(page, "<p>{}</p>", escape(&outcome.why));
}

fn describe(point: &Point) -> String {
    match point.changes.is_empty() {
        true => "present configuration".to_owned(),
        false => point.changes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "),
    }
}

fn plots(outcome: &Outcome, page: &mut String) {
    page.push_str("<h2>Plots</h2>\n<div class=\"plots\">\n");
    let valid: Vec<&Point> = outcome.points.iter().filter(|point| point.is_valid()).collect();
    let front: Vec<&Point> = pareto(&outcome.points).into_iter().filter_map(|at| outcome.points.get(at)).collect();
    let mut figure = |title: &str, plot: String| {
        let _ = writeln!(page, "<figure><figcaption>{}</figcaption>{plot}</figure>", escape(title));
    };
    for (title, unit, of) in [
        ("Throughput against p99", "p99, ms", p99 as fn(&Point) -> Option<f64>),
        ("Throughput against memory", "memory, MiB", memory),
    ] {
        let place = |point: &&Point| Some((of(point)?, point.throughput()?.mean));
        let mut series = Vec::new();
        let mut on_front: Vec<(f64, f64)> = front.iter().filter_map(place).collect();
        on_front.sort_by(|one, other| one.0.total_cmp(&other.0));
        series.push(Series { name: "Pareto front".to_owned(), points: on_front });
        for (name, number) in [("present configuration", outcome.baseline), ("best", outcome.best)] {
            let point: Vec<(f64, f64)> = outcome.point(number).iter().filter_map(place).collect();
            series.push(Series { name: name.to_owned(), points: point });
        }
        // Each other point alone: a line between them would mean nothing.
        let others = valid.iter().filter(|point| front.iter().all(|other| other.number != point.number));
        series.extend(
            others
                .filter_map(place)
                .take(ROWS_MAX)
                .map(|at| Series { name: "other configurations".to_owned(), points: vec![at] }),
        );
        let x = Axis { title: unit, scale: Scale::Linear, marks: None };
        let y = Axis { title: "requests/s", scale: Scale::Linear, marks: None };
        let plot = lines(title, &x, &y, &series);
        // The legend would name each of them.
        let plot = match plot.split_once("<ul class=\"legend\">") {
            Some((svg, _)) => {
                let names = ["Pareto front", "present configuration", "best"];
                let items = names
                    .iter()
                    .enumerate()
                    .map(|(at, name)| format!("<li><span class=\"key c{at}\"></span>{name}</li>"));
                format!("{svg}<ul class=\"legend\">{}</ul>", items.collect::<String>())
            }
            None => plot,
        };
        figure(title, plot);
    }
    let mut best: Vec<&Point> = valid.clone();
    let rate = |point: &Point| point.throughput().map_or(0.0, |interval| interval.mean);
    best.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    let rows: Vec<Bar> = best
        .iter()
        .take(BARS_MAX)
        .map(|point| {
            let spans = point.models.iter().flat_map(|model| &model.spans).filter(|spans| spans.inferences > 0);
            let sums = spans.fold([0.0; 4], |sums: [f64; 4], spans| {
                [
                    sums[0] + spans.queue_us,
                    sums[1] + spans.compute_input_us,
                    sums[2] + spans.compute_infer_us,
                    sums[3] + spans.compute_output_us,
                ]
            });
            Bar { name: format!("#{}", point.number), parts: sums.map(|us| us / 1e3).to_vec() }
        })
        .collect();
    let names = ["queue", "compute input", "compute infer", "compute output"];
    figure("Where the server spent the time", bars("Where the server spent the time", "ms", &names, &rows));
    page.push_str("</div>\n");
}

fn p99(point: &Point) -> Option<f64> {
    point.p99_ms()
}

fn memory(point: &Point) -> Option<f64> {
    mib(point.memory_bytes())
}

fn points(outcome: &Outcome, page: &mut String) {
    page.push_str("<h2>Points</h2>\n<div class=\"wide\"><table>\n<thead>");
    let head = [
        "configuration",
        "point",
        "load",
        "requests/s",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99.9 ms",
        "MiB",
        "CPU ms/request",
        "batch",
        "failed",
        "remark",
    ];
    cells("th", head.map(str::to_owned), page);
    page.push_str("</thead>\n<tbody>");
    let front: Vec<usize> = pareto(&outcome.points);
    for (at, point) in outcome.points.iter().enumerate().take(ROWS_MAX) {
        let batch = point.models.iter().flat_map(|model| &model.spans).map(|spans| spans.mean_batch());
        let batch = batch.fold(0.0, f64::max);
        let mut remarks = Vec::new();
        if Some(point.number) == outcome.baseline {
            remarks.push("present".to_owned());
        }
        if Some(point.number) == outcome.best && outcome.verdict == Verdict::Better {
            remarks.push("recommended".to_owned());
        }
        if front.contains(&at) {
            remarks.push("on the front".to_owned());
        }
        if point.is_generator_limited() {
            remarks.push("void: the load generator was the limit".to_owned());
        }
        if point.is_unsustainable() {
            remarks.push("the rate was not sustained".to_owned());
        }
        if let Some(reason) = &point.failure {
            remarks.push(format!("failed: {}", reason.chars().take(200).collect::<String>()));
        }
        let row = [
            describe(point),
            format!("#{}", point.number),
            point.load.clone(),
            plus_minus(point.throughput()),
            optional(point.percentile_ms(50.0)),
            optional(point.percentile_ms(90.0)),
            optional(point.percentile_ms(99.0)),
            optional(point.percentile_ms(99.9)),
            optional(mib(point.memory_bytes())),
            optional(point.cpu_per_request().map(|seconds| seconds * 1e3)),
            number(batch),
            point.failed().to_string(),
            remarks.join(", "),
        ];
        cells("td", row, page);
    }
    page.push_str("</tbody>\n</table></div>\n");
    if outcome.points.len() > ROWS_MAX {
        let _ = writeln!(page, "<p>The first {ROWS_MAX} of {} points; tune.json has all.</p>", outcome.points.len());
    }
}

fn cells(tag: &str, cells: [String; 13], page: &mut String) {
    page.push_str("<tr>");
    for cell in cells {
        let _ = write!(page, "<{tag}>{}</{tag}>", escape(&cell));
    }
    page.push_str("</tr>\n");
}
