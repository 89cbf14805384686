//! The counters of one model version, written by shards and workers and merged when read.
//!
//! Every writing thread has a slot of its own, so counting on the request path touches no cache line that another core
//! writes. The block belongs to the model version and lives until its last holder is gone: a request that ends after
//! the unload is still counted.

mod large;
mod latencies;
mod memory;
mod responses;
mod slot;
pub mod slowest;
mod snapshot;
mod writer_slot;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crossbeam_utils::CachePadded;
use nereid_clock::now_ns;
use nereid_request::RefusalReason;

use large::Large;
use latencies::Latencies;
pub use latencies::{Bounds, DistributionConfig, Distributions, HistogramReading, Latency, PHASES, SummaryReading};
use memory::MemoryReports;
pub use memory::{Holder, MemoryKind, MemoryUse};
use responses::Responses;
pub use responses::{ResponseOutcome, ResponseTimes};
use slot::Slot;
use slowest::{Ending, ModelName, PhasesNs, SlowRequest};
pub use snapshot::{BatchTally, DurationsUs, Failures, ResponseTally, Snapshot, Tally};
use writer_slot::WriterSlot;

/// When one execution began and ended, in nanoseconds of the request clock (contract/schedulers.md,
/// contract/metrics.md section 2).
#[derive(Debug, Clone, Copy, Default)]
pub struct Execution {
    pub exec_start_ns: u64,
    pub compute_start_ns: u64,
    pub compute_end_ns: u64,
    pub exec_end_ns: u64,
}

/// The three parts of an execution. Stamps out of order give 0 where Triton's unsigned difference wraps around: one
/// bad stamp of a backend shall not ruin a sum for good.
impl Execution {
    pub fn compute_input_ns(&self) -> u64 {
        self.compute_start_ns.saturating_sub(self.exec_start_ns)
    }

    pub fn compute_infer_ns(&self) -> u64 {
        self.compute_end_ns.saturating_sub(self.compute_start_ns)
    }

    pub fn compute_output_ns(&self) -> u64 {
        self.exec_end_ns.saturating_sub(self.compute_end_ns)
    }
}

/// The durations of the requests that one request of an ensemble led to, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub queue_ns: u64,
    pub compute_input_ns: u64,
    pub compute_infer_ns: u64,
    pub compute_output_ns: u64,
}

/// Why an accepted request ended with an error (`reason` label of nv_inference_request_failure).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    Rejected,
    Canceled,
    Backend,
    Other,
}

/// All methods may be called from any thread at any time; none waits for another thread.
pub struct ModelStatistics {
    /// Filled when its thread first counts here; most threads never count for most models.
    slots: Box<[OnceLock<Box<CachePadded<Slot>>>]>,
    large_batches: Large,
    responses: Responses,
    /// Distributions, if any are configured.
    latencies: Option<Box<Latencies>>,
    memory: MemoryReports,
    /// Set once, when the model is loaded.
    is_caching: AtomicBool,
    wanted: DistributionConfig,
    /// Executions on devices, by their UUIDs.
    devices: Mutex<Vec<Device>>,
    /// By which its slow requests are recorded; without it they are not.
    model: OnceLock<Arc<ModelName>>,
    /// The id of the generation that serves the version now; empty where none is named.
    generation: Mutex<Arc<str>>,
}

/// The executions of a model on one device.
#[derive(Clone)]
struct Device {
    uuid: Arc<str>,
    statistics: Arc<ModelStatistics>,
}

/// The part of the counters that has a device, for the families (contract/metrics.md section 1, `gpu_uuid`).
#[derive(Debug, Clone)]
pub struct DeviceReading {
    pub uuid: Arc<str>,
    pub counters: Snapshot,
    pub distributions: Option<Distributions>,
}

impl Default for ModelStatistics {
    fn default() -> ModelStatistics {
        ModelStatistics::with(DistributionConfig::default())
    }
}

