//! The figures of one load point.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::generation::GenerationTotals;
use super::generator_limit::{ClientSide, GeneratorLimit};

/// Latencies beyond ten minutes count as ten minutes.
pub const LATENCY_MAX_NS: u64 = 600_000_000_000;
/// Significant digits of histograms: values differ from their bucket by a thousandth at most.
pub(super) const DIGITS: u8 = 3;
/// Texts of errors that are counted apart; those beyond are counted together.
pub const ERROR_TEXTS_MAX: usize = 64;

/// One point of a sweep. What is counted comes from the windows that its figures are made of: the last three when they
/// were stable, the last three tried when none were, the only one with a request count.
#[derive(Debug, Clone)]
pub struct Measurement {
    pub load: LoadPoint,
    /// Whether the rules for stable figures were met. A single window of a request count always is.
    pub stable: bool,
    /// The latency is within the threshold, if there is one.
    pub within_threshold: bool,
    /// What the figures suffer from on our own side, or because the server cannot keep up with the schedule.
    pub limits: ClientLimits,
    pub histograms: Histograms,
    /// Of answers that a language model generated; none for tensors, and where no request completed.
    pub generation: Option<Box<GenerationTotals>>,
    pub counts: RequestCounts,
    pub errors: ErrorTexts,
    /// Of the windows together.
    pub wall: Duration,
    pub client: ClientSide,
    pub windows: Vec<WindowFigures>,
    pub timeline: Timeline,
    pub server: Option<ServerSide>,
    /// In the order of the plan's composing models.
    pub composing: Vec<ServerSide>,
    /// Mean and peak of each sample of a gauge by its name with labels; of a counter, by how much it grew.
    pub metrics: BTreeMap<String, MetricFigures>,
    pub records: Vec<Record>,
    /// Requests beyond the plan's limit of records.
    pub records_dropped: u64,
}

/// Times of requests, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Histograms {
    /// Completed with a good answer. Open loop: from the time at which the request was due.
    pub latency_ns: Histogram<u64>,
    /// Closed and open loop: from the time at which the request was really sent.
    pub service_ns: Histogram<u64>,
    /// Open loop: how long after they were due requests left.
    pub send_lag_ns: Histogram<u64>,
    /// Open loop: how long after they were due a thread took requests up. The rest of the above is the wait for a
    /// connection that is free, which is not the client's delay.
    pub schedule_lag_ns: Histogram<u64>,
    /// Decoupled and streamed: until the first response, and between responses of one request.
    pub first_response_ns: Histogram<u64>,
    pub between_responses_ns: Histogram<u64>,
}

impl Default for Histograms {
    fn default() -> Histograms {
        // These bounds are allowed, whatever is measured.
        let histogram = || {
            Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS).unwrap_or_else(|_| unreachable!("constant bounds"))
        };
        Histograms {
            latency_ns: histogram(),
            service_ns: histogram(),
            send_lag_ns: histogram(),
            schedule_lag_ns: histogram(),
            first_response_ns: histogram(),
            between_responses_ns: histogram(),
        }
    }
}

impl Histograms {
    pub(super) fn add(&mut self, other: &Histograms) {
        for (sum, part) in [
            (&mut self.latency_ns, &other.latency_ns),
            (&mut self.service_ns, &other.service_ns),
            (&mut self.send_lag_ns, &other.send_lag_ns),
            (&mut self.schedule_lag_ns, &other.schedule_lag_ns),
            (&mut self.first_response_ns, &other.first_response_ns),
            (&mut self.between_responses_ns, &other.between_responses_ns),
        ] {
            // Of the same bounds: nothing can fail to fit.
            let _ = sum.add(part);
        }
    }
}

/// Requests, responses and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    pub sent: u64,
    pub completed: u64,
    pub failed: u64,
    /// Responses of completed requests; as many as requests unless the model is decoupled.
    pub responses: u64,
    /// Sequences that ended.
    pub sequences: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

impl RequestCounts {
    /// Requests that are over, well or not.
    pub fn ended(&self) -> u64 {
        self.completed + self.failed
    }

