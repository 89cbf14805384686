//! The flag that one thread waits for and others raise: seen while it polls, a wake-up only once it sleeps.
//!
//! One word has three values. A caller writes CALLED and wakes only if it was ASLEEP; the waiting thread sleeps only if
//! it can change QUIET to ASLEEP. Both are exchanges of one word, so one of them comes first: either the waiting thread
//! sees the call, or the caller sees it asleep. A call that comes too early ends the next wait at once.

use super::Wake;
use super::sync::{AtomicU32, Ordering};

const QUIET: u32 = 0;
const CALLED: u32 = 1;
const ASLEEP: u32 = 2;

/// See the [module](self).
#[derive(Debug)]
pub struct WakeFlag<W> {
    state: AtomicU32,
    wake: W,
}

impl<W: Wake> WakeFlag<W> {
    pub fn new(wake: W) -> WakeFlag<W> {
        WakeFlag { state: AtomicU32::new(QUIET), wake }
    }

    /// Raises the flag, after the work that it announces is visible. True if that took a wake-up.
    pub fn call(&self) -> bool {
        let was_asleep = self.state.swap(CALLED, Ordering::AcqRel) == ASLEEP;
        if was_asleep {
            self.wake.wake();
        }
        was_asleep
    }

    /// True if the flag was raised since the last wait: polled by a thread that does not sleep yet.
    pub fn is_called(&self) -> bool {
        self.state.load(Ordering::Acquire) == CALLED
    }

    /// Waits. `park` runs until the flag is raised, or until it returns false: its time is over. It may return early.
    /// True if the flag was raised.
    pub fn wait(&self, mut park: impl FnMut() -> bool) -> bool {
        if self.state.compare_exchange(QUIET, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            while park() && !self.is_called() {}
        }
        self.state.swap(QUIET, Ordering::AcqRel) == CALLED
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicU64);

    impl Wake for Counted {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_a_sleeper_is_woken() {
        let flag = WakeFlag::new(Counted::default());
        assert!(!flag.call() && flag.is_called());
        assert!(flag.wait(|| unreachable!("it was called")));
        assert!(!flag.is_called() && !flag.wait(|| false));
        let mut parks = 0;
        let called = flag.wait(|| {
            parks += 1;
            // It returns early once.
            parks == 1 || flag.call()
        });
        assert_eq!((called, parks, flag.wake.0.load(Ordering::Relaxed)), (true, 2, 1));
        assert!(!flag.call(), "awake again");
    }

    #[test]
    fn no_call_is_lost() {
        const ROUNDS: u64 = if cfg!(miri) { 100 } else { 20_000 };
        let work = Arc::new(AtomicU64::new(0));
        let flag = Arc::new(WakeFlag::new(std::thread::current()));
        let caller = std::thread::spawn({
            let (work, flag) = (Arc::clone(&work), Arc::clone(&flag));
            move || {
                for _ in 0..ROUNDS {
                    work.fetch_add(1, Ordering::Relaxed);
                    flag.call();
                }
            }
        });
        while work.load(Ordering::Relaxed) < ROUNDS {
            // Hangs here if a call is lost.
            flag.wait(|| {
                std::thread::park();
                true
            });
        }
        caller.join().unwrap();
    }
}
