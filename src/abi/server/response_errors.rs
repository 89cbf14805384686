//! Errors of responses: in Triton's documentation they live as long as their response, in its code they belong to the
//! caller.
//!
//! Programs of both kinds exist: some delete the error, as Triton's Python binding does, some do not, and some read it
//! after the response was deleted. So an error counts how often it was given out. It ends after as many deletions, or,
//! some time after its response, when the errors that were never deleted exceed a bound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Error;
use crate::abi::handle_registry;

/// How many errors without a deletion may outlive their responses, and how many bytes of text these may have.
const ORPHANS_MAX: usize = 16_384;
const ORPHAN_BYTES_MAX: usize = 8 << 20;

/// The error of one response, as the application got it.
struct Lease {
    error: *mut Error,
    /// How often it was given out and not deleted.
    shares: u64,
}

// SAFETY: the error is read only, and freed by the code that removes the lease.
unsafe impl Send for Lease {}

#[derive(Default)]
struct Leases {
    /// The last lease number in use.
    last: u64,
    live: BTreeMap<u64, Lease>,
    /// Leases without a response any more, oldest first.
    orphans: BTreeSet<u64>,
    orphan_bytes: usize,
}

static LEASES: Mutex<Leases> =
    Mutex::new(Leases { last: 0, live: BTreeMap::new(), orphans: BTreeSet::new(), orphan_bytes: 0 });

fn leases() -> MutexGuard<'static, Leases> {
    LEASES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leases {
    fn lend(&mut self, error: &Error, number: &AtomicU64) -> *mut Error {
        if let Some(lease) = self.live.get_mut(&number.load(Ordering::Relaxed)) {
            lease.shares += 1;
            return lease.error;
        }
        self.last += 1;
        number.store(self.last, Ordering::Relaxed);
        let copy = Box::into_raw(Box::new(Error { lease: self.last, ..error.clone() }));
        handle_registry::expose(copy.cast_const());
        self.live.insert(self.last, Lease { error: copy, shares: 1 });
        copy
    }

    /// Deletes one share of an error.
    fn give_up(&mut self, number: u64) {
        let Some(lease) = self.live.get_mut(&number) else { return };
        lease.shares -= 1;
        if lease.shares == 0 {
            self.end(number);
        }
    }

    /// Marks the error of a deleted response.
    fn orphan(&mut self, number: u64, (count_max, bytes_max): (usize, usize)) {
        let Some(lease) = self.live.get(&number) else { return };
        // SAFETY: an error lives as long as its lease.
        self.orphan_bytes += unsafe { &*lease.error }.byte_size();
        self.orphans.insert(number);
        while self.orphans.len() > count_max || self.orphan_bytes > bytes_max {
            let Some(oldest) = self.orphans.first().copied() else { break };
            self.end(oldest);
        }
    }

    fn end(&mut self, number: u64) {
        let Some(Lease { error, .. }) = self.live.remove(&number) else { return };
        handle_registry::reclaim(error.cast_const());
        // SAFETY: it came from a box, and only its lease, which is removed, could free it.
        let error = unsafe { Box::from_raw(error) };
        if self.orphans.remove(&number) {
            self.orphan_bytes -= error.byte_size();
        }
    }
}

/// The error of a response, which may be deleted once for each call of this, and need not be.
#[derive(Debug)]
pub(super) struct ResponseError {
    error: Error,
    /// The number of its lease; 0: the application did not request the error.
    lease: AtomicU64,
}

impl ResponseError {
    pub fn new(error: Error) -> ResponseError {
        ResponseError { error, lease: AtomicU64::new(0) }
    }

    pub fn lend(&self) -> *mut Error {
        leases().lend(&self.error, &self.lease)
    }
}

impl Drop for ResponseError {
    fn drop(&mut self) {
        let lease = *self.lease.get_mut();
        if lease != 0 {
            leases().orphan(lease, (ORPHANS_MAX, ORPHAN_BYTES_MAX));
        }
    }
}

/// Records that the application deletes an error with this lease.
pub(super) fn give_up(lease: u64) {
    leases().give_up(lease);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_request::Status;

    fn error(text: &'static str) -> Error {
        Error::of(Status::internal(text))
    }

    /// SAFETY: for tests: the error is live.
    fn text_of(error: *mut Error) -> String {
        // SAFETY: the callers keep a share of it.
        unsafe { &*error }.status().message.into_owned()
    }

    #[test]
    fn an_error_lives_until_every_share_of_it_is_deleted() {
        let (mut leases, number) = (Leases::default(), AtomicU64::new(0));
        let first = leases.lend(&error("one"), &number);
        assert_eq!(leases.lend(&error("one"), &number), first);
        leases.give_up(1);
        assert_eq!((leases.live.len(), text_of(first)), (1, "one".to_owned()));
        leases.give_up(1);
        assert!(leases.live.is_empty());
        // Asked for again, it is another one.
        let again = leases.lend(&error("two"), &number);
        assert_eq!((number.load(Ordering::Relaxed), text_of(again)), (2, "two".to_owned()));
        leases.give_up(1);
        leases.orphan(1, (8, 1024));
        assert_eq!((leases.live.len(), leases.orphans.len()), (1, 0), "the first is gone");
        leases.end(2);
    }

    #[test]
    fn errors_that_nobody_deletes_are_bounded_once_their_responses_are_gone() {
        let mut leases = Leases::default();
        for number in 1..=100 {
            leases.lend(&error("text"), &AtomicU64::new(0));
            leases.orphan(number, (8, 1024));
        }
        assert_eq!((leases.live.len(), leases.orphans.len()), (8, 8));
        assert_eq!(leases.live.keys().copied().collect::<Vec<_>>(), (93..=100).collect::<Vec<_>>());
        assert_eq!(text_of(leases.live[&93].error), "text");
        leases.give_up(95);
        assert_eq!((leases.live.len(), leases.orphans.len()), (7, 7));
        // Of a response that lives, none ends.
        let held = AtomicU64::new(0);
        leases.lend(&error("held"), &held);
        leases.lend(&error("large"), &AtomicU64::new(0));
        leases.orphan(102, (8, 1));
        assert_eq!((leases.live.len(), leases.orphan_bytes), (1, 0));
        assert_eq!(text_of(leases.live[&held.into_inner()].error), "held");
        leases.end(101);
        assert!(leases.live.is_empty());
    }
}
