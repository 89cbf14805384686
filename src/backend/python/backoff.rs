//! How long an instance stays without a worker after a death.
//!
//! One death may be an accident, so the first successor starts at once. If workers of a model keep dying, the pauses
//! grow: every start costs an interpreter, its imports and the model's own initialisation.

use std::time::Duration;

/// A worker that lived for this long counts as healthy.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Backoff {
    /// Deaths in a row; 0 after a healthy worker.
    deaths: u32,
}

impl Backoff {
    /// The pause before the next start, after a worker that served for `lived`; 0 for one that never served.
    pub fn pause_after(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY_AFTER {
            self.deaths = 0;
        }
        let doublings = self.deaths.checked_sub(1);
        self.deaths = self.deaths.saturating_add(1);
        doublings.map_or(Duration::ZERO, |doublings| {
            FIRST.saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(LONGEST)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_health_ends_them() {
        let mut backoff = Backoff::default();
        let mut pauses = |lived: u64, count: usize| -> Vec<u64> {
            (0..count).map(|_| backoff.pause_after(Duration::from_secs(lived)).as_secs()).collect()
        };
        assert_eq!(pauses(3, 9), [0, 1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(pauses(10, 2), [0, 0], "healthy before it died");
        assert_eq!(pauses(9, 3), [1, 2, 4]);
        assert_eq!(pauses(0, 100).last(), Some(&30));
    }
}