impl ModelStatistics {
    /// Counters, and the distributions that `wanted` configures.
    pub fn with(wanted: DistributionConfig) -> ModelStatistics {
        let slots: Box<[OnceLock<_>]> = (0..writer_slot::SLOTS).map(|_| OnceLock::new()).collect();
        if let Some(shared) = slots.last() {
            // Only the shared slot could be made by two threads at once, one waiting for the other: make it here.
            shared.get_or_init(Box::default);
        }
        ModelStatistics {
            slots,
            large_batches: Large::default(),
            responses: Responses::default(),
            latencies: Latencies::new(wanted.clone()),
            memory: MemoryReports::default(),
            is_caching: AtomicBool::new(false),
            wanted,
            devices: Mutex::default(),
            model: OnceLock::new(),
            generation: Mutex::new(Arc::from("")),
        }
    }

    /// Names the model version, so that its [slowest] requests are recorded. The first name stays.
    pub fn set_model(&self, name: &str, version: i64) {
        let _ = self.model.set(Arc::new(ModelName { name: name.to_owned(), version }));
    }

    /// Names the state of the model that the version is part of from now on, for metrics and traces.
    pub fn set_generation(&self, id: &Arc<str>) {
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(id);
    }

    /// The id of that state; empty where none is named.
    pub fn generation(&self) -> Arc<str> {
        Arc::clone(&self.generation.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The statistics of the device with this UUID, in which its instances count executions: a part of these.
    pub fn of_device(&self, uuid: &str) -> Arc<ModelStatistics> {
        let mut devices = self.lock_devices();
        if let Some(device) = devices.iter().find(|device| &*device.uuid == uuid) {
            return Arc::clone(&device.statistics);
        }
        let statistics = Arc::new(ModelStatistics::with(self.wanted.clone()));
        if let Some(model) = self.model.get() {
            let _ = statistics.model.set(Arc::clone(model));
        }
        devices.push(Device { uuid: uuid.into(), statistics: Arc::clone(&statistics) });
        statistics
    }

    /// A request entered the scheduler.
    pub fn pending_added(&self) {
        self.with_slot(|slot, exclusive| slot.pending_added.add(1, exclusive));
    }

    /// A request was handed to an instance, or left the scheduler otherwise.
    pub fn pending_removed(&self) {
        self.with_slot(|slot, exclusive| slot.pending_removed.add(1, exclusive));
    }

    /// A request succeeded. `started_ns` and `queued_ns` are its own stamps, `batch_size` its rows. Its end is the
    /// end of the execution: successes are counted before the response leaves.
    pub fn request_succeeded(&self, started_ns: u64, queued_ns: u64, batch_size: u64, execution: &Execution) {
        // Two paths rather than a step after the counting: the values kept for that step would cost all other requests.
        match self.latencies.is_some() {
            false => self.success_counted(started_ns, queued_ns, batch_size, execution),
            true => self.success_observed(started_ns, queued_ns, batch_size, execution),
        }
    }

    #[inline(always)]
    fn success_counted(&self, started_ns: u64, queued_ns: u64, batch_size: u64, execution: &Execution) {
        let writer = WriterSlot::current();
        self.with_slot_of(writer, |slot, exclusive| {
            slot.request_succeeded(started_ns, queued_ns, batch_size, execution, exclusive);
        });
        if slowest::is_slow(writer, execution.exec_end_ns.saturating_sub(started_ns)) {
            self.success_recorded(writer, started_ns, queued_ns, batch_size, execution);
        }
    }

    #[cold]
    #[inline(never)]
    fn success_recorded(
        &self,
        writer: WriterSlot,
        started_ns: u64,
        queued_ns: u64,
        batch_size: u64,
        execution: &Execution,
    ) {
        let phases = PhasesNs {
            total: execution.exec_end_ns.saturating_sub(started_ns),
            queue: execution.exec_start_ns.saturating_sub(queued_ns),
            compute_input: execution.compute_input_ns(),
            compute_infer: execution.compute_infer_ns(),
            compute_output: execution.compute_output_ns(),
        };
        self.slow_recorded(writer, batch_size.max(1), execution.exec_end_ns, phases, Ending::Success);
    }

    #[cold]
    #[inline(never)]
    fn slow_recorded(&self, writer: WriterSlot, batch_size: u64, ended_ns: u64, phases: PhasesNs, ending: Ending) {
        if let Some(model) = self.model.get() {
            let model = Arc::clone(model);
            slowest::record(writer, SlowRequest { model, batch_size, ended_ns, phases, ending });
        }
    }

    #[cold]
    #[inline(never)]
    fn success_observed(&self, started_ns: u64, queued_ns: u64, batch_size: u64, execution: &Execution) {
        self.success_counted(started_ns, queued_ns, batch_size, execution);
        if let Some(latencies) = &self.latencies {
            latencies.request_succeeded(started_ns, queued_ns, execution);
        }
    }

    /// A request of an ensemble succeeded: `duration_ns` is its own, the rest the sums of its steps' requests.
    pub fn composed_succeeded(&self, duration_ns: u64, batch_size: u64, sums: &Sums) {
        self.with_slot(|slot, exclusive| {
            slot.composed_succeeded(duration_ns, batch_size, exclusive);
            slot.sums_added(sums, exclusive);
        });
        if let Some(latencies) = &self.latencies {
            latencies.composed_succeeded(duration_ns);
        }
        let execution = Execution {
            exec_start_ns: 0,
            compute_start_ns: sums.compute_input_ns,
            compute_end_ns: sums.compute_input_ns.saturating_add(sums.compute_infer_ns),
            exec_end_ns: sums
                .compute_input_ns
                .saturating_add(sums.compute_infer_ns)
                .saturating_add(sums.compute_output_ns),
        };
        self.batch_executed(batch_size.max(1), &execution);
        let writer = WriterSlot::current();
        if slowest::is_slow(writer, duration_ns) {
            let Sums { queue_ns, compute_input_ns, compute_infer_ns, compute_output_ns } = *sums;
            let phases = PhasesNs {
                total: duration_ns,
                queue: queue_ns,
                compute_input: compute_input_ns,
                compute_infer: compute_infer_ns,
                compute_output: compute_output_ns,
            };
            self.slow_recorded(writer, batch_size.max(1), now_ns(), phases, Ending::Success);
        }
    }

    /// Adds sums that were reported only after the success was counted.
    pub fn composed_late(&self, sums: &Sums) {
        self.with_slot(|slot, exclusive| slot.sums_added(sums, exclusive));
    }

    /// All steps of a successful request of an ensemble have ended; `sums` are those of all of them.
    pub fn composed_ended(&self, sums: &Sums) {
        if let Some(latencies) = &self.latencies {
            latencies.composed_ended(sums);
        }
    }

    /// An accepted request ended with an error at `ended_ns`.
    pub fn request_failed(&self, started_ns: u64, ended_ns: u64, reason: FailureReason) {
        let duration_ns = ended_ns.saturating_sub(started_ns);
        let writer = WriterSlot::current();
        self.with_slot_of(writer, |slot, exclusive| slot.request_failed(duration_ns, reason, exclusive));
        if slowest::is_slow(writer, duration_ns) {
            let phases = PhasesNs { total: duration_ns, ..PhasesNs::default() };
            self.slow_recorded(writer, 0, ended_ns, phases, Ending::Failure(reason));
        }
    }

    /// A request was refused for one of the [reasons of a model](RefusalReason::OF_MODEL).
    pub fn refused(&self, reason: RefusalReason) {
        self.with_slot(|slot, exclusive| slot.refused(reason, exclusive));
    }

    /// Whether [`first_response`](ModelStatistics::first_response) has to be called.
    pub fn observes_first_response(&self) -> bool {
        self.latencies.as_ref().is_some_and(|latencies| latencies.observes_first_response())
    }

    /// The first response of an accepted request left at `now_ns`, be it an error.
    pub fn first_response(&self, started_ns: u64, now_ns: u64) {
        if let Some(latencies) = &self.latencies {
            latencies.first_response(started_ns, now_ns);
        }
    }

    /// Replaces the report of `holder` on its memory.
    pub fn memory_reported(&self, holder: Holder, uses: Vec<MemoryUse>) {
        self.memory.report(holder, uses);
    }

    /// Removes the report of `holder`, which is gone.
    pub fn memory_released(&self, holder: Holder) {
        self.memory.forget(holder);
    }

    /// The model answers from the response cache where it can.
    pub fn enable_cache(&self) {
        self.is_caching.store(true, Ordering::Relaxed);
    }

    /// The response cache answered a request: a success, though no inference.
    pub fn cache_hit(&self, started_ns: u64, queued_ns: u64, lookup_started_ns: u64, lookup_ended_ns: u64) {
        let request_ns = lookup_ended_ns.saturating_sub(started_ns);
        let queue_ns = lookup_started_ns.saturating_sub(queued_ns);
        let lookup_ns = lookup_ended_ns.saturating_sub(lookup_started_ns);
        let writer = WriterSlot::current();
        self.with_slot_of(writer, |slot, exclusive| slot.cache_hit(request_ns, queue_ns, lookup_ns, exclusive));
        if slowest::is_slow(writer, request_ns) {
            let phases = PhasesNs { total: request_ns, queue: queue_ns, ..PhasesNs::default() };
            self.slow_recorded(writer, 0, lookup_ended_ns, phases, Ending::CacheHit);
        }
        if let Some(latencies) = &self.latencies {
            latencies.cache_hit(request_ns, queue_ns, lookup_ns);
        }
    }

    /// The cache did not answer a request: lookup and insertion took `duration_ns`, which is added to the duration of
    /// the request.
    pub fn cache_missed(&self, duration_ns: u64) {
        self.with_slot(|slot, exclusive| slot.cache_missed(duration_ns, exclusive));
        if let Some(latencies) = &self.latencies {
            latencies.cache_missed(duration_ns);
        }
    }

    /// One batch of `batch_size` rows was executed.
    pub fn batch_executed(&self, batch_size: u64, execution: &Execution) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.batch_executed_at(batch_size, execution, u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    }

    /// Response number `index` of a request was made, or failed.
    pub fn response_made(&self, index: u64, outcome: ResponseOutcome, times: &ResponseTimes) {
        self.responses.add(index, outcome, times);
    }

    /// The sums over all writers, on whatever device.
    pub fn snapshot(&self) -> Snapshot {
        let devices = self.lock_devices().clone();
        let parts: Vec<&ModelStatistics> =
            std::iter::once(self).chain(devices.iter().map(|device| &*device.statistics)).collect();
        let mut sum = self.sum_of(&parts);
        sum.batch_stats = batch_stats(&parts);
        sum.response_stats = self.responses.read();
        sum.memory_usage = self.memory.read();
        sum
    }

    /// Executions on devices, by their UUIDs.
    pub fn devices(&self) -> Vec<DeviceReading> {
        let mut devices = self.lock_devices().clone();
        devices.sort_unstable_by(|one, other| one.uuid.cmp(&other.uuid));
        // Whether the model uses the cache decides on families, which all its series have.
        let is_caching = self.is_caching.load(Ordering::Relaxed);
        let reading = |Device { uuid, statistics }: Device| DeviceReading {
            uuid,
            counters: Snapshot { is_caching, ..statistics.counters() },
            distributions: statistics.distributions(),
        };
        devices.into_iter().map(reading).collect()
    }

    /// The distributions, if any are configured, without those of devices.
    pub fn distributions(&self) -> Option<Distributions> {
        self.latencies.as_ref().map(|latencies| latencies.read())
    }

    /// The snapshot without devices, and without the tables of batch sizes, responses and instances: enough for the
    /// families.
    pub fn counters(&self) -> Snapshot {
        self.sum_of(&[self])
    }

    /// The counters on whatever device, without the tables, and the nanoseconds of all executions that have ended.
    pub fn work(&self) -> (Snapshot, u64) {
        let devices = self.lock_devices().clone();
        let parts: Vec<&ModelStatistics> =
            std::iter::once(self).chain(devices.iter().map(|device| &*device.statistics)).collect();
        let executed_ns = parts.iter().map(|part| part.executed_ns()).fold(0, u64::wrapping_add);
        (self.sum_of(&parts), executed_ns)
    }

    fn executed_ns(&self) -> u64 {
        let of_slots = self.slots.iter().filter_map(OnceLock::get).flat_map(|slot| slot.batches());
        let of_slots = of_slots.map(slot::BatchCounters::read);
        let large = self.large_batches.read().map(|(_, count, times)| (count, times));
        of_slots.chain(large).flat_map(|(_, times)| times).fold(0, u64::wrapping_add)
    }

    fn sum_of(&self, parts: &[&ModelStatistics]) -> Snapshot {
        let slots = || parts.iter().flat_map(|part| part.slots.iter().filter_map(OnceLock::get));
        let mut sum = Snapshot::default();
        slots().for_each(|slot| slot.merge_into(&mut sum));
        // Leaving is read before entering: a request that passes meanwhile can be seen as pending for too long, but
        // never as removed before it was added.
        let removed = slots().fold(0u64, |sum, slot| sum.wrapping_add(slot.pending_removed.get()));
        let added = slots().fold(0u64, |sum, slot| sum.wrapping_add(slot.pending_added.get()));
        sum.pending = added.saturating_sub(removed);
        sum.is_caching = self.is_caching.load(Ordering::Relaxed);
        sum
    }

    fn batch_executed_at(&self, batch_size: u64, execution: &Execution, now_ms: u64) {
        let counted = self.with_slot(|slot, exclusive| slot.batch_executed(batch_size, execution, now_ms, exclusive));
        if !counted {
            self.large_batches.batch_executed(batch_size, execution);
        }
    }

    fn lock_devices(&self) -> MutexGuard<'_, Vec<Device>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    fn with_slot<T>(&self, count: impl FnOnce(&Slot, bool) -> T) -> T {
        self.with_slot_of(WriterSlot::current(), count)
    }

    #[inline(always)]
    fn with_slot_of<T>(&self, writer: WriterSlot, count: impl FnOnce(&Slot, bool) -> T) -> T {
        match self.slots.get(writer.index()) {
            Some(slot) => count(slot.get_or_init(Box::default), writer.is_exclusive()),
            None => unreachable!("a writer counts in one of the slots"),
        }
    }
}

/// Executions by their batch sizes, ascending.
fn batch_stats(parts: &[&ModelStatistics]) -> Vec<BatchTally> {
    let mut batches: BTreeMap<u64, BatchTally> = BTreeMap::new();
    let mut add = |batch_size: u64, count: u64, times: [u64; 3]| {
        if count != 0 {
            let empty = || BatchTally { batch_size, ..BatchTally::default() };
            batches.entry(batch_size).or_insert_with(empty).merge(count, times);
        }
    };
    for part in parts {
        for slot in part.slots.iter().filter_map(OnceLock::get) {
            for (batch_size, counters) in (0..=slot::DIRECT_BATCH_SIZE).zip(slot.batches()) {
                let (count, times) = counters.read();
                add(batch_size, count, times);
            }
        }
        for (batch_size, count, times) in part.large_batches.read() {
            add(batch_size, count, times);
        }
    }
    batches.into_values().collect()
}

impl fmt::Debug for ModelStatistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(formatter)
    }
}

