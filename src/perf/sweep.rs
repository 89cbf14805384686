//! The order of a sweep's load points: step by step, or by halving when the highest load within a latency is wanted.

use super::measurement::LoadPoint;
use super::plan::{Load, Rules, Sweep};

/// Loads that a sweep without an end tries at most.
const POINTS_MAX: usize = 100_000;

/// Chooses the next point by the outcome of the last one.
#[derive(Debug)]
pub struct Course {
    kind: Kind,
    way: Way,
    tried: usize,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Concurrency,
    Rate,
    Intervals,
}

#[derive(Debug)]
enum Way {
    /// Ends when a point is beyond the threshold.
    Steps {
        next: f64,
        end: f64,
        step: f64,
    },
    /// Everything up to `low` was within the threshold, `high` is the next to try beyond. The ends come first.
    Halving {
        low: f64,
        high: f64,
        step: f64,
        stage: Stage,
    },
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Start,
    End,
    Between(f64),
}

impl Course {
    /// A plan that was checked has sensible numbers: start and step above 0, an end not below the start.
    pub fn new(load: &Load, rules: &Rules) -> Course {
        let (kind, start, end, step) = match load {
            Load::Concurrency(Sweep { start, end, step }) => {
                (Kind::Concurrency, *start as f64, end.map(|end| end as f64), *step as f64)
            }
            Load::Rate { sweep: Sweep { start, end, step }, .. } => (Kind::Rate, *start, *end, *step),
            Load::Intervals(intervals) => {
                let total: f64 = intervals.iter().map(|interval| interval.as_secs_f64()).sum();
                let rate = if total > 0.0 { intervals.len() as f64 / total } else { 0.0 };
                (Kind::Intervals, rate, Some(rate), 1.0)
            }
            Load::Recorded(times) => (Kind::Intervals, times.rate(), Some(times.rate()), 1.0),
        };
        let way = match end {
            Some(end) if rules.binary_search => Way::Halving { low: start, high: end, step, stage: Stage::Start },
            end => Way::Steps { next: start, end: end.unwrap_or(f64::INFINITY), step },
        };
        Course { kind, way, tried: 0 }
    }

    /// The point to measure now.
    pub fn point(&self) -> Option<LoadPoint> {
        if self.tried >= POINTS_MAX {
            return None;
        }
        let load = match &self.way {
            // Adding tenths ten times does not make one.
            Way::Steps { next, end, step } => (*next <= *end + *step * 1e-9).then_some(*next),
            Way::Halving { low, high, stage, .. } => Some(match stage {
                Stage::Start => *low,
                Stage::End => *high,
                Stage::Between(load) => *load,
            }),
            Way::Over => None,
        }?;
        Some(match self.kind {
            Kind::Concurrency => LoadPoint::Concurrency(load as usize),
            Kind::Rate => LoadPoint::Rate(load),
            Kind::Intervals => LoadPoint::Intervals(load),
        })
    }

    /// That point is void: it says nothing of the server, and its latency is the client's. A sweep with an end goes on;
    /// a search, and a sweep that ends where the server is too slow, look no higher.
    pub fn void(&mut self) {
        let has_end = matches!(&self.way, Way::Steps { end, .. } if end.is_finite());
        self.measured(has_end);
    }

    /// That point was measured: was it within the latency threshold, and could it be kept up?
    pub fn measured(&mut self, within: bool) {
        self.tried += 1;
        let whole = matches!(self.kind, Kind::Concurrency);
        self.way = match std::mem::replace(&mut self.way, Way::Over) {
            Way::Steps { next, end, step } if within => Way::Steps { next: next + step, end, step },
            Way::Halving { low, high, step, stage } => match stage {
                Stage::Start if within && high > low => Way::Halving { low, high, step, stage: Stage::End },
                Stage::End if !within => between(low, high, step, whole),
                Stage::Between(load) if within => between(load, high, step, whole),
                Stage::Between(load) => between(low, load, step, whole),
                _ => Way::Over,
            },
            _ => Way::Over,
        };
    }
}

