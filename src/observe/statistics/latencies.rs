//! The distributions of the latencies of one model version: histograms and summaries, where they are configured.
//!
//! As with the counters every writing thread has cells of its own, which a reader adds up, so distributions of many
//! threads, versions or hosts merge without loss. A distribution that is not configured has no cells, and a model
//! without any has no value of this type at all: then counting a request costs one branch more.

mod histogram;
mod window;

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::writer_slot::{self, WriterSlot};
use super::{Execution, Sums};
use histogram::Histogram;
use window::Window;

pub use histogram::HistogramReading;
pub use window::SummaryReading;

/// Upper bounds of a histogram's buckets, ascending; a last bucket without a bound is implied.
pub type Bounds = Arc<[f64]>;

/// Kinds of latencies, in microseconds. The first five are the phases of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    Request,
    Queue,
    ComputeInput,
    ComputeInfer,
    ComputeOutput,
    CacheHit,
    CacheMiss,
}

pub const PHASES: usize = 5;
pub const LATENCIES: usize = 7;

/// The configured distributions of a model version.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DistributionConfig {
    /// A histogram of the milliseconds until the first response.
    pub first_response_ms: Option<Bounds>,
    /// A histogram for each phase, in the order of [`Latency`].
    pub phases_us: Option<[Bounds; PHASES]>,
    /// A summary for each kind of latency.
    pub summaries: bool,
}

/// All methods may be called from any thread at any time.
pub struct Latencies {
    wanted: DistributionConfig,
    /// Filled when its thread first observes a value.
    slots: Box<[OnceLock<Box<CachePadded<Slot>>>]>,
}

#[derive(Debug)]
struct Slot {
    first_response: Option<Histogram>,
    phases: Option<[Histogram; PHASES]>,
    summaries: Option<[Window; LATENCIES]>,
}

/// The merged distributions, in the order of [`Latency`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distributions {
    pub first_response: Option<HistogramReading>,
    pub phases: Option<[HistogramReading; PHASES]>,
    pub summaries: Option<[SummaryReading; LATENCIES]>,
}

impl Latencies {
    /// `None` if no distribution is configured.
    pub fn new(wanted: DistributionConfig) -> Option<Box<Latencies>> {
        if wanted == DistributionConfig::default() {
            return None;
        }
        let slots: Box<[OnceLock<_>]> = (0..writer_slot::SLOTS).map(|_| OnceLock::new()).collect();
        if let Some(shared) = slots.last() {
            // Made here, because two threads that made it at once would wait for each other.
            shared.get_or_init(|| Box::new(CachePadded::new(Slot::new(&wanted))));
        }
        Some(Box::new(Latencies { wanted, slots }))
    }

    #[cold]
    #[inline(never)]
    pub fn request_succeeded(&self, started_ns: u64, queued_ns: u64, execution: &Execution) {
        self.observe([
            (Latency::Request, execution.exec_end_ns.saturating_sub(started_ns)),
            (Latency::Queue, execution.exec_start_ns.saturating_sub(queued_ns)),
            (Latency::ComputeInput, execution.compute_input_ns()),
            (Latency::ComputeInfer, execution.compute_infer_ns()),
            (Latency::ComputeOutput, execution.compute_output_ns()),
        ]);
    }

    #[cold]
    #[inline(never)]
    pub fn composed_succeeded(&self, duration_ns: u64) {
        self.observe([(Latency::Request, duration_ns)]);
    }

    #[cold]
    #[inline(never)]
    pub fn composed_ended(&self, sums: &Sums) {
        self.observe([
            (Latency::Queue, sums.queue_ns),
            (Latency::ComputeInput, sums.compute_input_ns),
            (Latency::ComputeInfer, sums.compute_infer_ns),
            (Latency::ComputeOutput, sums.compute_output_ns),
        ]);
    }

    #[cold]
    #[inline(never)]
    pub fn cache_hit(&self, request_ns: u64, queue_ns: u64, lookup_ns: u64) {
        self.observe([(Latency::Request, request_ns), (Latency::Queue, queue_ns), (Latency::CacheHit, lookup_ns)]);
    }

    #[cold]
    #[inline(never)]
    pub fn cache_missed(&self, duration_ns: u64) {
        self.observe([(Latency::CacheMiss, duration_ns)]);
    }

