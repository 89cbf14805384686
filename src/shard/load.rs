//! Who gets the next connection: how many each shard has, seen by all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// One counter per shard. Clones show the same counters.
#[derive(Debug, Clone)]
pub struct Load(Arc<[CachePadded<AtomicUsize>]>);

/// A connection's place on a shard, given back when it is dropped.
#[derive(Debug)]
pub struct Seat {
    load: Load,
    shard: usize,
}

impl Load {
    /// For `shards` shards, at least one.
    pub fn new(shards: usize) -> Load {
        Load((0..shards.max(1)).map(|_| CachePadded::new(AtomicUsize::new(0))).collect())
    }

    /// Counts a connection to the shard that has the fewest; of several, the first. Acceptors that choose at the same
    /// moment may choose the same one: a matter of balance, not of correctness.
    pub fn take_seat(&self) -> Seat {
        let lightest = self.0.iter().enumerate().min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        self.take_seat_on(lightest.map_or(0, |(shard, _)| shard))
    }

    /// Counts a connection to this shard (modulo their number).
    pub fn take_seat_on(&self, shard: usize) -> Seat {
        let shard = shard % self.0.len();
        self.0[shard].fetch_add(1, Ordering::Relaxed);
        Seat { load: self.clone(), shard }
    }

    /// Connections of one shard.
    pub fn on(&self, shard: usize) -> usize {
        self.0.get(shard).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Connections of all shards.
    pub fn total(&self) -> usize {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub fn shards(&self) -> usize {
        self.0.len()
    }
}

impl Seat {
    pub fn shard(&self) -> usize {
        self.shard
    }
}

impl Drop for Seat {
    #[inline]
    fn drop(&mut self) {
        self.load.0[self.shard].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lightest_shard_is_chosen() {
        let load = Load::new(3);
        let seats: Vec<Seat> = (0..6).map(|_| load.take_seat()).collect();
        assert_eq!((load.on(0), load.on(1), load.on(2), load.total()), (2, 2, 2, 6));
        drop(seats.into_iter().filter(|seat| seat.shard() == 1).collect::<Vec<_>>());
        assert_eq!((load.on(1), load.total()), (0, 0));
        let kept = [load.take_seat_on(0), load.take_seat_on(5)];
        assert_eq!(kept.iter().map(Seat::shard).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(load.take_seat().shard(), 1);
        assert_eq!(Load::new(0).take_seat().shard(), 0);
    }
}