    pub(super) fn add(&mut self, other: &RequestCounts) {
        self.sent += other.sent;
        self.completed += other.completed;
        self.failed += other.failed;
        self.responses += other.responses;
        self.sequences += other.sequences;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

impl Measurement {
    /// Completed requests a second.
    pub fn rate(&self) -> f64 {
        per_second(self.counts.completed, self.wall)
    }

    pub fn response_rate(&self) -> f64 {
        per_second(self.counts.responses, self.wall)
    }

    /// The client's CPU time for each request that ended, well or not.
    pub fn client_cpu_per_request_ns(&self) -> f64 {
        let ended = self.counts.ended();
        if ended == 0 { 0.0 } else { self.client.cpu().as_nanos() as f64 / ended as f64 }
    }

    /// The load generator was the limit: the figures are not those of the server.
    pub fn is_void(&self) -> bool {
        self.limits.generator.is_some()
    }

    /// What reports for people show: without single requests, and without rates and latencies if it is void.
    pub fn shown(&self) -> Measurement {
        let is_void = self.is_void();
        let histograms = match is_void {
            true => Histograms {
                send_lag_ns: self.histograms.send_lag_ns.clone(),
                schedule_lag_ns: self.histograms.schedule_lag_ns.clone(),
                ..Histograms::default()
            },
            false => self.histograms.clone(),
        };
        Measurement {
            load: self.load,
            stable: self.stable,
            within_threshold: self.within_threshold,
            limits: self.limits,
            histograms,
            generation: self.generation.clone().filter(|_| !is_void),
            counts: self.counts,
            errors: self.errors.clone(),
            wall: self.wall,
            client: self.client.clone(),
            windows: if is_void { Vec::new() } else { self.windows.clone() },
            timeline: if is_void { Timeline::default() } else { self.timeline.clone() },
            server: self.server.clone(),
            composing: self.composing.clone(),
            metrics: self.metrics.clone(),
            records: Vec::new(),
            records_dropped: self.records_dropped,
        }
    }
}

fn per_second(count: u64, wall: Duration) -> f64 {
    if wall.is_zero() { 0.0 } else { count as f64 / wall.as_secs_f64() }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadPoint {
    Concurrency(usize),
    Rate(f64),
    /// The plan's own intervals; their mean rate.
    Intervals(f64),
}

/// Reasons not to believe a point.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClientLimits {
    /// The load generator was the limit, by the evidence of all counted windows: the figures are void.
    pub generator: Option<GeneratorLimit>,
    /// Open loop: more than one request of a hundred left more than a millisecond late although there was room for it.
    pub behind_schedule: bool,
    /// Open loop: more requests were outstanding than the plan allows; the point was ended there.
    pub unsustainable: bool,
}

impl ClientLimits {
    pub fn client_is_bottleneck(&self) -> bool {
        self.generator.is_some() || self.behind_schedule
    }
}

/// Errors by their text, of a bounded number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorTexts {
    pub counts: BTreeMap<String, u64>,
    /// Of texts that there was no room for.
    pub other: u64,
}

impl ErrorTexts {
    /// The id that the server puts before its text is another one for each request, and no part of the reason.
    pub fn count(&mut self, text: &str) {
        let reason = text.strip_prefix("[request id: ").and_then(|rest| rest.split_once("] "));
        self.count_many(reason.map_or(text, |(_, reason)| reason), 1);
    }

    pub fn count_many(&mut self, text: &str, times: u64) {
        if let Some(count) = self.counts.get_mut(text) {
            *count += times;
        } else if self.counts.len() < ERROR_TEXTS_MAX {
            self.counts.insert(text.to_owned(), times);
        } else {
            self.other += times;
        }
    }

    pub fn add(&mut self, others: &ErrorTexts) {
        for (text, count) in &others.counts {
            self.count_many(text, *count);
        }
        self.other += others.other;
    }

    pub fn total(&self) -> u64 {
        self.counts.values().sum::<u64>() + self.other
    }
}

/// One window that was tried.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WindowFigures {
    pub wall: Duration,
    pub completed: u64,
    pub failed: u64,
    pub mean_ns: f64,
    /// Of the rules' percentile; the mean's value without one.
    pub judged_ns: f64,
    /// Whether the point's figures contain it.
    pub counted: bool,
}

/// Completed requests in slots of time, over the counted windows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeline {
    pub slot: Duration,
    pub completed: Vec<u64>,
    /// How much time each slot has: the last one of a window may be longer or shorter.
    pub covered: Vec<Duration>,
}

