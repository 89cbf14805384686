//! Requests with many strings, whose lengths are walked over in portions before a model gets them.
//!
//! The check of a request passes every string of its BYTES inputs; a message may hold hundreds of millions of them. Up
//! to a bound that happens in one go with the other checks. Beyond it the others come first and the walk follows, a
//! portion a turn.

use super::pending_submit::{PendingSubmit, Prepared};
use super::reply_to::ReplyTo;
use nereid_request::{DataType, Request, Status};
use nereid_scheduler::validate::StringsWalk;

/// Bytes of strings that are checked in one go: at four bytes each they are some hundred thousand.
const AT_ONCE_BYTES: usize = 512 << 10;
/// Strings that one portion passes: some 200 µs.
const STRINGS_AT_ONCE: usize = 100_000;

/// A request some of whose strings are still to be checked.
pub struct Checking {
    pending: PendingSubmit,
    walk: StringsWalk,
}

impl Checking {
    pub fn new(pending: PendingSubmit) -> Checking {
        Checking { pending, walk: StringsWalk::default() }
    }

    pub fn reply_to(&self) -> ReplyTo {
        self.pending.reply_to
    }

    pub fn prepared(&self) -> Prepared {
        Prepared::of(&self.pending)
    }

    /// Checks one portion; true when that was the last.
    pub fn step(&mut self) -> Result<bool, Status> {
        self.walk.step(&self.pending.request, &self.pending.model.spec, STRINGS_AT_ONCE)
    }

    pub fn finish(self) -> PendingSubmit {
        self.pending
    }

    /// No client waits for it any more.
    pub fn withdraw(self) {
        self.pending.request.withdraw();
    }
}

/// Whether the request has more strings than are checked in one go.
pub fn has_many_strings(request: &Request) -> bool {
    let strings = request.inputs.iter().filter(|input| input.datatype == DataType::Bytes);
    strings.map(|input| input.byte_size()).fold(0, usize::saturating_add) > AT_ONCE_BYTES
}
