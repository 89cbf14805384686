//! The clock readings a request collects as it passes.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable over threads, and with what C++ plug-ins read from `steady_clock`.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of [`now_ns`]; 0 where the request has not been.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stamps {
    /// First byte of the request was there.
    pub received_ns: u64,
    /// The core accepted it (`REQUEST_START`).
    pub started_ns: u64,
    /// It was put into the scheduler (`QUEUE_START`).
    pub queued_ns: u64,
}
