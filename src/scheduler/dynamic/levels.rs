//! The number of waiting requests of each priority level, to which `max_queue_size` applies.
//!
//! A configuration may have 2^64 levels, so only the first ones have a counter of their own; the others are counted in
//! a table of the levels in use.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::policy::Policy;

/// Levels with a counter of their own.
const DENSE_LEVELS: u64 = 64;

#[derive(Debug)]
pub(super) struct Levels {
    dense: Box<[AtomicUsize]>,
    /// Locked for one lookup. A level is in it while it has requests.
    sparse: Mutex<HashMap<u64, usize>>,
}

impl Levels {
    /// Levels 0 (of a model without priorities) to `last`.
    pub fn new(last: u64) -> Levels {
        let dense = (0..=last.min(DENSE_LEVELS)).map(|_| AtomicUsize::new(0)).collect();
        Levels { dense, sparse: Mutex::default() }
    }

    /// Counts one more request, unless `most` wait already; the error is how many do.
    pub fn enter(&self, level: u64, most: usize) -> Result<(), usize> {
        let more = |count: usize| (count < most).then_some(count.saturating_add(1));
        if let Some(count) = self.dense(level) {
            // Not an addition that is taken back: that would refuse others meanwhile.
            return count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).map(|_| ());
        }
        let mut sparse = self.sparse.lock().unwrap_or_else(PoisonError::into_inner);
        let count = sparse.entry(level).or_insert(0);
        let present = *count;
        *count = more(present).ok_or(present)?;
        Ok(())
    }

    /// Counts a request that was taken, or taken back.
    pub fn leave(&self, level: u64, policy: &Policy) {
        if policy.max_queue_size.is_none() {
            return;
        }
        if let Some(count) = self.dense(level) {
            count.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let mut sparse = self.sparse.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = sparse.entry(level) {
            match entry.get_mut() {
                0 | 1 => drop(entry.remove()),
                count => *count -= 1,
            }
        }
    }

    fn dense(&self, level: u64) -> Option<&AtomicUsize> {
        self.dense.get(usize::try_from(level).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::Policies;
    use super::*;
    use nereid_wire::inference::{ModelDynamicBatching, ModelQueuePolicy};

    #[test]
    fn each_level_has_its_own_bound() {
        let bounded = ModelQueuePolicy { max_queue_size: 2, ..Default::default() };
        let config = ModelDynamicBatching { default_queue_policy: Some(bounded), ..Default::default() };
        let policies = Policies::new(&config);
        let levels = Levels::new(u64::MAX);
        for level in [0, 1, DENSE_LEVELS, DENSE_LEVELS + 1, u64::MAX] {
            assert_eq!(levels.enter(level, 2), Ok(()), "level {level}");
            assert_eq!(levels.enter(level, 2), Ok(()), "level {level}");
            assert_eq!(levels.enter(level, 2), Err(2), "level {level}");
            levels.leave(level, policies.of(level));
            assert_eq!(levels.enter(level, 2), Ok(()), "level {level}");
        }
        levels.leave(u64::MAX, policies.of(u64::MAX));
        levels.leave(u64::MAX, policies.of(u64::MAX));
        assert!(!levels.sparse.lock().unwrap().contains_key(&u64::MAX), "unused levels take no memory");
    }
}
