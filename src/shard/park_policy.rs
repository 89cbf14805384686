//! When an idle shard spins and when it parks, and which of its waits count.

use super::engine::Waited;
use nereid_queue::waits::Waits;
use nereid_queue::{AdaptiveSpin, Spin};

/// A wait that took less found what it waited for: to put a thread to sleep and to wake it takes longer.
const SLEEP_NS: u64 = 5_000;

/// When an idle shard stops spinning and parks: at once, unless its last waits were short.
#[derive(Debug)]
pub struct ParkPolicy {
    spin: AdaptiveSpin,
    wait: Option<Wait>,
}

/// The wait of a shard for its next work.
#[derive(Debug)]
struct Wait {
    since_ns: u64,
    spins_for_ns: u64,
    /// It spins, and none of that was taken from what it may.
    is_spinning: bool,
    has_slept: bool,
}

impl Wait {
    fn new(since_ns: u64, spins_for_ns: u64) -> Wait {
        Wait { since_ns, spins_for_ns, is_spinning: spins_for_ns > 0, has_slept: false }
    }

    /// How long it has spun by then; 0 where that is known already.
    fn end_spin(&mut self, now_ns: u64) -> u64 {
        let is_spinning = std::mem::replace(&mut self.is_spinning, false);
        if is_spinning { now_ns.saturating_sub(self.since_ns) } else { 0 }
    }
}

impl ParkPolicy {
    /// Sleeps and spins are counted in `waits`.
    pub fn new(spin: Spin, waits: &'static Waits) -> ParkPolicy {
        ParkPolicy { spin: AdaptiveSpin::new(spin, waits), wait: None }
    }

    /// Whether the next turn may park, once it has done what the last one brought. `moved`: the last turn had work;
    /// `waited`: it was ready to wait, for so long.
    pub fn may_park(&mut self, moved: bool, waited: Option<Waited>, now_ns: u64) -> bool {
        if let Some(waited) = waited {
            self.record_park(waited, now_ns);
        }
        if moved {
            if let Some(mut wait) = self.wait.take() {
                self.spin.spend(wait.end_spin(now_ns));
                self.spin.record_wait(now_ns.saturating_sub(wait.since_ns), wait.has_slept);
            }
            return self.spin.limit_ns(now_ns) == 0;
        }
        let spin = &mut self.spin;
        let wait = self.wait.get_or_insert_with(|| Wait::new(now_ns, spin.limit_ns(now_ns)));
        now_ns.saturating_sub(wait.since_ns) >= wait.spins_for_ns
    }

