//! What keeps a model from answering faster than its client reads: credits for responses on their way.
//!
//! A response of a limited request holds a credit from the moment it is sent until its bytes are with the transport.
//! Who sends beyond the bounds waits, on the backend's own thread; cancellation lets it go. A request's only response
//! never waits: nothing else of it is on the way. Who has the responses of many requests to send does not wait for one
//! of them, but is told when there is room (see [`Outbox`](super::Outbox)).

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::mutants::{self, Mutant};
use super::{Admission, RequestEvents};
use crate::Response;

/// Bytes of one request's responses on their way; a single response may be larger.
pub const BYTES_MAX: usize = 16 << 20;
/// What a response costs besides its tensors.
const OVERHEAD: usize = 512;

thread_local! {
    static NEVER_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread must not wait: what it sends goes out beyond the bounds.
pub fn never_wait_here() {
    NEVER_WAITS.set(true);
}

/// True of a thread that must not wait.
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
    /// Responses on their way; never larger than what the ledger says, except for a moment.
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
    /// Those who do not wait, and are told once.
    hopeful: SmallVec<[Hopeful; 1]>,
}

struct Hopeful(Arc<dyn RequestEvents>, u64);

impl std::fmt::Debug for Hopeful {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hopeful({:#x})", self.1)
    }
}

/// Not under the lock: who is told may send at once.
fn tell(hopeful: SmallVec<[Hopeful; 1]>) {
    hopeful.into_iter().for_each(|Hopeful(room, key)| room.has_room(key));
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger { responses_max: u32::MAX, responses: 0, bytes: 0, waiters: 0, hopeful: SmallVec::new() }
    }
}

impl Ledger {
    fn has_room(&self, bytes: usize) -> bool {
        self.responses == 0 || (self.responses < self.responses_max && self.bytes.saturating_add(bytes) <= BYTES_MAX)
    }

    fn is_awaited(&self) -> bool {
        self.waiters > 0 || !self.hopeful.is_empty()
    }
}

/// Held by a response on its way. Dropping it lets the next one go.
pub struct Credit {
    admission: Arc<Admission>,
    bytes: usize,
    /// Of other requests, if the response was made from theirs.
    passed_on: SmallVec<[Arc<Credit>; 1]>,
}

impl Credit {
    /// Somebody waits for this credit or another one of the same request.
    pub fn is_wanted(&self) -> bool {
        self.admission.credits.lock().is_awaited() || self.passed_on.iter().any(|credit| credit.is_wanted())
    }

    /// The credit of a response with so many `bytes` of tensors, which was made from others whose credits these are:
    /// they stay taken for as long as it is on its way. What it is larger than they were is paid by the first of them.
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
        let (is_awaited, hopeful) = (ledger.waiters > 0, std::mem::take(&mut ledger.hopeful));
        drop(ledger);
        if is_awaited {
            credits.returned.notify_all();
        }
        tell(hopeful);
    }
}

impl std::fmt::Debug for Credit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credit({})", self.bytes)
    }
}

/// Nobody waits for the request any more, and enough of it is on the way already.
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

    /// The request's state has changed: whoever waits looks again.
    pub fn release(&self) {
        if self.is_limited.load(Ordering::Acquire) {
            // Whoever has looked at the request's state under the lock is asleep by now, or has left its name.
            let (waiters, hopeful) = {
                let mut ledger = self.lock();
                (ledger.waiters, std::mem::take(&mut ledger.hopeful))
            };
            if waiters > 0 {
                self.returned.notify_all();
            }
            tell(hopeful);
        }
    }
}

/// What a response of that request costs; nothing if it needs no credit.
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

/// Takes the credit that `response` needs, if it needs one; waits for it where that is allowed.
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

/// What becomes of a response whose sender does not wait.
pub(super) enum Attempt {
    Free,
    Paid(Credit),
    /// Not now: its sender is told when another attempt is worth while.
    Full,
    Unwanted,
}

/// As [`take`], for who does not wait and is told instead.
pub(super) fn attempt(
    admission: &Arc<Admission>,
    response: &Response,
    last: bool,
    (room, key): (&Arc<dyn RequestEvents>, u64),
) -> Attempt {
    let Some(bytes) = cost_of(admission, response, last) else { return Attempt::Free };
    let mut ledger = admission.credits.lock();
    if ledger.has_room(bytes) {
        return Attempt::Paid(pay(admission, ledger, bytes));
    }
    // Under the lock: whoever cancels or ends the request after this look finds the name.
    if admission.is_cancelled() || admission.has_ended() {
        return Attempt::Unwanted;
    }
    if !ledger.hopeful.iter().any(|Hopeful(other, known)| Arc::ptr_eq(other, room) && *known == key) {
        ledger.hopeful.push(Hopeful(Arc::clone(room), key));
    }
    Attempt::Full
}

#[cfg(test)]
mod tests;
