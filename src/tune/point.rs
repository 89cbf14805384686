//! What was measured of one choice: a pure record, which `tune.json` keeps whole, so that a run can go on later.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::statistics::{Interval, percentile};

/// Slices of one burst.
pub const SLICES: usize = 3;

/// One choice at one load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Point {
    pub number: usize,
    /// What differs from the present configuration, by names of fields.
    pub changes: BTreeMap<String, String>,
    /// The load, in words.
    pub load: String,
    /// Requests in flight of all models together, where the loop is closed.
    pub concurrency: Option<u64>,
    /// Requests a second, where it is open.
    pub rate: Option<f64>,
    pub models: Vec<ModelFigures>,
    /// Requests of all models a second in each slice.
    pub slice_rates: Vec<f64>,
    /// Resident memory of the server's processes after each burst.
    pub rss_bytes: Vec<u64>,
    /// Seconds of each burst that were measured, and CPU seconds of the server's processes in them.
    pub seconds: Vec<f64>,
    pub cpu_seconds: Vec<f64>,
    /// Seconds that each burst took in all, with the load request.
    pub burst_seconds: Vec<f64>,
    /// Whether the load generator was the limit, of each burst.
    pub generator_limited: Vec<bool>,
    /// Whether the server could not keep up with the rate, of each burst.
    pub unsustainable: Vec<bool>,
    /// Why there are no figures: the first failure of a burst.
    pub failure: Option<String>,
}

/// Of one model that gets load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelFigures {
    pub model: String,
    pub completed: u64,
    pub failed: u64,
    /// Completed and failed requests of each burst, and p99 in milliseconds.
    pub burst_counts: Vec<(u64, u64)>,
    pub burst_p99_ms: Vec<Option<f64>>,
    /// The most frequent text of an error.
    pub error: Option<String>,
    /// Completed requests a second, and p99 in milliseconds, in each slice. No request: no p99.
    pub slice_rates: Vec<f64>,
    pub slice_p99_ms: Vec<Option<f64>>,
    /// Latencies in microseconds with how often they occurred.
    pub latency_us: Vec<(u64, u64)>,
    /// Means of the server's spans, in microseconds, of this model and of those that it is made of.
    pub spans: Vec<Spans>,
}

/// From the statistics of a model, before and after.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Spans {
    pub model: String,
    pub inferences: u64,
    pub executions: u64,
    pub queue_us: f64,
    pub compute_input_us: f64,
    pub compute_infer_us: f64,
    pub compute_output_us: f64,
}

impl Spans {
    pub fn mean_batch(&self) -> f64 {
        if self.executions == 0 { 0.0 } else { self.inferences as f64 / self.executions as f64 }
    }

    /// The means of both, weighted by their inferences.
    pub fn add(&mut self, other: &Spans) {
        let (own, others) = (self.inferences as f64, other.inferences as f64);
        if others == 0.0 {
            return;
        }
        let mean = |one: f64, another: f64| (one * own + another * others) / (own + others);
        self.queue_us = mean(self.queue_us, other.queue_us);
        self.compute_input_us = mean(self.compute_input_us, other.compute_input_us);
        self.compute_infer_us = mean(self.compute_infer_us, other.compute_infer_us);
        self.compute_output_us = mean(self.compute_output_us, other.compute_output_us);
        self.inferences += other.inferences;
        self.executions += other.executions;
    }
}

impl ModelFigures {
    pub fn percentile_ms(&self, percent: f64) -> Option<f64> {
        percentile(&self.latency_us, percent).map(|us| us / 1e3)
    }

    /// Adds a burst.
    pub fn add(&mut self, burst: &ModelFigures) {
        self.completed += burst.completed;
        self.failed += burst.failed;
        self.burst_counts.extend(&burst.burst_counts);
        self.burst_p99_ms.extend(&burst.burst_p99_ms);
        self.error = self.error.take().or_else(|| burst.error.clone());
        self.slice_rates.extend(&burst.slice_rates);
        self.slice_p99_ms.extend(&burst.slice_p99_ms);
        self.latency_us = merged([self.latency_us.as_slice(), burst.latency_us.as_slice()].into_iter());
        for spans in &burst.spans {
            match self.spans.iter_mut().find(|own| own.model == spans.model) {
                Some(own) => own.add(spans),
                None => self.spans.push(spans.clone()),
            }
        }
    }
}

/// The part of one burst.
fn one<T: Clone>(values: &[T], at: usize) -> Vec<T> {
    values.get(at).cloned().into_iter().collect()
}

/// It is so in more than half of the bursts.
fn is_most(bursts: &[bool]) -> bool {
    2 * bursts.iter().filter(|is_so| **is_so).count() > bursts.len()
}

/// Counts of values together.
fn merged<'a>(parts: impl Iterator<Item = &'a [(u64, u64)]>) -> Vec<(u64, u64)> {
    let mut sum: BTreeMap<u64, u64> = BTreeMap::new();
    for (value, count) in parts.flatten() {
        *sum.entry(*value).or_default() += count;
    }
    sum.into_iter().collect()
}

