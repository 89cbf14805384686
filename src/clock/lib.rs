//! The monotonic clock that stamps requests, drives timers and ends waits.

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable over threads, and with what C++ plug-ins read from `steady_clock`.
///
/// By libc, as plug-ins do it: rustix enters the kernel's page by itself, where valgrind cannot follow, and
/// applications that link the library may run under valgrind.
#[allow(unsafe_code)]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable. This clock is always there, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
