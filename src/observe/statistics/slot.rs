//! The counters that one writer fills, and the sum over all writers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::snapshot::{Snapshot, Tally};
use super::{Execution, FailureReason, Sums};
use nereid_request::RefusalReason;

/// Batches up to this many rows have an entry of their own in every slot; larger ones go to [`super::large::Large`].
pub const DIRECT_BATCH_SIZE: u64 = 64;

/// One counter with one usual writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds modulo 2^64. With `exclusive` the caller is the only writer and needs no locked instruction.
    pub fn add(&self, amount: u64, exclusive: bool) {
        match exclusive {
            true => self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Release),
            false => drop(self.0.fetch_add(amount, Ordering::Release)),
        }
    }

    fn raise_to(&self, value: u64, exclusive: bool) {
        match exclusive {
            true if self.get() < value => self.0.store(value, Ordering::Release),
            true => {}
            false => drop(self.0.fetch_max(value, Ordering::Release)),
        }
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Executions of one batch size.
#[derive(Debug, Default)]
pub struct BatchCounters {
    pub count: Counter,
    pub compute_input_ns: Counter,
    pub compute_infer_ns: Counter,
    pub compute_output_ns: Counter,
}

impl BatchCounters {
    pub fn add(&self, execution: &Execution, exclusive: bool) {
        self.compute_input_ns.add(execution.compute_input_ns(), exclusive);
        self.compute_infer_ns.add(execution.compute_infer_ns(), exclusive);
        self.compute_output_ns.add(execution.compute_output_ns(), exclusive);
        self.count.add(1, exclusive);
    }

    /// Count and the three times.
    pub fn read(&self) -> (u64, [u64; 3]) {
        let count = self.count.get();
        (count, [self.compute_input_ns.get(), self.compute_infer_ns.get(), self.compute_output_ns.get()])
    }
}

/// Time of one kind: in ns for the statistics, in us cut per event for the metrics (contract/metrics.md section 2).
#[derive(Debug, Default)]
struct Time {
    ns: Counter,
    us: Counter,
}

impl Time {
    fn add(&self, ns: u64, exclusive: bool) {
        self.ns.add(ns, exclusive);
        self.us.add(ns / 1000, exclusive);
    }
}

#[derive(Debug)]
pub struct Slot {
    succeeded: Counter,
    inferences: Counter,
    request: Time,
    queue: Time,
    compute_input: Time,
    compute_infer: Time,
    compute_output: Time,
    failed_ns: Counter,
    failed: [Counter; 4],
    cache_hits: Counter,
    cache_hit: Time,
    cache_misses: Counter,
    cache_miss: Time,
    executions: Counter,
    last_inference_ms: Counter,
    /// By [`RefusalReason::OF_MODEL`].
    refused: [Counter; RefusalReason::OF_MODEL.len()],
    pub pending_added: Counter,
    pub pending_removed: Counter,
    batches: [BatchCounters; DIRECT_BATCH_SIZE as usize + 1],
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            succeeded: Counter::default(),
            inferences: Counter::default(),
            request: Time::default(),
            queue: Time::default(),
            compute_input: Time::default(),
            compute_infer: Time::default(),
            compute_output: Time::default(),
            failed_ns: Counter::default(),
            failed: Default::default(),
            cache_hits: Counter::default(),
            cache_hit: Time::default(),
            cache_misses: Counter::default(),
            cache_miss: Time::default(),
            executions: Counter::default(),
            last_inference_ms: Counter::default(),
            refused: Default::default(),
            pending_added: Counter::default(),
            pending_removed: Counter::default(),
            batches: std::array::from_fn(|_| BatchCounters::default()),
        }
    }
}

impl Slot {
    #[inline(always)]
    pub fn request_succeeded(
        &self,
        started_ns: u64,
        queued_ns: u64,
        batch_size: u64,
        execution: &Execution,
        exclusive: bool,
    ) {
        self.inferences.add(batch_size.max(1), exclusive);
        self.request.add(execution.exec_end_ns.saturating_sub(started_ns), exclusive);
        self.queue.add(execution.exec_start_ns.saturating_sub(queued_ns), exclusive);
        self.compute_input.add(execution.compute_input_ns(), exclusive);
        self.compute_infer.add(execution.compute_infer_ns(), exclusive);
        self.compute_output.add(execution.compute_output_ns(), exclusive);
        self.succeeded.add(1, exclusive);
    }

    pub fn composed_succeeded(&self, duration_ns: u64, batch_size: u64, exclusive: bool) {
        self.inferences.add(batch_size.max(1), exclusive);
        self.request.add(duration_ns, exclusive);
        self.succeeded.add(1, exclusive);
    }