impl Point {
    /// Bursts that were measured.
    pub fn bursts(&self) -> usize {
        self.burst_seconds.len()
    }

    /// Adds a burst of the same choice and load.
    pub fn add(&mut self, burst: &Point) {
        for figures in &burst.models {
            match self.models.iter_mut().find(|own| own.model == figures.model) {
                Some(own) => own.add(figures),
                None => self.models.push(figures.clone()),
            }
        }
        self.slice_rates.extend(&burst.slice_rates);
        self.rss_bytes.extend(&burst.rss_bytes);
        self.seconds.extend(&burst.seconds);
        self.cpu_seconds.extend(&burst.cpu_seconds);
        self.burst_seconds.extend(&burst.burst_seconds);
        self.generator_limited.extend(&burst.generator_limited);
        self.unsustainable.extend(&burst.unsustainable);
        self.failure = self.failure.take().or_else(|| burst.failure.clone());
        self.concurrency = burst.concurrency.or(self.concurrency);
        self.rate = burst.rate.or(self.rate);
    }

    /// One burst out of a point. Latencies and spans, which it has only of all bursts together, come with the first
    /// one.
    pub fn part(&self, at: usize) -> Point {
        let slices = at * SLICES..(at + 1) * SLICES;
        let cut = |values: &[f64]| values.get(slices.clone()).unwrap_or_default().to_vec();
        let is_first = at == 0;
        let models = self.models.iter().map(|model| {
            let (completed, failed) = model.burst_counts.get(at).copied().unwrap_or_default();
            ModelFigures {
                model: model.model.clone(),
                completed,
                failed,
                burst_counts: one(&model.burst_counts, at),
                burst_p99_ms: one(&model.burst_p99_ms, at),
                error: model.error.clone().filter(|_| is_first),
                slice_rates: cut(&model.slice_rates),
                slice_p99_ms: model.slice_p99_ms.get(slices.clone()).unwrap_or_default().to_vec(),
                latency_us: if is_first { model.latency_us.clone() } else { Vec::new() },
                spans: if is_first { model.spans.clone() } else { Vec::new() },
            }
        });
        Point {
            number: self.number,
            changes: self.changes.clone(),
            load: self.load.clone(),
            concurrency: self.concurrency,
            rate: self.rate,
            models: models.collect(),
            slice_rates: cut(&self.slice_rates),
            rss_bytes: one(&self.rss_bytes, at),
            seconds: one(&self.seconds, at),
            cpu_seconds: one(&self.cpu_seconds, at),
            burst_seconds: one(&self.burst_seconds, at),
            generator_limited: one(&self.generator_limited, at),
            unsustainable: one(&self.unsustainable, at),
            // Points with a failure are not taken apart.
            failure: None,
        }
    }

    pub fn completed(&self) -> u64 {
        self.models.iter().map(|model| model.completed).sum()
    }

    pub fn failed(&self) -> u64 {
        self.models.iter().map(|model| model.failed).sum()
    }

    /// Failed requests in parts of all.
    pub fn error_rate(&self) -> f64 {
        let all = self.completed() + self.failed();
        if all == 0 { 0.0 } else { self.failed() as f64 / all as f64 }
    }

    /// Requests of all models a second.
    pub fn throughput(&self) -> Option<Interval> {
        Interval::of(&self.slice_rates)
    }

    /// Of all models together.
    pub fn percentile_ms(&self, percent: f64) -> Option<f64> {
        let counts = merged(self.models.iter().map(|model| model.latency_us.as_slice()));
        percentile(&counts, percent).map(|us| us / 1e3)
    }

    /// The highest p99 of a model.
    pub fn p99_ms(&self) -> Option<f64> {
        let all = self.models.iter().filter_map(|model| model.percentile_ms(99.0));
        all.fold(None, |most: Option<f64>, ms| Some(most.map_or(ms, |most| most.max(ms))))
    }

    pub fn memory_bytes(&self) -> Option<u64> {
        self.rss_bytes.iter().max().copied()
    }

    /// CPU seconds of the server for each completed request.
    pub fn cpu_per_request(&self) -> Option<f64> {
        let completed = self.completed();
        (completed > 0).then(|| self.cpu_seconds.iter().sum::<f64>() / completed as f64)
    }

    /// Cores that the server used.
    pub fn cores_used(&self) -> f64 {
        let seconds = self.measured_seconds();
        if seconds > 0.0 { self.cpu_seconds.iter().sum::<f64>() / seconds } else { 0.0 }
    }

