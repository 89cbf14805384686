//! Accounts of memory: the server's budget, and the shares of it that one connection and one client may have.
//!
//! Everything that a pool hands out is charged to an account and to the budget of the whole process. The account of a
//! connection has a share of that, and the connections of one client have one together. A few bytes of each connection
//! count for the process only: so the small requests of a client are served while its large ones have used its share
//! up, and the plain path of a request changes no counter that other connections change but the process's own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::block::Header;
use super::pool::PoolCore;
use super::refusal::RefusalReason;
use nereid_mutants::{self as mutants, Mutant};

/// Bytes of each connection that are not counted for its client.
const FREE_BYTES: usize = 256 * 1024;

/// Which bound was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    Server,
    Connection,
    Client,
    /// The system gave no memory, though the server's bound was not reached.
    System,
}

/// A bound is reached: no memory was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    pub requested: usize,
    pub left: usize,
    pub limit: usize,
    pub bound: Bound,
}

impl Exhausted {
    /// The system has no memory for so many bytes.
    pub fn of_system(requested: usize) -> Exhausted {
        Exhausted { requested, left: 0, limit: 0, bound: Bound::System }
    }

    pub fn reason(&self) -> RefusalReason {
        match self.bound {
            Bound::Server => RefusalReason::RequestMemory,
            Bound::Connection => RefusalReason::ConnectionMemory,
            Bound::Client => RefusalReason::ClientMemory,
            Bound::System => RefusalReason::SystemMemory,
        }
    }
}

impl std::error::Error for Exhausted {}

impl std::fmt::Display for Exhausted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Exhausted { requested, left, limit, bound } = self;
        let of = match bound {
            Bound::Server => "the server's",
            Bound::Connection => "this connection's",
            Bound::Client => "this client's",
            Bound::System => {
                return write!(f, "{requested} bytes were asked for, but the system has no memory for them");
            }
        };
        write!(f, "{requested} bytes were asked for, but only {left} of {of} {limit} bytes for request data are free")
    }
}

/// See the [module](self).
pub(super) struct Account {
    pool: Arc<PoolCore>,
    /// `None`: the server's own, which has no other bound than the pool's.
    share: Option<Share>,
}

#[derive(Debug)]
struct Share {
    used: AtomicUsize,
    limit: usize,
    peer: Option<Arc<Peer>>,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("share", &self.share).finish_non_exhaustive()
    }
}

impl Account {
    pub fn of_server(pool: Arc<PoolCore>) -> Arc<Account> {
        Arc::new(Account { pool, share: None })
    }

    pub fn of_connection(pool: Arc<PoolCore>, limit: usize, peer: Option<Arc<Peer>>) -> Arc<Account> {
        Arc::new(Account { pool, share: Some(Share { used: AtomicUsize::new(0), limit, peer }) })
    }

    pub fn pool(&self) -> &Arc<PoolCore> {
        &self.pool
    }

    pub fn limit(&self) -> usize {
        self.share.as_ref().map_or(usize::MAX, |share| share.limit)
    }

    /// Counts `bytes` against every bound, or against none and returns an error, which names `requested`.
    pub fn charge(&self, bytes: usize, requested: usize) -> Result<(), Exhausted> {
        let refused = |bound, left, limit| Exhausted { requested, left, limit, bound };
        if let Some(share) = &self.share {
            share.charge(bytes).map_err(|(bound, left, limit)| refused(bound, left, limit))?;
        }
        self.pool.charge(bytes).map_err(|left| {
            if let Some(share) = &self.share {
                share.release(bytes);
            }
            refused(Bound::Server, left, self.pool.limit())
        })
    }

    /// Counts `after` bytes in place of `before` against the share alone, even beyond it.
    pub fn recount(&self, before: usize, after: usize) {
        if let Some(share) = &self.share {
            match after >= before {
                true => share.add(after - before),
                false => share.release(before - after),
            }
        }
    }

