//! What one thread counts in one window. Windows and threads are added up afterwards, on the thread that waits.

use std::time::Duration;

use super::generation::GenerationTotals;
use super::generator_limit::ThreadUsage;
use super::measurement::{ErrorTexts, Histograms, Record, RequestCounts, Timeline};

const SLOT_NS: u64 = 100_000_000;
/// Slots of a timeline; when they are full, two become one.
const SLOTS_MAX: usize = 4096;

#[derive(Debug, Clone)]
pub struct WindowTotals {
    pub histograms: Histograms,
    /// Made with the first answer that a language model generated.
    pub generation: Option<Box<GenerationTotals>>,
    pub counts: RequestCounts,
    pub errors: ErrorTexts,
    /// Requests that left late although the server was not to blame.
    pub late: u64,
    /// The open loop was ended: too many were outstanding.
    pub unsustainable: bool,
    /// By a thread that could not send what was due.
    pub is_outrun: bool,
    pub records: Vec<Record>,
    pub records_dropped: u64,
    pub began_ns: u64,
    pub ended_ns: u64,
    /// When the last request ended.
    pub last_ns: u64,
    /// What each thread used; empty as long as the window lasts.
    pub threads: Vec<ThreadUsage>,
    /// Open at the end.
    pub connections: usize,
    pub completions: CompletionSlots,
}

/// Completed requests in slots of time since the window began.
#[derive(Debug, Clone)]
pub struct CompletionSlots {
    slot_ns: u64,
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    completed: u64,
    /// How much of the slot lies in a window; set at the window's end.
    covered_ns: u64,
}

impl Slot {
    fn and(self, other: Slot) -> Slot {
        Slot { completed: self.completed + other.completed, covered_ns: self.covered_ns + other.covered_ns }
    }
}

impl CompletionSlots {
    pub fn count(&mut self, since_ns: u64) {
        while since_ns / self.slot_ns >= SLOTS_MAX as u64 {
            self.halve();
        }
        let at = (since_ns / self.slot_ns) as usize;
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Slot::default());
        }
        if let Some(slot) = self.slots.get_mut(at) {
            slot.completed += 1;
        }
    }

    /// Adds what happened at the same time.
    fn add(&mut self, other: &CompletionSlots) {
        let mut other = other.clone();
        self.level(&mut other);
        if self.slots.len() < other.slots.len() {
            self.slots.resize(other.slots.len(), Slot::default());
        }
        for (slot, more) in self.slots.iter_mut().zip(&other.slots) {
            *slot = slot.and(*more);
        }
    }

    /// Puts a later window of this length behind it.
    fn follow(&mut self, other: &CompletionSlots, wall_ns: u64) {
        let mut other = other.clone();
        self.level(&mut other);
        other.close(wall_ns);
        self.slots.append(&mut other.slots);
        while self.slots.len() > SLOTS_MAX {
            self.halve();
        }
    }

    /// The window is over after `wall_ns`. A rest of a slot has too few requests for a rate of its own: it goes to the
    /// slot before it.
    fn close(&mut self, wall_ns: u64) {
        let needed = wall_ns.div_ceil(self.slot_ns).min(SLOTS_MAX as u64) as usize;
        self.slots.resize(needed.max(self.slots.len()), Slot::default());
        for (at, slot) in self.slots.iter_mut().enumerate() {
            slot.covered_ns = wall_ns.saturating_sub(at as u64 * self.slot_ns).min(self.slot_ns);
        }
        while let [.., before, last] = self.slots.as_mut_slice()
            && last.covered_ns < self.slot_ns / 2
        {
            *before = before.and(*last);
            self.slots.pop();
        }
    }

    fn level(&mut self, other: &mut CompletionSlots) {
        while self.slot_ns < other.slot_ns {
            self.halve();
        }
        while other.slot_ns < self.slot_ns {
            other.halve();
        }
    }

    fn halve(&mut self) {
        let both = |pair: &[Slot]| pair.iter().fold(Slot::default(), |sum, slot| sum.and(*slot));
        self.slots = self.slots.chunks(2).map(both).collect();
        self.slot_ns = self.slot_ns.saturating_mul(2);
    }
}

impl Default for WindowTotals {
    fn default() -> WindowTotals {
        WindowTotals {
            histograms: Histograms::default(),
            generation: None,
            counts: RequestCounts::default(),
            errors: ErrorTexts::default(),
            late: 0,
            unsustainable: false,
            is_outrun: false,
            records: Vec::new(),
            records_dropped: 0,
            began_ns: 0,
            ended_ns: 0,
            last_ns: 0,
            threads: Vec::new(),
            connections: 0,
            completions: CompletionSlots { slot_ns: SLOT_NS, slots: Vec::new() },
        }
    }
}

impl WindowTotals {
    /// The window of this thread is over.
    pub fn end(&mut self, now_ns: u64) {
        self.ended_ns = now_ns;
    }