    pub fn measured_seconds(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// The highest p99 of a model in the last burst.
    pub fn last_p99_ms(&self) -> Option<f64> {
        let all = self.models.iter().filter_map(|model| model.burst_p99_ms.last().copied().flatten());
        all.fold(None, |most: Option<f64>, ms| Some(most.map_or(ms, |most| most.max(ms))))
    }

    /// The load generator was the limit, in more than half of the bursts, or sent more than one request of a hundred
    /// late, so that the p99 is its own: the figures do not count.
    pub fn is_generator_limited(&self) -> bool {
        is_most(&self.generator_limited)
    }

    /// The server could not keep up with the rate, in more than half of the bursts.
    pub fn is_unsustainable(&self) -> bool {
        is_most(&self.unsustainable)
    }

    /// It has figures that count.
    pub fn is_valid(&self) -> bool {
        self.failure.is_none() && !self.is_generator_limited() && self.completed() > 0
    }

    /// Of the model that has it: mean inferences of an execution.
    pub fn spans_of(&self, model: &str) -> Option<&Spans> {
        self.models.iter().flat_map(|figures| &figures.spans).find(|spans| spans.model == model)
    }
}

/// The points that no other one beats in throughput, p99 and memory together: positions in `points`.
pub fn pareto(points: &[Point]) -> Vec<usize> {
    let figures = |point: &Point| -> Option<[f64; 3]> {
        if !point.is_valid() || point.is_unsustainable() {
            return None;
        }
        // Less is better in each.
        Some([-point.throughput()?.mean, point.p99_ms()?, point.memory_bytes()? as f64])
    };
    let all: Vec<(usize, [f64; 3])> =
        points.iter().enumerate().filter_map(|(at, point)| Some((at, figures(point)?))).collect();
    let beats = |one: &[f64; 3], other: &[f64; 3]| {
        one.iter().zip(other).all(|(one, other)| one <= other) && one.iter().zip(other).any(|(one, other)| one < other)
    };
    let front = all.iter().filter(|(_, own)| !all.iter().any(|(_, other)| beats(other, own)));
    front.map(|(at, _)| *at).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A burst of one model with this rate and p99, and so much memory.
    pub fn burst(rate: f64, p99_ms: f64, rss_bytes: u64) -> Point {
        Point {
            models: vec![ModelFigures {
                model: "m".to_owned(),
                completed: 300,
                burst_counts: vec![(300, 0)],
                burst_p99_ms: vec![Some(p99_ms)],
                slice_rates: vec![rate; SLICES],
                slice_p99_ms: vec![Some(p99_ms); SLICES],
                latency_us: vec![((p99_ms * 1e3) as u64, 300)],
                spans: vec![Spans { model: "m".to_owned(), inferences: 300, executions: 100, ..Spans::default() }],
                ..ModelFigures::default()
            }],
            slice_rates: vec![rate; SLICES],
            rss_bytes: vec![rss_bytes],
            seconds: vec![1.0],
            cpu_seconds: vec![0.5],
            burst_seconds: vec![1.5],
            generator_limited: vec![false],
            unsustainable: vec![false],
            ..Point::default()
        }
    }

    #[test]
    fn bursts_add_up() {
        let mut point = burst(100.0, 5.0, 10);
        point.add(&burst(110.0, 7.0, 30));
        assert_eq!((point.bursts(), point.completed(), point.memory_bytes()), (2, 600, Some(30)));
        assert_eq!(point.throughput().unwrap().mean, 105.0);
        assert_eq!((point.percentile_ms(50.0), point.p99_ms()), (Some(5.0), Some(7.0)));
        assert_eq!(point.spans_of("m").unwrap().mean_batch(), 3.0);
        assert_eq!(point.cpu_per_request(), Some(1.0 / 600.0));
        let text = serde_json::to_string(&point).unwrap();
        assert_eq!(serde_json::from_str::<Point>(&text).unwrap(), point);
    }

    #[test]
    fn the_parts_of_a_point_are_the_whole() {
        let mut whole = burst(100.0, 5.0, 10);
        let mut second = burst(110.0, 7.0, 30);
        (second.generator_limited, second.unsustainable) = (vec![true], vec![true]);
        second.models[0].failed = 3;
        second.models[0].burst_counts = vec![(300, 3)];
        second.models[0].error = Some("x".to_owned());
        whole.add(&second);
        whole.add(&burst(120.0, 9.0, 20));
        (whole.number, whole.load, whole.concurrency) = (7, "x".to_owned(), Some(4));
        let mut again = whole.part(0);
        assert_eq!((again.completed(), again.bursts()), (300, 1));
        assert!(!again.is_generator_limited() && !again.is_unsustainable());
        for at in 1..whole.bursts() {
            let part = whole.part(at);
            assert_eq!((part.is_unsustainable(), part.failed()), (at == 1, if at == 1 { 3 } else { 0 }));
            again.add(&part);
        }
        assert_eq!(again, whole);
        assert!(!whole.is_generator_limited() && !whole.is_unsustainable(), "one of three");
    }

    #[test]
    fn the_front_has_what_nothing_beats() {
        let failed = Point { failure: Some("x".to_owned()), ..burst(999.0, 0.1, 1) };
        let points = [burst(100.0, 5.0, 10), burst(90.0, 6.0, 11), burst(200.0, 9.0, 10), failed, burst(50.0, 5.0, 5)];
        assert_eq!(pareto(&points), [0, 2, 4]);
    }
}
