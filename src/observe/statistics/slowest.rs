//! The slowest requests of the last minutes, with their phases, for the inspect page (docs/inspect-page.md).
//!
//! Every writing thread has a table of its own and a threshold: the shortest duration that would enter the table. A
//! request that ends compares its duration with the threshold, and that is all that an ordinary request pays; one that
//! is slow enough writes an entry, without an allocation and without a wait: where a reader holds the table, the entry
//! is left out. The tables are the process's, as the slots of writers are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use crossbeam_utils::CachePadded;
use nereid_clock::now_ns;

use super::FailureReason;
use super::writer_slot::{SLOTS, WriterSlot};

/// Most requests of one thread, and most that a reader gets.
pub const SLOWEST_MAX: usize = 32;
/// A request that ended longer ago is not shown.
const RECENT_NS: u64 = 300 * 1_000_000_000;

/// The threshold of a table that takes no request.
const NONE: u64 = u64::MAX;

static TABLES: [CachePadded<Table>; SLOTS] = [const { CachePadded::new(Table::new()) }; SLOTS];
/// Whether requests are recorded at all.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The model version that a request was for.
#[derive(Debug, PartialEq, Eq)]
pub struct ModelName {
    pub name: String,
    pub version: i64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Success,
    /// The response cache answered it.
    CacheHit,
    Failure(FailureReason),
}

/// Durations of a request in nanoseconds. The parts of a request without an execution are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PhasesNs {
    pub total: u64,
    pub queue: u64,
    pub compute_input: u64,
    pub compute_infer: u64,
    pub compute_output: u64,
}

/// One slow request.
#[derive(Debug, Clone)]
pub struct SlowRequest {
    pub model: Arc<ModelName>,
    /// Rows; 0 where they are not known.
    pub batch_size: u64,
    /// On the clock of requests.
    pub ended_ns: u64,
    pub phases: PhasesNs,
    pub ending: Ending,
}

/// The slow requests of one writing thread.
struct Table {
    /// Only requests that last longer are recorded.
    threshold_ns: AtomicU64,
    entries: Mutex<[Option<SlowRequest>; SLOWEST_MAX]>,
}

impl Table {
    const fn new() -> Table {
        Table { threshold_ns: AtomicU64::new(NONE), entries: Mutex::new([const { None }; SLOWEST_MAX]) }
    }

    /// Puts a request in the place of an empty entry, or of the fastest one if it is slower.
    fn record(&self, request: SlowRequest) {
        let mut entries = match self.entries.try_lock() {
            Ok(entries) => entries,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let duration = |entry: &Option<SlowRequest>| entry.as_ref().map(|entry| entry.phases.total);
        let fastest = entries.iter_mut().min_by_key(|entry| duration(entry));
        if let Some(place) = fastest.filter(|entry| duration(entry) < Some(request.phases.total)) {
            *place = Some(request);
        }
        self.renew_threshold(&entries);
    }

    /// Forgets what ended before `oldest_ns`, and adds the others to `found`.
    fn collect(&self, oldest_ns: u64, found: &mut Vec<SlowRequest>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries.iter_mut() {
            if entry.as_ref().is_some_and(|entry| entry.ended_ns < oldest_ns) {
                *entry = None;
            }
        }
        found.extend(entries.iter().flatten().cloned());
        self.renew_threshold(&entries);
    }

    fn renew_threshold(&self, entries: &[Option<SlowRequest>; SLOWEST_MAX]) {
        let shortest = entries.iter().map(|entry| entry.as_ref().map_or(0, |entry| entry.phases.total)).min();
        let threshold_ns = if IS_ON.load(Ordering::Relaxed) { shortest.unwrap_or(0) } else { NONE };
        self.threshold_ns.store(threshold_ns, Ordering::Relaxed);
    }
}

/// Whether the calling thread has to [record](record) a request that lasted so long.
#[inline(always)]
pub(super) fn is_slow(writer: WriterSlot, duration_ns: u64) -> bool {
    TABLES.get(writer.index()).is_some_and(|table| duration_ns > table.threshold_ns.load(Ordering::Relaxed))
}

pub(super) fn record(writer: WriterSlot, request: SlowRequest) {
    if let Some(table) = TABLES.get(writer.index()) {
        table.record(request);
    }
}

/// Switches the recording on or off for the whole process.
pub fn switch(is_on: bool) {
    IS_ON.store(is_on, Ordering::Relaxed);
    collect();
}

/// The slowest requests of the last minutes, the slowest first. To be called from time to time also where nobody reads
/// the result: entries that are too old keep the thresholds high.
pub fn collect() -> Vec<SlowRequest> {
    let (mut found, oldest_ns) = (Vec::new(), now_ns().saturating_sub(RECENT_NS));
    TABLES.iter().for_each(|table| table.collect(oldest_ns, &mut found));
    found.sort_unstable_by_key(|request| std::cmp::Reverse(request.phases.total));
    found.truncate(SLOWEST_MAX);
    found
}

/// Forgets old requests.
pub fn expire() {
    if IS_ON.load(Ordering::Relaxed) {
        drop(collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(total: u64, ended_ns: u64) -> SlowRequest {
        SlowRequest {
            model: Arc::new(ModelName { name: "m".to_owned(), version: 1 }),
            batch_size: 1,
            ended_ns,
            phases: PhasesNs { total, ..PhasesNs::default() },
            ending: Ending::Success,
        }
    }

    fn totals(table: &Table, oldest_ns: u64) -> Vec<u64> {
        let mut found = Vec::new();
        table.collect(oldest_ns, &mut found);
        let mut totals: Vec<u64> = found.iter().map(|request| request.phases.total).collect();
        totals.sort_unstable();
        totals
    }

    #[test]
    fn a_table_keeps_the_slowest_and_forgets_the_old_ones() {
        IS_ON.store(true, Ordering::Relaxed);
        let table = Table::new();
        let many = SLOWEST_MAX as u64;
        (1..=2 * many).for_each(|total| table.record(request(total, total)));
        assert_eq!(totals(&table, 0), (many + 1..=2 * many).collect::<Vec<_>>());
        assert_eq!(table.threshold_ns.load(Ordering::Relaxed), many + 1);
        table.record(request(3, 99));
        assert_eq!(totals(&table, 0)[0], many + 1, "a fast request enters no full table");
        assert_eq!(totals(&table, 2 * many), [2 * many]);
        assert_eq!(table.threshold_ns.load(Ordering::Relaxed), 0, "there is room again");
        let held = table.entries.lock().unwrap();
        table.record(request(1000, 1000));
        drop(held);
        assert_eq!(totals(&table, 0), [2 * many], "no writer waits for a reader");
    }
}
