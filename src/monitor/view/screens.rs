//! The two screens of the view: the table of all models, and one model with its phases.

use super::View;
use crate::figures::{GpuFigures, ModelKey, Phase};
use crate::format::{ABSENT, number, percent, plain, quantile_us, some_bytes, some_duration_us, some_number, uptime};
use crate::history::{Point, sparkline};
use crate::index::{Availability, ModelState};
use crate::line::{Line, Look, fit};
use crate::overview::{Overview, Row};
use crate::table::Layout;

/// GPUs that the head lists one by one.
const GPUS_SHOWN: usize = 4;
/// Lines of notes below the head.
const NOTES_SHOWN: usize = 2;
/// Lines of a reason in the detail of a model.
const REASON_LINES_MAX: usize = 6;
const KEYS: &str = "q quit  arrows select/sort  r reverse  / filter  p pause  enter detail";
const KEYS_OF_DETAIL: &str = "q quit  esc back  up/down other model  p pause";

impl View {
    pub(super) fn table(&mut self, width: usize, height: usize) -> Vec<Line> {
        let mut lines = self.head();
        // Titles, and the last line.
        let room = height.saturating_sub(lines.len() + 2);
        let layout = Layout::of_width(width, self.sorted_by);
        lines.push(Line::of(fit(&layout.titles(self.sorted_by, self.is_descending), width), Look::Reverse));
        let rows = self.rows();
        let selected = self.selected.as_ref().and_then(|key| rows.iter().position(|row| row.key == *key));
        let (count, first) = (rows.len(), self.first_row(rows.len(), selected, room));
        // Only what is shown is made into text.
        for (at, row) in rows.into_iter().enumerate().skip(first).take(room) {
            let text = layout.row(|column| column.cell(row));
            lines.push(match look(row, Some(at) == selected) {
                Look::Reverse => Line::of(fit(&text, width), Look::Reverse),
                look => Line::of(text, look),
            });
        }
        (self.top, self.page) = (first, room);
        if count == 0 && self.overview.is_some() {
            lines.push(Line::of(if self.filter.is_empty() { "no models" } else { "no model matches" }, Look::Dim));
        }
        while lines.len() + 1 < height {
            lines.push(Line::default());
        }
        lines.truncate(height.saturating_sub(1));
        lines.push(self.foot(first, count, room));
        lines
    }

    fn foot(&self, first: usize, count: usize, room: usize) -> Line {
        if self.edits_filter {
            return Line::of(format!("filter: {}_", plain(&self.filter)), Look::Bold).and("  enter, esc", Look::Dim);
        }
        let mut line = Line::default();
        if self.is_paused {
            line = line.and("PAUSED  ", Look::Warning);
        }
        if !self.filter.is_empty() {
            line = line.and(format!("filter: {}  ", plain(&self.filter)), Look::Bold);
        }
        if count > room {
            line = line.and(format!("{}-{} of {count}  ", first + 1, (first + room).min(count)), Look::Plain);
        }
        line.and(KEYS, Look::Dim)
    }

    fn head(&self) -> Vec<Line> {
        let mut first = Line::of(plain(&self.address), Look::Bold);
        let Some(overview) = &self.overview else {
            let second = match &self.trouble {
                Some(reason) => Line::of(format!("trying again: {}", plain(reason)), Look::Bad),
                None => Line::of("connecting", Look::Dim),
            };
            return vec![first, second];
        };
        let build = overview.server.build.as_ref().map(|build| format!(" (build {})", plain(build)));
        let of = format!("  {} {}{}  ", plain(&overview.name), plain(&overview.version), build.unwrap_or_default());
        first = first.and(of, Look::Plain);
        first = match (&self.trouble, overview.live, overview.ready) {
            (Some(_), ..) => first.and("AWAY", Look::Bad),
            (None, true, true) => first.and("READY", Look::Good),
            (None, true, false) => first.and("NOT READY", Look::Warning),
            (None, false, _) => first.and("NOT LIVE", Look::Bad),
        };
        let up = overview.uptime_secs.map_or(ABSENT.to_owned(), uptime);
        let mut lines = vec![first.and(format!("  up {up}"), Look::Plain), models(overview), rates(overview)];
        lines.extend([server(overview), host(overview)]);
        lines.extend(overview.gpus.iter().take(GPUS_SHOWN).map(|(uuid, gpu)| of_gpu(uuid, gpu)));
        if overview.gpus.len() > GPUS_SHOWN {
            lines.push(Line::of(format!("{} more GPUs", overview.gpus.len() - GPUS_SHOWN), Look::Dim));
        }
        if let Some(reason) = &self.trouble {
            lines.push(Line::of(format!("figures are old, trying again: {}", plain(reason)), Look::Bad));
        }
        let notes = overview.notes.iter().take(NOTES_SHOWN);
        lines.extend(notes.map(|note| Line::of(format!("note: {}", plain(note)), Look::Warning)));
        lines
    }

