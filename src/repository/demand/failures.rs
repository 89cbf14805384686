//! Loads on demand that failed: for how long they are not tried again.

use std::collections::HashMap;
use std::time::Duration;

use nereid_request::Status;

/// After the first failure, doubled by each further one.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);
/// Models that are remembered. Clients choose the names, so it is a bound.
const REMEMBERED_MAX: usize = 4096;
/// A failure is forgotten so long after its back-off.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);
/// Failed models whose files are looked at in one round.
const CHECKED_AT_ONCE: usize = 16;

/// Why a model does not serve after a load on demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// No repository has it.
    Unknown,
    Failed(Status),
}

#[derive(Debug)]
struct Failed {
    failure: Failure,
    /// One less than the loads that failed one after the other.
    doublings: u32,
    until_ns: u64,
    /// What the files were like before the load.
    stamp: u64,
    /// A request has come since the files were looked at.
    is_asked: bool,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Failures {
    of: HashMap<String, Failed>,
}

impl Failures {
    /// A load has failed. `stamp`: of the files that it read.
    pub fn failed(&mut self, now_ns: u64, name: &str, failure: Failure, stamp: u64) {
        let doublings = self.of.get(name).map_or(0, |before| (before.doublings + 1).min(16));
        let back_off = FIRST_BACK_OFF.saturating_mul(1 << doublings).min(LONGEST_BACK_OFF);
        if self.of.len() >= REMEMBERED_MAX && !self.of.contains_key(name) {
            let first = self.of.iter().min_by_key(|(_, failed)| failed.until_ns).map(|(name, _)| name.clone());
            first.and_then(|first| self.of.remove(&first));
        }
        let until_ns = now_ns.saturating_add(back_off.as_nanos() as u64);
        self.of.insert(name.to_owned(), Failed { failure, doublings, until_ns, stamp, is_asked: false });
    }

    /// Why a request is refused now; none: the model may be loaded.
    pub fn refuses(&mut self, now_ns: u64, name: &str) -> Option<&Failure> {
        let failed = self.of.get_mut(name).filter(|failed| now_ns < failed.until_ns)?;
        failed.is_asked = true;
        Some(&failed.failure)
    }

    /// The model serves, or its files changed, or a client loads it.
    pub fn forget(&mut self, name: &str) {
        self.of.remove(name);
    }

    /// Forgets what is long ago; the models that clients request in vain, whose files are to be looked at.
    pub fn take_asked(&mut self, now_ns: u64) -> Vec<(String, u64)> {
        let old = FORGOTTEN_AFTER.as_nanos() as u64;
        self.of.retain(|_, failed| now_ns < failed.until_ns.saturating_add(old));
        let asked = self.of.iter_mut().filter(|(_, failed)| failed.is_asked && now_ns < failed.until_ns);
        let check = |(name, failed): (&String, &mut Failed)| {
            failed.is_asked = false;
            (name.clone(), failed.stamp)
        };
        asked.take(CHECKED_AT_ONCE).map(check).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_back_off_doubles_up_to_a_minute() {
        let mut failures = Failures::default();
        let mut now_ns = 0;
        for secs in [1, 2, 4, 8, 16, 32, 60, 60] {
            failures.failed(now_ns, "m", Failure::Unknown, 0);
            assert!(failures.refuses(now_ns + secs * SECOND - 1, "m").is_some(), "{secs}");
            now_ns += secs * SECOND;
            assert!(failures.refuses(now_ns, "m").is_none(), "{secs}");
        }
        assert!(failures.refuses(0, "other").is_none());
        failures.forget("m");
        failures.failed(now_ns, "m", Failure::Unknown, 0);
        assert!(failures.refuses(now_ns + SECOND, "m").is_none(), "it served in between");
    }

    #[test]
    fn files_are_looked_at_only_where_clients_wait() {
        let mut failures = Failures::default();
        failures.failed(0, "asked", Failure::Unknown, 7);
        failures.failed(0, "quiet", Failure::Failed(Status::internal("broken")), 8);
        assert!(failures.take_asked(1).is_empty());
        assert_eq!(failures.refuses(1, "asked"), Some(&Failure::Unknown));
        assert_eq!(failures.take_asked(2), [("asked".to_owned(), 7)]);
        assert!(failures.take_asked(3).is_empty(), "once for a request");
        failures.refuses(4, "asked");
        assert!(failures.take_asked(2 * SECOND).is_empty(), "it may be loaded anyway");
        failures.take_asked(200 * SECOND);
        assert!(failures.of.is_empty());
    }

    #[test]
    fn names_of_clients_take_bounded_memory() {
        let mut failures = Failures::default();
        for at in 0..REMEMBERED_MAX + 100 {
            failures.failed(at as u64, &at.to_string(), Failure::Unknown, 0);
        }
        assert_eq!(failures.of.len(), REMEMBERED_MAX);
        assert!(failures.of.contains_key(&(REMEMBERED_MAX + 99).to_string()), "the newest stay");
    }
}
