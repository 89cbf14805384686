//! The calls that one connection may have under way, and its client with all its connections.
//!
//! A shard takes so many calls at a time; who has most of them keeps the others out. The first call of a connection
//! does not count for its client: connections are bounded themselves, and so a client that sends one request at a time
//! changes no counter that its other connections change.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::account::Peer;
use super::refusal::RefusalReason;

/// Calls of each connection that are not counted for its client.
const FREE_CALLS: usize = 1;

/// The calls of one connection, which stays on one shard.
#[derive(Debug)]
pub struct CallLedger {
    used: Cell<usize>,
    limit: usize,
    peer: Option<Arc<Peer>>,
}

/// One call; it ends when this is dropped.
#[derive(Debug)]
pub struct CallPlace(Rc<CallLedger>);

impl CallLedger {
    /// For `limit` calls at a time, and as many as the client still may have.
    pub fn new(limit: usize, peer: Option<Arc<Peer>>) -> Rc<CallLedger> {
        Rc::new(CallLedger { used: Cell::new(0), limit, peer })
    }

    /// One more call, unless the connection or its client has all that it may have.
    #[inline]
    pub fn enter(self: &Rc<Self>) -> Result<CallPlace, RefusalReason> {
        let used = self.used.get();
        if used >= self.limit {
            return Err(RefusalReason::ConnectionCalls);
        }
        if used >= FREE_CALLS
            && let Some(peer) = &self.peer
            && peer.calls.fetch_add(1, Ordering::Relaxed) >= peer.calls_max
        {
            peer.calls.fetch_sub(1, Ordering::Relaxed);
            return Err(RefusalReason::ClientCalls);
        }
        self.used.set(used + 1);
        Ok(CallPlace(Rc::clone(self)))
    }
}

impl Drop for CallPlace {
    #[inline]
    fn drop(&mut self) {
        let left = self.0.used.get().saturating_sub(1);
        self.0.used.set(left);
        if left >= FREE_CALLS
            && let Some(peer) = &self.0.peer
        {
            peer.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Peers;
    use super::*;

    #[test]
    fn a_connection_has_as_many_calls_as_its_limit() {
        let ledger = CallLedger::new(2, None);
        let (one, two) = (ledger.enter().unwrap(), ledger.enter().unwrap());
        assert_eq!(ledger.enter().unwrap_err(), RefusalReason::ConnectionCalls);
        drop(one);
        let again = ledger.enter().unwrap();
        assert!(ledger.enter().is_err());
        drop((two, again));
        assert_eq!(ledger.used.get(), 0);
        assert_eq!(CallLedger::new(0, None).enter().unwrap_err(), RefusalReason::ConnectionCalls);
    }

    #[test]
    fn connections_of_one_client_share_what_goes_beyond_their_first_call() {
        let peers = Peers::new(usize::MAX, 3);
        let client = || peers.at([10, 0, 0, 1].into());
        let (one, two) = (CallLedger::new(10, Some(client())), CallLedger::new(10, Some(client())));
        let mut held: Vec<_> = (0..4).map(|_| one.enter().unwrap()).collect();
        assert_eq!(one.enter().unwrap_err(), RefusalReason::ClientCalls);
        let first = two.enter().unwrap();
        assert_eq!(two.enter().unwrap_err(), RefusalReason::ClientCalls, "the other connection has all three");
        let other = CallLedger::new(10, Some(peers.at([10, 0, 0, 2].into())));
        let others: Vec<_> = (0..4).map(|_| other.enter().unwrap()).collect();
        held.pop();
        let second = two.enter().unwrap();
        assert!(one.enter().is_err());
        drop((held, first, second, others));
        assert_eq!(client().calls.load(Ordering::Relaxed), 0, "in whatever order they end");
    }

    /// The free call is the one that is left, not the one that came first.
    #[test]
    fn the_client_counts_the_same_whichever_call_ends() {
        let peers = Peers::new(usize::MAX, 8);
        let client = peers.at([10, 0, 0, 1].into());
        let ledger = CallLedger::new(8, Some(Arc::clone(&client)));
        for ends_first in 0..3 {
            let mut places: Vec<_> = (0..3).map(|_| ledger.enter().unwrap()).collect();
            assert_eq!(client.calls.load(Ordering::Relaxed), 2);
            drop(places.remove(ends_first));
            assert_eq!(client.calls.load(Ordering::Relaxed), 1);
            drop(places);
            assert_eq!(client.calls.load(Ordering::Relaxed), 0);
        }
    }
}
