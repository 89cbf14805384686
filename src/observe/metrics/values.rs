//! The values of custom metrics: numbers that any thread may change at any time, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::exposition::Value;

/// A number that only grows. Whole amounts are kept apart from the others, so that adding one is a single instruction
/// and exact.
#[derive(Default)]
pub struct Count {
    whole: AtomicU64,
    real_bits: AtomicU64,
}

impl Count {
    pub fn add_whole(&self, amount: u64) {
        self.whole.fetch_add(amount, Ordering::Relaxed);
    }

    pub fn add_real(&self, amount: f64) {
        add(&self.real_bits, amount);
    }

    pub fn read(&self) -> Value {
        let whole = self.whole.load(Ordering::Relaxed);
        match f64::from_bits(self.real_bits.load(Ordering::Relaxed)) {
            0.0 => Value::Integer(whole),
            real => Value::Real(whole as f64 + real),
        }
    }
}

/// A number that goes up and down.
#[derive(Default)]
pub struct Level {
    bits: AtomicU64,
}

impl Level {
    pub fn add(&self, amount: f64) {
        add(&self.bits, amount);
    }

    pub fn set(&self, value: f64) {
        self.bits.store(value.to_bits(), Ordering::Relaxed);
    }

    pub fn read(&self) -> Value {
        Value::Real(f64::from_bits(self.bits.load(Ordering::Relaxed)))
    }
}

/// How many of the observed values lie up to which bound, and their sum.
pub struct Distribution {
    /// Strictly increasing.
    bounds: Box<[f64]>,
    /// One more than there are bounds: the last one has none.
    counts: Box<[AtomicU64]>,
    sum_bits: AtomicU64,
}

impl Distribution {
    /// `bounds` are strictly increasing and finite.
    pub fn new(bounds: &[f64]) -> Distribution {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Distribution { bounds: bounds.into(), counts, sum_bits: AtomicU64::default() }
    }

    pub fn observe(&self, value: f64) {
        // NaN is not below any bound.
        let bucket = self.bounds.partition_point(|bound| value.is_nan() || *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        add(&self.sum_bits, value);
    }

    pub fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// The counts of each bucket alone.
    pub fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    pub fn sum(&self) -> Value {
        Value::Real(f64::from_bits(self.sum_bits.load(Ordering::Relaxed)))
    }
}

/// Adds to a floating-point number that is kept as its bits.
fn add(bits: &AtomicU64, amount: f64) {
    let sum = |bits| Some((f64::from_bits(bits) + amount).to_bits());
    // The update always returns a value.
    let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_up_to_its_bound_and_no_number_counts_above_all() {
        let distribution = Distribution::new(&[-1.0, 0.0, 2.5]);
        for value in [-5.0, -1.0, -0.5, 0.0, 2.5, 2.6, f64::INFINITY, f64::NEG_INFINITY] {
            distribution.observe(value);
        }
        assert_eq!(distribution.counts(), [3, 2, 1, 2]);
        distribution.observe(f64::NAN);
        assert_eq!(distribution.counts(), [3, 2, 1, 3]);
        let empty = Distribution::new(&[]);
        empty.observe(4.0);
        assert_eq!((empty.counts(), empty.sum()), (vec![1], Value::Real(4.0)));
    }

    #[test]
    fn nothing_is_lost_when_many_add_at_once() {
        let (count, level, distribution) = (Count::default(), Level::default(), Distribution::new(&[1.0]));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        count.add_real(0.5);
                        count.add_whole(1);
                        level.add(2.0);
                        level.add(-1.0);
                        distribution.observe(0.25);
                        distribution.observe(3.0);
                    }
                });
            }
        });
        assert_eq!((count.read(), level.read()), (Value::Real(6_000.0), Value::Real(4_000.0)));
        assert_eq!((distribution.counts(), distribution.sum()), (vec![4_000, 4_000], Value::Real(13_000.0)));
    }
}
