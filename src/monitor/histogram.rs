//! Cumulative histograms of a page, their differences, and quantiles of these.

/// Buckets that one histogram may have; further ones are left out.
pub const BUCKETS_MAX: usize = 1_025;

/// Counts below upper bounds, as Prometheus has them: cumulative, the last bound is +Inf.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// Ascending upper bounds with the count of observations up to them.
    buckets: Vec<(f64, f64)>,
    pub count: f64,
    pub sum: f64,
}

/// A quantile out of buckets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantile {
    /// Interpolated within its bucket.
    At(f64),
    /// More than the largest finite bound.
    Above(f64),
}

impl Quantile {
    /// For sorting: the value, or the bound that it lies above.
    pub fn least(self) -> f64 {
        match self {
            Quantile::At(value) | Quantile::Above(value) => value,
        }
    }
}

impl Histogram {
    /// Adds the count of a bucket: that of a first or another series of the same histogram.
    pub fn add_bucket(&mut self, bound: f64, count: f64) {
        if bound.is_nan() || !count.is_finite() {
            return;
        }
        match self.buckets.binary_search_by(|(known, _)| known.total_cmp(&bound)) {
            Ok(at) => {
                if let Some((_, sum)) = self.buckets.get_mut(at) {
                    *sum += count;
                }
            }
            Err(at) if self.buckets.len() < BUCKETS_MAX => self.buckets.insert(at, (bound, count)),
            Err(_) => {}
        }
    }

    /// Adds another histogram. Where their bounds differ, quantiles of the sum are of no use.
    pub fn add(&mut self, other: &Histogram) {
        other.buckets.iter().for_each(|(bound, count)| self.add_bucket(*bound, *count));
        self.count += other.count;
        self.sum += other.sum;
    }

    /// What was observed since `earlier`.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let before = |bound: f64| {
            let found = earlier.buckets.binary_search_by(|(known, _)| known.total_cmp(&bound)).ok();
            found.and_then(|at| earlier.buckets.get(at)).map_or(0.0, |(_, count)| *count)
        };
        Histogram {
            buckets: self.buckets.iter().map(|(bound, count)| (*bound, (count - before(*bound)).max(0.0))).collect(),
            count: (self.count - earlier.count).max(0.0),
            sum: (self.sum - earlier.sum).max(0.0),
        }
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// The value below which the part `q` of the observations lies; none without observations.
    pub fn quantile(&self, q: f64) -> Option<Quantile> {
        let total = self.buckets.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
        let rank = q.clamp(0.0, 1.0) * total;
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            if *count >= rank && *count > 0.0 {
                if bound.is_infinite() {
                    return Some(Quantile::Above(lower));
                }
                let inside = count - below;
                let part = if inside > 0.0 { (rank - below) / inside } else { 1.0 };
                return Some(Quantile::At(lower + (bound - lower) * part));
            }
            (lower, below) = (*bound, *count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(buckets: &[(f64, f64)]) -> Histogram {
        let mut histogram = Histogram::default();
        buckets.iter().for_each(|(bound, count)| histogram.add_bucket(*bound, *count));
        histogram
    }

    const INF: f64 = f64::INFINITY;

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let some = histogram(&[(INF, 10.0), (32.0, 8.0), (16.0, 4.0)]);
        assert_eq!(some.quantile(0.2), Some(Quantile::At(8.0)));
        assert_eq!(some.quantile(0.4), Some(Quantile::At(16.0)));
        assert_eq!(some.quantile(0.6), Some(Quantile::At(24.0)));
        assert_eq!(some.quantile(0.99), Some(Quantile::Above(32.0)));
        assert_eq!(histogram(&[(16.0, 0.0), (INF, 0.0)]).quantile(0.5), None);
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(histogram(&[(16.0, 0.0), (32.0, 2.0), (INF, 2.0)]).quantile(0.0), Some(Quantile::At(16.0)));
    }

    #[test]
    fn differences_and_sums_go_bucket_by_bucket() {
        let (before, mut now) = (histogram(&[(16.0, 1.0), (INF, 1.0)]), histogram(&[(16.0, 1.0), (INF, 1.0)]));
        now.add(&histogram(&[(16.0, 2.0), (32.0, 5.0), (INF, 5.0)]));
        now.count = 6.0;
        let since = now.since(&before);
        assert_eq!(since.buckets, [(16.0, 2.0), (32.0, 5.0), (INF, 5.0)]);
        assert_eq!((since.count, since.mean()), (6.0, Some(0.0)));
        // A page that a server made up does not make figures negative.
        assert_eq!(before.since(&now).quantile(0.5), None);
    }

    #[test]
    fn buckets_are_bounded_and_nonsense_is_left_out() {
        let mut many = Histogram::default();
        (0..2 * BUCKETS_MAX).for_each(|bound| many.add_bucket(bound as f64, 1.0));
        many.add_bucket(f64::NAN, 1.0);
        many.add_bucket(1.0, f64::INFINITY);
        assert_eq!((many.buckets.len(), many.buckets[1]), (BUCKETS_MAX, (1.0, 1.0)));
    }
}
