//! One open stream: the order of its requests, and what waits on it in either direction.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::packed::{Inbox, Outbox};
use crate::api::coding::packing::Packing;
use crate::api::send_window::SendWindow;
use crate::api::watch::Watch;
use nereid_memory::{CallLedger, CallPlace, Gather, Pool, RefusalReason};
use nereid_protocol::service::{CallKey, GrpcPlan, GrpcReply, GrpcStatus, Replies, Token};
use nereid_request::Credit;

/// Requests of one stream whose answers are out at a time. Triton has no such bound; beyond it, the stream ends.
const IN_FLIGHT_MAX: usize = 16_384;
/// However few requests a shard takes, a stream may have so many of them.
const IN_FLIGHT_LEAST: usize = 64;
/// A stream may have one request in so many that its shard takes, so that it does not keep all others away.
const PART_OF_SHARD: usize = 8;

/// What a stream may have of the requests that its shard takes.
pub fn in_flight_max(waiting_max: usize) -> usize {
    (waiting_max / PART_OF_SHARD).clamp(IN_FLIGHT_LEAST, IN_FLIGHT_MAX)
}

/// One open stream.
pub struct Stream {
    pub(super) call: CallKey,
    /// Requests in the order they were read, each with its answer once that is there.
    pub(super) order: VecDeque<(u64, Option<Gather>)>,
    /// The watches of requests whose answers wait in that order.
    pub(super) watches: HashMap<u64, Arc<Watch>>,
    /// Requests of decoupled models whose last response is still to come.
    pub(super) unordered: HashSet<u64>,
    pub(super) half_closed: bool,
    /// `triton_grpc_error`: a failed response is the end of the stream.
    pub(super) error_ends: bool,
    pub send_window: SendWindow,
    /// How its requests come.
    pub(super) plan: Arc<GrpcPlan>,
    /// What is packed.
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    /// Its packing and unpacking goes on, now or in a later turn.
    pub(super) is_driven: bool,
    /// The last request that was read is prepared in steps: those behind it wait.
    pub is_held: bool,
    pub(super) in_flight_max: usize,
    /// When its client stops waiting for what is still to come, in nanoseconds of the request clock; 0 is never.
    pub(super) answer_by_ns: u64,
    /// The calls of its connection.
    ledger: Rc<CallLedger>,
}

impl Stream {
    /// `waiting_max`: requests that the shard takes.
    pub fn new(
        call: CallKey,
        error_ends: bool,
        plan: GrpcPlan,
        packing: Option<Packing>,
        waiting_max: usize,
        ledger: Rc<CallLedger>,
    ) -> Stream {
        Stream {
            ledger,
            in_flight_max: in_flight_max(waiting_max),
            answer_by_ns: 0,
            call,
            order: VecDeque::new(),
            watches: HashMap::new(),
            unordered: HashSet::new(),
            half_closed: false,
            error_ends,
            send_window: SendWindow::default(),
            plan: Arc::new(plan),
            inbox: Inbox::default(),
            outbox: Outbox::new(packing),
            is_driven: false,
            is_held: false,
        }
    }

    /// One more request of its connection.
    pub fn enter_call(&self) -> Result<CallPlace, RefusalReason> {
        self.ledger.enter()
    }

    /// The tokens of requests without their last answer.
    pub fn waiting(self) -> impl Iterator<Item = u64> {
        let ordered = self.order.into_iter().filter(|(_, answer)| answer.is_none()).map(|(key, _)| key);
        ordered.chain(self.unordered)
    }

    /// As many requests as may be are out.
    pub(super) fn is_full(&self) -> bool {
        self.order.len() + self.unordered.len() + self.inbox.len() + self.outbox.len() >= self.in_flight_max
    }

    /// Whether a request could be handed to its model now.
    pub fn takes_at_once(&self) -> bool {
        self.inbox.is_empty() && !self.is_held && !self.is_full()
    }

    /// A request is handed to its model.
    pub(super) fn expect(&mut self, key: Token, decoupled: bool) {
        match decoupled {
            true => drop(self.unordered.insert(key.0)),
            false => self.order.push_back((key.0, None)),
        }
    }

    pub(super) fn send(&mut self, message: Gather, credit: Option<Credit>, replies: &mut Replies) {
        match self.outbox.is_packing() {
            true => self.outbox.push(message, credit),
            false => self.emit(message, credit, replies),
        }
    }

    pub(super) fn emit(&mut self, message: Gather, credit: Option<Credit>, replies: &mut Replies) {
        self.send_window.record(message.len(), credit);
        replies.push(self.call, GrpcReply::Message(message));
    }

    /// Sends what is due: the answers at the front, and the end behind the last one.
    pub(super) fn flush(&mut self, replies: &mut Replies) -> bool {
        while let Some((_, Some(_))) = self.order.front() {
            if let Some((key, Some(answer))) = self.order.pop_front() {
                if !self.watches.is_empty()
                    && let Some(watch) = self.watches.remove(&key)
                {
                    watch.leaves(self.call, replies);
                }
                self.send(answer, None, replies);
            }
        }
        let is_silent = self.inbox.is_empty() && self.outbox.is_empty();
        let over = self.half_closed && self.order.is_empty() && self.unordered.is_empty() && is_silent;
        if over {
            replies.push(self.call, GrpcReply::End(GrpcStatus::ok()));
        }
        over
    }

    /// Something waits to be packed or unpacked that can be.
    pub(super) fn has_packed(&self) -> bool {
        (!self.inbox.is_empty() && !self.is_held) || !self.outbox.is_empty()
    }

    /// Sends what waits to be packed, without packing it.
    pub(super) fn send_plain(&mut self, pool: &Pool, replies: &mut Replies) {
        for (message, credit) in self.outbox.take_plain(pool) {
            self.emit(message, credit, replies);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_a_part_of_the_requests_of_its_shard_within_bounds() {
        for (waiting_max, of_stream) in [
            (0, IN_FLIGHT_LEAST),
            (IN_FLIGHT_LEAST * PART_OF_SHARD, IN_FLIGHT_LEAST),
            (1_000, 125),
            (IN_FLIGHT_MAX * PART_OF_SHARD + 7, IN_FLIGHT_MAX),
            ((IN_FLIGHT_MAX - 1) * PART_OF_SHARD, IN_FLIGHT_MAX - 1),
            (usize::MAX, IN_FLIGHT_MAX),
        ] {
            assert_eq!(in_flight_max(waiting_max), of_stream, "{waiting_max}");
        }
    }
}