/// What the model's statistics grew by in the counted windows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ServerSide {
    pub model: String,
    pub version: String,
    pub inferences: u64,
    pub executions: u64,
    pub success: Phase,
    pub fail: Phase,
    pub queue: Phase,
    pub compute_input: Phase,
    pub compute_infer: Phase,
    pub compute_output: Phase,
    pub cache_hit: Phase,
    pub cache_miss: Phase,
}

impl ServerSide {
    fn phases(&mut self) -> [&mut Phase; 8] {
        [
            &mut self.success,
            &mut self.fail,
            &mut self.queue,
            &mut self.compute_input,
            &mut self.compute_infer,
            &mut self.compute_output,
            &mut self.cache_hit,
            &mut self.cache_miss,
        ]
    }

    pub(super) fn add(&mut self, other: &ServerSide) {
        self.inferences = self.inferences.saturating_add(other.inferences);
        self.executions = self.executions.saturating_add(other.executions);
        for (sum, part) in self.phases().into_iter().zip(other.clone().phases()) {
            sum.count = sum.count.saturating_add(part.count);
            sum.ns = sum.ns.saturating_add(part.ns);
        }
    }

    /// What was counted since `before`. A server that started anew counts from nought.
    pub(super) fn since(&self, before: &ServerSide) -> ServerSide {
        let mut grown = self.clone();
        grown.inferences = grown.inferences.saturating_sub(before.inferences);
        grown.executions = grown.executions.saturating_sub(before.executions);
        for (after, before) in grown.phases().into_iter().zip(before.clone().phases()) {
            after.count = after.count.saturating_sub(before.count);
            after.ns = after.ns.saturating_sub(before.ns);
        }
        grown
    }

    /// Inferences for each execution.
    pub fn mean_batch(&self) -> f64 {
        if self.executions == 0 { 0.0 } else { self.inferences as f64 / self.executions as f64 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phase {
    pub count: u64,
    pub ns: u64,
}

impl Phase {
    pub fn mean_us(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.ns as f64 / self.count as f64 / 1000.0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MetricFigures {
    pub samples: u64,
    pub mean: f64,
    pub max: f64,
    pub first: f64,
    pub last: f64,
}

/// One request. Times are nanoseconds since the load point began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When it was due (open loop), or sent.
    pub due_ns: u64,
    pub sent_ns: u64,
    /// One for each response; a failed request has the time of its error.
    pub responses_ns: Vec<u64>,
    pub sequence_id: Option<u64>,
    /// Number of the template, counted through all streams.
    pub template: usize,
    pub failed: bool,
}

/// Watches a run. Called from the thread that called [`super::run`], about ten times a second.
pub trait Progress {
    /// A load point begins.
    fn point(&mut self, _load: LoadPoint) {}

    fn step(&mut self, _step: Step) {}

    /// It is measured.
    fn measured(&mut self, _measurement: &Measurement) {}

    /// A true answer ends the run where it is; what has been measured is returned.
    fn stop_wanted(&mut self) -> bool {
        false
    }
}

/// Watches nothing.
impl Progress for () {}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub stage: Stage,
    /// Since the stage began.
    pub elapsed: Duration,
    pub completed: u64,
    pub failed: u64,
    /// Completed requests a second since the stage began.
    pub rate: f64,
    /// How much of the stage is over, from 0 to 1.
    pub done: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    WarmUp,
    /// Counted from 1.
    Trial(u32),
    /// What is in flight comes home.
    Drain,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_errors_are_bounded() {
        let mut errors = ErrorTexts::default();
        for n in 0..ERROR_TEXTS_MAX + 5 {
            errors.count(&n.to_string());
            errors.count("0");
        }
        assert_eq!((errors.counts.len(), errors.other), (ERROR_TEXTS_MAX, 5));
        assert_eq!(errors.counts["0"], ERROR_TEXTS_MAX as u64 + 6);
        let mut sum = ErrorTexts::default();
        sum.add(&errors);
        sum.add(&errors);
        assert_eq!(sum.total(), 2 * errors.total());
    }

    #[test]
    fn figures_of_nothing_are_nought() {
        assert_eq!(per_second(7, Duration::ZERO), 0.0);
        assert_eq!(per_second(7, Duration::from_millis(500)), 14.0);
        assert_eq!(ServerSide::default().mean_batch(), 0.0);
        assert_eq!(Phase::default().mean_us(), 0.0);
        assert_eq!(Phase { count: 2, ns: 5000 }.mean_us(), 2.5);
    }
}
