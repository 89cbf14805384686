//! From runs to tables: the median round with its extremes, and every round as JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::scenario::Scenario;
use crate::side::usage::Usage;

/// One scenario on one engine, once.
pub struct Run {
    pub scenario: &'static Scenario,
    pub engine: String,
    pub requests: u64,
    pub measured: Duration,
    pub latency_ns: Histogram<u64>,
    /// The server's, in the measured time.
    pub usage: Usage,
    /// CPU time of the client's thread.
    pub client_ns: u64,
    /// 0 if nothing is pinned.
    pub server_cores: usize,
    pub load_average: String,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Run {
    pub fn failed(scenario: &'static Scenario, engine: &str, error: String) -> Run {
        Run {
            scenario,
            engine: engine.to_owned(),
            requests: 0,
            measured: Duration::ZERO,
            latency_ns: Histogram::new_with_bounds(1, 2, 1).expect("these bounds are good"),
            usage: Usage::default(),
            client_ns: 0,
            server_cores: 0,
            load_average: String::new(),
            errors: 1,
            first_error: Some(error),
        }
    }

    fn rate(&self) -> f64 {
        self.requests as f64 / self.measured.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The server's CPU time a request.
    fn cpu_us(&self) -> f64 {
        self.a_request(self.usage.cpu_ns()) / 1e3
    }

    fn a_request(&self, total: u64) -> f64 {
        total as f64 / self.requests.max(1) as f64
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e3
    }

    fn max_us(&self) -> f64 {
        self.latency_ns.max() as f64 / 1e3
    }

    /// Per cent of the measured time, of one core or of all that the server has.
    fn share(&self, ns: u64, cores: usize) -> f64 {
        ns as f64 / (self.measured.as_nanos().max(1) as f64 * cores.max(1) as f64) * 100.0
    }

    /// Per cent of the server's cores that others had: neighbours, and the hypervisor.
    fn taken_by_others(&self) -> f64 {
        let others = self.usage.cores_busy_ns.saturating_sub(self.usage.cpu_ns()) + self.usage.cores_stolen_ns;
        self.share(others, self.server_cores)
    }

    fn system_share(&self) -> f64 {
        let total = self.usage.user_ns + self.usage.system_ns;
        self.usage.system_ns as f64 / total.max(1) as f64 * 100.0
    }

    /// CPU time a request by kinds of threads, the largest first; what rounds to nothing is left out.
    fn threads(&self) -> String {
        let mut kinds: Vec<(&String, f64)> =
            self.usage.threads_ns.iter().map(|(kind, &ns)| (kind, self.a_request(ns) / 1e3)).collect();
        kinds.retain(|(_, us)| *us >= 0.005);
        kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
        kinds.iter().map(|(kind, us)| format!("{kind} {us:.2}")).collect::<Vec<_>>().join(", ")
    }

    /// A line of progress.
    pub fn line(&self) -> String {
        let error = self.first_error.as_deref().map(|error| format!("; {} errors: {error}", self.errors));
        format!(
            "{:16} {:8} {:9.0}/s p50 {:.0} p99 {:.0} us, {:.2} us CPU a request, others {:.0} %, load {}{}",
            self.scenario.name,
            self.engine,
            self.rate(),
            self.quantile_us(0.5),
            self.quantile_us(0.99),
            self.cpu_us(),
            self.taken_by_others(),
            self.load_average,
            error.unwrap_or_default()
        )
    }

    fn json(&self) -> Value {
        json!({
            "scenario": self.scenario.name,
            "engine": self.engine,
            "requests": self.requests,
            "seconds": self.measured.as_secs_f64(),
            "requests_per_s": self.rate(),
            "latency_us": {
                "p50": self.quantile_us(0.5), "p99": self.quantile_us(0.99), "p999": self.quantile_us(0.999),
                "max": self.max_us(),
            },
            "cpu_us_per_request": self.cpu_us(),
            "system_percent": self.system_share(),
            "threads_ns": self.usage.threads_ns,
            "sleeps_per_request": self.a_request(self.usage.sleeps),
            "server_percent": self.share(self.usage.cpu_ns(), self.server_cores),
            "client_percent": self.share(self.client_ns, 1),
            "others_percent": self.taken_by_others(),
            "resident_kib": self.usage.resident_kib,
            "load_average": self.load_average,
            "errors": self.errors,
            "first_error": self.first_error,
        })
    }
}

/// Markdown: the machine, a row for each scenario and engine, and notes on the columns.
pub fn tables(heading: &[String], runs: &[Run], resident_kib: &[(String, Vec<u64>)]) -> String {
    let mut text: String = heading.iter().map(|line| format!("- {line}\n")).collect();
    text.push_str(
        "\n| scenario | engine | CPU µs/request (min–max) | system | by thread, µs | sleeps/request | requests/s \
         (min–max) | p50 µs | p99 | p99.9 | max | server | client | others | errors |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for group in groups(runs) {
        text.push_str(&row(&group));
    }
    text.push_str("\nResident memory in KiB, at the start and after each round: ");
    let sizes = resident_kib.iter().map(|(engine, sizes)| {
        format!("{engine} {}", sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(" → "))
    });
    text.push_str(&sizes.collect::<Vec<_>>().join("; "));
    text.push_str(".\n");
    let mut errors: Vec<&str> = runs.iter().filter_map(|run| run.first_error.as_deref()).collect();
    errors.sort_unstable();
    errors.dedup();
    for error in errors {
        text.push_str(&format!("\nError: {error}\n"));
    }
    text
}

/// Every round.
pub fn json(heading: &[String], runs: &[Run], resident_kib: &[(String, Vec<u64>)]) -> String {
    let sizes: serde_json::Map<String, Value> =
        resident_kib.iter().map(|(engine, sizes)| (engine.clone(), json!(sizes))).collect();
    let all = json!({
        "about": heading,
        "runs": runs.iter().map(Run::json).collect::<Vec<_>>(),
        "resident_kib": sizes,
    });
    format!("{all:#}\n")
}

/// The rounds of each scenario and engine, in the order in which they first ran.
fn groups(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        let same = |group: &&mut Vec<&Run>| {
            group.first().is_some_and(|first| first.scenario.name == run.scenario.name && first.engine == run.engine)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

/// The round whose CPU time a request is the median, with the extremes of all.
fn row(group: &[&Run]) -> String {
    let mut measured: Vec<&Run> = group.iter().copied().filter(|run| run.requests > 0).collect();
    measured.sort_by(|a, b| a.cpu_us().total_cmp(&b.cpu_us()));
    let errors: u64 = group.iter().map(|run| run.errors).sum();
    let Some(median) = measured.get((measured.len().max(1) - 1) / 2) else {
        let named = group.first().map_or(String::new(), |run| format!("{} | {}", run.scenario.name, run.engine));
        return format!("| {named} | failed | | | | | | | | | | | | {errors} |\n");
    };
    let (cheapest, dearest) = (measured[0].cpu_us(), measured[measured.len() - 1].cpu_us());
    let rates = measured.iter().map(|run| run.rate());
    let (slowest, fastest) = (rates.clone().fold(f64::INFINITY, f64::min), rates.fold(0.0, f64::max));
    format!(
        "| {} | {} | **{:.2}** ({cheapest:.2}–{dearest:.2}) | {:.0} % | {} | {:.2} | {:.0} ({slowest:.0}–{fastest:.0}) \
         | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} % | {:.0} % | {:.0} % | {errors} |\n",
        median.scenario.name,
        median.engine,
        median.cpu_us(),
        median.system_share(),
        median.threads(),
        median.a_request(median.usage.sleeps),
        median.rate(),
        median.quantile_us(0.5),
        median.quantile_us(0.99),
        median.quantile_us(0.999),
        median.max_us(),
        median.share(median.usage.cpu_ns(), median.server_cores),
        median.share(median.client_ns, 1),
        median.taken_by_others(),
    )
}
