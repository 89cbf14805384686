//! The handshake between one consumer that may sleep and producers that wake it only if it does.
//!
//! The consumer declares itself asleep, *then checks for work again*, then parks. A producer makes its work visible,
//! then checks whether the consumer is asleep. Both sides put a sequentially consistent fence between their write and
//! their read:
//!
//! ```text
//! consumer                         producer
//! asleep = true        (1)         work = 1           (a)
//! fence(SeqCst)        (2)         fence(SeqCst)      (b)
//! read work            (3)         read asleep        (c)
//! park if none                     wake if asleep
//! ```
//!
//! The two fences stand in one total order. If (2) comes first, (c) sees (1) and the producer wakes; if (b) comes
//! first, (3) sees (a) and the consumer does not park. So no wake-up is lost. There may be one wake-up too many (the
//! consumer woke for another reason meanwhile), so a park may return early and every consumer checks for work after it.

use super::sync::{AtomicBool, Ordering, fence};

/// What ends a park: an eventfd write for a shard, `unpark` for a worker's thread.
pub trait Wake {
    fn wake(&self);
}

/// The flag that a consumer is asleep, and how to wake it.
#[derive(Debug)]
pub struct Sleeper<W> {
    asleep: AtomicBool,
    wake: W,
}

impl<W: Wake> Sleeper<W> {
    pub fn new(wake: W) -> Sleeper<W> {
        Sleeper { asleep: AtomicBool::new(false), wake }
    }

    /// Called by a producer after its work is visible. True if this call woke the consumer.
    pub fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        // Of several producers one wakes; the plain load keeps the line shared while the consumer is awake.
        let wakes = self.asleep.load(Ordering::Relaxed)
            && self.asleep.compare_exchange(true, false, Ordering::Release, Ordering::Relaxed).is_ok();
        if wakes {
            self.wake.wake();
        }
        wakes
    }

    /// Called by the consumer: `park` runs unless `has_work` finds some after the consumer was declared asleep. `None`
    /// if it did not park.
    pub fn sleep<R>(&self, has_work: impl FnOnce() -> bool, park: impl FnOnce() -> R) -> Option<R> {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let slept = (!has_work()).then(park);
        // An exchange, not a store: a producer's `false` is then known to come before our next `true`.
        self.asleep.swap(false, Ordering::Acquire);
        slept
    }

    /// How the consumer is woken.
    pub fn waker(&self) -> &W {
        &self.wake
    }
}

/// A worker parks with `std::thread::park`: its token keeps a wake-up that comes before the park.
impl Wake for std::thread::Thread {
    fn wake(&self) {
        self.unpark();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    struct Counted(AtomicU64);

    impl Wake for Counted {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let sleeper = Sleeper::new(Counted(AtomicU64::new(0)));
        assert!(!sleeper.notify());
        let woken = sleeper.sleep(|| false, || (sleeper.notify(), sleeper.notify()));
        assert_eq!(woken, Some((true, false)));
        assert!(!sleeper.notify(), "awake again");
        assert_eq!(sleeper.sleep(|| true, || unreachable!("there is work")), None::<()>);
        assert_eq!(sleeper.waker().0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u64 = if cfg!(miri) { 100 } else { 20_000 };
        let work = Arc::new(AtomicU64::new(0));
        let sleeper = Arc::new(Sleeper::new(std::thread::current()));
        let producer = std::thread::spawn({
            let (work, sleeper) = (Arc::clone(&work), Arc::clone(&sleeper));
            move || {
                for _ in 0..ROUNDS {
                    work.fetch_add(1, Ordering::Relaxed);
                    sleeper.notify();
                }
            }
        });
        let mut seen = 0;
        while seen < ROUNDS {
            // Hangs here if a wake-up is lost.
            sleeper.sleep(|| work.load(Ordering::Relaxed) != seen, std::thread::park);
            seen = work.load(Ordering::Relaxed);
        }
        producer.join().unwrap();
    }
}
