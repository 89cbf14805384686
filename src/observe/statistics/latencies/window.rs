//! A summary: quantiles of the last minute, and count and sum since the beginning (contract/metrics.md section 1).
//!
//! The minute is five ages of twelve seconds. Each age is a histogram whose buckets grow with their values, so that a
//! quantile is off by 1.6 % of itself at most, and whose counts can be added up over writers. An age is emptied by the
//! first writer after its slot comes round again; no other thread has to read the clock.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::statistics::slot::Counter;

pub const AGE_SECS: u64 = 12;
const AGES: usize = 5;

/// Buckets for each doubling: values up to twice this number have a bucket each.
const FINENESS: u64 = 32;
const FINENESS_BITS: u32 = FINENESS.trailing_zeros();
/// Enough for 2^36 microseconds, which are 19 hours; longer times count as that.
const CELLS: usize = 1024;

/// An age that is being emptied.
const EMPTYING: u64 = u64::MAX;

/// The window of one writer.
#[derive(Debug, Default)]
pub struct Window {
    count: Counter,
    sum: Counter,
    ages: [Age; AGES],
}

#[derive(Debug, Default)]
struct Age {
    /// Its number; 0: never used.
    number: AtomicU64,
    /// Made with the first value.
    cells: OnceLock<Box<[AtomicU32]>>,
}

/// The sum over writers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SummaryReading {
    /// Since the beginning.
    pub count: u64,
    pub sum: u64,
    /// Counts of the last minute, by bucket; empty ones are left out.
    recent: BTreeMap<usize, u64>,
}

impl Window {
    /// `now` is the number of the present age.
    pub fn observe(&self, value: u64, now: u64, exclusive: bool) {
        if let Some(age) = self.ages.get((now % AGES as u64) as usize) {
            age.observe(value, now, exclusive);
        }
        self.sum.add(value, exclusive);
        self.count.add(1, exclusive);
    }

    pub fn merge_into(&self, sum: &mut SummaryReading, now: u64) {
        sum.count = sum.count.wrapping_add(self.count.get());
        sum.sum = sum.sum.wrapping_add(self.sum.get());
        self.ages.iter().for_each(|age| age.merge_into(&mut sum.recent, now));
    }
}

impl Age {
    fn observe(&self, value: u64, now: u64, exclusive: bool) {
        // A value is left out of the quantiles if its writer was delayed until its age is over, or if another thread
        // empties the shared slot at that moment.
        if self.number.load(Ordering::Acquire) != now && !self.begin(now) {
            return;
        }
        if self.cells.get().is_none() {
            // `set` and not `get_or_init`, so that no thread waits; of two that make them at once one is dropped.
            let _ = self.cells.set((0..CELLS).map(|_| AtomicU32::new(0)).collect());
        }
        let Some(cell) = self.cells.get().and_then(|cells| cells.get(cell_of(value))) else { return };
        match exclusive {
            true => cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release),
            false => drop(cell.fetch_add(1, Ordering::Release)),
        }
    }

    /// Empties the cells of an earlier age. False if the caller must not fill them.
    fn begin(&self, now: u64) -> bool {
        let before = self.number.load(Ordering::Relaxed);
        if before >= now {
            return before == now;
        }
        if self.number.compare_exchange(before, EMPTYING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return self.number.load(Ordering::Acquire) == now;
        }
        // Readers that see an emptied cell also see the mark that the age is being emptied.
        fence(Ordering::Release);
        for cell in self.cells.get().into_iter().flatten() {
            cell.store(0, Ordering::Relaxed);
        }
        self.number.store(now, Ordering::Release);
        true
    }

    fn merge_into(&self, recent: &mut BTreeMap<usize, u64>, now: u64) {
        let number = self.number.load(Ordering::Acquire);
        // An age that began after the reader read the clock counts too.
        let is_recent = number != 0 && number != EMPTYING && number.saturating_add(AGES as u64) > now;
        let Some(cells) = self.cells.get().filter(|_| is_recent) else { return };
        let counts = cells.iter().map(|cell| cell.load(Ordering::Relaxed)).enumerate();
        let counts: Vec<(usize, u32)> = counts.filter(|(_, count)| *count > 0).collect();
        fence(Ordering::Acquire);
        if self.number.load(Ordering::Relaxed) == number {
            for (cell, count) in counts {
                *recent.entry(cell).or_default() += u64::from(count);
            }
        }
    }
}

impl SummaryReading {
    /// The value below or at which the part `quantile` of the last minute's values lies; `None` if there were none.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let all: u64 = self.recent.values().sum();
        let rank = ((all as f64 * quantile).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        let found = self.recent.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        found.map(|(cell, _)| value_of(*cell))
    }

