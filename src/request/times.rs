//! Where the times of requests are summed that are made on behalf of another one.
//!
//! An ensemble reports the sums of what its steps took (contract/metrics.md section 3); each success is added where it
//! is counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Sums over requests, in nanoseconds.
#[derive(Debug, Default)]
pub struct Times {
    queue_ns: AtomicU64,
    compute_input_ns: AtomicU64,
    compute_infer_ns: AtomicU64,
    compute_output_ns: AtomicU64,
}

/// What [`Times`] hold at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeSums {
    pub queue_ns: u64,
    pub compute_input_ns: u64,
    pub compute_infer_ns: u64,
    pub compute_output_ns: u64,
}

impl Times {
    pub fn add(&self, times: &TimeSums) {
        // Modulo 2^64, as all sums of statistics.
        self.queue_ns.fetch_add(times.queue_ns, Ordering::Relaxed);
        self.compute_input_ns.fetch_add(times.compute_input_ns, Ordering::Relaxed);
        self.compute_infer_ns.fetch_add(times.compute_infer_ns, Ordering::Relaxed);
        self.compute_output_ns.fetch_add(times.compute_output_ns, Ordering::Relaxed);
    }

    pub fn sums(&self) -> TimeSums {
        TimeSums {
            queue_ns: self.queue_ns.load(Ordering::Relaxed),
            compute_input_ns: self.compute_input_ns.load(Ordering::Relaxed),
            compute_infer_ns: self.compute_infer_ns.load(Ordering::Relaxed),
            compute_output_ns: self.compute_output_ns.load(Ordering::Relaxed),
        }
    }
}

impl TimeSums {
    /// What came since `before`.
    pub fn since(&self, before: &TimeSums) -> TimeSums {
        TimeSums {
            queue_ns: self.queue_ns.wrapping_sub(before.queue_ns),
            compute_input_ns: self.compute_input_ns.wrapping_sub(before.compute_input_ns),
            compute_infer_ns: self.compute_infer_ns.wrapping_sub(before.compute_infer_ns),
            compute_output_ns: self.compute_output_ns.wrapping_sub(before.compute_output_ns),
        }
    }
}
