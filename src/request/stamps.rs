//! The clock readings a request collects as it passes.

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable over threads, and with what C++ plug-ins read from `steady_clock`.
///
/// By libc, as plug-ins do it: rustix enters the kernel's page by itself, where valgrind, under which applications that
/// link the library may want to run, cannot follow.
#[allow(unsafe_code)]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable. This clock is always there, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
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
