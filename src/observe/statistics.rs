//! The counters of one model version, written by shards and workers and merged when read.

/// When one execution began and ended, in nanoseconds of the request clock (schedulers.md, metrics.md section 2).
#[derive(Debug, Clone, Copy, Default)]
pub struct Execution {
    pub exec_start_ns: u64,
    pub compute_start_ns: u64,
    pub compute_end_ns: u64,
    pub exec_end_ns: u64,
}

/// Why an accepted request ended with an error (`reason` label of nv_inference_request_failure).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    Rejected,
    Canceled,
    Backend,
    Other,
}

#[derive(Debug, Default)]
pub struct ModelStatistics {}

impl ModelStatistics {
    /// A request entered the scheduler.
    pub fn pending_added(&self) {}

    /// It was handed to an instance, or left the scheduler otherwise.
    pub fn pending_removed(&self) {}

    /// A request succeeded. `started_ns` and `queued_ns` are its own stamps, `batch_size` its rows.
    pub fn request_succeeded(&self, started_ns: u64, queued_ns: u64, batch_size: u64, execution: &Execution) {
        let _ = (started_ns, queued_ns, batch_size, execution);
    }

    /// An accepted request ended with an error at `ended_ns`.
    pub fn request_failed(&self, started_ns: u64, ended_ns: u64, reason: FailureReason) {
        let _ = (started_ns, ended_ns, reason);
    }

    /// One batch of `batch_size` rows was executed.
    pub fn batch_executed(&self, batch_size: u64, execution: &Execution) {
        let _ = (batch_size, execution);
    }
}
