//! Credits for responses on their way, so that a model does not answer faster than its client reads.
//!
//! A response of a limited request holds a credit from the moment it is sent until its bytes are with the transport. A
//! sender beyond the bounds waits, on the backend's own thread, until there is room or the request is cancelled. A
//! request's only response never waits: no other response of it is on the way. A sender that serves many requests does
//! not wait for one of them; it gets an event when there is room (see [`Outbox`](super::Outbox)).

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::mutants::{self, Mutant};
use super::{Admission, RequestEvents};
use crate::Response;

/// Bytes of one request's responses on their way; a single response may be larger.
pub const BYTES_MAX: usize = 16 << 20;
/// Bytes that a response costs besides its tensors.
const OVERHEAD: usize = 512;

thread_local! {
    static NEVER_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one that must not wait: what it sends goes out beyond the bounds.
pub fn never_wait_here() {
    NEVER_WAITS.set(true);
}

/// Whether this thread must not wait.
pub fn never_waits() -> bool {
    NEVER_WAITS.get()
}

/// While this lives, its thread does not wait.
pub struct NeverWaits {
    before: bool,
}

impl NeverWaits {
    pub fn here() -> NeverWaits {
        NeverWaits { before: NEVER_WAITS.replace(true) }
    }
}

impl Drop for NeverWaits {
    #[inline]
    fn drop(&mut self) {
        NEVER_WAITS.set(self.before);
    }
}

/// The credits of one request.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    is_limited: AtomicBool,
    /// Responses on their way; larger than the ledger's number only for a moment.
    taken: AtomicU32,
    ledger: Mutex<Ledger>,
    returned: Condvar,
}

#[derive(Debug)]
struct Ledger {
    responses_max: u32,
    responses: u32,
    bytes: usize,
    waiters: u32,
    /// Senders that do not wait, each of which gets one event.
    listeners: SmallVec<[RoomListener; 1]>,
}

/// Where, and under which key, room is reported.
struct RoomListener(Arc<dyn RequestEvents>, u64);

impl std::fmt::Debug for RoomListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RoomListener({:#x})", self.1)
    }
}

/// Not under the lock: a listener may send at once.
fn report_room(listeners: SmallVec<[RoomListener; 1]>) {
    listeners.into_iter().for_each(|RoomListener(events, key)| events.has_room(key));
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger { responses_max: u32::MAX, responses: 0, bytes: 0, waiters: 0, listeners: SmallVec::new() }
    }
}

impl Ledger {
    fn has_room(&self, bytes: usize) -> bool {
        self.responses == 0 || (self.responses < self.responses_max && self.bytes.saturating_add(bytes) <= BYTES_MAX)
    }

    fn is_awaited(&self) -> bool {
        self.waiters > 0 || !self.listeners.is_empty()
    }
}

/// Held by a response on its way. Its drop makes room for the next one.
pub struct Credit {
    admission: Arc<Admission>,
    bytes: usize,
    /// Of other requests, if the response was made from theirs.
    passed_on: SmallVec<[Arc<Credit>; 1]>,
}

impl Credit {
    /// Whether a sender waits for this credit or another one of the same request.
    pub fn is_wanted(&self) -> bool {
        self.admission.credits.lock().is_awaited() || self.passed_on.iter().any(|credit| credit.is_wanted())
    }

    /// The credit of a response with `bytes` of tensors that was made from other responses, which held `credits`: those
    /// stay taken for as long as this response is on its way. Bytes beyond theirs are charged to the first of them.
    pub fn passed_on(credits: &[Arc<Credit>], bytes: usize) -> Option<Credit> {
        let first = credits.first()?;
        let paid = credits.iter().map(|credit| credit.bytes).fold(0, usize::saturating_add);
        let bytes = bytes.saturating_sub(paid);
        let credit = Credit {
            admission: Arc::clone(&first.admission),
            bytes,
            passed_on: credits.iter().map(Arc::clone).collect(),
        };
        let mut ledger = credit.admission.credits.lock();
        ledger.bytes = ledger.bytes.saturating_add(bytes);
        drop(ledger);
        Some(credit)
    }
}

impl Drop for Credit {
    #[inline]
    fn drop(&mut self) {
        if mutants::is(Mutant::CreditKept) {
            return;
        }
        let credits = &self.admission.credits;
        let mut ledger = credits.lock();
        if self.passed_on.is_empty() {
            ledger.responses = ledger.responses.saturating_sub(1);
        }
        ledger.bytes = ledger.bytes.saturating_sub(self.bytes);
        credits.taken.store(ledger.responses, Ordering::Release);
        let (is_awaited, listeners) = (ledger.waiters > 0, std::mem::take(&mut ledger.listeners));
        drop(ledger);
        if is_awaited {
            credits.returned.notify_all();
        }
        report_room(listeners);
    }
}

