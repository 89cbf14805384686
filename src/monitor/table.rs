//! The columns of the table of models: their texts, their order, and those that fit a width.

use std::cmp::Ordering;

use super::figures::Phase;
use super::format::{plain, quantile_us, some_duration_us, some_number};
use super::index::ModelState;
use super::line::fit;
use super::overview::Row;
use super::rates::ModelRates;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Model,
    Version,
    State,
    Requests,
    Failures,
    Inferences,
    Batch,
    Queue,
    InFlight,
    Mean,
    P50,
    P99,
}

/// The least width of the models' names, which take what the other columns leave.
const NAME_MIN: usize = 20;
/// Wider names than this are only shown where there is room for them.
const NAME_MAX: usize = 60;
/// What is left out first where a terminal is narrow.
const LEFT_OUT: [Column; 6] =
    [Column::P50, Column::Inferences, Column::Version, Column::InFlight, Column::Batch, Column::Failures];

impl Column {
    pub const ALL: [Column; 12] = [
        Column::Model,
        Column::Version,
        Column::State,
        Column::Requests,
        Column::Failures,
        Column::Inferences,
        Column::Batch,
        Column::Queue,
        Column::InFlight,
        Column::Mean,
        Column::P50,
        Column::P99,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Column::Model => "MODEL",
            Column::Version => "VER",
            Column::State => "STATE",
            Column::Requests => "REQ/S",
            Column::Failures => "ERR/S",
            Column::Inferences => "INF/S",
            Column::Batch => "BATCH",
            Column::Queue => "QUEUE",
            Column::InFlight => "INFLT",
            Column::Mean => "MEAN",
            Column::P50 => "P50",
            Column::P99 => "P99",
        }
    }

    /// As a command line names it.
    pub fn name(self) -> &'static str {
        match self {
            Column::Model => "model",
            Column::Version => "version",
            Column::State => "state",
            Column::Requests => "requests",
            Column::Failures => "failures",
            Column::Inferences => "inferences",
            Column::Batch => "batch",
            Column::Queue => "queue",
            Column::InFlight => "inflight",
            Column::Mean => "mean",
            Column::P50 => "p50",
            Column::P99 => "p99",
        }
    }

    fn width(self) -> usize {
        match self {
            Column::Model => NAME_MIN,
            Column::Version => 4,
            Column::State => 9,
            Column::Requests | Column::Inferences => 7,
            Column::Failures | Column::Batch | Column::Queue | Column::InFlight => 6,
            Column::Mean | Column::P50 | Column::P99 => 8,
        }
    }

    fn is_text(self) -> bool {
        matches!(self, Column::Model | Column::Version | Column::State)
    }

    /// The text of a figure; those of the names are [`Column::cell`]'s.
    fn figure(self, rates: &ModelRates) -> String {
        let request = rates.latency(Phase::Request);
        match self {
            Column::Model | Column::Version | Column::State => String::new(),
            Column::Requests => some_number(rates.requests_per_s),
            Column::Failures => some_number(rates.failures_per_s),
            Column::Inferences => some_number(rates.inferences_per_s),
            Column::Batch => some_number(rates.batch),
            Column::Queue => some_number(rates.pending),
            Column::InFlight => some_number(rates.in_flight),
            Column::Mean => some_duration_us(request.mean_us),
            Column::P50 => quantile_us(request.p50_us),
            Column::P99 => quantile_us(request.p99_us),
        }
    }

    pub fn cell(self, row: &Row) -> String {
        match self {
            Column::Model if row.key.namespace.is_empty() => plain(&row.key.name),
            Column::Model => plain(&format!("{} ({})", row.key.name, row.key.namespace)),
            Column::Version if row.key.version.is_empty() => "-".to_owned(),
            Column::Version => plain(&row.key.version),
            Column::State => plain(row.state.as_ref().map_or("-", ModelState::word)),
            _ => self.figure(&row.rates),
        }
    }

    pub fn cell_of_totals(self, rates: &ModelRates) -> String {
        match self {
            Column::Model => "TOTAL".to_owned(),
            Column::Version | Column::State => "-".to_owned(),
            _ => self.figure(rates),
        }
    }

    /// The order of two rows, from small to large; missing figures are the smallest.
    pub fn order(self, one: &Row, other: &Row) -> Ordering {
        let number = |row: &Row| {
            let (rates, request) = (&row.rates, row.rates.latency(Phase::Request));
            let value = match self {
                Column::Model | Column::Version | Column::State => None,
                Column::Requests => rates.requests_per_s,
                Column::Failures => rates.failures_per_s,
                Column::Inferences => rates.inferences_per_s,
                Column::Batch => rates.batch,
                Column::Queue => rates.pending,
                Column::InFlight => rates.in_flight,
                Column::Mean => request.mean_us,
                Column::P50 => request.p50_us.map(|quantile| quantile.least()),
                Column::P99 => request.p99_us.map(|quantile| quantile.least()),
            };
            value.unwrap_or(-1.0)
        };
        let version = |row: &Row| row.key.version.parse::<u64>().unwrap_or_default();
        match self {
            Column::Model => one.key.cmp(&other.key),
            Column::Version => version(one).cmp(&version(other)),
            Column::State => {
                let word = |row: &Row| row.state.as_ref().map(ModelState::availability).map(|state| state as u8);
                word(one).cmp(&word(other))
            }
            _ => number(one).total_cmp(&number(other)),
        }
    }
}

