//! Figures of generated answers: times of tokens, tokens a second, goodput, and the notes without which a reader would
//! take them for something else. In the terminal's form, of which the page takes its tables.

pub mod csv;
pub mod json;

use std::fmt::Write;

use hdrhistogram::Histogram;

use super::figures::{NONE, load, percentile_name, significant};
use super::text::{notes_of, plain};
use super::{Report, client};
use crate::openai::{Goals, Interface, Length, OpenAi, PromptSource};
use crate::{GenerationTotals, Measurement};

/// More tokens than this in the mean chunk are told: then the time between chunks is not that between tokens.
const TOKENS_A_CHUNK: f64 = 1.05;

/// A distribution with its name.
pub struct Figure<'a> {
    pub name: &'static str,
    pub unit: Unit,
    histogram: Option<&'a Histogram<u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Milliseconds,
    Tokens,
}

impl Figure<'_> {
    /// With the unit, for the head of a line.
    pub fn title(&self) -> String {
        match self.unit {
            Unit::Milliseconds => format!("{}, ms", self.name),
            Unit::Tokens => self.name.to_owned(),
        }
    }

    /// Mean, percentiles and maximum; none where nothing was measured.
    pub fn values(&self, percentiles: &[f64]) -> Option<Vec<f64>> {
        let histogram = self.histogram.filter(|histogram| !histogram.is_empty())?;
        let scale = match self.unit {
            Unit::Milliseconds => 1e6,
            Unit::Tokens => 1.0,
        };
        let quantile = |percentile: &f64| histogram.value_at_quantile(percentile / 100.0) as f64;
        let values = [histogram.mean()].into_iter().chain(percentiles.iter().map(quantile));
        Some(values.chain([histogram.max() as f64]).map(|value| value / scale).collect())
    }

    pub fn cells(&self, percentiles: &[f64]) -> Vec<String> {
        let text = |value: &f64| match self.unit {
            Unit::Milliseconds => format!("{value:.2}"),
            Unit::Tokens => format!("{value:.1}"),
        };
        match self.values(percentiles) {
            Some(values) => values.iter().map(text).collect(),
            None => vec![NONE.to_owned(); percentiles.len() + 2],
        }
    }
}

/// Heads of [`Figure::cells`].
pub fn columns(percentiles: &[f64]) -> Vec<String> {
    let percentiles = percentiles.iter().map(|percentile| format!("p{}", percentile_name(*percentile)));
    ["avg".to_owned()].into_iter().chain(percentiles).chain(["max".to_owned()]).collect()
}

pub fn figures(point: &Measurement) -> [Figure<'_>; 6] {
    figures_of(point.generation.as_deref(), Some(&point.histograms.latency_ns))
}

fn figures_of<'a>(own: Option<&'a GenerationTotals>, latency: Option<&'a Histogram<u64>>) -> [Figure<'a>; 6] {
    let figure =
        |name, unit, pick: fn(&GenerationTotals) -> &Histogram<u64>| Figure { name, unit, histogram: own.map(pick) };
    [
        figure("Time to first token", Unit::Milliseconds, |totals| &totals.first_token_ns),
        figure("Inter-token latency", Unit::Milliseconds, |totals| &totals.between_tokens_ns),
        figure("Time per output token", Unit::Milliseconds, |totals| &totals.per_token_ns),
        Figure { name: "Request latency", unit: Unit::Milliseconds, histogram: latency },
        figure("Output tokens", Unit::Tokens, |totals| &totals.output_tokens),
        figure("Input tokens", Unit::Tokens, |totals| &totals.input_tokens),
    ]
}

/// Counts a second; none where nothing was counted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    pub output_tokens: Option<f64>,
    pub input_tokens: Option<f64>,
    /// Requests that met every goal, and their part of all that ended.
    pub good: Option<(f64, f64)>,
}

impl Rates {
    pub fn of(openai: &OpenAi, point: &Measurement) -> Rates {
        let seconds = point.wall.as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let ended = point.counts.ended();
        let own = point.generation.as_deref();
        let counted = |pick: fn(&GenerationTotals) -> (&Histogram<u64>, u64)| {
            own.map(pick).filter(|(histogram, _)| !histogram.is_empty()).map(|(_, sum)| rate(sum))
        };
        let good = own.map_or(0, |totals| totals.counts.good);
        // A void point has answers, but not their figures.
        let is_known = ended > 0 && (own.is_some() || point.counts.completed == 0);
        Rates {
            output_tokens: counted(|totals| (&totals.output_tokens, totals.counts.output_tokens)),
            input_tokens: counted(|totals| (&totals.input_tokens, totals.counts.input_tokens)),
            good: (!openai.goals.is_empty() && is_known).then(|| (rate(good), good as f64 / ended as f64)),
        }
    }
}

pub fn or_none(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), significant)
}

/// `8.2, 82 % of all requests`.
pub fn goodput(rates: &Rates) -> String {
    match rates.good {
        Some((rate, part)) => format!("{} requests/sec, {} % of all requests", significant(rate), percent(part)),
        None => NONE.to_owned(),
    }
}

fn percent(part: f64) -> String {
    significant((part * 1000.0).round() / 10.0)
}

/// `time to first token up to 50 ms, latency up to 2000 ms`.
fn goals_line(goals: &Goals) -> String {
    let goals = [
        ("time to first token", goals.first_token),
        ("time per output token", goals.between_tokens),
        ("latency", goals.latency),
    ];
    let goal = |(name, goal): (&str, Option<std::time::Duration>)| {
        goal.map(|goal| format!("{name} up to {} ms", significant(goal.as_secs_f64() * 1e3)))
    };
    goals.into_iter().filter_map(goal).collect::<Vec<_>>().join(", ")
}

