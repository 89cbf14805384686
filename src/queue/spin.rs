//! Spinning: which threads may poll for work instead of sleeping, for how long, and whether it pays.
//!
//! A wake-up costs 20–25 µs, a read of memory nothing; so a thread that expects its next work sooner than that had
//! better poll for it. It predicts that from its last waits. Polling takes a core that other threads may need: a
//! permission belongs to a set of cores, counts the threads that work there, and lets none spin on the last of them.
//! Where threads do not have the cores for themselves, each may spin for a share of its time only.

use std::sync::Arc;

use super::sync::{AtomicUsize, Ordering};
use super::waits::Waits;

/// The permission to spin of the threads on one set of cores; clones share it. The default forbids spinning.
#[derive(Debug, Clone, Default)]
pub struct Spin(Option<Arc<Cores>>);

#[derive(Debug)]
struct Cores {
    budget_ns: u64,
    count: usize,
    /// Of its time, what one thread may spin for; 100: there is no bound.
    percent: u32,
    /// Other threads may need these cores while one spins.
    are_shared: bool,
    /// Threads that work or spin there.
    busy: AtomicUsize,
}

/// Counts one core as in use for as long as it lives.
#[derive(Debug)]
pub struct CoreInUse(Spin);

impl Spin {
    /// Polling longer than this never pays: about twice what a wake-up costs.
    pub const BUDGET_NS: u64 = 50_000;
    /// The same where other threads may need the core: about what a wake-up costs.
    pub const SHORT_NS: u64 = 20_000;
    /// The share of its time for which a thread may spin there, in percent.
    pub const SHORT_PERCENT: u32 = 5;

    /// Threads on `cores` cores may spin for `budget_ns` at a time; 0 of either forbids it.
    pub fn new(budget_ns: u64, cores: usize) -> Spin {
        Spin::limited(budget_ns, cores, 100)
    }

    /// The same, but each thread spins for `percent` of its time at most; 0 forbids it, 100 and more is no bound.
    pub fn limited(budget_ns: u64, cores: usize, percent: u32) -> Spin {
        Spin::on(budget_ns, cores, percent, false)
    }

    /// The same on cores that other threads may need.
    pub fn on_shared_cores(budget_ns: u64, cores: usize, percent: u32) -> Spin {
        Spin::on(budget_ns, cores, percent, true)
    }

    fn on(budget_ns: u64, count: usize, percent: u32, are_shared: bool) -> Spin {
        let is_allowed = budget_ns > 0 && count > 0 && percent > 0;
        let cores = || Cores { budget_ns, count, percent, are_shared, busy: AtomicUsize::new(0) };
        Spin(is_allowed.then(|| Arc::new(cores())))
    }

    pub fn is_allowed(&self) -> bool {
        self.0.is_some()
    }

    /// 0 if spinning is forbidden.
    pub fn budget_ns(&self) -> u64 {
        self.0.as_ref().map_or(0, |cores| cores.budget_ns)
    }

    /// Spinning is allowed on cores that other threads may need.
    pub fn is_on_shared_cores(&self) -> bool {
        self.0.as_ref().is_some_and(|cores| cores.are_shared)
    }

    /// Spins need not be counted: the cores are those of the threads that spin, and no share of time bounds them.
    pub fn is_unbounded(&self) -> bool {
        self.0.as_ref().is_some_and(|cores| !cores.are_shared && cores.percent >= 100)
    }

    fn percent(&self) -> u32 {
        self.0.as_ref().map_or(0, |cores| cores.percent)
    }

    /// Counts a core for the caller, which is about to work, however many threads spin.
    pub fn work(&self) -> CoreInUse {
        if let Some(cores) = &self.0 {
            cores.busy.fetch_add(1, Ordering::Relaxed);
        }
        CoreInUse(self.clone())
    }