/// The columns that a width has room for, with their widths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub columns: Vec<(Column, usize)>,
}

impl Layout {
    /// For a terminal. The column that the rows are sorted by stays.
    pub fn of_width(width: usize, sorted_by: Column) -> Layout {
        let mut columns: Vec<Column> = Column::ALL.to_vec();
        let needed = |columns: &[Column]| columns.iter().map(|column| column.width() + 1).sum::<usize>() - 1;
        for left_out in LEFT_OUT.into_iter().filter(|column| *column != sorted_by) {
            if needed(&columns) > width {
                columns.retain(|column| *column != left_out);
            }
        }
        let room = width.saturating_sub(needed(&columns));
        let name = (NAME_MIN + room).min(NAME_MAX.max(NAME_MIN));
        let width = |column: Column| if column == Column::Model { name } else { column.width() };
        Layout { columns: columns.into_iter().map(|column| (column, width(column))).collect() }
    }

    /// As wide as its cells: nothing is cut.
    pub fn of_cells(rows: &[Vec<String>]) -> Layout {
        let widest = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
        let columns = Column::ALL.into_iter().enumerate();
        Layout { columns: columns.map(|(at, column)| (column, widest(at).unwrap_or_default())).collect() }
    }

    /// One row. Figures stand at the right of their columns.
    pub fn row(&self, cell: impl Fn(Column) -> String) -> String {
        let cells = self.columns.iter().map(|(column, width)| {
            let text = cell(*column);
            match column.is_text() {
                true => fit(&text, *width),
                false => format!("{:>width$}", fit_short(&text, *width)),
            }
        });
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }

    /// The titles; an arrow shows the column that the rows are sorted by.
    pub fn titles(&self, sorted_by: Column, is_descending: bool) -> String {
        let arrow = if is_descending { "▼" } else { "▲" };
        self.row(|column| match column == sorted_by {
            true => format!("{}{arrow}", column.title()),
            false => column.title().to_owned(),
        })
    }
}

fn fit_short(text: &str, width: usize) -> String {
    if text.chars().count() > width { fit(text, width) } else { text.to_owned() }
}

/// All rows as plain text, nothing cut, with a head and the totals at the end.
pub fn plain_table<'a>(rows: impl Iterator<Item = &'a Row>, totals: &ModelRates) -> String {
    let titles = Column::ALL.map(|column| column.title().to_owned()).to_vec();
    let mut cells = vec![titles];
    cells.extend(rows.map(|row| Column::ALL.map(|column| column.cell(row)).to_vec()));
    cells.push(Column::ALL.map(|column| column.cell_of_totals(totals)).to_vec());
    let layout = Layout::of_cells(&cells);
    let mut text = String::new();
    for row in &cells {
        let line = layout.row(|column| row.get(column as usize).cloned().unwrap_or_default());
        text.push_str(&line);
        text.push('\n');
    }
    text
}
