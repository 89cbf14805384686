//! From runs to a table: the median round of each scenario and side, and the ratio of the two.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::scenario::Scenario;
use super::side::{Kind, Used};

/// One scenario on one side, once.
pub struct Run {
    pub scenario: &'static Scenario,
    pub kind: Kind,
    pub requests: u64,
    pub measured: Duration,
    pub latency_ns: Histogram<u64>,
    /// By the server and its processes, in the measured time.
    pub used: Used,
    /// CPU time of the client's thread.
    pub client_ns: u64,
    /// 0 if nothing is pinned.
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Run {
    pub fn failed(scenario: &'static Scenario, kind: Kind, error: String) -> Run {
        Run {
            scenario,
            kind,
            requests: 0,
            measured: Duration::ZERO,
            latency_ns: Histogram::new_with_bounds(1, 2, 1).expect("these bounds are good"),
            used: Used::default(),
            client_ns: 0,
            errors: 1,
            first_error: Some(error),
        }
    }

    fn rate(&self) -> f64 {
        self.requests as f64 / self.measured.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Of the server and its processes.
    fn cpu_us(&self) -> f64 {
        self.a_request(self.used.cpu_ns()) / 1e3
    }

    fn server_us(&self) -> f64 {
        self.a_request(self.used.processes.get("server").map_or(0, |usage| usage.cpu_ns())) / 1e3
    }

    fn a_request(&self, total: u64) -> f64 {
        total as f64 / self.requests.max(1) as f64
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e3
    }

    /// The server's threads and the others, by their CPU time for a request.
    fn threads(&self) -> String {
        let mut kinds: Vec<(String, f64)> = Vec::new();
        for (process, usage) in &self.used.processes {
            match process.as_str() {
                "server" => {
                    kinds.extend(usage.threads_ns.iter().map(|(kind, &ns)| (kind.clone(), self.a_request(ns) / 1e3)));
                }
                _ => kinds.push(("worker".to_owned(), self.a_request(usage.cpu_ns()) / 1e3)),
            }
        }
        kinds.retain(|(_, us)| *us >= 0.05);
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        kinds.iter().map(|(kind, us)| format!("{kind} {us:.1}")).collect::<Vec<_>>().join(", ")
    }

    /// A line of progress.
    pub fn line(&self) -> String {
        let error = self.first_error.as_deref().map(|error| format!("; {} errors: {error}", self.errors));
        format!(
            "{:13} {:8} {:8.0}/s p50 {:.0} p99 {:.0} us, {:.1} us CPU a request ({}), {:.2} sleeps{}",
            self.scenario.name,
            self.kind.name(),
            self.rate(),
            self.quantile_us(0.5),
            self.quantile_us(0.99),
            self.cpu_us(),
            self.threads(),
            self.a_request(self.used.sleeps()),
            error.unwrap_or_default()
        )
    }
}

/// Markdown: the machine, and a row for each scenario and side.
pub fn table(heading: &[String], runs: &[Run]) -> String {
    let mut text: String = heading.iter().map(|line| format!("- {line}\n")).collect();
    text.push_str(
        "\n| scenario | side | CPU µs/request (min–max) | of the official's | server, workers | sleeps/request | \
         requests/s | p50 µs | p99 | p99.9 | max | client | errors |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut scenarios: Vec<&'static Scenario> = Vec::new();
    for run in runs {
        if !scenarios.iter().any(|known| known.name == run.scenario.name) {
            scenarios.push(run.scenario);
        }
    }
    let of = |scenario: &Scenario, kind: Kind| -> Vec<&Run> {
        let mut found: Vec<&Run> =
            runs.iter().filter(|run| run.scenario.name == scenario.name && run.kind == kind).collect();
        found.sort_by(|a, b| a.cpu_us().total_cmp(&b.cpu_us()));
        found
    };
    for scenario in scenarios {
        let reference = median(&of(scenario, Kind::Official)).map(Run::cpu_us);
        for kind in [Kind::Nereid, Kind::Official] {
            text.push_str(&row(&of(scenario, kind), reference));
        }
    }
    let mut errors: Vec<&str> = runs.iter().filter_map(|run| run.first_error.as_deref()).collect();
    errors.sort_unstable();
    errors.dedup();
    errors.iter().for_each(|error| text.push_str(&format!("\nError: {error}\n")));
    text
}

fn median<'a>(sorted: &[&'a Run]) -> Option<&'a Run> {
    let measured: Vec<&Run> = sorted.iter().copied().filter(|run| run.requests > 0).collect();
    measured.get((measured.len().max(1) - 1) / 2).copied()
}

/// The round whose CPU time a request is the median, with the extremes of all. Nothing for a side that did not run.
fn row(sorted: &[&Run], reference: Option<f64>) -> String {
    let Some(first) = sorted.first() else { return String::new() };
    let errors: u64 = sorted.iter().map(|run| run.errors).sum();
    let Some(shown) = median(sorted) else {
        let named = format!("{} | {}", first.scenario.name, first.kind.name());
        return format!("| {named} | failed | | | | | | | | | | {errors} |\n");
    };
    let measured = || sorted.iter().filter(|run| run.requests > 0).map(|run| run.cpu_us());
    let (least, most) = (measured().fold(f64::INFINITY, f64::min), measured().fold(0.0, f64::max));
    let share = match (shown.kind, reference) {
        (Kind::Nereid, Some(reference)) if reference > 0.0 => format!("{:.0} %", shown.cpu_us() / reference * 100.0),
        _ => String::new(),
    };
    format!(
        "| {} | {} | **{:.1}** ({least:.1}–{most:.1}) | {share} | {:.1} + {:.1} | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} \
         | {:.0} | {:.0} % | {errors} |\n",
        shown.scenario.name,
        shown.kind.name(),
        shown.cpu_us(),
        shown.server_us(),
        shown.cpu_us() - shown.server_us(),
        shown.a_request(shown.used.sleeps()),
        shown.rate(),
        shown.quantile_us(0.5),
        shown.quantile_us(0.99),
        shown.quantile_us(0.999),
        shown.latency_ns.max() as f64 / 1e3,
        shown.client_ns as f64 / shown.measured.as_nanos().max(1) as f64 * 100.0,
    )
}
