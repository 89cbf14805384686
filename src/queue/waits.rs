//! Counters of how the threads of the process wait: their sleeps, their wake-ups by other threads, the time they spin.
//!
//! All threads of a kind share them. Each count stands beside a system call or a spin, which take far longer.

use std::sync::atomic::{AtomicU64, Ordering};

/// Of one kind of thread.
#[derive(Debug, Default)]
pub struct Waits {
    sleeps: AtomicU64,
    wake_ups: AtomicU64,
    spun_ns: AtomicU64,
}

/// Of the shards.
pub static SHARDS: Waits = Waits::new();
/// Of the workers of instances.
pub static INSTANCES: Waits = Waits::new();

impl Waits {
    pub const fn new() -> Waits {
        Waits { sleeps: AtomicU64::new(0), wake_ups: AtomicU64::new(0), spun_ns: AtomicU64::new(0) }
    }

    /// A thread has waited in the kernel.
    #[inline]
    pub fn count_sleep(&self) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread was woken by another one.
    #[inline]
    pub fn count_wake_up(&self) {
        self.wake_ups.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread has spun for so long.
    #[inline]
    pub fn count_spin(&self, spun_ns: u64) {
        if spun_ns > 0 {
            self.spun_ns.fetch_add(spun_ns, Ordering::Relaxed);
        }
    }

    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    pub fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Ordering::Relaxed)
    }

    pub fn spun_ns(&self) -> u64 {
        self.spun_ns.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_own_place() {
        let waits = Waits::new();
        waits.count_sleep();
        (0..2).for_each(|_| waits.count_wake_up());
        waits.count_spin(3);
        assert_eq!((waits.sleeps(), waits.wake_ups(), waits.spun_ns()), (1, 2, 3));
    }
}
