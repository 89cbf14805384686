//! A report from the readings of the last seconds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{ModelReading, Reading, Report};

/// The time that a report is about; longer where no reading is as new.
const WINDOW: Duration = Duration::from_secs(3);
/// A model is full, if its instances execute for a greater part of the time.
const FULL: f64 = 0.9;

/// The readings from the newest that is at least [`WINDOW`] old, oldest first.
pub struct Window {
    readings: VecDeque<Reading>,
}

impl Window {
    pub fn new(readings: VecDeque<Reading>) -> Window {
        Window { readings }
    }

    /// Models of the newest reading.
    pub fn models(&self) -> usize {
        self.readings.back().map_or(0, |reading| reading.models.len())
    }

    pub fn add(&mut self, reading: Reading) {
        let old_ns = reading.at_ns.saturating_sub(WINDOW.as_nanos() as u64);
        // The second one is old enough to count from.
        while self.readings.get(1).is_some_and(|second| second.at_ns <= old_ns) {
            self.readings.pop_front();
        }
        self.readings.push_back(reading);
    }

    pub fn report(&self) -> Report {
        let (Some(first), Some(last)) = (self.readings.front(), self.readings.back()) else { return Report::default() };
        let span_ns = last.at_ns.saturating_sub(first.at_ns);
        let rates = Rates::between(first, last);
        let seconds = Duration::from_nanos(span_ns).as_secs_f64();
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let of_models = last.models.iter().filter_map(|model| self.utilization(model, first, last));
        Report {
            application_utilization: of_models.fold(0.0, f64::max),
            cpu_utilization: cpu_utilization(first, last),
            memory_utilization: last.memory.map_or(0.0, |(used, limit)| part(used as f64, limit as f64).min(1.0)),
            requests_per_second: per_second(rates.requests),
            errors_per_second: per_second(rates.errors),
            queue_depth: last.models.iter().map(|model| model.pending).fold(0, u64::saturating_add),
            cache: last.cache,
        }
    }

    /// `None` for a model without instances.
    fn utilization(&self, model: &ModelReading, first: &Reading, last: &Reading) -> Option<f64> {
        let instances = model.executions.len();
        if instances == 0 {
            return None;
        }
        let before = find(first, model).map_or(0, |before| before.executed_ns);
        let ended_ns = model.executed_ns.saturating_sub(before);
        let span_ns = last.at_ns.saturating_sub(first.at_ns);
        let underway = (0..instances).map(|worker| self.underway_ns(model, worker, last));
        let busy_ns = underway.fold(ended_ns, u64::saturating_add);
        // An execution that began before the window has all of its time in it.
        let busy = part(busy_ns as f64, span_ns as f64 * instances as f64).min(1.0);
        let is_full = busy > FULL || model.executions.iter().all(|count| count % 2 == 1);
        // Requests that wait while an instance is free are on their way to it, or wait for others on purpose.
        Some(if is_full && model.pending > 0 { 1.0 + model.pending as f64 / instances as f64 } else { busy })
    }

    /// How long the execution of a worker is known to have lasted.
    fn underway_ns(&self, model: &ModelReading, worker: usize, last: &Reading) -> u64 {
        let Some(count) = model.executions.get(worker).filter(|count| *count % 2 == 1) else { return 0 };
        let is_same = |reading: &&Reading| {
            let before = find(reading, model).filter(|before| before.executions.len() == model.executions.len());
            before.and_then(|before| before.executions.get(worker)) == Some(count)
        };
        let since = self.readings.iter().rev().take_while(is_same).last();
        since.map_or(0, |since| last.at_ns.saturating_sub(since.at_ns))
    }
}

fn find<'a>(reading: &'a Reading, model: &ModelReading) -> Option<&'a ModelReading> {
    // Readings list their models in the same order.
    reading.models.binary_search_by(|other| other.key.cmp(&model.key)).ok().and_then(|at| reading.models.get(at))
}

/// Of processor time between two readings.
fn cpu_utilization(first: &Reading, last: &Reading) -> f64 {
    let (Some((before, _)), Some((after, cores))) = (first.cpu, last.cpu) else { return 0.0 };
    let span_ns = last.at_ns.saturating_sub(first.at_ns) as f64;
    part(after.saturating_sub(before) as f64, span_ns * cores)
}

/// 0 where there is nothing to be a part of.
fn part(of: f64, whole: f64) -> f64 {
    let part = of / whole;
    if part.is_finite() && part > 0.0 { part } else { 0.0 }
}

/// Requests of clients that ended between two readings. The steps of an ensemble are requests of their models too: they
/// are taken off again. A failed ensemble has one failed step, as a rule.
#[derive(Debug, PartialEq)]
struct Rates {
    requests: f64,
    errors: f64,
}

impl Rates {
    fn between(first: &Reading, last: &Reading) -> Rates {
        let before: BTreeMap<&str, &ModelReading> =
            first.models.iter().map(|model| (model.key.as_str(), model)).collect();
        let (mut requests, mut errors, mut failed_ensembles) = (0.0, 0.0, 0.0);
        for model in &last.models {
            let of = |read: fn(&ModelReading) -> u64| {
                let before = before.get(model.key.as_str()).map_or(0, |before| read(before));
                read(model).saturating_sub(before) as f64
            };
            let (succeeded, failed) = (of(|model| model.succeeded), of(|model| model.failed));
            requests += succeeded + failed - succeeded * model.steps as f64;
            errors += failed;
            if model.steps > 0 {
                failed_ensembles += failed;
            }
        }
        let both = (errors - failed_ensembles).min(failed_ensembles);
        Rates { requests: (requests - both).max(0.0), errors: errors - both }
    }
}