    pub fn charge_anyway(&self, bytes: usize) {
        if let Some(share) = &self.share {
            share.add(bytes);
        }
        self.pool.charge_anyway(bytes);
    }

    pub fn release(&self, bytes: usize) {
        if let Some(share) = &self.share {
            share.release(bytes);
        }
        if mutants::is(Mutant::ChargeKept) {
            return;
        }
        self.pool.release(bytes);
    }

    /// # Safety
    /// The caller owns the block alone; it was charged to this account and has this `capacity`.
    pub unsafe fn put_back(&self, header: NonNull<Header>, capacity: usize) {
        self.release(capacity);
        // SAFETY: by contract the caller owns the block alone, and it came from this account's pool.
        unsafe { self.pool.put_back(header, capacity) }
    }
}

/// How much of what a connection uses counts for its client.
fn counted(used: usize) -> usize {
    used.saturating_sub(FREE_BYTES)
}

impl Share {
    fn charge(&self, bytes: usize) -> Result<(), (Bound, usize, usize)> {
        if bytes > self.limit {
            return Err((Bound::Connection, self.limit.saturating_sub(self.used.load(Ordering::Relaxed)), self.limit));
        }
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let after = before.saturating_add(bytes);
        if after > self.limit {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err((Bound::Connection, self.limit.saturating_sub(before), self.limit));
        }
        let more = counted(after) - counted(before);
        if let Some(peer) = self.peer.as_ref().filter(|_| more > 0) {
            let of_peer = peer.used.fetch_add(more, Ordering::Relaxed);
            if of_peer.saturating_add(more) > peer.limit {
                self.release(bytes);
                return Err((Bound::Client, peer.limit.saturating_sub(of_peer), peer.limit));
            }
        }
        Ok(())
    }

