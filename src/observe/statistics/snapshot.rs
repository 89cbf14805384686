//! The [`Snapshot`] that readers of the statistics get: plain sums at about one moment.

use std::collections::BTreeMap;

use super::memory::MemoryUse;
use nereid_request::RefusalReason;

/// A count, and the time of all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub count: u64,
    pub ns: u64,
}

/// The counters of one model version (contract/metrics.md section 3), summed over all writers.
///
/// Writers go on while it is taken, so a request that ends meanwhile may be in one sum and not yet in another. Counts
/// that contract/metrics.md defines by each other (`success`, `queue`, `compute_*`) are read once and always agree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Epoch milliseconds of the newest execution; 0 before any.
    pub last_inference_ms: u64,
    pub inference_count: u64,
    pub execution_count: u64,
    pub success: Tally,
    pub fail: Tally,
    pub queue: Tally,
    pub compute_input: Tally,
    pub compute_infer: Tally,
    pub compute_output: Tally,
    /// Requests that the response cache answered, and the time of their lookups.
    pub cache_hit: Tally,
    /// Requests that it could not answer, and the time of lookup and insertion.
    pub cache_miss: Tally,
    /// Whether there is a cache and the model uses it.
    pub is_caching: bool,
    /// Sizes ascending; those without an entry are summed in one, [`BatchTally::OVERFLOW`].
    pub batch_stats: Vec<BatchTally>,
    /// Keyed by response index; those without an entry are summed in one.
    pub response_stats: BTreeMap<String, ResponseTally>,
    /// By kind of memory and device.
    pub memory_usage: Vec<MemoryUse>,
    pub failures: Failures,
    /// Requests that were refused, by [`RefusalReason::OF_MODEL`]; they are in no other count.
    pub refused: [u64; RefusalReason::OF_MODEL.len()],
    /// Requests inside the scheduler.
    pub pending: u64,
    pub durations_us: DurationsUs,
}

impl Snapshot {
    /// Adds the counters of the families: the versions of an ensemble are one series there.
    pub fn add_families(&mut self, other: &Snapshot) {
        let add = |sum: &mut u64, amount: u64| *sum = sum.wrapping_add(amount);
        add(&mut self.inference_count, other.inference_count);
        add(&mut self.execution_count, other.execution_count);
        add(&mut self.success.count, other.success.count);
        add(&mut self.failures.rejected, other.failures.rejected);
        add(&mut self.failures.canceled, other.failures.canceled);
        add(&mut self.failures.backend, other.failures.backend);
        add(&mut self.failures.other, other.failures.other);
        self.refused.iter_mut().zip(other.refused).for_each(|(sum, count)| add(sum, count));
        add(&mut self.cache_hit.count, other.cache_hit.count);
        add(&mut self.cache_miss.count, other.cache_miss.count);
        self.is_caching |= other.is_caching;
        add(&mut self.pending, other.pending);
        add(&mut self.durations_us.request, other.durations_us.request);
        add(&mut self.durations_us.queue, other.durations_us.queue);
        add(&mut self.durations_us.compute_input, other.durations_us.compute_input);
        add(&mut self.durations_us.compute_infer, other.durations_us.compute_infer);
        add(&mut self.durations_us.compute_output, other.durations_us.compute_output);
        add(&mut self.durations_us.cache_hit, other.durations_us.cache_hit);
        add(&mut self.durations_us.cache_miss, other.durations_us.cache_miss);
    }
}

/// Executions of one batch size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchTally {
    pub batch_size: u64,
    pub compute_input: Tally,
    pub compute_infer: Tally,
    pub compute_output: Tally,
}

impl BatchTally {
    /// `batch_size` of the entry that sums the sizes beyond the bound on distinct ones.
    pub const OVERFLOW: u64 = u64::MAX;
}

/// Responses of one index of a decoupled model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponseTally {
    pub compute_infer: Tally,
    pub compute_output: Tally,
    pub success: Tally,
    pub fail: Tally,
    pub empty_response: Tally,
    pub cancel: Tally,
}

/// Failed requests by the `reason` label of nv_inference_request_failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failures {
    pub rejected: u64,
    pub canceled: u64,
    pub backend: u64,
    pub other: u64,
}

/// The five `nv_inference_*_duration_us` and the two of the response cache: every event is cut to whole microseconds
/// before it is added, so these are at most the ns sums / 1000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurationsUs {
    pub request: u64,
    pub queue: u64,
    pub compute_input: u64,
    pub compute_infer: u64,
    pub compute_output: u64,
    pub cache_hit: u64,
    pub cache_miss: u64,
}
