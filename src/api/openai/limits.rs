//! Token buckets: how many requests a key may send.

use std::sync::atomic::{AtomicU64, Ordering};

/// `--openai-rate-limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    /// Requests in a second.
    pub rate: f64,
    /// Requests at once, after a pause.
    pub burst: f64,
}

impl RateLimit {
    /// `RATE` or `RATE:BURST`, both above 0; the burst is otherwise a second's requests, and at least one.
    pub fn read(text: &str) -> Option<RateLimit> {
        let number = |text: &str| text.parse().ok().filter(|&number: &f64| number.is_finite() && number > 0.0);
        let (rate, burst) = match text.split_once(':') {
            Some((rate, burst)) => (number(rate)?, Some(number(burst)?)),
            None => (number(text)?, None),
        };
        Some(RateLimit { rate, burst: burst.unwrap_or(rate).max(1.0) })
    }
}

/// A bucket as the time at which it would be full again: one word, which threads change without a lock.
#[derive(Debug)]
pub struct Bucket {
    /// Time between two requests at the rate.
    interval_ns: u64,
    /// How far `full_at_ns` may be ahead of now.
    ahead_ns_max: u64,
    full_at_ns: AtomicU64,
}

impl Bucket {
    pub fn new(limit: RateLimit) -> Bucket {
        let interval_ns = (1e9 / limit.rate.max(1e-9)).clamp(1.0, 1e18) as u64;
        let ahead_ns_max = (interval_ns as f64 * limit.burst.max(1.0)).min(1e18) as u64;
        Bucket { interval_ns, ahead_ns_max, full_at_ns: AtomicU64::new(0) }
    }

    /// Takes one request; Err: the seconds after which there is room for one.
    pub fn take(&self, now_ns: u64) -> Result<(), u64> {
        let next = |full_at_ns: u64| {
            let full_at_ns = full_at_ns.max(now_ns).saturating_add(self.interval_ns);
            (full_at_ns - now_ns <= self.ahead_ns_max).then_some(full_at_ns)
        };
        // One word, which guards no other data.
        let taken = self.full_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.map(drop).map_err(|full_at_ns| {
            let over_ns = full_at_ns.saturating_add(self.interval_ns).saturating_sub(now_ns + self.ahead_ns_max);
            over_ns.div_ceil(1_000_000_000).max(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let bucket = Bucket::new(RateLimit { rate: 2.0, burst: 3.0 });
        let s = 1_000_000_000;
        let taken = |at_ns: u64| bucket.take(at_ns);
        assert_eq!([taken(s), taken(s), taken(s)], [Ok(()); 3]);
        assert_eq!(taken(s), Err(1));
        assert_eq!(taken(s + s / 2 - 1), Err(1), "a moment before there is room");
        assert_eq!(taken(s + s / 2), Ok(()));
        assert_eq!(taken(s + s / 2), Err(1));
        assert_eq!([taken(100 * s), taken(100 * s), taken(100 * s)], [Ok(()); 3], "a pause fills it");
        assert_eq!(taken(100 * s), Err(1), "up to the burst");
        let slow = Bucket::new(RateLimit { rate: 0.1, burst: 1.0 });
        assert_eq!((slow.take(s), slow.take(s), slow.take(4 * s)), (Ok(()), Err(10), Err(7)));
    }
}