fn length_line(length: &Length) -> String {
    match length.deviation {
        0 => format!("{}", length.mean),
        deviation => format!("{} (deviation {deviation})", length.mean),
    }
}

/// What each request asks for: two lines of the settings.
pub fn settings(openai: &OpenAi, prompts: usize) -> String {
    let plural = if prompts == 1 { "" } else { "s" };
    let mut line = format!("  Prompts: {prompts} different one{plural}");
    match &openai.prompts.source {
        PromptSource::Synthetic { length, .. } => {
            let _ = write!(line, " of {} words by chance", length_line(length));
        }
        PromptSource::File(path) => {
            let _ = write!(line, " from {}", plain(&path.display().to_string()));
        }
    }
    if openai.prompts.shared_prefix > 0 {
        let _ = write!(line, ", behind {} words that all share", openai.prompts.shared_prefix);
    }
    let output = match (&openai.output, openai.is_output_exact) {
        (None, _) => "as long as the server lets them".to_owned(),
        (Some(length), false) => format!("of at most {} tokens", length_line(length)),
        (Some(length), true) => format!("of exactly {} tokens", length_line(length)),
    };
    let kind = if openai.streaming { "streamed" } else { "not streamed" };
    let _ = write!(line, "\n  Answers: {kind}, {output}");
    if !openai.goals.is_empty() {
        let _ = write!(line, "; good ones: {}", goals_line(&openai.goals));
    }
    line.push('\n');
    line
}

pub fn interface(openai: &OpenAi) -> &'static str {
    match openai.interface {
        Interface::Chat => "OpenAI's chats",
        Interface::Completions => "OpenAI's completions",
    }
}

/// What the figures of a point are made of, and what they are not.
pub fn notes(openai: &OpenAi, point: &Measurement) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(totals) = &point.generation else { return notes };
    let counts = &totals.counts;
    match (counts.by_usage, counts.by_chunks) {
        (0, 0) => {}
        (_, 0) => notes.push("output tokens are those of the server's usage".to_owned()),
        (0, _) => notes.push("output tokens are chunks with text: the server reported no usage".to_owned()),
        (usage, chunks) => notes.push(format!(
            "output tokens of {usage} answers are those of the server's usage, of {chunks} they are chunks with text"
        )),
    }
    if totals.input_tokens.is_empty() && !point.histograms.latency_ns.is_empty() {
        notes.push("the server reported no input tokens".to_owned());
    }
    if counts.uncounted > 0 {
        notes.push(format!("{} answers have no count of tokens, and no token of them counts", counts.uncounted));
    }
    if counts.without_text > 0 {
        notes.push(format!("{} answers had no text, and have no time to the first token", counts.without_text));
    }
    if let Some(each) = tokens_a_chunk(totals).filter(|each| *each > TOKENS_A_CHUNK) {
        notes.push(format!(
            "a chunk has {each:.2} tokens on average: the inter-token latency is the time between chunks"
        ));
    }
    if !openai.streaming {
        notes.push("answers were not streamed: times of tokens are unknown".to_owned());
    }
    notes
}

fn tokens_a_chunk(totals: &GenerationTotals) -> Option<f64> {
    let counts = &totals.counts;
    (counts.streamed_chunks > 0).then(|| counts.streamed_tokens as f64 / counts.streamed_chunks as f64)
}

/// The client's lines of a block of the terminal.
pub fn block(report: &Report<'_>, openai: &OpenAi, point: &Measurement, text: &mut String) {
    let rates = Rates::of(openai, point);
    let _ = writeln!(
        text,
        "    Request throughput: {} requests/sec\n    Output token throughput: {} tokens/sec\n    Input token \
         throughput: {} tokens/sec",
        significant(client::rate(point, point.rate())),
        or_none(rates.output_tokens),
        or_none(rates.input_tokens),
    );
    if !openai.goals.is_empty() {
        let _ = writeln!(text, "    Goodput: {}", goodput(&rates));
    }
    let percentiles = report.percentiles();
    let mut rows = vec![[String::new()].into_iter().chain(columns(&percentiles)).collect::<Vec<_>>()];
    for figure in figures(point) {
        rows.push([figure.title()].into_iter().chain(figure.cells(&percentiles)).collect());
    }
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..percentiles.len() + 3).filter_map(width).collect();
    for row in &rows {
        text.push_str("   ");
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if at == 0 { write!(text, " {cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    for note in notes(openai, point) {
        let _ = writeln!(text, "    Note: {note}");
    }
}

/// Head and lines of the table of all points.
pub fn table(report: &Report<'_>, openai: &OpenAi) -> Vec<Vec<String>> {
    let what = report.points.first().map_or("", |point| load(point.load).0);
    let head =
        [what, "req/sec", "tokens/sec", "TTFT p50", "p99", "ITL p50", "p99", "latency p50", "p99", "good/sec", "notes"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in report.shown().iter() {
        let rates = Rates::of(openai, point);
        let rate = client::rate(point, point.rate());
        let mut row = vec![significant(load(point.load).1), significant(rate), or_none(rates.output_tokens)];
        let [first, between, _, latency, ..] = figures(point);
        for figure in [first, between, latency] {
            row.extend(figure.cells(&[50.0, 99.0]).into_iter().skip(1).take(2));
        }
        row.push(or_none(rates.good.map(|(rate, _)| rate)));
        row.push(notes_of(point).join(", "));
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests;
