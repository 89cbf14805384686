//! What happened between two pages: rates, mean batches and latencies of one model.

use super::figures::{ModelFigures, Phase, PhaseFigures};
use super::histogram::{Histogram, Quantile};

/// How long one phase took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Latency {
    /// Of the interval, out of a histogram or the counters.
    pub mean_us: Option<f64>,
    /// Of the interval where the server exports a histogram; else what its summary states, if it has one.
    pub p50_us: Option<Quantile>,
    pub p99_us: Option<Quantile>,
}

/// One model within an interval. A figure is missing where the server does not export what it is made of, a latency
/// also where nothing happened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelRates {
    pub requests_per_s: Option<f64>,
    pub failures_per_s: Option<f64>,
    pub refused_per_s: Option<f64>,
    pub inferences_per_s: Option<f64>,
    pub executions_per_s: Option<f64>,
    /// Inferences of one execution.
    pub batch: Option<f64>,
    /// Requests that wait now.
    pub pending: Option<f64>,
    /// Requests under way, as a mean of the interval: the rate times the latency (Little's law).
    pub in_flight: Option<f64>,
    /// Part of the lookups that the response cache answered.
    pub cache_hits: Option<f64>,
    /// Since the model was loaded.
    pub success_total: Option<f64>,
    pub failure_total: Option<f64>,
    pub load_secs: Option<f64>,
    pub latencies: [Latency; 5],
}

impl ModelRates {
    /// What happened since `earlier`, `secs` ago. A model that was not there then, or whose counters began again, was
    /// loaded meanwhile: all of its counts are of the interval.
    pub fn between(earlier: Option<&ModelFigures>, now: &ModelFigures, secs: f64) -> ModelRates {
        let nothing = ModelFigures::default();
        let earlier = earlier.filter(|earlier| !has_begun_again(earlier, now)).unwrap_or(&nothing);
        let since = |of: fn(&ModelFigures) -> Option<f64>| {
            of(now).map(|value| (value - of(earlier).unwrap_or_default()).max(0.0))
        };
        let rate = |of| since(of).filter(|_| secs > 0.0).map(|count| count / secs);
        let (success, inferences) = (since(|figures| figures.success), since(|figures| figures.inferences));
        let executions = since(|figures| figures.executions);
        let (hits, misses) = (since(|figures| figures.cache_hits), since(|figures| figures.cache_misses));
        let mut latencies = [Latency::default(); 5];
        for phase in Phase::ALL {
            // Answers of the cache have no part in the model's own phases.
            let count = match phase {
                Phase::Request | Phase::Queue => success,
                Phase::Input | Phase::Infer | Phase::Output => {
                    success.map(|success| (success - hits.unwrap_or_default()).max(0.0))
                }
            };
            let (Some(before), Some(now)) = (earlier.phase(phase), now.phase(phase)) else { continue };
            if let Some(latency) = latencies.get_mut(phase.index()) {
                *latency = Latency::between(before, now, count);
            }
        }
        let request_us = match (now.phase(Phase::Request), earlier.phase(Phase::Request)) {
            (Some(now), Some(earlier)) => total_since(earlier, now),
            _ => None,
        };
        ModelRates {
            requests_per_s: rate(|figures| figures.success),
            failures_per_s: rate(|figures| figures.failure),
            refused_per_s: rate(|figures| figures.refused),
            inferences_per_s: rate(|figures| figures.inferences),
            executions_per_s: rate(|figures| figures.executions),
            batch: ratio(inferences, executions),
            pending: now.pending,
            in_flight: request_us.filter(|_| secs > 0.0).map(|us| us / 1e6 / secs),
            cache_hits: ratio(hits, hits.zip(misses).map(|(hits, misses)| hits + misses)),
            success_total: now.success,
            failure_total: now.failure,
            load_secs: now.load_secs,
            latencies,
        }
    }

    pub fn latency(&self, phase: Phase) -> Latency {
        self.latencies.get(phase.index()).copied().unwrap_or_default()
    }
}

/// Microseconds that were added to the counter of a phase, or to the sum of its histogram.
fn total_since(earlier: &PhaseFigures, now: &PhaseFigures) -> Option<f64> {
    let sum = |figures: &PhaseFigures| figures.histogram.as_ref().map(|histogram| histogram.sum);
    match now.total_us {
        Some(total) => Some((total - earlier.total_us.unwrap_or_default()).max(0.0)),
        None => sum(now).map(|total| (total - sum(earlier).unwrap_or_default()).max(0.0)),
    }
}

impl Latency {
    fn between(earlier: &PhaseFigures, now: &PhaseFigures, count: Option<f64>) -> Latency {
        let nothing = Histogram::default();
        let since = now.histogram.as_ref().map(|now| now.since(earlier.histogram.as_ref().unwrap_or(&nothing)));
        let of_counters = || ratio(now.total_us.and(total_since(earlier, now)), count);
        match since {
            Some(since) => Latency {
                mean_us: since.mean().or_else(of_counters),
                p50_us: since.quantile(0.5),
                p99_us: since.quantile(0.99),
            },
            None => Latency {
                mean_us: of_counters(),
                p50_us: now.summary.p50.map(Quantile::At),
                p99_us: now.summary.p99.map(Quantile::At),
            },
        }
    }
}

fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    below.filter(|below| *below > 0.0).and_then(|below| Some(above? / below))
}

/// Counters only grow, until the model is loaded again.
fn has_begun_again(earlier: &ModelFigures, now: &ModelFigures) -> bool {
    let counters: [fn(&ModelFigures) -> Option<f64>; 4] = [
        |figures| figures.success,
        |figures| figures.failure,
        |figures| figures.inferences,
        |figures| figures.executions,
    ];
    counters.iter().any(|counter| matches!((counter(earlier), counter(now)), (Some(before), Some(now)) if now < before))
}
