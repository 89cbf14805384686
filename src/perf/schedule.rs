//! When the requests of an open loop are due: pure arithmetic, whatever becomes of the requests.
//!
//! Times are computed from the begin, not from one another, so a constant rate does not drift however long it lasts,
//! and a thread that was late finds all that has become due meanwhile.

use std::time::Duration;

use super::plan::{Spacing, Times};

const SECOND_NS: f64 = 1e9;

/// The times of one thread's requests.
#[derive(Debug, Clone)]
pub struct Schedule {
    began_ns: u64,
    arrivals: Arrivals,
    next_ns: u64,
}

#[derive(Debug, Clone)]
enum Arrivals {
    /// The `n`th of this thread is due `(first + n · step) / rate` after the begin.
    Constant {
        rate: f64,
        first: u64,
        step: u64,
        count: u64,
    },
    Poisson {
        rate: f64,
        random: Random,
        offset_ns: f64,
    },
    /// Times in one round, of which this thread takes every `step`th, counted through all rounds.
    Given {
        times_ns: Vec<u64>,
        round_ns: u64,
        next: u64,
        step: u64,
    },
}

/// Which part of all requests a thread sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub thread: usize,
    pub threads: usize,
}

impl Schedule {
    /// `rate` is that of all threads together.
    pub fn at_rate(rate: f64, spacing: Spacing, share: Share, seed: u64, began_ns: u64) -> Schedule {
        let (first, step) = (share.thread as u64, share.threads.max(1) as u64);
        let arrivals = match spacing {
            Spacing::Constant => Arrivals::Constant { rate, first, step, count: 0 },
            // Independent Poisson processes add up to one.
            Spacing::Poisson => Arrivals::Poisson {
                rate: rate / step as f64,
                random: Random::new(seed.wrapping_add(first.wrapping_mul(0x9E37_79B9_7F4A_7C15))),
                offset_ns: 0.0,
            },
        };
        Schedule::starting(arrivals, began_ns)
    }

    /// The first request is due one interval after the begin. Intervals of nothing but zeros would never end a round.
    pub fn of_intervals(intervals: &[Duration], share: Share, began_ns: u64) -> Option<Schedule> {
        let mut end_ns = 0u64;
        let ends = intervals.iter().map(|interval| {
            end_ns = end_ns.saturating_add(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX));
            end_ns
        });
        let ends_ns: Vec<u64> = ends.collect();
        let round_ns = ends_ns.last().copied().filter(|round_ns| *round_ns > 0)?;
        Some(Schedule::in_rounds(ends_ns, round_ns, share, began_ns))
    }

    /// The first request is due at the begin. Requests that all come at once would never end a round.
    pub fn of_times(times: &Times, share: Share, began_ns: u64) -> Option<Schedule> {
        let round_ns = times.round_ns()?;
        Some(Schedule::in_rounds(times.due_ns().collect(), round_ns, share, began_ns))
    }

    fn in_rounds(times_ns: Vec<u64>, round_ns: u64, share: Share, began_ns: u64) -> Schedule {
        let (next, step) = (share.thread as u64, share.threads.max(1) as u64);
        Schedule::starting(Arrivals::Given { times_ns, round_ns, next, step }, began_ns)
    }

    fn starting(arrivals: Arrivals, began_ns: u64) -> Schedule {
        let mut schedule = Schedule { began_ns, arrivals, next_ns: 0 };
        schedule.next_ns = schedule.find_next();
        schedule
    }

    /// When the next request is due.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// That request is taken care of.
    pub fn advance(&mut self) {
        self.next_ns = self.find_next();
    }

    fn find_next(&mut self) -> u64 {
        let offset_ns = match &mut self.arrivals {
            Arrivals::Constant { rate, first, step, count } => {
                let number = first.saturating_add(count.saturating_mul(*step));
                *count += 1;
                (number as f64 * SECOND_NS / *rate) as u64
            }
            Arrivals::Poisson { rate, random, offset_ns } => {
                *offset_ns += -random.open_unit().ln() / *rate * SECOND_NS;
                *offset_ns as u64
            }
            Arrivals::Given { times_ns, round_ns, next, step } => {
                let (len, number) = (times_ns.len() as u64, *next);
                *next = next.saturating_add(*step);
                let time_ns = times_ns.get((number % len.max(1)) as usize).copied().unwrap_or_default();
                (number / len.max(1)).saturating_mul(*round_ns).saturating_add(time_ns)
            }
        };
        self.began_ns.saturating_add(offset_ns)
    }
}

