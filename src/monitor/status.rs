//! The report of `nereid status`: is the server live and ready, and which models serve.

use serde_json::{Value, json};

use super::figures::ModelFigures;
use super::format::{ABSENT, number, plain, uptime};
use super::index::Availability;
use super::overview::{Overview, Row};
use super::source::{Reading, Unreachable};

/// The outcome of `nereid status`.
pub struct StatusReport<'a> {
    reading: &'a Reading,
    overview: Overview,
}

impl<'a> StatusReport<'a> {
    pub fn new(reading: &'a Reading) -> StatusReport<'a> {
        StatusReport { reading, overview: Overview::between(None, reading) }
    }

    /// The server is ready and every model that it should serve is. Without the index nothing is known of the models.
    pub fn is_good(&self) -> bool {
        let reading = self.reading;
        reading.live && reading.ready && reading.index.is_ok() && self.overview.totals.unavailable == 0
    }

    /// A number of models in a state; the index alone has states.
    fn counted(&self, count: usize) -> Option<usize> {
        self.reading.index.is_ok().then_some(count)
    }

    pub fn text(&self) -> String {
        let (reading, overview) = (self.reading, &self.overview);
        let yes = |is_so: bool, what: &str| if is_so { what.to_owned() } else { format!("not {what}") };
        let mut text =
            format!("{}: {}, {}\n", plain(&reading.address), yes(reading.live, "live"), yes(reading.ready, "ready"));
        let shown = |text: &str| if text.is_empty() { ABSENT.to_owned() } else { plain(text) };
        let build = overview.server.build.as_ref().map(|build| format!(", build {}", plain(build)));
        let of = [
            ("server", format!("{} {}{}", shown(&reading.name), shown(&reading.version), build.unwrap_or_default())),
            ("uptime", overview.uptime_secs.map_or(ABSENT.to_owned(), uptime)),
        ];
        of.iter().for_each(|(name, value)| text.push_str(&format!("  {name}: {value}\n")));
        text.push('\n');
        text.push_str(&self.models());
        let totals = &overview.totals;
        let counted = |count: usize| self.counted(count).map_or(ABSENT.to_owned(), |count| count.to_string());
        let total = |value: Option<f64>| value.map_or(ABSENT.to_owned(), number);
        text.push_str(&format!(
            "\n{} ready, {} loading or unloading, {} unavailable, {} unloaded; {} requests answered, {} failed, {} \
             waiting\n",
            counted(totals.ready),
            counted(totals.changing),
            counted(totals.unavailable),
            counted(totals.unloaded),
            total(totals.rates.success_total),
            total(totals.rates.failure_total),
            total(totals.rates.pending),
        ));
        overview.notes.iter().for_each(|note| text.push_str(&format!("note: {}\n", plain(note))));
        text
    }

    fn models(&self) -> String {
        let name = |row: &Row| plain(&row.key.name);
        let version = |row: &Row| if row.key.version.is_empty() { "-".to_owned() } else { plain(&row.key.version) };
        let rows = &self.overview.rows;
        let widest = |of: &dyn Fn(&Row) -> String| rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0);
        let (names, versions) = (widest(&name), widest(&version));
        let mut text = String::new();
        for row in rows {
            let state = row.state.as_ref();
            let word = plain(state.map_or("-", |state| state.word()));
            let reason = state.map_or("", |state| state.reason.as_str());
            let line = format!("{:<names$}  {:>versions$}  {word:<9}  {}", name(row), version(row), plain(reason));
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if rows.is_empty() {
            text.push_str("no models\n");
        }
        text
    }

    /// docs/monitoring.md describes the members.
    pub fn json(&self) -> String {
        let (reading, overview) = (self.reading, &self.overview);
        let totals = &overview.totals;
        let document = json!({
            "server": {
                "address": reading.address,
                "name": some_text(&reading.name),
                "version": some_text(&reading.version),
                "build": overview.server.build,
                "live": reading.live,
                "ready": reading.ready,
                "uptime_secs": overview.uptime_secs,
            },
            "models": overview.rows.iter().map(|row| self.model(row)).collect::<Vec<_>>(),
            "totals": {
                "ready": self.counted(totals.ready),
                "changing": self.counted(totals.changing),
                "unavailable": self.counted(totals.unavailable),
                "unloaded": self.counted(totals.unloaded),
                "requests": whole(totals.rates.success_total),
                "failures": whole(totals.rates.failure_total),
                "waiting": whole(totals.rates.pending),
            },
            "notes": overview.notes,
        });
        pretty(&document)
    }

    fn model(&self, row: &Row) -> Value {
        let state = row.state.as_ref();
        let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let figures = self.reading.figures.as_ref().ok().and_then(|figures| figures.models.get(&row.key));
        let count = |of: fn(&ModelFigures) -> Option<f64>| whole(figures.and_then(of));
        json!({
            "name": row.key.name,
            "version": some_text(&row.key.version),
            "state": text(state.map(|state| state.state.as_str())),
            "reason": text(state.map(|state| state.reason.as_str())),
            "is_available": state.map(|state| state.availability() == Availability::Ready),
            "requests": count(|figures| figures.success),
            "failures": count(|figures| figures.failure),
            "inferences": count(|figures| figures.inferences),
            "executions": count(|figures| figures.executions),
            "waiting": count(|figures| figures.pending),
        })
    }

    /// The document of a server that does not answer.
    pub fn json_of(unreachable: &Unreachable) -> String {
        pretty(&json!({
            "server": {"address": unreachable.address, "live": false, "ready": false},
            "error": unreachable.to_string(),
        }))
    }
}

fn some_text(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Counts are whole numbers in the document, as they are on the page.
fn whole(value: Option<f64>) -> Option<u64> {
    value.filter(|value| value.is_finite() && *value >= 0.0).map(|value| value.round() as u64)
}

fn pretty(document: &Value) -> String {
    let mut text = serde_json::to_string_pretty(document).unwrap_or_default();
    text.push('\n');
    text
}