fn between(low: f64, high: f64, step: f64, whole: bool) -> Way {
    let middle = (low + high) / 2.0;
    let middle = if whole { middle.floor() } else { middle };
    if high - low <= step || middle <= low {
        return Way::Over;
    }
    Way::Halving { low, high, step, stage: Stage::Between(middle) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::Spacing;

    fn walk(load: &Load, rules: &Rules, within: impl Fn(f64) -> bool) -> Vec<f64> {
        let mut course = Course::new(load, rules);
        let mut points = Vec::new();
        while let Some(point) = course.point() {
            let load = match point {
                LoadPoint::Concurrency(n) => n as f64,
                LoadPoint::Rate(rate) | LoadPoint::Intervals(rate) => rate,
            };
            points.push(load);
            course.measured(within(load));
        }
        points
    }

    fn concurrency(start: usize, end: Option<usize>, step: usize) -> Load {
        Load::Concurrency(Sweep { start, end, step })
    }

    #[test]
    fn steps_go_to_the_end_or_past_the_threshold_once() {
        let rules = Rules::default();
        assert_eq!(walk(&concurrency(1, Some(7), 2), &rules, |_| true), [1.0, 3.0, 5.0, 7.0]);
        assert_eq!(walk(&concurrency(4, Some(4), 1), &rules, |_| true), [4.0]);
        assert_eq!(walk(&concurrency(1, None, 3), &rules, |n| n < 9.0), [1.0, 4.0, 7.0, 10.0]);
        assert_eq!(walk(&concurrency(1, Some(9), 1), &rules, |n| n < 3.0), [1.0, 2.0, 3.0]);
        let rate = Load::Rate { sweep: Sweep { start: 0.1, end: Some(0.5), step: 0.1 }, spacing: Spacing::Constant };
        assert_eq!(walk(&rate, &rules, |_| true).len(), 5);
        let intervals = Load::Intervals(vec![Duration::from_millis(10), Duration::from_millis(30)]);
        assert_eq!(walk(&intervals, &rules, |_| true), [50.0]);
    }

    /// The loads that are tried where all from `void_from` on are void.
    fn walk_with_void(load: &Load, rules: &Rules, void_from: f64) -> Vec<LoadPoint> {
        let mut course = Course::new(load, rules);
        let mut points = Vec::new();
        while let Some(point) = course.point() {
            points.push(point);
            match point {
                LoadPoint::Concurrency(n) if (n as f64) >= void_from => course.void(),
                _ => course.measured(true),
            }
        }
        points
    }

    #[test]
    fn a_void_point_ends_no_sweep_that_has_an_end() {
        let loads = |all: &[usize]| all.iter().map(|n| LoadPoint::Concurrency(*n)).collect::<Vec<_>>();
        let rules = Rules { latency_threshold: Some(Duration::from_millis(5)), ..Rules::default() };
        assert_eq!(walk_with_void(&concurrency(1, Some(4), 1), &rules, 2.0), loads(&[1, 2, 3, 4]));
        assert_eq!(walk_with_void(&concurrency(1, None, 1), &rules, 3.0), loads(&[1, 2, 3]));
        let halving = Rules { binary_search: true, ..rules };
        assert_eq!(walk_with_void(&concurrency(1, Some(8), 1), &halving, 3.0), loads(&[1, 8, 4, 2, 3]));
    }

    #[test]
    fn halving_finds_the_highest_load_within_the_threshold() {
        let rules = Rules { binary_search: true, ..Rules::default() };
        let load = concurrency(1, Some(64), 1);
        for highest in [1.0, 2.0, 17.0, 63.0, 64.0] {
            let points = walk(&load, &rules, |n| n <= highest);
            let best = points.iter().copied().filter(|n| *n <= highest).fold(0.0, f64::max);
            assert_eq!(best, highest, "{points:?}");
            assert!(points.len() <= 9, "{points:?}");
        }
        assert_eq!(walk(&load, &rules, |_| false), [1.0]);
        assert_eq!(walk(&concurrency(5, Some(5), 1), &rules, |_| true), [5.0]);
        let rate =
            Load::Rate { sweep: Sweep { start: 100.0, end: Some(200.0), step: 30.0 }, spacing: Spacing::Poisson };
        assert_eq!(walk(&rate, &rules, |rate| rate < 160.0), [100.0, 200.0, 150.0, 175.0]);
    }
}