/// Numbers that look random and are the same each time: SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, at most 1.
    pub fn open_unit(&mut self) -> f64 {
        ((self.number() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(mut schedule: Schedule, count: usize) -> Vec<u64> {
        let take = |_| {
            let at_ns = schedule.next_ns();
            schedule.advance();
            at_ns
        };
        (0..count).map(take).collect()
    }

    #[test]
    fn a_constant_rate_does_not_drift_and_threads_share_it() {
        let share = |thread, threads| Share { thread, threads };
        let one = Schedule::at_rate(3.0, Spacing::Constant, share(0, 1), 0, 7);
        let all = times(one, 3_000_001);
        assert_eq!(all[..4], [7, 333_333_340, 666_666_673, 1_000_000_007]);
        assert_eq!(all[3_000_000], 1_000_000 * 1_000_000_000 + 7);
        let mut shared: Vec<u64> = (0..2)
            .flat_map(|thread| times(Schedule::at_rate(3.0, Spacing::Constant, share(thread, 2), 0, 7), 5))
            .collect();
        shared.sort_unstable();
        assert_eq!(shared, all[..10]);
    }

    #[test]
    fn poisson_spacing_has_its_rate_and_its_spread() {
        let share = Share { thread: 1, threads: 2 };
        let count = 100_000;
        let all = times(Schedule::at_rate(2000.0, Spacing::Poisson, share, 42, 0), count);
        assert!(all.is_sorted());
        let gaps: Vec<f64> = all.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "an exponential's deviation is its mean");
        assert_eq!(all, times(Schedule::at_rate(2000.0, Spacing::Poisson, share, 42, 0), count), "the seed decides");
        let other = Share { thread: 0, threads: 2 };
        assert_ne!(all[..5], times(Schedule::at_rate(2000.0, Spacing::Poisson, other, 42, 0), 5));
    }

    #[test]
    fn given_intervals_are_repeated() {
        let intervals = [Duration::from_nanos(10), Duration::ZERO, Duration::from_nanos(5)];
        let alone = Schedule::of_intervals(&intervals, Share { thread: 0, threads: 1 }, 100).unwrap();
        assert_eq!(times(alone, 7), [110, 110, 115, 125, 125, 130, 140]);
        let second = Schedule::of_intervals(&intervals, Share { thread: 1, threads: 2 }, 100).unwrap();
        assert_eq!(times(second, 3), [110, 125, 130]);
        let alone = Share { thread: 0, threads: 1 };
        assert!(Schedule::of_intervals(&[], alone, 0).is_none());
        assert!(Schedule::of_intervals(&[Duration::ZERO; 3], alone, 0).is_none());
        let long = Schedule::of_intervals(&[Duration::MAX, Duration::MAX], alone, 5).unwrap();
        assert_eq!(times(long, 3), [u64::MAX; 3]);
    }

    #[test]
    fn recorded_times_are_repeated_and_the_first_is_due_at_once() {
        let recorded = Times { offsets: [0, 40, 60].map(Duration::from_nanos).to_vec(), speed: 2.0 };
        let alone = Schedule::of_times(&recorded, Share { thread: 0, threads: 1 }, 100).unwrap();
        assert_eq!(times(alone, 7), [100, 120, 130, 145, 165, 175, 190]);
        let second = Schedule::of_times(&recorded, Share { thread: 1, threads: 2 }, 100).unwrap();
        assert_eq!(times(second, 3), [120, 145, 175]);
        let at_once = Times { offsets: vec![Duration::ZERO; 2], speed: 1.0 };
        assert!(Schedule::of_times(&at_once, Share { thread: 0, threads: 1 }, 0).is_none());
    }
}
