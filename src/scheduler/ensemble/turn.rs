//! How many steps a thread executes itself before others have their turn: a shard within a turn, a worker behind one
//! of its own executions. Other threads execute none.

use std::cell::Cell;

/// Steps that a shard executes in one turn, and a worker behind one execution: as many as a run handles events at a
/// time.
pub const STEPS_AT_ONCE: u32 = 64;
/// Nanoseconds that their executions may take before the next one begins: half of what a turn of a shard may take, for
/// its connections need the other half.
pub const STEPS_NS: u64 = 50_000;

/// What the calling thread is to the steps that it submits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Shard,
    /// A worker between two executions.
    Worker,
    Elsewhere,
}

/// What a thread may still execute.
#[derive(Clone, Copy)]
struct Budget {
    place: Place,
    steps: u32,
    ns: u64,
}

impl Budget {
    const fn of(place: Place) -> Budget {
        // Tests must not depend on how long they take.
        let ns = if cfg!(test) { u64::MAX } else { STEPS_NS };
        Budget { place, steps: STEPS_AT_ONCE, ns }
    }
}

thread_local! {
    static BUDGET: Cell<Budget> = const { Cell::new(Budget::of(Place::Elsewhere)) };
}

/// A turn of the calling shard begins.
#[inline]
pub fn begin_turn() {
    BUDGET.set(Budget::of(Place::Shard));
}

/// Whether the calling thread has executed as much as it may for now.
#[inline]
pub fn is_spent() -> bool {
    let budget = BUDGET.get();
    budget.steps == 0 || budget.ns == 0
}

pub(crate) fn place() -> Place {
    BUDGET.get().place
}

/// The calling thread has executed a step.
pub(super) fn executed(ns: u64) {
    let Budget { place, steps, ns: left_ns } = BUDGET.get();
    BUDGET.set(Budget { place, steps: steps.saturating_sub(1), ns: left_ns.saturating_sub(ns) });
    if place == Place::Shard {
        counts::add(|counts| counts.steps_of_shards += 1);
    }
}

/// While this lives, its thread is a worker between two executions.
pub(super) struct OnWorker {
    before: Budget,
}

impl OnWorker {
    pub fn begin() -> OnWorker {
        OnWorker { before: BUDGET.replace(Budget::of(Place::Worker)) }
    }
}

impl Drop for OnWorker {
    fn drop(&mut self) {
        BUDGET.set(self.before);
    }
}

/// What happened on this thread, for tests. Other builds count nothing.
pub mod counts {
    /// Counts of one thread.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Counts {
        /// Steps that shards executed.
        pub steps_of_shards: u64,
        /// Runs that workers continued behind an execution of theirs.
        pub handed_over: u64,
    }

    #[cfg(any(test, all(feature = "testing", debug_assertions)))]
    thread_local! {
        static COUNTS: std::cell::Cell<Counts> = std::cell::Cell::default();
    }

    #[inline]
    pub(in crate::ensemble) fn add(count: impl FnOnce(&mut Counts)) {
        #[cfg(any(test, all(feature = "testing", debug_assertions)))]
        {
            let mut counts = COUNTS.get();
            count(&mut counts);
            COUNTS.set(counts);
        }
        #[cfg(not(any(test, all(feature = "testing", debug_assertions))))]
        let _ = count;
    }

    /// What was counted since the last call.
    #[cfg(any(test, all(feature = "testing", debug_assertions)))]
    pub fn take() -> Counts {
        COUNTS.take()
    }
}