    pub fn sums_added(&self, sums: &Sums, exclusive: bool) {
        self.queue.add(sums.queue_ns, exclusive);
        self.compute_input.add(sums.compute_input_ns, exclusive);
        self.compute_infer.add(sums.compute_infer_ns, exclusive);
        self.compute_output.add(sums.compute_output_ns, exclusive);
    }

    pub fn request_failed(&self, duration_ns: u64, reason: FailureReason, exclusive: bool) {
        self.failed_ns.add(duration_ns, exclusive);
        let [rejected, canceled, backend, other] = &self.failed;
        let counter = match reason {
            FailureReason::Rejected => rejected,
            FailureReason::Canceled => canceled,
            FailureReason::Backend => backend,
            FailureReason::Other => other,
        };
        counter.add(1, exclusive);
    }

    pub fn refused(&self, reason: RefusalReason, exclusive: bool) {
        let place = RefusalReason::OF_MODEL.iter().position(|known| *known == reason);
        if let Some(count) = place.and_then(|place| self.refused.get(place)) {
            count.add(1, exclusive);
        }
    }

    /// A success without inferences.
    pub fn cache_hit(&self, request_ns: u64, queue_ns: u64, lookup_ns: u64, exclusive: bool) {
        self.request.add(request_ns, exclusive);
        self.queue.add(queue_ns, exclusive);
        self.cache_hit.add(lookup_ns, exclusive);
        // Readers read the two in the opposite order, so that they see at most as many hits as successes.
        self.succeeded.add(1, exclusive);
        self.cache_hits.add(1, exclusive);
    }

    /// The time that the cache cost a request, which is counted as a success elsewhere.
    pub fn cache_missed(&self, duration_ns: u64, exclusive: bool) {
        self.request.add(duration_ns, exclusive);
        self.cache_miss.add(duration_ns, exclusive);
        self.cache_misses.add(1, exclusive);
    }

    /// Counts an execution. False if the batch is too large to have its counters here.
    pub fn batch_executed(&self, batch_size: u64, execution: &Execution, now_ms: u64, exclusive: bool) -> bool {
        self.last_inference_ms.raise_to(now_ms, exclusive);
        self.executions.add(1, exclusive);
        let batch = usize::try_from(batch_size).ok().and_then(|rows| self.batches.get(rows));
        if let Some(batch) = batch {
            batch.add(execution, exclusive);
        }
        batch.is_some()
    }

    /// Adds everything but the pending counters to `sum`.
    pub fn merge_into(&self, sum: &mut Snapshot) {
        let hits = self.cache_hits.get();
        let succeeded = self.succeeded.get();
        let computed = succeeded.saturating_sub(hits);
        let [rejected, canceled, backend, other] = self.failed.each_ref().map(Counter::get);
        merge(&mut sum.inference_count, self.inferences.get());
        merge(&mut sum.execution_count, self.executions.get());
        for (sum, count) in sum.refused.iter_mut().zip(&self.refused) {
            merge(sum, count.get());
        }
        sum.last_inference_ms = sum.last_inference_ms.max(self.last_inference_ms.get());
        sum.success.merge(succeeded, self.request.ns.get());
        sum.queue.merge(succeeded, self.queue.ns.get());
        sum.compute_input.merge(computed, self.compute_input.ns.get());
        sum.compute_infer.merge(computed, self.compute_infer.ns.get());
        sum.compute_output.merge(computed, self.compute_output.ns.get());
        sum.cache_hit.merge(hits, self.cache_hit.ns.get());
        sum.cache_miss.merge(self.cache_misses.get(), self.cache_miss.ns.get());
        merge(&mut sum.durations_us.cache_hit, self.cache_hit.us.get());
        merge(&mut sum.durations_us.cache_miss, self.cache_miss.us.get());
        let failed = rejected.wrapping_add(canceled).wrapping_add(backend).wrapping_add(other);
        sum.fail.merge(failed, self.failed_ns.get());
        merge(&mut sum.failures.rejected, rejected);
        merge(&mut sum.failures.canceled, canceled);
        merge(&mut sum.failures.backend, backend);
        merge(&mut sum.failures.other, other);
        merge(&mut sum.durations_us.request, self.request.us.get());
        merge(&mut sum.durations_us.queue, self.queue.us.get());
        merge(&mut sum.durations_us.compute_input, self.compute_input.us.get());
        merge(&mut sum.durations_us.compute_infer, self.compute_infer.us.get());
        merge(&mut sum.durations_us.compute_output, self.compute_output.us.get());
    }

    /// The executions of every size that has its counters here, sizes ascending from 0.
    pub fn batches(&self) -> &[BatchCounters] {
        &self.batches
    }
}

fn merge(sum: &mut u64, amount: u64) {
    *sum = sum.wrapping_add(amount);
}

impl Tally {
    pub(super) fn merge(&mut self, count: u64, ns: u64) {
        merge(&mut self.count, count);
        merge(&mut self.ns, ns);
    }
}
