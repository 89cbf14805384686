//! The clock of a shard: nanoseconds that only go forward, and that a simulation can move by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of monotonic time.
pub trait Clock {
    /// Nanoseconds since a moment that is the same for all clocks of this kind in the process.
    fn now_ns(&self) -> u64;
}

/// `CLOCK_MONOTONIC`, by which requests are stamped too.
#[derive(Debug, Clone, Copy, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        nereid_clock::now_ns()
    }
}

/// A clock that stands still until it is moved. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct Manual(Arc<AtomicU64>);

impl Manual {
    pub fn new(now_ns: u64) -> Manual {
        Manual(Arc::new(AtomicU64::new(now_ns)))
    }

    pub fn advance(&self, by_ns: u64) {
        self.0.fetch_add(by_ns, Ordering::Relaxed);
    }

    /// Moves to `to_ns` unless the clock is past it already.
    pub fn advance_to(&self, to_ns: u64) {
        self.0.fetch_max(to_ns, Ordering::Relaxed);
    }
}

impl Clock for Manual {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back() {
        let first = Monotonic.now_ns();
        let elsewhere = std::thread::spawn(|| Monotonic.now_ns()).join().unwrap();
        assert!(first <= elsewhere && elsewhere <= Monotonic.now_ns());
        let manual = Manual::new(5);
        let seen = manual.clone();
        manual.advance(10);
        manual.advance_to(7);
        assert_eq!(seen.now_ns(), 15);
        manual.advance_to(20);
        assert_eq!(seen.now_ns(), 20);
    }
}
