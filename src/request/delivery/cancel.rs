//! The state word of a request, by which worker, timer and cancellation decide which of them answers it.
//!
//! A request waits as QUEUED and leaves that state once, by compare-and-swap: TAKEN by a worker, EXPIRED by its timer,
//! CANCELLED by its home shard. The winner answers; for the others the request is a tombstone.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};

use super::RequestEvents;
use super::cancel_watch::{CancelWatch, CancelWatches};
use super::credit::Credits;
use super::first_response::FirstResponse;
use super::shared::Shared;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Queued = 0,
    Taken = 1,
    Expired = 2,
    Cancelled = 3,
}

/// Shared by a request, its response factories and its home shard.
#[derive(Debug)]
pub struct Admission {
    state: AtomicU8,
    cancelled: AtomicBool,
    /// The last response, or the decision that there will be none, is out.
    ended: AtomicBool,
    /// The request and its response factories: when none is left and nothing ended it, an error is sent.
    holders: AtomicU32,
    /// For responses on their way.
    pub(crate) credits: Credits,
    /// What the request has in shared memory.
    pub(super) shared: OnceLock<Box<Shared>>,
    /// Responses of which statistics were reported.
    reports: AtomicU32,
    /// Reports the first response, where that was requested.
    first_response: OnceLock<FirstResponse>,
    /// Where its cancellation is reported, if that was requested.
    pub(super) watches: OnceLock<Box<CancelWatches>>,
}

impl Default for Admission {
    fn default() -> Admission {
        Admission {
            state: AtomicU8::new(State::Queued as u8),
            cancelled: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            holders: AtomicU32::new(0),
            credits: Credits::default(),
            shared: OnceLock::new(),
            reports: AtomicU32::new(0),
            first_response: OnceLock::new(),
            watches: OnceLock::new(),
        }
    }
}

impl Admission {
    fn leave_queue(&self, to: State) -> bool {
        let queued = State::Queued as u8;
        self.state.compare_exchange(queued, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// No worker has taken it, and it has not been taken back.
    pub fn is_queued(&self) -> bool {
        self.state.load(Ordering::Acquire) == State::Queued as u8
    }

    /// A worker has it, or had it. Otherwise the thread that drops it may hold the locks of a queue.
    pub fn is_taken(&self) -> bool {
        self.state.load(Ordering::Acquire) == State::Taken as u8
    }

    /// A worker takes the request into a payload; false: it is a tombstone and already answered.
    pub fn take(&self) -> bool {
        self.leave_queue(State::Taken)
    }

    /// Its timer ran out while it was queued; true: the caller answers.
    pub fn expire(&self) -> bool {
        self.leave_queue(State::Expired)
    }

    /// No client waits for the answer any more. True: the request was still queued and the caller answers it; false: a
    /// backend has it and may read its token.
    pub fn cancel(&self) -> bool {
        self.cancelled.store(true, Ordering::Release);
        self.credits.release();
        // A watch that begins after this reads the word (see `CancelWatch::begin`).
        fence(Ordering::SeqCst);
        if let Some(watches) = self.watches.get() {
            watches.report();
        }
        self.leave_queue(State::Cancelled)
    }

    /// No client waits for the answer of a request that is about to be handed in. The worker that takes it answers it,
    /// or the thread that cancels it in its queue.
    pub fn call_off(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// A backend gave the request back, and it waits once more. Only the holder of the request may call this.
    pub fn put_back(&self) {
        self.state.store(State::Queued as u8, Ordering::Release);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Reports to `events` under `key` that the client does not wait any more; at once if that is so already.
    pub fn watch(self: &Arc<Self>, events: Arc<dyn RequestEvents>, key: u64) -> CancelWatch {
        CancelWatch::begin(self, events, key)
    }

    /// Ends the request; true for the one caller that did.
    pub fn end(&self) -> bool {
        let is_first = !self.ended.swap(true, Ordering::AcqRel);
        if is_first {
            self.credits.release();
        }
        is_first
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The index of the next response of which statistics are reported.
    pub fn next_report(&self) -> u64 {
        u64::from(self.reports.fetch_add(1, Ordering::Relaxed))
    }

    /// Reports to `events` when the first response leaves. Of several calls for one request only the first counts.
    pub fn watch_first_response(&self, events: Arc<dyn RequestEvents>, started_ns: u64) {
        let _ = self.first_response.set(FirstResponse::new(events, started_ns));
    }

    /// The request was not accepted after all.
    pub fn ignore_first_response(&self) {
        if let Some(first) = self.first_response.get() {
            first.dismiss();
        }
    }

    /// A response leaves.
    pub(super) fn responded(&self) {
        if let Some(first) = self.first_response.get() {
            first.responded();
        }
    }

    pub(super) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// True if that was the last holder and nothing ended the request or will: a thread that lets it expire or cancels
    /// it in its queue answers it, however soon the tombstone is dropped.
    pub(super) fn let_go(&self) -> bool {
        let is_last = self.holders.fetch_sub(1, Ordering::AcqRel) == 1;
        let taken_back = [State::Expired as u8, State::Cancelled as u8];
        is_last && !self.has_ended() && !taken_back.contains(&self.state.load(Ordering::Acquire)) && self.end()
    }
}

/// Reads whether a request is cancelled, on any thread at any time.
#[derive(Debug, Clone)]
pub struct CancelToken(Arc<Admission>);

impl CancelToken {
    pub(crate) fn new(admission: Arc<Admission>) -> CancelToken {
        CancelToken(admission)
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_leaves_the_queue_once() {
        let admission = Admission::default();
        assert!(admission.take());
        assert!(!admission.expire());
        assert!(!admission.cancel(), "too late to answer for it");
        assert!(admission.is_cancelled(), "but the backend can see it");
        assert!(admission.end());
        assert!(!admission.end());
    }

    #[test]
    fn a_request_that_was_put_back_waits_again() {
        let admission = Admission::default();
        assert!(admission.take());
        assert!(!admission.cancel());
        admission.put_back();
        assert!(admission.is_cancelled(), "the worker that takes it has to check");
        assert!(admission.take() && !admission.take());
    }

    #[test]
    fn the_thread_that_takes_a_request_back_answers_it() {
        for take_back in [Admission::cancel, Admission::expire] {
            let admission = Admission::default();
            admission.hold();
            assert!(take_back(&admission));
            assert!(!admission.let_go(), "the tombstone is dropped before the answer is out");
            assert!(admission.end(), "which comes now");
        }
    }

    #[test]
    fn a_cancelled_request_is_a_tombstone() {
        let admission = Admission::default();
        assert!(admission.cancel());
        assert!(!admission.take());
    }
}
