//! Reports at once that a request is cancelled, so that a watcher need not poll.
//!
//! A model in another process cannot read the request's state word; a byte in memory that both share is set for it. The
//! cancellation of a request without watches reads an empty cell; nothing is done before.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::{Admission, RequestEvents};

/// The watches of one request.
#[derive(Default)]
pub(super) struct CancelWatches(Mutex<Watched>);

/// Its number, and where and under which key the cancellation is reported.
type Watcher = (u64, Arc<dyn RequestEvents>, u64);

#[derive(Default)]
struct Watched {
    watches_so_far: u64,
    watches: SmallVec<[Watcher; 1]>,
}

impl CancelWatches {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the cancellation to each watch, once.
    pub fn report(&self) {
        // Under the lock, so that nothing is reported to a watch that has ended.
        for (_, events, key) in self.lock().watches.drain(..) {
            events.cancelled(key);
        }
    }
}

impl std::fmt::Debug for CancelWatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CancelWatches({})", self.lock().watches.len())
    }
}

/// While it lives, the cancellation is reported to its events, once. After its end nothing is reported.
#[must_use = "nothing is reported once it is dropped"]
pub struct CancelWatch {
    admission: Arc<Admission>,
    number: u64,
}

impl CancelWatch {
    /// Reports the cancellation to `events` under `key`; at once if the request has been cancelled already.
    pub(super) fn begin(admission: &Arc<Admission>, events: Arc<dyn RequestEvents>, key: u64) -> CancelWatch {
        let watches = admission.watches.get_or_init(Box::default);
        let mut watched = watches.lock();
        let number = watched.watches_so_far;
        watched.watches_so_far += 1;
        watched.watches.push((number, events, key));
        drop(watched);
        // Together with the one in `Admission::cancel`: either that one sees the cell filled, or this one the word.
        fence(Ordering::SeqCst);
        if admission.is_cancelled() {
            watches.report();
        }
        CancelWatch { admission: Arc::clone(admission), number }
    }
}

impl Drop for CancelWatch {
    fn drop(&mut self) {
        if let Some(watches) = self.admission.watches.get() {
            let mut watched = watches.lock();
            let at = watched.watches.iter().position(|(number, ..)| *number == self.number);
            let gone = at.map(|at| watched.watches.swap_remove(at));
            drop(watched);
            drop(gone);
        }
    }
}

impl std::fmt::Debug for CancelWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CancelWatch({})", self.number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Counts the reports under each of two keys.
    #[derive(Default)]
    struct Counts([AtomicU64; 2]);

    impl RequestEvents for Counts {
        fn cancelled(&self, key: u64) {
            self.0[key as usize].fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Counts {
        fn reports(&self) -> [u64; 2] {
            [self.0[0].load(Ordering::SeqCst), self.0[1].load(Ordering::SeqCst)]
        }
    }

    #[test]
    fn each_watch_gets_one_report_and_a_late_one_at_once() {
        let (admission, counts) = (Arc::<Admission>::default(), Arc::<Counts>::default());
        let first = admission.watch(counts.clone(), 0);
        assert!(admission.take());
        assert_eq!(counts.reports(), [0, 0]);
        assert!(!admission.cancel(), "a backend has it");
        assert_eq!(counts.reports(), [1, 0]);
        let late = admission.watch(counts.clone(), 1);
        assert_eq!(counts.reports(), [1, 1]);
        admission.cancel();
        drop((first, late));
        admission.cancel();
        assert_eq!(counts.reports(), [1, 1]);
    }

    #[test]
    fn a_watch_that_ended_gets_no_report() {
        let (admission, counts) = (Arc::<Admission>::default(), Arc::<Counts>::default());
        let (gone, stays) = (admission.watch(counts.clone(), 0), admission.watch(counts.clone(), 1));
        drop(gone);
        assert_eq!(Arc::strong_count(&counts), 2, "no reference is kept for it");
        admission.cancel();
        assert_eq!(counts.reports(), [0, 1]);
        drop(stays);
        assert_eq!(Arc::strong_count(&counts), 1);
    }

    /// The byte of a request that is over may belong to another request.
    #[test]
    fn no_report_comes_after_the_end_and_none_is_missing() {
        for round in 0..2_000 {
            let (admission, counts) = (Arc::<Admission>::default(), Arc::<Counts>::default());
            let start = Arc::new(Barrier::new(2));
            let canceller = {
                let (admission, start) = (Arc::clone(&admission), Arc::clone(&start));
                // One thread for two rounds would be cheaper, and would race less.
                std::thread::spawn(move || {
                    start.wait();
                    admission.cancel();
                })
            };
            start.wait();
            let watch = admission.watch(counts.clone(), 0);
            if round % 2 == 0 {
                canceller.join().unwrap();
                assert_eq!(counts.reports(), [1, 0], "the report is missing, or came twice");
                drop(watch);
            } else {
                drop(watch);
                let by_then = counts.reports();
                canceller.join().unwrap();
                assert_eq!(counts.reports(), by_then, "a report came after the end");
            }
        }
    }
}