    /// A park that may have been only the time of its sends is neither a sleep nor a wait from which to learn.
    fn record_park(&mut self, waited: Waited, now_ns: u64) {
        let began_ns = now_ns.saturating_sub(waited.most_ns);
        let is_sleep = waited.least_ns >= SLEEP_NS;
        if self.wait.is_none() && (is_sleep || waited.most_ns.saturating_sub(waited.least_ns) < SLEEP_NS) {
            self.wait = Some(Wait::new(began_ns, 0));
        }
        let Some(wait) = &mut self.wait else { return };
        self.spin.spend(wait.end_spin(began_ns));
        if is_sleep {
            wait.has_slept = true;
            self.spin.waits().count_sleep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With counts of its own.
    fn policy(spin: Spin) -> ParkPolicy {
        ParkPolicy::new(spin, Box::leak(Box::new(Waits::new())))
    }

    fn waited(ns: u64) -> Option<Waited> {
        Some(Waited::exactly(ns))
    }

    #[test]
    fn a_park_policy_spins_for_its_time_and_then_parks() {
        let mut park_policy = policy(Spin::new(100_000, 1));
        assert!(park_policy.may_park(false, None, 900_000), "no short wait is recorded");
        assert!(!park_policy.may_park(true, waited(10_000), 920_000), "that one was short");
        assert!(!park_policy.may_park(false, None, 1_000_000));
        assert!(!park_policy.may_park(false, None, 1_099_999));
        assert!(park_policy.may_park(false, None, 1_100_000));
        assert!(park_policy.may_park(false, None, 1_101_000), "still idle");
        assert!(!park_policy.may_park(true, waited(SLEEP_NS), 1_106_000));
        assert!(!park_policy.may_park(false, None, 1_107_000), "that wait was short but for the wake-up");
        assert!(!park_policy.may_park(true, None, 1_110_000));
        assert!(!park_policy.may_park(false, None, 1_111_000));
        assert!(park_policy.may_park(true, waited(7_800_000), 9_000_000), "a pause is what to expect now");
        assert!(park_policy.may_park(false, None, 9_001_000));
        assert!(policy(Spin::default()).may_park(false, None, 7));
    }

    #[test]
    fn a_wait_that_takes_no_time_is_no_sleep() {
        let mut park_policy = policy(Spin::default());
        let has_slept = |park_policy: &ParkPolicy| park_policy.wait.as_ref().map(|wait| wait.has_slept);
        park_policy.may_park(false, waited(SLEEP_NS - 1), 100_000);
        assert_eq!(has_slept(&park_policy), Some(false));
        park_policy.may_park(false, waited(SLEEP_NS), 200_000);
        assert_eq!(has_slept(&park_policy), Some(true));
        park_policy.may_park(true, waited(1), 300_000);
        assert_eq!(has_slept(&park_policy), None);
        assert_eq!(park_policy.spin.waits().sleeps(), 1);
    }

    /// On a busy shard the call that would wait sends answers, and the next requests are there when it has.
    #[test]
    fn the_time_of_a_send_is_no_wait() {
        let mut park_policy = policy(Spin::new(100_000, 1));
        let sent = |most_ns: u64| Some(Waited { least_ns: most_ns.saturating_sub(10_000), most_ns });
        for now_ns in (1..50).map(|turn| turn * 20_000) {
            assert!(park_policy.may_park(true, sent(10_000 + SLEEP_NS - 1), now_ns), "nothing is expected of it");
            assert!(park_policy.wait.is_none());
        }
        assert_eq!(park_policy.spin.waits().sleeps(), 0);
        assert!(!park_policy.may_park(true, sent(10_000 + SLEEP_NS), 2_000_000), "that was a sleep, and a short one");
        assert_eq!(park_policy.spin.waits().sleeps(), 1);
    }

    /// Of a spin that ends in several parks only the time before the first one was spun.
    #[test]
    fn a_spin_is_counted_once() {
        let mut wait = Wait::new(1_000, 50);
        assert_eq!([wait.end_spin(1_060), wait.end_spin(2_000)], [60, 0]);
        assert_eq!(Wait::new(1_000, 0).end_spin(2_000), 0);
    }

    #[test]
    fn a_shard_that_does_not_spin_may_park_behind_its_work() {
        let mut park_policy = policy(Spin::default());
        assert!(park_policy.may_park(true, None, 10) && park_policy.may_park(true, waited(5), 20));
    }

    #[test]
    fn the_time_of_spins_is_taken_from_their_share() {
        // Of every 100 ns one may spin for 10; 100 ms are its memory.
        let mut park_policy = policy(Spin::limited(100, 1, 10));
        let (mut now_ns, mut spun_ns) = (1, 0);
        for _ in 0..2_000_000 {
            // Work always comes after 50 ns.
            match park_policy.may_park(true, None, now_ns) {
                true => {
                    now_ns += 50;
                    park_policy.may_park(true, waited(50), now_ns);
                }
                false => {
                    park_policy.may_park(false, None, now_ns);
                    now_ns += 50;
                    spun_ns += 50;
                    park_policy.may_park(true, None, now_ns);
                }
            }
        }
        let share_ns = now_ns / 10;
        assert!((share_ns * 9 / 10..=share_ns + 150).contains(&spun_ns), "{spun_ns} ns of {now_ns} ns");
    }
}