    fn add(&self, bytes: usize) {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let more = counted(before.saturating_add(bytes)) - counted(before);
        if let Some(peer) = self.peer.as_ref().filter(|_| more > 0) {
            peer.used.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn release(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        let less = counted(before) - counted(before.saturating_sub(bytes));
        if let Some(peer) = self.peer.as_ref().filter(|_| less > 0) {
            peer.used.fetch_sub(less, Ordering::Relaxed);
        }
    }
}

/// What the connections of one client have together.
#[derive(Debug)]
pub struct Peer {
    used: AtomicUsize,
    limit: usize,
    pub(super) calls: AtomicUsize,
    pub(super) calls_max: usize,
}

/// The clients that have connections, by address.
#[derive(Debug)]
pub struct Peers {
    limit: usize,
    calls_max: usize,
    table: Mutex<PeerTable>,
}

#[derive(Debug)]
struct PeerTable {
    peers: HashMap<IpAddr, Weak<Peer>>,
    /// At this many entries, those without connections are removed.
    sweep_at: usize,
}

/// Entries that are kept without a sweep.
const SWEEP_FROM: usize = 1024;

impl Peers {
    /// `limit`: bytes for each; `calls_max`: calls of each, beyond the first one of each connection.
    pub fn new(limit: usize, calls_max: usize) -> Peers {
        Peers { limit, calls_max, table: Mutex::new(PeerTable { peers: HashMap::new(), sweep_at: SWEEP_FROM }) }
    }

    /// The client at this address. Those of one IPv6 network of 64 bits count as one: it is what a host is given.
    pub fn at(&self, address: IpAddr) -> Arc<Peer> {
        let address = match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
            v4 => v4,
        };
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = table.peers.get(&address).and_then(Weak::upgrade) {
            return peer;
        }
        if table.peers.len() >= table.sweep_at {
            table.peers.retain(|_, peer| peer.strong_count() > 0);
            table.sweep_at = SWEEP_FROM.max(2 * table.peers.len());
        }
        let (used, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let peer = Arc::new(Peer { used, limit: self.limit, calls, calls_max: self.calls_max });
        table.peers.insert(address, Arc::downgrade(&peer));
        peer
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_connection_and_a_client_have_their_shares() {
        let (pool, peers) = (Pool::new(64 * MIB), Peers::new(12 * MIB, usize::MAX));
        let peer = || Some(peers.at([10, 0, 0, 1].into()));
        let (one, two) = (pool.share(8 * MIB, peer()), pool.share(8 * MIB, peer()));
        let first = one.get(8 * MIB).unwrap();
        assert_eq!(one.get(1).unwrap_err().bound, Bound::Connection);
        let refused = two.get(8 * MIB).unwrap_err();
        assert_eq!((refused.bound, refused.limit), (Bound::Client, 12 * MIB));
        assert_eq!(pool.bytes_in_use(), 8 * MIB, "what is refused is counted nowhere");
        let other = pool.share(8 * MIB, Some(peers.at([10, 0, 0, 2].into())));
        assert!(other.get(8 * MIB).is_ok(), "another client has its own");
        let rest = two.get(4 * MIB).unwrap();
        assert_eq!(two.get(MIB).unwrap_err().bound, Bound::Client);
        let third = pool.share(8 * MIB, peer());
        assert!(third.get(FREE_BYTES / 2).is_ok(), "a little is every connection's own");
        drop((first, rest));
        assert_eq!(pool.bytes_in_use(), 0);
        assert!(two.get(8 * MIB).is_ok(), "what comes back counts no more");
    }

    #[test]
    fn what_is_made_of_a_slice_can_be_charged_like_it() {
        let pool = Pool::new(64 * MIB);
        let own = pool.share(2 * MIB, None);
        let slice = own.get(MIB).unwrap().freeze();
        let like = slice.pool().unwrap();
        assert!(like.is(&own) && !like.is(&pool));
        assert_eq!(like.get(2 * MIB).unwrap_err().bound, Bound::Connection);
        assert!(super::super::Slice::from_static(b"x").pool().is_none());
    }

    #[test]
    fn what_lies_elsewhere_counts_while_it_is_held() {
        let pool = Pool::new(4 * MIB);
        let own = pool.share(2 * MIB, None);
        let held = own.hold(MIB).unwrap();
        assert_eq!((own.hold(2 * MIB).unwrap_err().left, pool.bytes_in_use()), (MIB, MIB));
        drop(held);
        let mut tally = own.tally();
        tally.set(8 * MIB);
        assert_eq!(pool.bytes_in_use(), 0, "the server's budget has them already");
        assert_eq!(own.get(1).unwrap_err().bound, Bound::Connection);
        tally.set(0);
        assert!(own.get(1).is_ok());
    }

    #[test]
    fn what_must_be_answered_is_counted_beyond_the_bound() {
        let pool = Pool::new(MIB);
        let all = pool.get(MIB).unwrap();
        assert_eq!(pool.check(), Ok(()));
        let more = pool.get_anyway(1000);
        assert_eq!(pool.check().unwrap_err().requested, 1024);
        drop((all, more));
        assert_eq!((pool.check(), pool.bytes_in_use()), (Ok(()), 0));
    }

    #[test]
    fn addresses_of_one_network_are_one_client_and_the_unused_are_forgotten() {
        let peers = Peers::new(1, 1);
        let at = |text: &str| peers.at(text.parse().unwrap());
        let kept = at("2001:db8::1");
        assert!(Arc::ptr_eq(&kept, &at("2001:db8::ffff:1")));
        assert!(!Arc::ptr_eq(&kept, &at("2001:db8:0:1::1")));
        let mapped = at("::ffff:10.0.0.1");
        assert!(Arc::ptr_eq(&mapped, &at("10.0.0.1")));
        for n in 0..10 * SWEEP_FROM as u32 {
            peers.at(std::net::Ipv4Addr::from(n).into());
        }
        assert!(peers.table.lock().unwrap().peers.len() <= SWEEP_FROM);
        assert!(Arc::ptr_eq(&kept, &at("2001:db8::2")), "a client with connections is found");
    }
}
