//! Requests with many strings, whose lengths are walked over in portions before a model gets them.
//!
//! The check of a request passes every string of its BYTES inputs; a message may hold hundreds of millions of them. Up
//! to a bound that happens in one go with the other checks. Beyond it the others come first and the walk follows, a
//! portion a turn.

use super::Api;
use super::calls::{Peer, Work};
use super::delays::PutOff;
use super::preparing::Prepared;
use nereid_protocol::service::{Replies, Token};
use nereid_request::{DataType, Request, Status};
use nereid_scheduler::validate::StringsWalk;

/// Bytes of strings that are checked in one go: at four bytes each they are some hundred thousand.
const AT_ONCE_BYTES: usize = 512 << 10;
/// Strings that one portion passes: some 200 µs.
const STRINGS_AT_ONCE: usize = 100_000;

/// A request some of whose strings are still to be checked.
pub struct Checking {
    to: PutOff,
    walk: StringsWalk,
}

impl Checking {
    pub fn peer(&self) -> Peer {
        self.to.peer
    }

    /// Nobody waits for it any more.
    pub fn withdraw(self) {
        self.to.request.withdraw();
    }
}

/// Whether the request has more strings than are checked in one go.
pub(super) fn has_many_strings(request: &Request) -> bool {
    let strings = request.inputs.iter().filter(|input| input.datatype == DataType::Bytes);
    strings.map(|input| input.byte_size()).fold(0, usize::saturating_add) > AT_ONCE_BYTES
}

impl Api {
    /// Hands in a request that has [many strings](has_many_strings). On refusal the token is still there.
    pub(super) fn submit_strings(&mut self, token: Token, mut to: PutOff) -> Result<(), Status> {
        if let Err(status) = to.model.check_but_strings(&mut to.request) {
            to.request.withdraw();
            return Err(status);
        }
        let peer = to.peer;
        let checking = Checking { to, walk: StringsWalk::default() };
        self.calls.prepare(token, peer, Work::Checking(Box::new(checking)));
        Ok(())
    }

    /// Checks on, and hands the request in when that is done.
    pub(super) fn check_on(&mut self, key: u64, mut checking: Box<Checking>, replies: &mut Replies) {
        let Checking { to, walk } = &mut *checking;
        let prepared = Prepared::of(to);
        let outcome = match walk.step(&to.request, &to.model.spec, STRINGS_AT_ONCE) {
            Ok(false) => {
                self.calls.put_off_work(key, Work::Checking(checking));
                return;
            }
            Ok(true) => {
                self.end_preparing(&prepared);
                let PutOff { peer, model, mut request, form } = checking.to;
                request.is_checked = true;
                self.submit(Token(key), peer, model, request, form)
            }
            Err(status) => {
                self.end_preparing(&prepared);
                checking.withdraw();
                Err(status)
            }
        };
        self.prepared(key, &prepared, outcome, replies);
    }
}