    pub fn wall_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns)
    }

    /// Adds the same window of another thread, of this number.
    pub fn add_thread(&mut self, thread: usize, other: &mut WindowTotals, records_max: usize) {
        if self.ended_ns == 0 {
            (self.began_ns, self.ended_ns) = (other.began_ns, other.ended_ns);
        }
        (self.began_ns, self.ended_ns) = (self.began_ns.min(other.began_ns), self.ended_ns.max(other.ended_ns));
        self.completions.add(&other.completions);
        self.add_usage(thread, &other.threads);
        self.connections += other.connections;
        self.add(other, records_max);
    }

    /// Adds a later window; `self` is no window then, and its wall time is the sum that the caller keeps.
    pub fn add_window(&mut self, other: &mut WindowTotals, records_max: usize) {
        self.completions.follow(&other.completions, other.wall_ns());
        self.add_usage(0, &other.threads);
        self.connections = self.connections.max(other.connections);
        self.add(other, records_max);
    }

    /// Of the threads from this number on.
    fn add_usage(&mut self, first: usize, usage: &[ThreadUsage]) {
        self.threads.resize(self.threads.len().max(first + usage.len()), ThreadUsage::default());
        self.threads.iter_mut().skip(first).zip(usage).for_each(|(sum, more)| sum.add(more));
    }

    fn add(&mut self, other: &mut WindowTotals, records_max: usize) {
        self.histograms.add(&other.histograms);
        if let Some(generation) = &other.generation {
            self.generation.get_or_insert_default().add(generation);
        }
        self.counts.add(&other.counts);
        self.errors.add(&other.errors);
        self.late += other.late;
        self.unsustainable |= other.unsustainable;
        self.is_outrun |= other.is_outrun;
        self.last_ns = self.last_ns.max(other.last_ns);
        self.records_dropped += other.records_dropped;
        let room = records_max.saturating_sub(self.records.len());
        let taken = other.records.len().min(room);
        self.records_dropped += (other.records.len() - taken) as u64;
        self.records.extend(other.records.drain(..taken));
    }

    pub fn timeline(&self) -> Timeline {
        let slots = self.completions.slots.iter();
        Timeline {
            slot: Duration::from_nanos(self.completions.slot_ns),
            completed: slots.clone().map(|slot| slot.completed).collect(),
            covered: slots.map(|slot| Duration::from_nanos(slot.covered_ns)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_stays_bounded_and_loses_nothing() {
        let mut totals = WindowTotals::default();
        let last = SLOTS_MAX as u64 * 5;
        (0..last).for_each(|slot| totals.completions.count(slot * SLOT_NS));
        let timeline = totals.timeline();
        assert!(timeline.completed.len() <= SLOTS_MAX);
        assert_eq!(timeline.slot, Duration::from_nanos(8 * SLOT_NS));
        assert_eq!(timeline.completed.iter().sum::<u64>(), last);
        assert!(timeline.completed.iter().all(|count| *count == 8));
        let mut sum = WindowTotals::default();
        sum.completions.count(0);
        totals.ended_ns = last * SLOT_NS;
        sum.add_window(&mut totals, 0);
        assert_eq!(sum.timeline().completed.iter().sum::<u64>(), last + 1);
    }

    #[test]
    fn threads_are_added_up_each_by_itself() {
        let window = |cpu_ns| WindowTotals {
            threads: vec![ThreadUsage { wall_ns: 100, cpu_ns, run_queue_ns: Some(1), spun_ns: 0 }],
            connections: 2,
            ..WindowTotals::default()
        };
        let mut sum = WindowTotals::default();
        for cpus_ns in [[20, 30], [40, 70]] {
            let mut both = WindowTotals::default();
            // They report in any order.
            both.add_thread(1, &mut window(cpus_ns[1]), 0);
            both.add_thread(0, &mut window(cpus_ns[0]), 0);
            sum.add_window(&mut both, 0);
        }
        let usage = |cpu_ns| ThreadUsage { wall_ns: 200, cpu_ns, run_queue_ns: Some(2), spun_ns: 0 };
        assert_eq!((sum.threads, sum.connections), (vec![usage(60), usage(100)], 4));
    }

    /// 100 requests a second in windows of 1.03 and 1.98 s: no slot may show another rate.
    #[test]
    fn the_end_of_a_window_is_no_stall() {
        let mut sum = WindowTotals::default();
        for wall_ns in [1_030_000_000, 1_980_000_000] {
            let mut window = WindowTotals { ended_ns: wall_ns, ..WindowTotals::default() };
            (0..wall_ns / 10_000_000).for_each(|at| window.completions.count(at * 10_000_000));
            sum.add_window(&mut window, 0);
        }
        let Timeline { completed, covered, .. } = sum.timeline();
        assert_eq!((completed.len(), covered.len()), (30, 30));
        for (completed, covered) in completed.iter().zip(&covered) {
            assert!((*completed as f64 / covered.as_secs_f64() - 100.0).abs() < 1e-6, "{completed} in {covered:?}");
        }
        // A true stall at the end of a window is one.
        let mut window = WindowTotals { ended_ns: 1_000_000_000, ..WindowTotals::default() };
        window.completions.count(0);
        let mut sum = WindowTotals::default();
        sum.add_window(&mut window, 0);
        assert_eq!(sum.timeline().completed, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