    /// The fraction of a millisecond is dropped (contract/metrics.md section 2).
    #[cold]
    #[inline(never)]
    pub fn first_response(&self, started_ns: u64, now_ns: u64) {
        let elapsed_ms = now_ns.saturating_sub(started_ns) / 1_000_000;
        self.with_slot(|slot, exclusive| {
            if let Some(histogram) = &slot.first_response {
                histogram.observe(elapsed_ms, exclusive);
            }
        });
    }

    pub fn observes_first_response(&self) -> bool {
        self.wanted.first_response_ms.is_some()
    }

    /// The sums over all writers.
    pub fn read(&self) -> Distributions {
        let now = age_now();
        let mut sum = Distributions::empty(&self.wanted);
        for slot in self.slots.iter().filter_map(OnceLock::get) {
            slot.merge_into(&mut sum, now);
        }
        sum
    }

    /// Times in nanoseconds; each is cut to whole microseconds, as for the counters.
    fn observe<const N: usize>(&self, times: [(Latency, u64); N]) {
        let now = if self.wanted.summaries { age_now() } else { 0 };
        self.with_slot(|slot, exclusive| {
            for (latency, ns) in times {
                slot.observe(latency, ns / 1000, now, exclusive);
            }
        });
    }

    fn with_slot(&self, observe: impl FnOnce(&Slot, bool)) {
        let writer = WriterSlot::current();
        if let Some(slot) = self.slots.get(writer.index()) {
            let slot = slot.get_or_init(|| Box::new(CachePadded::new(Slot::new(&self.wanted))));
            observe(slot, writer.is_exclusive());
        }
    }
}

impl Slot {
    fn new(wanted: &DistributionConfig) -> Slot {
        Slot {
            first_response: wanted.first_response_ms.as_ref().map(Histogram::new),
            phases: wanted.phases_us.as_ref().map(|phases| phases.each_ref().map(Histogram::new)),
            summaries: wanted.summaries.then(Default::default),
        }
    }

    fn observe(&self, latency: Latency, us: u64, now: u64, exclusive: bool) {
        let place = latency as usize;
        if let Some(histogram) = self.phases.as_ref().and_then(|phases| phases.get(place)) {
            histogram.observe(us, exclusive);
        }
        if let Some(window) = self.summaries.as_ref().and_then(|summaries| summaries.get(place)) {
            window.observe(us, now, exclusive);
        }
    }

    fn merge_into(&self, sum: &mut Distributions, now: u64) {
        if let (Some(histogram), Some(sum)) = (&self.first_response, &mut sum.first_response) {
            histogram.merge_into(sum);
        }
        if let (Some(phases), Some(sums)) = (&self.phases, &mut sum.phases) {
            phases.iter().zip(sums).for_each(|(histogram, sum)| histogram.merge_into(sum));
        }
        if let (Some(summaries), Some(sums)) = (&self.summaries, &mut sum.summaries) {
            summaries.iter().zip(sums).for_each(|(window, sum)| window.merge_into(sum, now));
        }
    }
}

impl Distributions {
    fn empty(wanted: &DistributionConfig) -> Distributions {
        Distributions {
            first_response: wanted.first_response_ms.as_ref().map(HistogramReading::empty),
            phases: wanted.phases_us.as_ref().map(|phases| phases.each_ref().map(HistogramReading::empty)),
            summaries: wanted.summaries.then(Default::default),
        }
    }

    /// Adds the distributions of another version of the same model.
    pub fn add(&mut self, other: &Distributions) {
        if let (Some(sum), Some(other)) = (&mut self.first_response, &other.first_response) {
            sum.add(other);
        }
        if let (Some(sums), Some(others)) = (&mut self.phases, &other.phases) {
            sums.iter_mut().zip(others).for_each(|(sum, other)| sum.add(other));
        }
        if let (Some(sums), Some(others)) = (&mut self.summaries, &other.summaries) {
            sums.iter_mut().zip(others).for_each(|(sum, other)| sum.add(other));
        }
    }
}