    pub(super) fn detail(&mut self, width: usize, height: usize) -> Vec<Line> {
        let mut lines = self.head();
        lines.truncate(1);
        lines.push(Line::default());
        match self.selected_row() {
            Some(row) => {
                let points: Vec<Point> = self.history.of(&row.key).collect();
                lines.extend(of_model(row, &points, width));
            }
            None => lines.push(Line::of("this model is gone", Look::Warning)),
        }
        if let Some(reason) = &self.trouble {
            lines.push(Line::of(format!("figures are old, trying again: {}", plain(reason)), Look::Bad));
        }
        while lines.len() + 1 < height {
            lines.push(Line::default());
        }
        lines.truncate(height.saturating_sub(1));
        let paused = Line::of(if self.is_paused { "PAUSED  " } else { "" }, Look::Warning);
        lines.push(paused.and(KEYS_OF_DETAIL, Look::Dim));
        lines
    }
}

fn look(row: &Row, is_selected: bool) -> Look {
    let availability = row.state.as_ref().map(ModelState::availability);
    match availability {
        _ if is_selected => Look::Reverse,
        Some(Availability::Unavailable) => Look::Bad,
        Some(Availability::Changing) => Look::Warning,
        Some(Availability::Unloaded) => Look::Dim,
        Some(Availability::Ready) | None => Look::Plain,
    }
}

fn models(overview: &Overview) -> Line {
    let totals = &overview.totals;
    let mut line = Line::of(format!("models  {} ready", totals.ready), Look::Plain);
    if totals.changing > 0 {
        line = line.and(format!(", {} loading or unloading", totals.changing), Look::Warning);
    }
    if totals.unavailable > 0 {
        line = line.and(format!(", {} unavailable", totals.unavailable), Look::Bad);
    }
    if totals.unloaded > 0 {
        line = line.and(format!(", {} unloaded", totals.unloaded), Look::Dim);
    }
    line
}

fn rates(overview: &Overview) -> Line {
    let rates = &overview.totals.rates;
    let refused = overview.refused_per_s.filter(|rate| *rate > 0.0);
    let failing = rates.failures_per_s.is_some_and(|rate| rate > 0.0);
    let line = Line::of(
        format!(
            "load    {} req/s  {} inf/s  batch {}  queue {}  in flight {}  ",
            some_number(rates.requests_per_s),
            some_number(rates.inferences_per_s),
            some_number(rates.batch),
            some_number(rates.pending),
            some_number(rates.in_flight),
        ),
        Look::Plain,
    );
    let line =
        line.and(format!("{} err/s", some_number(rates.failures_per_s)), if failing { Look::Bad } else { Look::Plain });
    match refused {
        Some(refused) => line.and(format!("  {} refused/s", number(refused)), Look::Warning),
        None => line,
    }
}

fn server(overview: &Overview) -> Line {
    let server = &overview.server;
    let count = |value: Option<f64>| value.map_or(ABSENT.to_owned(), number);
    let mut line = Line::of(
        format!(
            "server  shards {}  connections {}  requests hold {}",
            count(server.shards),
            count(server.connections),
            some_bytes(server.pool_bytes),
        ),
        Look::Plain,
    );
    if let Some(stuck) = server.shards_stuck.filter(|stuck| *stuck > 0.0) {
        line = line.and(format!("  {stuck} shards stuck"), Look::Bad);
    }
    if let Some(panics) = server.panics.filter(|panics| *panics > 0.0) {
        line = line.and(format!("  {panics} panics"), Look::Bad);
    }
    match server.resident_bytes {
        Some(bytes) => line.and(format!("  resident {}", some_bytes(Some(bytes))), Look::Plain),
        None => line,
    }
}

