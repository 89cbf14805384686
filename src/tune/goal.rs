//! What is better: the objective, the limits that a point must keep, and the values that searches compare.

use super::point::{Point, SLICES};
use super::search::Standing;

/// Failed requests, in parts of all, from which on a point has no value where no limit is set.
const ERROR_RATE_MAX: f64 = 0.01;
/// The part of a rate that must be completed.
const RATE_KEPT: f64 = 0.95;
/// Slices that the reference is made of.
const REFERENCE_SLICES: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    Throughput,
    /// The p99.
    Latency,
    Memory,
}

impl Objective {
    pub fn name(self) -> &'static str {
        match self {
            Objective::Throughput => "throughput",
            Objective::Latency => "latency",
            Objective::Memory => "memory",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Requests of all models a second.
    Throughput,
    /// Milliseconds, of the slowest model.
    P99,
    /// Bytes.
    Memory,
}

impl Metric {
    pub fn name(self) -> &'static str {
        match self {
            Metric::Throughput => "throughput",
            Metric::P99 => "p99",
            Metric::Memory => "memory",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    AtMost,
    AtLeast,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constraint {
    pub metric: Metric,
    pub comparison: Comparison,
    pub limit: f64,
}

impl std::fmt::Display for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.comparison == Comparison::AtMost { "<=" } else { ">=" };
        write!(f, "{}{sign}{}", self.metric.name(), self.limit)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    pub p99_ms: f64,
    /// Failed requests in parts of all.
    pub error_rate: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    pub objective: Objective,
    pub slo: Option<Slo>,
    pub constraints: Vec<Constraint>,
    /// Of the models that get load; those that are missing count 1.
    pub weights: Vec<f64>,
}

/// The unmodified configuration in numbers, for each model: the values of others are parts of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reference {
    rates: Vec<f64>,
    p99_ms: Vec<f64>,
    rss_bytes: f64,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

impl Reference {
    /// Of the first bursts of a point, so that more of them change nothing.
    pub fn of(point: &Point) -> Reference {
        let first = |values: &[f64]| mean(values.iter().copied().take(REFERENCE_SLICES)).max(1e-9);
        let p99 = |values: &[Option<f64>]| mean(values.iter().flatten().copied().take(REFERENCE_SLICES)).max(1e-9);
        Reference {
            rates: point.models.iter().map(|model| first(&model.slice_rates)).collect(),
            p99_ms: point.models.iter().map(|model| p99(&model.slice_p99_ms)).collect(),
            rss_bytes: point.rss_bytes.first().map_or(1.0, |bytes| *bytes as f64).max(1.0),
        }
    }
}

/// What a search learns of a point.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// One for each slice, for memory one for each burst; more is better. 1 is the unmodified configuration.
    pub values: Vec<f64>,
    /// Of these, those of one burst.
    pub of_burst: usize,
    pub standing: Standing,
    /// How far the worst limit is missed, as a factor; 1 where all are kept.
    pub excess: f64,
}

impl Goal {
    fn weight(&self, at: usize) -> f64 {
        self.weights.get(at).copied().unwrap_or(1.0)
    }

    /// The values of the slices; of memory, which is read once in a burst, those of the bursts.
    fn values(&self, point: &Point, reference: &Reference) -> Vec<f64> {
        if self.objective == Objective::Memory {
            return point.rss_bytes.iter().map(|bytes| reference.rss_bytes / (*bytes as f64).max(1.0)).collect();
        }
        let slices = point.models.iter().map(|model| model.slice_rates.len()).min().unwrap_or(0);
        let value = |slice: usize| {
            let (mut sum, mut weights) = (0.0, 0.0);
            for (at, model) in point.models.iter().enumerate() {
                let weight = self.weight(at);
                let of = |values: &[f64]| values.get(at).copied().unwrap_or(1.0);
                let gain = match self.objective {
                    Objective::Throughput | Objective::Memory => {
                        model.slice_rates.get(slice).copied().unwrap_or(0.0) / of(&reference.rates)
                    }
                    Objective::Latency => match model.slice_p99_ms.get(slice).copied().flatten() {
                        Some(ms) if ms > 0.0 => of(&reference.p99_ms) / ms,
                        _ => 0.0,
                    },
                };
                sum += weight * gain;
                weights += weight;
            }
            if weights > 0.0 { sum / weights } else { 0.0 }
        };
        (0..slices).map(value).collect()
    }

