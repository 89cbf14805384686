//! The monotonic clock that stamps requests, drives timers and ends waits.
//!
//! The simulation of the whole server (`tests/simulation`) plays the time of its thread. Release builds, and builds
//! without the feature `testing`, have nothing of that.

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable over threads, and with what C++ plug-ins read from `steady_clock`.
///
/// By libc, as plug-ins do it: rustix enters the kernel's page by itself, where valgrind cannot follow, and
/// applications that link the library may run under valgrind.
#[allow(unsafe_code)]
pub fn now_ns() -> u64 {
    #[cfg(all(feature = "testing", debug_assertions))]
    if let Some(now_ns) = played::now_ns() {
        return now_ns;
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable. This clock is always there, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A minute of the host's time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalMinute {
    /// A number that is greater on each later day.
    pub day: i32,
    /// Since midnight.
    pub minute: u16,
}

/// The present minute of the host's time zone; `None` if the C library cannot say it.
#[allow(unsafe_code)]
pub fn local_minute() -> Option<LocalMinute> {
    // SAFETY: a null pointer is allowed; the time is then only returned.
    let now = unsafe { libc::time(std::ptr::null_mut()) };
    // SAFETY: zeros are a valid value of this struct of numbers and a pointer.
    let mut split: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values of this frame.
    let found = unsafe { libc::localtime_r(&now, &mut split) };
    let minute = u16::try_from(split.tm_hour * 60 + split.tm_min).ok()?;
    (!found.is_null()).then_some(LocalMinute { day: split.tm_year * 366 + split.tm_yday, minute })
}

/// A clock that stands still until it is moved, for one thread.
#[cfg(all(feature = "testing", debug_assertions))]
pub mod played {
    use std::cell::Cell;

    thread_local! {
        static NOW_NS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub(super) fn now_ns() -> Option<u64> {
        NOW_NS.get()
    }

    /// From now on this thread's clock shows `now_ns`; with None, it goes by itself again.
    pub fn set(now_ns: Option<u64>) {
        NOW_NS.set(now_ns);
    }
}
