//! One run, as JSON.

use std::collections::BTreeMap;

use serde_json::json;

use super::options::Options;
use crate::side::load::{self, Outcome};
use crate::side::usage::{Usage, descendants, of_this_thread_ns};

/// The usage of the server and each of its processes, by pid, and the client's CPU time.
type Mark = (BTreeMap<u32, Usage>, u64);

/// Loads, and returns the result as text.
pub fn measure(options: &Options) -> Result<String, String> {
    let mut marks: Vec<Mark> = Vec::with_capacity(2);
    let outcome = load::run(options.kind.peers(options)?, options.measured, || {
        let mut used = BTreeMap::new();
        if let Some(pid) = options.pid {
            used.insert(pid, Usage::of(pid, &[])?);
            // A process that ends meanwhile is no worker of the loaded model.
            used.extend(descendants(pid).into_iter().filter_map(|pid| Some((pid, Usage::of(pid, &[]).ok()?))));
        }
        marks.push((used, of_this_thread_ns()));
        Ok(())
    })?;
    let [(before, client_before), (after, client_after)] = &marks[..] else { return Err("no marks".to_owned()) };
    let Outcome { tally, measured } = outcome;
    let none = Usage::default();
    let used: Vec<Usage> = after.iter().map(|(pid, usage)| usage.since(before.get(pid).unwrap_or(&none))).collect();
    let mut threads_ns: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, ns) in used.iter().flat_map(|usage| &usage.threads_ns) {
        *threads_ns.entry(kind).or_default() += ns;
    }
    let latency_us = |quantile: f64| tally.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    let line = json!({
        "requests": tally.requests,
        "responses": tally.requests * options.kind.responses(options),
        "seconds": measured.as_secs_f64(),
        "p50_us": latency_us(0.5),
        "p99_us": latency_us(0.99),
        "p999_us": latency_us(0.999),
        "cpu_ns": used.iter().map(Usage::cpu_ns).sum::<u64>(),
        "sleeps": used.iter().map(|usage| usage.sleeps).sum::<u64>(),
        "threads_ns": threads_ns,
        "client_ns": client_after.saturating_sub(*client_before),
        "errors": tally.errors,
        "first_error": tally.first_error,
    });
    Ok(line.to_string())
}