    /// The limits that depend on the load, and those that do not: how far each is missed, as a factor.
    fn excesses(&self, point: &Point, p99_ms: Option<f64>) -> (f64, f64) {
        let (mut slow, mut fixed) = (0.0f64, 0.0f64);
        let throughput = point.throughput().map_or(0.0, |interval| interval.mean);
        let p99 = p99_ms.unwrap_or(f64::INFINITY);
        let memory = point.memory_bytes().unwrap_or(0) as f64;
        if let Some(slo) = &self.slo {
            slow = slow.max(p99 / slo.p99_ms.max(1e-9));
        }
        let errors_max = self.slo.and_then(|slo| slo.error_rate).unwrap_or(ERROR_RATE_MAX);
        if point.error_rate() > errors_max {
            slow = slow.max(1.0 + point.error_rate());
        }
        if let Some(rate) = point.rate {
            // Of random times, so many more or fewer requests come in a while.
            let expected = (rate * point.measured_seconds()).max(1.0);
            let kept = (RATE_KEPT - 3.0 / expected.sqrt()).max(RATE_KEPT / 3.0);
            slow = slow.max(rate * kept / throughput.max(1e-9));
            if point.is_unsustainable() {
                slow = slow.max(1.5);
            }
        }
        for constraint in &self.constraints {
            let value = match constraint.metric {
                Metric::Throughput => throughput,
                Metric::P99 => p99,
                Metric::Memory => memory,
            };
            let missed = match constraint.comparison {
                Comparison::AtMost => value / constraint.limit.max(1e-9),
                Comparison::AtLeast => constraint.limit / value.max(1e-9),
            };
            let falls_with_load = constraint.metric == Metric::P99 && constraint.comparison == Comparison::AtMost;
            match falls_with_load {
                true => slow = slow.max(missed),
                false => fixed = fixed.max(missed),
            }
        }
        (slow, fixed)
    }

    pub fn judge(&self, point: &Point, reference: &Reference) -> Judged {
        let (slow, fixed) = self.excesses(point, point.p99_ms());
        let standing = match (slow > 1.0, fixed > 1.0) {
            (_, true) => Standing::Breaks,
            (true, false) => Standing::Slow,
            (false, false) => Standing::Fits,
        };
        let of_burst = if self.objective == Objective::Memory { 1 } else { SLICES };
        Judged { values: self.values(point, reference), of_burst, standing, excess: slow.max(fixed).max(1.0) }
    }

    /// The worst limit in parts of it, of one burst: above 1 it is missed.
    pub fn limit_used(&self, burst: &Point) -> f64 {
        let (slow, fixed) = self.excesses(burst, burst.last_p99_ms());
        slow.max(fixed)
    }

    /// It has a limit that a lower load may keep.
    pub fn has_latency_limit(&self) -> bool {
        let of_p99 = |constraint: &Constraint| constraint.metric == Metric::P99;
        self.slo.is_some() || self.constraints.iter().any(of_p99)
    }

    /// Memory counts, so that each configuration needs a server of its own.
    pub fn is_about_memory(&self) -> bool {
        let of_memory = |constraint: &Constraint| constraint.metric == Metric::Memory;
        self.objective == Objective::Memory || self.constraints.iter().any(of_memory)
    }

