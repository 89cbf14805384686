//! Connections of each shard, counted where all shards read them: the next connection goes to the one with the fewest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// One counter per shard. Clones show the same counters.
#[derive(Debug, Clone)]
pub struct Load(Arc<[CachePadded<AtomicUsize>]>);

/// Counts a connection to its shard until it is dropped.
#[derive(Debug)]
pub struct LoadGuard {
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
    pub fn enter(&self) -> LoadGuard {
        let lightest = self.0.iter().enumerate().min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        self.enter_on(lightest.map_or(0, |(shard, _)| shard))
    }

    /// Counts a connection to this shard (modulo their number).
    pub fn enter_on(&self, shard: usize) -> LoadGuard {
        let shard = shard % self.0.len();
        self.0[shard].fetch_add(1, Ordering::Relaxed);
        LoadGuard { load: self.clone(), shard }
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

impl LoadGuard {
    pub fn shard(&self) -> usize {
        self.shard
    }
}

impl Drop for LoadGuard {
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
        let guards: Vec<LoadGuard> = (0..6).map(|_| load.enter()).collect();
        assert_eq!((load.on(0), load.on(1), load.on(2), load.total()), (2, 2, 2, 6));
        drop(guards.into_iter().filter(|load_guard| load_guard.shard() == 1).collect::<Vec<_>>());
        assert_eq!((load.on(1), load.total()), (0, 0));
        let kept = [load.enter_on(0), load.enter_on(5)];
        assert_eq!(kept.iter().map(LoadGuard::shard).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(load.enter().shard(), 1);
        assert_eq!(Load::new(0).enter().shard(), 0);
    }
}