    /// A core to spin on; `None` if all are in use.
    pub fn enter(&self) -> Option<CoreInUse> {
        let cores = self.0.as_ref()?;
        // A plain count: of threads that come at the same time, one may see too many, and then sleeps.
        if cores.busy.fetch_add(1, Ordering::Relaxed) < cores.count {
            return Some(CoreInUse(self.clone()));
        }
        cores.busy.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for CoreInUse {
    fn drop(&mut self) {
        if let Some(cores) = &self.0.0 {
            cores.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The record that one thread keeps of its waits, to decide how long to spin.
#[derive(Debug)]
pub struct AdaptiveSpin {
    spin: Spin,
    /// An exponential average.
    expected_ns: u64,
    allowance: Allowance,
    /// Where its spins are counted.
    waits: &'static Waits,
}

/// What a thread may still spin: a share of the time that has passed. It may be overdrawn, because a spin can take
/// longer than it was meant to, by no more than can be saved: a thread that lost its core while it spun, or a host that
/// was suspended, does not forbid spinning for long.
#[derive(Debug)]
struct Allowance {
    percent: u32,
    left_ns: i64,
    earned_until_ns: Option<u64>,
}

/// The time whose share a thread can save up.
const SAVED_OVER_NS: u64 = 100_000_000;

impl Allowance {
    fn new(percent: u32) -> Allowance {
        Allowance { percent, left_ns: 0, earned_until_ns: None }
    }

    fn is_bound(&self) -> bool {
        self.percent < 100
    }

    /// The share of a time, which counts up to the time that can be saved.
    fn share_ns(&self, of_ns: u64) -> i64 {
        (of_ns.min(SAVED_OVER_NS) * u64::from(self.percent) / 100) as i64
    }

    /// How long a spin may take that is meant to take so long: no longer than what can be saved, or it would never
    /// begin; 0 if that is not saved yet.
    fn permitted_ns(&mut self, spin_ns: u64, now_ns: u64) -> u64 {
        if !self.is_bound() {
            return spin_ns;
        }
        let most_ns = self.share_ns(SAVED_OVER_NS);
        // A new thread has saved nothing.
        let since_ns = self.earned_until_ns.unwrap_or(now_ns);
        let earned_ns = self.share_ns(now_ns.saturating_sub(since_ns));
        // What is less than a nanosecond is not lost: it is earned by a later call.
        if earned_ns > 0 || self.earned_until_ns.is_none() {
            self.earned_until_ns = Some(now_ns);
            self.left_ns = self.left_ns.saturating_add(earned_ns).min(most_ns);
        }
        let spin_ns = spin_ns.min(most_ns.unsigned_abs());
        if self.left_ns >= 0 && spin_ns <= self.left_ns.unsigned_abs() { spin_ns } else { 0 }
    }

    fn spend(&mut self, spun_ns: u64) {
        if self.is_bound() {
            let most_ns = self.share_ns(SAVED_OVER_NS);
            self.left_ns = self.left_ns.saturating_sub_unsigned(spun_ns).max(-most_ns);
        }
    }
}

/// The last wait's weight in the average: one in this many.
const WEIGHT: u64 = 4;
/// A wait counts as this many budgets at most, so that a few short waits outweigh a pause.
const LONGEST_BUDGETS: u64 = 4;
/// Polls between two reads of the clock.
const POLLS: u32 = 16;

impl AdaptiveSpin {
    /// A new thread sleeps until its recorded waits are short. Its spins are counted in `waits`.
    pub fn new(spin: Spin, waits: &'static Waits) -> AdaptiveSpin {
        let (expected_ns, allowance) = (spin.budget_ns(), Allowance::new(spin.percent()));
        AdaptiveSpin { spin, expected_ns, allowance, waits }
    }

    /// Where its spins are counted, and the thread's sleeps should be.
    pub fn waits(&self) -> &'static Waits {
        self.waits
    }

    /// How long to spin before the next sleep; 0: not at all.
    pub fn limit_ns(&mut self, now_ns: u64) -> u64 {
        if self.expects_work() { self.allowance.permitted_ns(self.spin.budget_ns(), now_ns) } else { 0 }
    }

    /// The last waits were short.
    fn expects_work(&self) -> bool {
        self.expected_ns < self.spin.budget_ns()
    }

    /// The thread has spun for so long, outside [`spin_until`](AdaptiveSpin::spin_until).
    pub fn spend(&mut self, spun_ns: u64) {
        self.allowance.spend(spun_ns);
        self.waits.count_spin(spun_ns);
    }

    /// Records a wait. Of a wait that ended in a sleep, the wake-up is left out: without the sleep there would be none.
    pub fn record_wait(&mut self, waited_ns: u64, has_slept: bool) {
        let budget_ns = self.spin.budget_ns();
        let wake_up_ns = if has_slept { budget_ns / 2 } else { 0 };
        let waited_ns = waited_ns.saturating_sub(wake_up_ns).min(budget_ns.saturating_mul(LONGEST_BUDGETS));
        self.expected_ns = self.expected_ns - self.expected_ns / WEIGHT + waited_ns / WEIGHT;
    }

    /// Polls until `is_over` returns true, for as long as spinning pays and at most until `until_ns`. True if it
    /// returned true.
    pub fn spin_until(
        &mut self,
        until_ns: Option<u64>,
        clock: impl Fn() -> u64,
        mut is_over: impl FnMut() -> bool,
    ) -> bool {
        if !self.expects_work() {
            return false;
        }
        let spin = self.spin.clone();
        let Some(_core) = spin.enter() else { return false };
        let began_ns = clock();
        let limit_ns = self.limit_ns(began_ns);
        if limit_ns == 0 {
            return false;
        }
        let until_ns = began_ns.saturating_add(limit_ns).min(until_ns.unwrap_or(u64::MAX));
        let mut poll = || {
            for _ in 0..POLLS {
                if is_over() {
                    return true;
                }
                std::hint::spin_loop();
            }
            false
        };
        let (is_seen, ended_ns) = loop {
            let (is_seen, now_ns) = (poll(), clock());
            if is_seen || now_ns >= until_ns {
                break (is_seen, now_ns);
            }
        };
        self.spend(ended_ns.saturating_sub(began_ns));
        is_seen
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    const BUDGET: u64 = 1_000;

    /// With counts of its own.
    fn adaptive(spin: Spin) -> AdaptiveSpin {
        AdaptiveSpin::new(spin, Box::leak(Box::new(Waits::new())))
    }

    fn after_waits(waits: &[(u64, bool)]) -> AdaptiveSpin {
        let mut adaptive = adaptive(Spin::new(BUDGET, 1));
        waits.iter().for_each(|(waited_ns, has_slept)| adaptive.record_wait(*waited_ns, *has_slept));
        adaptive
    }

    #[test]
    fn short_waits_are_spun_through_and_long_ones_slept_through() {
        assert_eq!(after_waits(&[]).limit_ns(1), 0, "no wait is recorded");
        assert_eq!(after_waits(&[(100, false)]).limit_ns(1), BUDGET);
        assert_eq!(after_waits(&[(100, false), (BUDGET * 100, false)]).limit_ns(1), 0, "one pause ends it");
        let mut after_pause = after_waits(&[(10, false), (u64::MAX, true)]);
        let rounds = (0..).take_while(|_| {
            after_pause.record_wait(100, true);
            after_pause.limit_ns(1) == 0
        });
        assert!(rounds.count() < 4, "and a few short waits bring it back");
        // Waits a little longer than the budget are never spun through.
        let mut adaptive = after_waits(&[]);
        for _ in 0..100 {
            adaptive.record_wait(BUDGET + BUDGET / 2 + 20, true);
            assert_eq!(adaptive.limit_ns(1), 0);
        }
    }

    #[test]
    fn a_wake_up_is_not_a_wait() {
        // Half a budget of each is the wake-up's.
        assert_eq!(after_waits(&[(BUDGET, true), (BUDGET, true)]).limit_ns(1), BUDGET);
        assert_eq!(after_waits(&[(BUDGET, false), (BUDGET, false)]).limit_ns(1), 0);
    }

    #[test]
    fn a_thread_that_must_not_spin_never_polls() {
        let mut adaptive = adaptive(Spin::default());
        adaptive.record_wait(1, false);
        assert_eq!(adaptive.limit_ns(1), 0);
        assert!(!adaptive.spin_until(None, || unreachable!(), || unreachable!()));
        assert!(!Spin::new(0, 4).is_allowed() && !Spin::new(1, 0).is_allowed());
        drop(Spin::default().work());
        assert!(Spin::default().enter().is_none());
    }

    #[test]
    fn no_thread_spins_where_all_cores_are_in_use() {
        let spin = Spin::new(BUDGET, 2);
        let (working, spinning) = (spin.work(), spin.enter());
        assert!(spinning.is_some() && spin.enter().is_none());
        let mut adaptive = adaptive(spin.clone());
        adaptive.record_wait(0, false);
        assert!(!adaptive.spin_until(None, || unreachable!(), || unreachable!()));
        drop(working);
        assert!(adaptive.spin_until(None, || 0, || true));
        // Work is done whatever it takes.
        let more = [spin.work(), spin.work(), spin.work()];
        drop((spinning, more));
        assert!(spin.enter().is_some());
    }

    #[test]
    fn a_spin_ends_with_its_condition_or_with_its_time() {
        let mut adaptive = after_waits(&[(100, false)]);
        let (now_ns, polls) = (Cell::new(5), Cell::new(0));
        let clock = || now_ns.replace(now_ns.get() + 100);
        let mut seen_at = |count: u32| {
            polls.set(0);
            adaptive.spin_until(None, clock, || polls.replace(polls.get() + 1) == count)
        };
        assert!(seen_at(0) && seen_at(POLLS * 3));
        assert!(!seen_at(u32::MAX));
        assert!((9..=11).contains(&(polls.get() / POLLS)), "{} polls", polls.get());
        let began_ns = now_ns.get();
        assert!(!adaptive.spin_until(Some(began_ns + 250), clock, || false));
        assert_eq!(now_ns.get(), began_ns + 400);
    }

    #[test]
    fn a_share_of_the_time_is_spun_through_and_no_more() {
        // A tenth: a spin of 1,000 ns needs 10,000 ns before it.
        let mut adaptive = adaptive(Spin::limited(BUDGET, 1, 10));
        adaptive.record_wait(0, false);
        assert_eq!(adaptive.limit_ns(5), 0, "nothing is saved yet");
        assert_eq!((adaptive.limit_ns(10_004), adaptive.limit_ns(10_015)), (0, BUDGET));
        adaptive.spend(BUDGET);
        assert_eq!((adaptive.waits().spun_ns(), adaptive.limit_ns(10_016)), (BUDGET, 0), "it is spent");
        // A spin that took longer than it was meant to is paid off first.
        adaptive.spend(BUDGET);
        assert_eq!((adaptive.limit_ns(30_000), adaptive.limit_ns(30_035)), (0, BUDGET));
        // After a pause there is what 100 ms save, whatever its length.
        assert_eq!(adaptive.limit_ns(u64::MAX), BUDGET);
        adaptive.spend(SAVED_OVER_NS / 10 - BUDGET);
        assert_eq!(adaptive.limit_ns(u64::MAX), BUDGET);
        adaptive.spend(1);
        assert_eq!(adaptive.limit_ns(u64::MAX), 0);
    }

    #[test]
    fn spins_of_a_share_are_counted_whether_they_pay_or_not() {
        let mut adaptive = adaptive(Spin::limited(BUDGET, 1, 10));
        adaptive.record_wait(0, false);
        let now_ns = Cell::new(5);
        let clock = || now_ns.replace(now_ns.get() + 100);
        assert!(!adaptive.spin_until(None, clock, || unreachable!("nothing is saved yet")));
        now_ns.set(19_005);
        assert!(adaptive.spin_until(None, clock, || true));
        assert_eq!(adaptive.waits().spun_ns(), 100);
        assert!(!adaptive.spin_until(None, clock, || false));
        assert_eq!(adaptive.waits().spun_ns(), 100 + BUDGET);
        assert!(!adaptive.spin_until(None, clock, || unreachable!("what is left is no whole spin")));
        assert!(!Spin::limited(BUDGET, 1, 0).is_allowed());
    }

    /// One that lost its core while it spun pays for no more than it could have saved.
    #[test]
    fn a_spin_without_end_is_forgotten() {
        let mut adaptive = adaptive(Spin::limited(BUDGET, 1, 10));
        adaptive.record_wait(0, false);
        assert_eq!(adaptive.limit_ns(0), 0);
        adaptive.spend(u64::MAX);
        assert_eq!(adaptive.limit_ns(SAVED_OVER_NS), 0, "what it saves meanwhile is what it owes");
        let after_ns = SAVED_OVER_NS + 10 * BUDGET;
        assert_eq!((adaptive.limit_ns(after_ns - 10), adaptive.limit_ns(after_ns)), (0, BUDGET));
    }

    /// A spin that is meant to take longer than can be saved would never begin: it takes what can be saved.
    #[test]
    fn no_spin_is_longer_than_what_can_be_saved() {
        let most_ns = SAVED_OVER_NS / 10;
        let mut adaptive = adaptive(Spin::limited(10 * most_ns, 1, 10));
        adaptive.record_wait(0, false);
        assert_eq!(adaptive.limit_ns(0), 0);
        assert_eq!((adaptive.limit_ns(SAVED_OVER_NS - 10), adaptive.limit_ns(SAVED_OVER_NS)), (0, most_ns));
        assert_eq!(adaptive.limit_ns(u64::MAX), most_ns);
    }

    #[test]
    fn a_share_of_all_time_does_not_make_shared_cores_own_ones() {
        let shared = Spin::on_shared_cores(BUDGET, 1, 100);
        assert!(shared.is_on_shared_cores() && !shared.is_unbounded());
        assert!(Spin::new(BUDGET, 1).is_unbounded() && !Spin::new(BUDGET, 1).is_on_shared_cores());
        assert!(!Spin::limited(BUDGET, 1, 99).is_unbounded() && !Spin::default().is_unbounded());
        assert!(!Spin::on_shared_cores(0, 1, 100).is_on_shared_cores(), "none spins");
    }
}