    /// In words, with the limits.
    pub fn describe(&self) -> String {
        let mut text = self.objective.name().to_owned();
        if let Some(slo) = &self.slo {
            text.push_str(&format!(", p99<={} ms", slo.p99_ms));
            if let Some(rate) = slo.error_rate {
                text.push_str(&format!(", errors<={rate}"));
            }
        }
        for constraint in &self.constraints {
            text.push_str(&format!(", {constraint}"));
        }
        if !self.weights.is_empty() {
            let weights: Vec<String> = self.weights.iter().map(f64::to_string).collect();
            text.push_str(&format!(", weights {}", weights.join(",")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::burst;

    fn goal(objective: Objective) -> Goal {
        Goal { objective, slo: None, constraints: Vec::new(), weights: Vec::new() }
    }

    #[test]
    fn values_are_parts_of_the_reference() {
        let base = burst(100.0, 10.0, 1000);
        let reference = Reference::of(&base);
        let other = burst(250.0, 5.0, 500);
        for (objective, value) in [(Objective::Throughput, 2.5), (Objective::Latency, 2.0), (Objective::Memory, 2.0)] {
            let judged = goal(objective).judge(&other, &reference);
            let count = if objective == Objective::Memory { 1 } else { 3 };
            assert_eq!((judged.values.as_slice(), judged.of_burst), (&vec![value; count][..], count));
            assert_eq!(goal(objective).judge(&base, &reference).values, vec![1.0; count]);
            assert_eq!((judged.standing, judged.excess), (Standing::Fits, 1.0));
        }
    }

    #[test]
    fn several_models_are_weighted() {
        let mut base = burst(100.0, 10.0, 1);
        let mut second = base.models[0].clone();
        second.model = "n".to_owned();
        base.models.push(second);
        let reference = Reference::of(&base);
        let mut other = base.clone();
        other.models[0].slice_rates = vec![200.0; 3];
        let value =
            |weights: Vec<f64>| Goal { weights, ..goal(Objective::Throughput) }.judge(&other, &reference).values[0];
        assert_eq!(value(Vec::new()), 1.5);
        assert_eq!(value(vec![3.0, 1.0]), 1.75);
    }

    #[test]
    fn limits_are_kept_or_missed_by_a_factor() {
        let point = burst(100.0, 10.0, 1000);
        let reference = Reference::of(&point);
        let judge = |goal: Goal| {
            let judged = goal.judge(&point, &reference);
            (judged.standing, judged.excess)
        };
        let slo = |p99_ms: f64| Goal { slo: Some(Slo { p99_ms, error_rate: None }), ..goal(Objective::Throughput) };
        assert_eq!(judge(slo(20.0)), (Standing::Fits, 1.0));
        assert_eq!(judge(slo(5.0)), (Standing::Slow, 2.0));
        assert_eq!((slo(20.0).limit_used(&point), slo(5.0).limit_used(&point)), (0.5, 2.0));
        let limit = |metric, comparison, limit: f64| Goal {
            constraints: vec![Constraint { metric, comparison, limit }],
            ..goal(Objective::Throughput)
        };
        assert_eq!(judge(limit(Metric::Memory, Comparison::AtMost, 500.0)), (Standing::Breaks, 2.0));
        assert_eq!(judge(limit(Metric::Throughput, Comparison::AtLeast, 50.0)).0, Standing::Fits);
        assert_eq!(judge(limit(Metric::P99, Comparison::AtMost, 1.0)).0, Standing::Slow);
        assert!(slo(1.0).has_latency_limit() && !goal(Objective::Memory).has_latency_limit());
    }

    #[test]
    fn a_rate_that_is_not_kept_is_slow() {
        let mut point = burst(100.0, 10.0, 1);
        let reference = Reference::of(&point);
        point.rate = Some(100.0);
        assert_eq!(goal(Objective::Latency).judge(&point, &reference).standing, Standing::Fits);
        point.rate = Some(150.0);
        assert_eq!(goal(Objective::Latency).judge(&point, &reference).standing, Standing::Slow);
        point.rate = None;
        point.models[0].failed = 100;
        assert_eq!(goal(Objective::Latency).judge(&point, &reference).standing, Standing::Slow);
    }
}