fn host(overview: &Overview) -> Line {
    let server = &overview.server;
    let memory = match (server.memory_used_bytes, server.memory_total_bytes) {
        (None, None) => ABSENT.to_owned(),
        (used, total) => format!("{} of {}", some_bytes(used), some_bytes(total)),
    };
    let pinned = server.pinned_used_bytes.filter(|used| *used > 0.0);
    let pinned = pinned.map(|used| format!("  pinned {}", some_bytes(Some(used)))).unwrap_or_default();
    Line::of(format!("host    CPU {}  memory {memory}{pinned}", percent(server.cpu_utilization)), Look::Plain)
}

fn of_gpu(uuid: &str, gpu: &GpuFigures) -> Line {
    let memory = format!("{} of {}", some_bytes(gpu.memory_used_bytes), some_bytes(gpu.memory_total_bytes));
    let watts = |value: Option<f64>| value.map_or(ABSENT.to_owned(), |value| format!("{value:.0} W"));
    let power = format!("{} of {}", watts(gpu.power_watts), watts(gpu.power_limit_watts));
    let short: String = plain(uuid).chars().take(12).collect();
    Line::of(format!("GPU {short}  use {}  memory {memory}  power {power}", percent(gpu.utilization)), Look::Plain)
}

/// The detail of one model.
fn of_model(row: &Row, points: &[Point], width: usize) -> Vec<Line> {
    let ModelKey { name, version, namespace } = &row.key;
    let state = row.state.as_ref();
    let shown = if version.is_empty() { "-".to_owned() } else { plain(version) };
    let mut title = Line::of(plain(name), Look::Bold).and(format!("  version {shown}  "), Look::Plain);
    title = title.and(plain(state.map_or("-", |state| state.word())), state_look(row));
    if !namespace.is_empty() {
        title = title.and(format!("  in {}", plain(namespace)), Look::Dim);
    }
    let mut lines = vec![title];
    let reason: Vec<char> = plain(state.map_or("", |state| state.reason.as_str())).chars().collect();
    let pieces = reason.chunks(width.max(1)).take(REASON_LINES_MAX);
    lines.extend(pieces.map(|piece| Line::of(piece.iter().collect::<String>(), Look::Warning)));
    let rates = &row.rates;
    let pairs = [
        ("requests/s", some_number(rates.requests_per_s), "answered", some_number(rates.success_total)),
        ("errors/s", some_number(rates.failures_per_s), "failed", some_number(rates.failure_total)),
        ("refused/s", some_number(rates.refused_per_s), "inferences/s", some_number(rates.inferences_per_s)),
        ("executions/s", some_number(rates.executions_per_s), "mean batch", some_number(rates.batch)),
        ("queue", some_number(rates.pending), "in flight", some_number(rates.in_flight)),
        ("cache hits", percent(rates.cache_hits), "load took", some_duration_us(rates.load_secs.map(|s| s * 1e6))),
    ];
    lines.push(Line::default());
    for (one, value, other, second) in pairs {
        lines.push(Line::of(format!("{one:<13} {value:>9}    {other:<13} {second:>9}"), Look::Plain));
    }
    lines.push(Line::default());
    let head = format!("{:<10} {:>9} {:>9} {:>9}  last readings", "phase", "mean", "p50", "p99");
    lines.push(Line::of(fit(&head, width), Look::Reverse));
    let room = width.saturating_sub(42);
    for phase in Phase::ALL {
        let latency = rates.latency(phase);
        let values: Vec<f32> =
            points.iter().map(|point| point.latencies_us.get(phase.index()).copied().unwrap_or(f32::NAN)).collect();
        let figures = format!(
            "{:<10} {:>9} {:>9} {:>9}  ",
            phase.name(),
            some_duration_us(latency.mean_us),
            quantile_us(latency.p50_us),
            quantile_us(latency.p99_us),
        );
        lines.push(Line::of(figures, Look::Plain).and(sparkline(&values, room), Look::Good));
    }
    let values: Vec<f32> = points.iter().map(|point| point.requests_per_s).collect();
    let figures = format!("{:<10} {:>9} {:>9} {:>9}  ", "requests/s", some_number(rates.requests_per_s), "", "");
    lines.push(Line::of(figures, Look::Plain).and(sparkline(&values, room), Look::Good));
    lines
}

fn state_look(row: &Row) -> Look {
    match row.state.as_ref().map(ModelState::availability) {
        Some(Availability::Ready) => Look::Good,
        _ => look(row, false),
    }
}
