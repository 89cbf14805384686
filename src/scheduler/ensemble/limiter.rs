//! Limits how many requests of one step are in flight over all requests of an ensemble (`max_inflight_requests`).
//!
//! No thread blocks: a run without room continues with other work and is notified when it has room. Room is given in
//! the order of the requests for it. A step that has waited too long goes on without (contract/schedulers.md section
//! 5); one timer covers the whole queue, so that timers do not pile up where many wait a little.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::run::Run;
use nereid_clock::now_ns;
use nereid_request::{Home, Job};

/// How long a step waits for others to end.
pub const STEP_WAIT_MAX_NS: u64 = 300 * 1_000_000_000;

/// A run that waits, and its key for the waiting step.
pub struct Waiter {
    pub run: Arc<Run>,
    pub key: u64,
    since_ns: u64,
}

#[derive(Default)]
struct WaitQueue {
    in_flight: usize,
    /// By place, and so by time.
    waiting: BTreeMap<u64, Waiter>,
    places: u64,
    has_timer: bool,
}

pub struct Limiter {
    max: usize,
    /// Locked for one operation on the queue.
    queue: Mutex<WaitQueue>,
}

impl Limiter {
    /// None for 0: no limit.
    pub fn new(max: usize) -> Option<Arc<Limiter>> {
        (max > 0).then(|| Arc::new(Limiter { max, queue: Mutex::default() }))
    }

    fn queue(&self) -> MutexGuard<'_, WaitQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more in flight, if there is room; else returns a place in the queue.
    pub fn enter(self: &Arc<Self>, run: &Arc<Run>, key: u64, home: &mut dyn Home) -> Option<u64> {
        let since_ns = now_ns();
        let (place, had_timer) = {
            let mut queue = self.queue();
            if queue.in_flight < self.max && queue.waiting.is_empty() {
                queue.in_flight += 1;
                return None;
            }
            let place = queue.places;
            queue.places += 1;
            queue.waiting.insert(place, Waiter { run: Arc::clone(run), key, since_ns });
            (place, std::mem::replace(&mut queue.has_timer, true))
        };
        if !had_timer {
            home.run_at(since_ns.saturating_add(STEP_WAIT_MAX_NS), Box::new(OverdueTimer(Some(Arc::clone(self)))));
        }
        Some(place)
    }

    /// Counts one less in flight. A returned waiter has the room now and must be notified.
    #[must_use]
    pub fn leave(&self) -> Option<Waiter> {
        let mut queue = self.queue();
        let next = queue.waiting.pop_first().map(|(_, next)| next);
        if next.is_none() {
            queue.in_flight = queue.in_flight.saturating_sub(1);
        }
        next
    }

    /// Gives a place in the queue back; none: it has got its room meanwhile, or has waited too long.
    #[must_use]
    pub fn withdraw(&self, place: u64) -> Option<Waiter> {
        self.queue().waiting.remove(&place)
    }

    /// Takes those out of the queue that have waited too long. The second value is the time of the next check.
    pub fn overdue(&self, now_ns: u64) -> (Vec<Waiter>, Option<u64>) {
        let mut queue = self.queue();
        let mut overdue = Vec::new();
        while let Some(first) = queue.waiting.first_entry() {
            let due_ns = first.get().since_ns.saturating_add(STEP_WAIT_MAX_NS);
            if due_ns > now_ns {
                return (overdue, Some(due_ns));
            }
            overdue.push(first.remove());
        }
        queue.has_timer = false;
        (overdue, None)
    }

    /// Requests of the step in flight.
    pub fn in_flight(&self) -> usize {
        self.queue().in_flight
    }

    /// Requests in flight, and queued ones.
    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize) {
        let queue = self.queue();
        (queue.in_flight, queue.waiting.len())
    }
}

/// The timer of a queue.
struct OverdueTimer(Option<Arc<Limiter>>);

impl Job for OverdueTimer {
    fn run(mut self: Box<Self>, home: &mut dyn Home) {
        let Some(limiter) = self.0.take() else { return };
        let (overdue, again_ns) = limiter.overdue(now_ns());
        if let Some(at_ns) = again_ns {
            home.run_at(at_ns, Box::new(OverdueTimer(Some(limiter))));
        }
        overdue.into_iter().for_each(|waiter| waiter.run.overdue(waiter.key));
    }
}

impl Drop for OverdueTimer {
    /// Where timers are dropped, the next waiter sets a new one.
    fn drop(&mut self) {
        if let Some(limiter) = &self.0 {
            limiter.queue().has_timer = false;
        }
    }
}