    pub fn add(&mut self, other: &SummaryReading) {
        self.count = self.count.wrapping_add(other.count);
        self.sum = self.sum.wrapping_add(other.sum);
        for (cell, count) in &other.recent {
            *self.recent.entry(*cell).or_default() += count;
        }
    }
}

/// Up to twice [`FINENESS`] each value has a cell, above that each doubling has [`FINENESS`] of them.
fn cell_of(value: u64) -> usize {
    let doublings = value.checked_ilog2().unwrap_or(0).saturating_sub(FINENESS_BITS);
    let cell = u64::from(doublings) * FINENESS + (value >> doublings);
    usize::try_from(cell).unwrap_or(CELLS).min(CELLS - 1)
}

/// The middle of a cell.
fn value_of(cell: usize) -> f64 {
    let cell = cell as u64;
    let doublings = (cell / FINENESS).saturating_sub(1);
    let least = (cell - doublings * FINENESS) << doublings;
    let width = 1u64 << doublings;
    least as f64 + (width - 1) as f64 / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(window: &Window, now: u64) -> SummaryReading {
        let mut reading = SummaryReading::default();
        window.merge_into(&mut reading, now);
        reading
    }

    #[test]
    fn cells_follow_each_other_and_are_narrow() {
        let mut before = 0;
        for value in 0..200_000u64 {
            let cell = cell_of(value);
            assert!(cell == before || cell == before + 1, "{value}");
            before = cell;
            let shown = value_of(cell);
            assert!((shown - value as f64).abs() <= value as f64 / 63.0, "{value} shows as {shown}");
        }
        for value in 0..64 {
            assert_eq!(value_of(cell_of(value)), value as f64);
        }
        for bits in 6..36 {
            let value = (1u64 << bits) + (1 << (bits - 1)) + 1;
            assert!((value_of(cell_of(value)) / value as f64 - 1.0).abs() < 1.0 / 63.0, "{value}");
        }
        assert_eq!([1 << 36, u64::MAX].map(cell_of), [CELLS - 1; 2]);
        assert_eq!(cell_of((1 << 36) - 1), CELLS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let window = Window::default();
        (1..=1000u64).rev().for_each(|value| window.observe(value * 10, 1, true));
        let reading = read(&window, 1);
        for (quantile, expected) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0), (0.999, 9_990.0), (1.0, 10_000.0)]
        {
            let shown = reading.quantile(quantile).unwrap();
            assert!((shown / expected - 1.0f64).abs() < 0.016, "{quantile}: {shown}");
        }
        assert_eq!(reading.quantile(0.0), Some(10.0));
        assert_eq!((reading.count, reading.sum), (1000, 5_005_000));
    }

    #[test]
    fn a_minute_later_the_quantiles_are_gone_and_the_sums_are_not() {
        let window = Window::default();
        window.observe(7, 3, true);
        window.observe(9, 5, true);
        assert_eq!(read(&window, 5).quantile(0.5), Some(7.0));
        assert_eq!(read(&window, 7).quantile(0.5), Some(7.0));
        assert_eq!(read(&window, 8).quantile(0.5), Some(9.0), "the first one is over");
        assert_eq!(read(&window, 9).quantile(0.5), Some(9.0));
        let late = read(&window, 10);
        assert_eq!((late.quantile(0.5), late.count, late.sum), (None, 2, 16));
    }

    /// The place of an age is taken by the one five later, and nothing of the former is left in it.
    #[test]
    fn an_age_that_comes_again_is_empty() {
        let window = Window::default();
        (0..10).for_each(|_| window.observe(5, 2, true));
        window.observe(40, 7, true);
        assert_eq!(read(&window, 7).quantile(0.0), Some(40.0));
        // A writer that read the clock long ago.
        window.observe(5, 2, true);
        assert_eq!(read(&window, 7).quantile(0.0), Some(40.0));
        assert_eq!(read(&window, 7).count, 12);
    }

    #[test]
    fn writers_that_share_a_window_meet_in_a_new_age() {
        let window = Window::default();
        let gate = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for age in 1..200 {
                        gate.wait();
                        window.observe(9, age, false);
                        let reading = read(&window, age);
                        assert!(reading.recent.keys().all(|cell| *cell == 9));
                    }
                });
            }
        });
        let reading = read(&window, 199);
        assert_eq!((reading.count, reading.sum), (4 * 199, 9 * 4 * 199));
        let recent: u64 = reading.recent.values().sum();
        assert!((AGES as u64..=4 * AGES as u64).contains(&recent), "{recent}");
    }
}
