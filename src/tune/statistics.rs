//! Means with their confidence intervals, and the comparison of two configurations in pairs. Pure functions.
//!
//! A point's figures are the means of slices of time (batch means): requests of one slice depend on each other, because
//! they wait in one queue, but slices that are long against a request hardly do. The interval is that of Student's t
//! with one degree of freedom less than there are slices.

use serde::Serialize;

/// Quantiles of Student's t for a two-sided interval of 95 %, by degrees of freedom from 1.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The quantile for so many degrees of freedom; without one nothing is known.
pub fn t_quantile(degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY,
        1..=30 => T_95.get(degrees - 1).copied().unwrap_or(f64::INFINITY),
        // Within a thousandth of the exact value.
        _ => 1.96 + 2.4 / degrees as f64,
    }
}

/// A mean and how far the true one may lie from it, with a confidence of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Of one value the interval is everything. None of no value.
    pub fn of(values: &[f64]) -> Option<Interval> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        let half = match values.len() {
            1 => f64::INFINITY,
            more => t_quantile(more - 1) * (squares / (n - 1.0)).sqrt() / n.sqrt(),
        };
        Some(Interval { mean, low: mean - half, high: mean + half })
    }

    /// All of it lies below all of the other one.
    pub fn is_below(&self, other: &Interval) -> bool {
        self.high < other.low
    }

    /// The half of its width in parts of the mean.
    pub fn relative_half(&self) -> f64 {
        if self.mean == 0.0 { f64::INFINITY } else { (self.high - self.mean) / self.mean.abs() }
    }
}

/// How much better the second of each pair is, as a factor: the geometric mean of the quotients, with its interval.
/// Values of a pair were measured one after the other, so that what changes slowly on the machine changes both.
pub fn paired_gain(pairs: &[(f64, f64)]) -> Option<Interval> {
    let logs: Vec<f64> = pairs.iter().map(|(base, other)| (other / base).ln()).collect();
    let logs = Interval::of(&logs)?;
    Some(Interval { mean: logs.mean.exp(), low: logs.low.exp(), high: logs.high.exp() })
}

/// The value below which so many percent of the counted values lie; `counts` are values with how often they occurred,
/// in ascending order.
pub fn percentile(counts: &[(u64, u64)], percent: f64) -> Option<f64> {
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return None;
    }
    let wanted = ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total);
    let mut seen = 0;
    for (value, count) in counts {
        seen += count;
        if seen >= wanted {
            return Some(*value as f64);
        }
    }
    None
}

/// The most that the means of the groups differ from that of the first, in parts of it.
pub fn drift(groups: &[&[f64]]) -> f64 {
    let means = groups.iter().filter_map(|group| Interval::of(group)).map(|interval| interval.mean);
    let means: Vec<f64> = means.collect();
    match means.split_first() {
        Some((first, rest)) if *first != 0.0 => rest.iter().map(|mean| (mean / first - 1.0).abs()).fold(0.0, f64::max),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_the_width_of_students_t() {
        let interval = Interval::of(&[9.0, 10.0, 11.0]).unwrap();
        assert_eq!(interval.mean, 10.0);
        // t(2) times 1 / sqrt(3).
        assert!((interval.high - 10.0 - 4.303 / 3f64.sqrt()).abs() < 1e-9);
        assert!((interval.high + interval.low - 20.0).abs() < 1e-9);
        assert!(Interval::of(&[]).is_none() && Interval::of(&[f64::NAN]).is_none());
        assert_eq!(Interval::of(&[3.0]).unwrap().high, f64::INFINITY);
        let equal = Interval::of(&[5.0; 4]).unwrap();
        assert_eq!((equal.low, equal.high), (5.0, 5.0));
        assert!((t_quantile(31) - 2.0395).abs() < 3e-3 && (t_quantile(1000) - 1.9623).abs() < 1e-3);
    }

    #[test]
    fn intervals_are_apart_or_not() {
        let near = Interval { mean: 2.0, low: 1.0, high: 3.0 };
        let far = Interval { mean: 5.0, low: 3.5, high: 6.5 };
        assert!(near.is_below(&far) && !far.is_below(&near) && !near.is_below(&near));
    }

    #[test]
    fn pairs_are_compared_by_their_quotients() {
        let gain = paired_gain(&[(100.0, 200.0), (10.0, 20.0), (1.0, 2.0)]).unwrap();
        assert!((gain.mean - 2.0).abs() < 1e-9 && (gain.low - 2.0).abs() < 1e-9);
        let same = paired_gain(&[(100.0, 101.0), (100.0, 99.0), (100.0, 100.5), (100.0, 99.4)]).unwrap();
        assert!(same.low < 1.0 && same.high > 1.0);
        assert!(paired_gain(&[]).is_none() && paired_gain(&[(0.0, 1.0)]).is_none());
    }

    #[test]
    fn percentiles_count() {
        let counts = [(10, 50), (20, 49), (30, 1)];
        assert_eq!(percentile(&counts, 50.0), Some(10.0));
        assert_eq!(percentile(&counts, 99.0), Some(20.0));
        assert_eq!(percentile(&counts, 99.9), Some(30.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn drift_is_the_farthest_from_the_first() {
        assert!((drift(&[&[100.0, 100.0], &[102.0], &[93.0]]) - 0.07).abs() < 1e-9);
        assert_eq!(drift(&[]), 0.0);
        assert_eq!(drift(&[&[1.0]]), 0.0);
    }
}