/// The number of the present age of the summaries' window. The first one is 1.
fn age_now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs() / window::AGE_SECS + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(bounds: &[f64]) -> Bounds {
        bounds.into()
    }

    const EXECUTION: Execution =
        Execution { exec_start_ns: 10_000, compute_start_ns: 12_999, compute_end_ns: 20_000, exec_end_ns: 25_000 };

    #[test]
    fn nothing_wanted_is_nothing_kept() {
        assert!(Latencies::new(DistributionConfig::default()).is_none());
    }

    #[test]
    fn every_phase_has_its_place_in_both_forms() {
        let each = [bounds(&[5.0, 20.0]), bounds(&[5.0]), bounds(&[2.0]), bounds(&[6.0]), bounds(&[5.0])];
        let wanted = DistributionConfig { phases_us: Some(each), summaries: true, ..DistributionConfig::default() };
        let latencies = Latencies::new(wanted).unwrap();
        latencies.request_succeeded(1_000, 4_000, &EXECUTION);
        latencies.cache_hit(5_999, 1_000, 3_000);
        latencies.cache_missed(9_000);
        latencies.composed_succeeded(100_000);
        latencies.composed_ended(&Sums { queue_ns: 7_000, compute_infer_ns: 8_000, ..Sums::default() });
        let read = latencies.read();
        assert_eq!(read.first_response, None);
        let phases = read.phases.unwrap().map(|reading| (reading.counts, reading.sum));
        assert_eq!(phases[0], (vec![1, 0, 2], 24 + 5 + 100), "request");
        assert_eq!(phases[1], (vec![1, 2], 6 + 1 + 7), "queue");
        assert_eq!(phases[2], (vec![2, 0], 2), "compute input");
        assert_eq!(phases[3], (vec![0, 2], 7 + 8), "compute infer");
        assert_eq!(phases[4], (vec![2, 0], 5), "compute output");
        let summaries = read.summaries.unwrap().map(|reading| (reading.count, reading.sum));
        assert_eq!(summaries, [(3, 129), (3, 14), (2, 2), (2, 15), (2, 5), (1, 3), (1, 9)]);
    }

    /// contract/metrics.md section 2: the fraction is dropped before the bucket is chosen.
    #[test]
    fn first_responses_are_whole_milliseconds() {
        let wanted =
            DistributionConfig { first_response_ms: Some(bounds(&[100.0, 500.0])), ..DistributionConfig::default() };
        let latencies = Latencies::new(wanted).unwrap();
        assert!(latencies.observes_first_response());
        for elapsed_ns in [0, 100_999_999, 101_000_000, 500_000_000, 501_000_000] {
            latencies.first_response(7, 7 + elapsed_ns);
        }
        latencies.first_response(9, 3);
        let reading = latencies.read().first_response.unwrap();
        assert_eq!((reading.counts, reading.sum), (vec![3, 2, 1], 100 + 101 + 500 + 501));
    }

    #[test]
    fn versions_of_one_model_add_up() {
        let wanted = DistributionConfig { first_response_ms: Some(bounds(&[1.0])), phases_us: None, summaries: true };
        let (one, other) = (Latencies::new(wanted.clone()).unwrap(), Latencies::new(wanted).unwrap());
        one.first_response(0, 0);
        other.first_response(0, 9_000_000);
        one.composed_succeeded(3_000);
        other.composed_succeeded(5_000);
        let mut sum = one.read();
        sum.add(&other.read());
        assert_eq!(sum.first_response.unwrap().counts, [1, 1]);
        let request = &sum.summaries.unwrap()[0];
        assert_eq!((request.count, request.sum), (2, 8));
        assert_eq!([0.5, 1.0].map(|q| request.quantile(q)), [Some(3.0), Some(5.0)]);
    }

    #[test]
    fn more_threads_than_slots_lose_no_observation() {
        let wanted = DistributionConfig {
            phases_us: Some(std::array::from_fn(|_| bounds(&[3.0]))),
            summaries: true,
            ..DistributionConfig::default()
        };
        let latencies = Latencies::new(wanted).unwrap();
        let (threads, rounds) = (writer_slot::SLOTS + 4, 500);
        let gate = std::sync::Barrier::new(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    gate.wait();
                    (0..rounds).for_each(|_| latencies.composed_succeeded(4_000));
                    gate.wait();
                });
            }
        });
        let (read, all) = (latencies.read(), (threads * rounds) as u64);
        assert_eq!(read.phases.unwrap()[0].counts, [0, all]);
        let request = &read.summaries.unwrap()[0];
        assert_eq!((request.count, request.sum), (all, 4 * all));
    }
}