impl std::fmt::Debug for Credit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credit({})", self.bytes)
    }
}

/// The request is cancelled, and as much of it as its limit allows is on the way.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unwanted;

impl Credits {
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At most `responses_max` responses may be on their way at a time, and [`BYTES_MAX`] bytes.
    pub fn limit(&self, responses_max: u32) {
        self.lock().responses_max = responses_max.max(1);
        self.is_limited.store(true, Ordering::Release);
    }

    /// How many responses may be on their way, if that is limited.
    pub fn limit_of_responses(&self) -> Option<u32> {
        self.is_limited.load(Ordering::Acquire).then(|| self.lock().responses_max)
    }

    /// The request's state has changed: wakes senders that wait, which check it again.
    pub fn release(&self) {
        if self.is_limited.load(Ordering::Acquire) {
            // A sender that read the old state under the lock waits by now, or has registered its listener.
            let (waiters, listeners) = {
                let mut ledger = self.lock();
                (ledger.waiters, std::mem::take(&mut ledger.listeners))
            };
            if waiters > 0 {
                self.returned.notify_all();
            }
            report_room(listeners);
        }
    }
}

/// The bytes that a response of that request costs; `None` if it needs no credit.
fn cost_of(admission: &Admission, response: &Response, last: bool) -> Option<usize> {
    let credits = &admission.credits;
    let is_only = last && credits.taken.load(Ordering::Acquire) == 0;
    if is_only || !credits.is_limited.load(Ordering::Acquire) || response.credit.is_some() {
        return None;
    }
    let tensors = response.outputs.iter().map(|output| output.byte_size()).fold(0, usize::saturating_add);
    Some(tensors.saturating_add(OVERHEAD))
}

fn pay(admission: &Arc<Admission>, mut ledger: MutexGuard<'_, Ledger>, bytes: usize) -> Credit {
    ledger.responses = ledger.responses.saturating_add(1);
    ledger.bytes = ledger.bytes.saturating_add(bytes);
    admission.credits.taken.store(ledger.responses, Ordering::Release);
    Credit { admission: Arc::clone(admission), bytes, passed_on: SmallVec::new() }
}

/// Takes the credit that `response` needs, if it needs one. Waits for it, unless this thread must not wait.
pub(super) fn take(admission: &Arc<Admission>, response: &Response, last: bool) -> Result<Option<Credit>, Unwanted> {
    let Some(bytes) = cost_of(admission, response, last) else { return Ok(None) };
    let credits = &admission.credits;
    let may_wait = !NEVER_WAITS.get();
    let mut ledger = credits.lock();
    ledger.waiters += 1;
    while may_wait && !ledger.has_room(bytes) && !admission.is_cancelled() && !admission.has_ended() {
        ledger = credits.returned.wait(ledger).unwrap_or_else(PoisonError::into_inner);
    }
    ledger.waiters -= 1;
    if !ledger.has_room(bytes) && admission.is_cancelled() {
        return Err(Unwanted);
    }
    Ok(Some(pay(admission, ledger, bytes)))
}

/// What happens to a response of a sender that does not wait.
pub(super) enum Attempt {
    Free,
    Paid(Credit),
    /// No room: the sender gets an event when it may try again.
    Full,
    Unwanted,
}

/// As [`take`], for a sender that does not wait: where there is no room, `events` gets `key` once there is.
pub(super) fn attempt(
    admission: &Arc<Admission>,
    response: &Response,
    last: bool,
    (events, key): (&Arc<dyn RequestEvents>, u64),
) -> Attempt {
    let Some(bytes) = cost_of(admission, response, last) else { return Attempt::Free };
    let mut ledger = admission.credits.lock();
    if ledger.has_room(bytes) {
        return Attempt::Paid(pay(admission, ledger, bytes));
    }
    // Under the lock: a thread that cancels or ends the request after this check finds the listener.
    if admission.is_cancelled() || admission.has_ended() {
        return Attempt::Unwanted;
    }
    if !ledger.listeners.iter().any(|RoomListener(other, its_key)| Arc::ptr_eq(other, events) && *its_key == key) {
        ledger.listeners.push(RoomListener(Arc::clone(events), key));
    }
    Attempt::Full
}

#[cfg(test)]
mod tests;