impl BatchTally {
    fn merge(&mut self, count: u64, [input_ns, infer_ns, output_ns]: [u64; 3]) {
        self.compute_input.merge(count, input_ns);
        self.compute_infer.merge(count, infer_ns);
        self.compute_output.merge(count, output_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const EXECUTION: Execution =
        Execution { exec_start_ns: 10_000, compute_start_ns: 11_999, compute_end_ns: 15_000, exec_end_ns: 15_900 };

    #[test]
    fn one_request_has_the_durations_of_the_specification() {
        let statistics = ModelStatistics::default();
        assert_eq!(statistics.snapshot(), Snapshot::default());
        statistics.pending_added();
        assert_eq!(statistics.snapshot().pending, 1);
        statistics.pending_removed();
        statistics.batch_executed_at(3, &EXECUTION, 1_700_000_000_123);
        statistics.request_succeeded(1_000, 2_500, 3, &EXECUTION);
        let infer = Tally { count: 1, ns: 3_001 };
        let (input, output) = (Tally { count: 1, ns: 1_999 }, Tally { count: 1, ns: 900 });
        let expected = Snapshot {
            last_inference_ms: 1_700_000_000_123,
            inference_count: 3,
            execution_count: 1,
            success: Tally { count: 1, ns: 14_900 },
            queue: Tally { count: 1, ns: 7_500 },
            compute_input: input,
            compute_infer: infer,
            compute_output: output,
            batch_stats: vec![BatchTally {
                batch_size: 3,
                compute_input: input,
                compute_infer: infer,
                compute_output: output,
            }],
            durations_us: DurationsUs {
                request: 14,
                queue: 7,
                compute_input: 1,
                compute_infer: 3,
                ..DurationsUs::default()
            },
            ..Snapshot::default()
        };
        assert_eq!(statistics.snapshot(), expected);
    }

    /// contract/metrics.md section 3: hits are successes without inferences; a miss makes its request last longer.
    #[test]
    fn hits_and_misses_of_the_cache_have_their_places() {
        let statistics = ModelStatistics::default();
        assert!(!statistics.snapshot().is_caching);
        statistics.enable_cache();
        statistics.request_succeeded(1_000, 2_500, 3, &EXECUTION);
        statistics.cache_missed(2_500);
        statistics.cache_hit(1_000, 2_000, 2_300, 5_400);
        let snapshot = statistics.snapshot();
        assert!(snapshot.is_caching);
        assert_eq!(snapshot.success, Tally { count: 2, ns: 14_900 + 2_500 + 4_400 });
        assert_eq!(snapshot.queue, Tally { count: 2, ns: 7_500 + 300 });
        assert_eq!(snapshot.compute_infer, Tally { count: 1, ns: 3_001 });
        assert_eq!(snapshot.cache_hit, Tally { count: 1, ns: 3_100 });
        assert_eq!(snapshot.cache_miss, Tally { count: 1, ns: 2_500 });
        assert_eq!((snapshot.inference_count, snapshot.execution_count, snapshot.last_inference_ms), (3, 0, 0));
        let us = snapshot.durations_us;
        assert_eq!((us.request, us.cache_hit, us.cache_miss), (14 + 2 + 4, 3, 2));
    }

    #[test]
    fn microseconds_are_cut_per_event() {
        let statistics = ModelStatistics::default();
        let execution = Execution { exec_start_ns: 0, compute_start_ns: 0, compute_end_ns: 999, exec_end_ns: 999 };
        for _ in 0..1000 {
            statistics.request_succeeded(0, 0, 1, &execution);
        }
        let snapshot = statistics.snapshot();
        assert_eq!((snapshot.compute_infer.ns, snapshot.durations_us.compute_infer), (999_000, 0));
        assert_eq!((snapshot.success.ns, snapshot.durations_us.request), (999_000, 0));
    }

    /// The versions of an ensemble are one series, however many requests of each the cache answered.
    #[test]
    fn families_of_two_versions_add_up() {
        let versions = [(); 2].map(|()| {
            let statistics = ModelStatistics::default();
            statistics.enable_cache();
            statistics.cache_hit(1_000, 2_000, 2_300, 5_400);
            statistics.cache_missed(2_500);
            statistics.request_succeeded(1_000, 2_500, 3, &EXECUTION);
            statistics.request_failed(0, 1, FailureReason::Other);
            statistics.refused(RefusalReason::QueueFull);
            statistics.pending_added();
            statistics.counters()
        });
        let [mut sum, other] = versions;
        sum.add_families(&other);
        assert_eq!((sum.success.count, sum.inference_count, sum.failures.other), (4, 6, 2));
        assert_eq!((sum.cache_hit.count, sum.cache_miss.count, sum.refused, sum.pending), (2, 2, [2, 0, 0, 0], 2));
        let us = sum.durations_us;
        assert_eq!((us.cache_hit, us.cache_miss, us.compute_infer), (6, 4, 6));
        assert_eq!((us.request, us.queue), (2 * (14 + 4 + 2), 2 * 7));
    }

    #[test]
    fn an_ensemble_has_the_sums_of_its_steps() {
        let statistics = ModelStatistics::default();
        let sums = Sums { queue_ns: 4_000, compute_input_ns: 1_500, compute_infer_ns: 3_000, compute_output_ns: 2_000 };
        statistics.composed_succeeded(20_000, 0, &sums);
        statistics.composed_late(&Sums { compute_infer_ns: 1_000, ..Sums::default() });
        let seen = statistics.snapshot();
        assert_eq!((seen.inference_count, seen.execution_count), (1, 1));
        assert_eq!(seen.success, Tally { count: 1, ns: 20_000 });
        assert_eq!(seen.queue, Tally { count: 1, ns: 4_000 });
        assert_eq!(seen.compute_input, Tally { count: 1, ns: 1_500 });
        assert_eq!(seen.compute_infer, Tally { count: 1, ns: 4_000 });
        assert_eq!(seen.compute_output, Tally { count: 1, ns: 2_000 });
        let batches: Vec<_> = seen.batch_stats.iter().map(|batch| (batch.batch_size, batch.compute_infer.ns)).collect();
        assert_eq!(batches, [(1, 3_000)]);
    }

    /// contract/metrics.md section 1, `gpu_uuid`, and section 3: separate for the families, together for the
    /// statistics.
    #[test]
    fn executions_on_devices_are_separate_and_add_up() {
        let wanted = DistributionConfig { first_response_ms: Some([1.0].into()), ..DistributionConfig::default() };
        let statistics = ModelStatistics::with(wanted);
        statistics.enable_cache();
        let (b, a) = (statistics.of_device("GPU-b"), statistics.of_device("GPU-a"));
        assert!(Arc::ptr_eq(&a, &statistics.of_device("GPU-a")), "one for all instances of a device");
        statistics.pending_added();
        statistics.first_response(0, 1);
        for (part, times, size) in [(&statistics, 1, 1), (&*a, 2, 3), (&*b, 4, 100)] {
            for _ in 0..times {
                part.batch_executed_at(size, &EXECUTION, times);
                part.request_succeeded(1_000, 2_500, size, &EXECUTION);
                part.request_failed(0, 1, FailureReason::Backend);
            }
        }
        let all = statistics.snapshot();
        assert_eq!((all.success.count, all.inference_count, all.execution_count), (7, 1 + 6 + 400, 7));
        assert_eq!((all.fail.count, all.failures.backend, all.pending, all.last_inference_ms), (7, 7, 1, 4));
        let batches: Vec<_> =
            all.batch_stats.iter().map(|batch| (batch.batch_size, batch.compute_infer.count)).collect();
        assert_eq!(batches, [(1, 1), (3, 2), (100, 4)]);
        let own = statistics.counters();
        assert_eq!((own.success.count, own.pending, own.is_caching), (1, 1, true));
        let devices = statistics.devices();
        let seen = devices.iter().map(|one| (&*one.uuid, one.counters.success.count, one.counters.failures.backend));
        assert_eq!(seen.collect::<Vec<_>>(), [("GPU-a", 2, 2), ("GPU-b", 4, 4)]);
        for one in devices {
            assert!(one.counters.is_caching && one.counters.pending == 0);
            let first_response = one.distributions.and_then(|read| read.first_response);
            assert!(first_response.is_some_and(|histogram| histogram.counts.iter().all(|count| *count == 0)));
        }
    }

    #[test]
    fn failures_add_to_fail_and_their_reason_only() {
        let statistics = ModelStatistics::default();
        let reasons = [FailureReason::Rejected, FailureReason::Canceled, FailureReason::Backend, FailureReason::Other];
        for (times, reason) in reasons.into_iter().enumerate() {
            (0..=times).for_each(|_| statistics.request_failed(5, 12, reason));
        }
        let expected = Snapshot {
            fail: Tally { count: 10, ns: 70 },
            failures: Failures { rejected: 1, canceled: 2, backend: 3, other: 4 },
            ..Snapshot::default()
        };
        assert_eq!(statistics.snapshot(), expected);
    }

    #[test]
    fn stamps_out_of_order_count_as_nothing() {
        let statistics = ModelStatistics::default();
        let backwards = Execution { exec_start_ns: 9, compute_start_ns: 8, compute_end_ns: 7, exec_end_ns: 6 };
        statistics.request_succeeded(u64::MAX, u64::MAX, 0, &backwards);
        statistics.request_failed(10, 3, FailureReason::Other);
        statistics.batch_executed_at(0, &backwards, 0);
        let snapshot = statistics.snapshot();
        assert_eq!(snapshot.success, Tally { count: 1, ns: 0 });
        assert_eq!(snapshot.queue, Tally { count: 1, ns: 0 });
        assert_eq!(snapshot.fail, Tally { count: 1, ns: 0 });
        assert_eq!(snapshot.inference_count, 1, "a request counts for one inference at least");
        assert_eq!(snapshot.batch_stats, [BatchTally::default().with_count(1)]);
        assert_eq!(snapshot.durations_us, DurationsUs::default());
    }

    #[test]
    fn batch_sizes_are_sorted_and_the_newest_execution_stands() {
        let statistics = ModelStatistics::default();
        for (size, at_ms) in [(65, 30), (u64::MAX - 1, 20), (1, 50), (64, 10), (1, 40), (1_000, 0)] {
            statistics.batch_executed_at(size, &Execution::default(), at_ms);
        }
        let snapshot = statistics.snapshot();
        let seen: Vec<_> = snapshot.batch_stats.iter().map(|b| (b.batch_size, b.compute_output.count)).collect();
        assert_eq!(seen, [(1, 2), (64, 1), (65, 1), (1_000, 1), (u64::MAX - 1, 1)]);
        assert_eq!((snapshot.last_inference_ms, snapshot.execution_count), (50, 6));
        statistics.batch_executed(1, &Execution::default());
        assert!(statistics.snapshot().last_inference_ms > 1_600_000_000_000, "epoch milliseconds");
    }

    #[test]
    fn eight_threads_sum_up() {
        count_from_threads(8, 20_000);
    }

    /// More threads than slots, all alive at once: those beyond share a slot and lose nothing.
    #[test]
    fn more_threads_than_slots_sum_up() {
        count_from_threads(writer_slot::SLOTS + 8, 5_000);
    }

    fn count_from_threads(threads: usize, rounds: u64) {
        let statistics = Arc::new(ModelStatistics::default());
        let gate = Arc::new(std::sync::Barrier::new(threads));
        let writers: Vec<_> = (0..threads)
            .map(|_| {
                let (statistics, gate) = (Arc::clone(&statistics), Arc::clone(&gate));
                std::thread::spawn(move || {
                    gate.wait();
                    for round in 0..rounds {
                        statistics.pending_added();
                        statistics.pending_removed();
                        statistics.batch_executed_at(1 + round % 200, &EXECUTION, round);
                        statistics.request_succeeded(1_000, 2_500, 2, &EXECUTION);
                        statistics.request_failed(0, 1, FailureReason::Canceled);
                    }
                    gate.wait();
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        let (all, snapshot) = (threads as u64 * rounds, statistics.snapshot());
        assert_eq!(snapshot.success, Tally { count: all, ns: all * 14_900 });
        assert_eq!(snapshot.fail, Tally { count: all, ns: all });
        assert_eq!(snapshot.failures.canceled, all);
        assert_eq!(snapshot.inference_count, 2 * all);
        assert_eq!(snapshot.execution_count, all);
        assert_eq!(snapshot.pending, 0);
        assert_eq!(snapshot.last_inference_ms, rounds - 1);
        assert_eq!(snapshot.durations_us.request, all * 14);
        let batches: u64 = snapshot.batch_stats.iter().map(|batch| batch.compute_infer.count).sum();
        assert_eq!(batches, all);
        assert_eq!(snapshot.batch_stats.last().map(|batch| batch.batch_size), Some(BatchTally::OVERFLOW));
    }

    impl BatchTally {
        fn with_count(mut self, count: u64) -> BatchTally {
            self.compute_input.count = count;
            self.compute_infer.count = count;
            self.compute_output.count = count;
            self
        }
    }
}
