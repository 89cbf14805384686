//! The CSV of generated answers: a line for each load point.

use super::{Rates, Unit, figures, figures_of};
use crate::openai::OpenAi;
use crate::report::csv::{void_cell, void_column};
use crate::report::figures::{NONE, load, significant};
use crate::report::{Report, client};
use crate::{LoadPoint, Measurement};

/// A line for each point, in the order of rising throughput. A cell without a figure is `n/a`.
pub fn render(report: &Report<'_>, openai: &OpenAi) -> String {
    let percentiles = report.percentiles();
    let mut columns: Vec<String> = vec![
        match report.points.first().map(|point| point.load) {
            Some(LoadPoint::Rate(_) | LoadPoint::Intervals(_)) => "Request Rate".into(),
            _ => "Concurrency".into(),
        },
        "Requests/Second".into(),
        "Output Tokens/Second".into(),
        "Input Tokens/Second".into(),
        "Good Requests/Second".into(),
        "Completed".into(),
        "Failed".into(),
        "Counted By Usage".into(),
        "Counted By Chunks".into(),
    ];
    let named: Vec<String> = super::columns(&percentiles);
    for figure in figures_of(None, None) {
        let unit = if figure.unit == Unit::Milliseconds { " (ms)" } else { "" };
        columns.extend(named.iter().map(|column| format!("{} {column}{unit}", figure.name)));
    }
    columns.extend(void_column(report));
    let mut text = columns.join(",");
    text.push('\n');
    let shown = report.shown();
    let mut points: Vec<&Measurement> = shown.iter().collect();
    points.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
    for point in points {
        let mut cells = csv_row(openai, point, &percentiles);
        cells.extend(void_cell(report, point));
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

fn csv_row(openai: &OpenAi, point: &Measurement, percentiles: &[f64]) -> Vec<String> {
    let rates = Rates::of(openai, point);
    let or_none = super::or_none;
    let counts = point.generation.as_ref().map(|totals| totals.counts).unwrap_or_default();
    let mut cells = vec![
        significant(load(point.load).1),
        significant(client::rate(point, point.rate())),
        or_none(rates.output_tokens),
        or_none(rates.input_tokens),
        or_none(rates.good.map(|(rate, _)| rate)),
        point.counts.completed.to_string(),
        point.counts.failed.to_string(),
        counts.by_usage.to_string(),
        counts.by_chunks.to_string(),
    ];
    for figure in figures(point) {
        match figure.values(percentiles) {
            Some(values) => cells.extend(values.iter().map(|value| significant(*value))),
            None => cells.extend(std::iter::repeat_n(NONE.to_owned(), percentiles.len() + 2)),
        }
    }
    cells
}
