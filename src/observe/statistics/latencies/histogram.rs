//! A histogram of whole numbers with bounds chosen by the configuration.

use super::Bounds;
use crate::statistics::slot::Counter;

/// The histogram of one writer.
#[derive(Debug)]
pub struct Histogram {
    bounds: Bounds,
    /// The counts of each bucket alone; one more than there are bounds.
    counts: Box<[Counter]>,
    sum: Counter,
}

/// The sum over writers.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramReading {
    pub bounds: Bounds,
    /// The counts of each bucket alone; one more than there are bounds.
    pub counts: Vec<u64>,
    pub sum: u64,
}

impl Histogram {
    pub fn new(bounds: &Bounds) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Histogram { bounds: bounds.clone(), counts, sum: Counter::default() }
    }

    /// A value on a bound lies in the bucket below it.
    pub fn observe(&self, value: u64, exclusive: bool) {
        let bucket = self.bounds.partition_point(|bound| *bound < value as f64);
        self.sum.add(value, exclusive);
        if let Some(count) = self.counts.get(bucket) {
            count.add(1, exclusive);
        }
    }

    pub fn merge_into(&self, sum: &mut HistogramReading) {
        for (count, sum) in self.counts.iter().zip(&mut sum.counts) {
            *sum = sum.wrapping_add(count.get());
        }
        sum.sum = sum.sum.wrapping_add(self.sum.get());
    }
}

impl HistogramReading {
    pub fn empty(bounds: &Bounds) -> HistogramReading {
        HistogramReading { bounds: bounds.clone(), counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    /// Adds a reading with the same bounds; one with other bounds is left out, because they cannot be added.
    pub fn add(&mut self, other: &HistogramReading) {
        if self.bounds != other.bounds {
            return;
        }
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.wrapping_add(*count);
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_belong_to_the_bucket_below_them() {
        let bounds: Bounds = [-1.0, 0.5, 10.0, 1e300].into();
        let histogram = Histogram::new(&bounds);
        for value in [0, 1, 10, 11, u64::MAX] {
            histogram.observe(value, true);
        }
        let mut reading = HistogramReading::empty(&bounds);
        histogram.merge_into(&mut reading);
        assert_eq!(reading.counts, [0, 1, 2, 2, 0]);
        assert_eq!(reading.count(), 5);
        assert_eq!(reading.sum, 21, "sums are modulo 2^64");
    }

    #[test]
    fn histograms_of_other_bounds_do_not_add_up() {
        let (one, other): (Bounds, Bounds) = ([1.0].into(), [2.0].into());
        let mut sum = HistogramReading { counts: vec![1, 1], ..HistogramReading::empty(&one) };
        sum.add(&HistogramReading { counts: vec![5, 5], ..HistogramReading::empty(&other) });
        assert_eq!(sum.counts, [1, 1]);
        sum.add(&HistogramReading { counts: vec![5, 6], ..HistogramReading::empty(&one) });
        assert_eq!(sum.counts, [6, 7]);
    }
}
