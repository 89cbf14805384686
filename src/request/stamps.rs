//! The clock readings a request collects as it passes.

/// Nanoseconds of [`nereid_clock::now_ns`]; 0 where the request has not been.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stamps {
    /// First byte of the request was there.
    pub received_ns: u64,
    /// The core accepted it (`REQUEST_START`).
    pub started_ns: u64,
    /// It was put into the scheduler (`QUEUE_START`).
    pub queued_ns: u64,
}
