//! Executions of batches beyond the sizes that every slot has counters for.
//!
//! Sizes are chosen by clients (batch_stats is keyed by the executed total), so the table is bounded: when it is
//! full, further sizes share one overflow entry. Finding an entry is a bounded probe without locks.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Execution;
use super::slot::BatchCounters;

/// Distinct sizes that have an entry each.
pub const ENTRIES: usize = 64;

#[derive(Debug)]
pub struct Large {
    entries: Box<[Entry]>,
    overflow: BatchCounters,
}

#[derive(Debug, Default)]
struct Entry {
    /// 0 while free; set once, never changed after.
    batch_size: AtomicU64,
    counters: BatchCounters,
}

impl Default for Large {
    fn default() -> Large {
        Large { entries: (0..ENTRIES).map(|_| Entry::default()).collect(), overflow: BatchCounters::default() }
    }
}

impl Large {
    /// `batch_size` is not 0: small sizes are counted in the slots.
    pub fn batch_executed(&self, batch_size: u64, execution: &Execution) {
        self.entry(batch_size).unwrap_or(&self.overflow).add(execution, false);
    }

    /// Size, count and times of every size seen, in no order; the overflow entry, if used, has size `u64::MAX`.
    pub fn read(&self) -> impl Iterator<Item = (u64, u64, [u64; 3])> {
        let entries = self.entries.iter().map(|entry| (entry.batch_size.load(Ordering::Acquire), &entry.counters));
        entries.chain([(u64::MAX, &self.overflow)]).filter_map(|(batch_size, counters)| {
            let (count, times) = counters.read();
            (count != 0).then_some((batch_size, count, times))
        })
    }

    fn entry(&self, batch_size: u64) -> Option<&BatchCounters> {
        let start = (batch_size % ENTRIES as u64) as usize;
        let (tail, head) = self.entries.split_at_checked(start)?;
        for entry in head.iter().chain(tail) {
            let held = entry.batch_size.compare_exchange(0, batch_size, Ordering::AcqRel, Ordering::Acquire);
            if held.is_ok() || held == Err(batch_size) {
                return Some(&entry.counters);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stay_apart_until_the_table_is_full() {
        let large = Large::default();
        let execution = Execution { exec_start_ns: 0, compute_start_ns: 1, compute_end_ns: 3, exec_end_ns: 7 };
        // Every second size collides with another one modulo the table.
        let sizes: Vec<u64> = (0..ENTRIES as u64).map(|n| 65 + n / 2 + (n % 2) * ENTRIES as u64).collect();
        for _ in 0..2 {
            for size in &sizes {
                large.batch_executed(*size, &execution);
            }
        }
        large.batch_executed(100_000, &execution);
        large.batch_executed(100_001, &execution);
        large.batch_executed(100_001, &execution);
        let mut seen: Vec<_> = large.read().collect();
        seen.sort_unstable();
        let mut expected: Vec<_> = sizes.iter().map(|size| (*size, 2, [2, 4, 8])).collect();
        expected.push((u64::MAX, 3, [3, 6, 12]));
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }

    #[test]
    fn an_unused_table_reads_empty() {
        assert_eq!(Large::default().read().count(), 0);
    }
}
