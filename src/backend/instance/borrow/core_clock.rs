//! What a run that looks long really took: the time for which the kernel kept its thread waiting for a core is not its.
//!
//! The kernel counts that wait for each thread since its start. A look at the counter costs a system call, so the
//! thread looks only if a run looks long, and before a run if its last look is old. What it waited since the last look
//! bounds what it waited in the run; all other time of the run was work, so that every long run is judged. The
//! counter's descriptor is opened once for each thread.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::time::{ClockId, clock_gettime};

/// How old the last look may be at the beginning of a run. What the thread waited since then, before the run, is taken
/// for a wait in the run; looks that are never older cost a thousandth of the time.
const LOOK_AGE_MAX_NS: u64 = 1_000_000;
/// Three numbers and their separators.
const SCHEDSTAT_BYTES_MAX: usize = 128;

thread_local! {
    static CLOCK: RefCell<Option<CoreClock>> = const { RefCell::new(None) };
}

/// Before a run of this thread.
pub(super) fn prepare(now_ns: u64) {
    // Without the clock, at the end of a thread, a long run is a long run.
    let _ = CLOCK.try_with(|clock| {
        clock.borrow_mut().get_or_insert_with(|| CoreClock::of_this_thread(now_ns)).prepare(now_ns);
    });
}

/// What a run of this thread took that looks as if it took `run_ns` and has just ended.
pub(super) fn work_ns(run_ns: u64, now_ns: u64) -> u64 {
    let work_ns = CLOCK.try_with(|clock| clock.borrow_mut().as_mut().map(|clock| clock.work_ns(run_ns, now_ns)));
    work_ns.ok().flatten().unwrap_or(run_ns)
}

struct CoreClock {
    schedstat: Option<File>,
    last: Look,
    looked_ns: u64,
}

/// Sums since the thread started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// How long it could have run and had no core.
    Waited(u64),
    /// Where the kernel does not count that: its CPU time. Time for which a run slept is not seen then.
    Used(u64),
}

impl Look {
    /// What a run took at least, of the time between two looks.
    fn work_ns(self, before: Look, run_ns: u64) -> u64 {
        match (before, self) {
            (Look::Waited(before_ns), Look::Waited(ns)) => run_ns.saturating_sub(ns.saturating_sub(before_ns)),
            (Look::Used(before_ns), Look::Used(ns)) => run_ns.min(ns.saturating_sub(before_ns)),
            // The counter came or went.
            _ => run_ns,
        }
    }
}

impl CoreClock {
    fn of_this_thread(now_ns: u64) -> CoreClock {
        let mut clock = CoreClock {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            last: Look::Waited(0),
            looked_ns: now_ns,
        };
        clock.last = clock.look();
        clock
    }

    fn prepare(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.looked_ns) >= LOOK_AGE_MAX_NS {
            (self.last, self.looked_ns) = (self.look(), now_ns);
        }
    }

    fn work_ns(&mut self, run_ns: u64, now_ns: u64) -> u64 {
        let before = self.last;
        (self.last, self.looked_ns) = (self.look(), now_ns);
        self.last.work_ns(before, run_ns)
    }

    fn look(&self) -> Look {
        self.waited_ns().map_or_else(|| Look::Used(cpu_ns()), Look::Waited)
    }

    fn waited_ns(&self) -> Option<u64> {
        let mut bytes = [0; SCHEDSTAT_BYTES_MAX];
        let count = self.schedstat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        waited_ns(std::str::from_utf8(bytes.get(..count)?).ok()?)
    }
}

/// The second of `CPU time, wait for a core, time slices`. Without a time slice nothing is counted: a thread that reads
/// has had one.
fn waited_ns(text: &str) -> Option<u64> {
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
    let (_, waited_ns, slices) = (numbers.next()??, numbers.next()??, numbers.next()??);
    (slices > 0).then_some(waited_ns)
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let [seconds, ns] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_clock::now_ns;

    #[test]
    fn a_wait_since_the_last_look_is_no_work_and_the_rest_is() {
        let waited = |before, now, run_ns| Look::Waited(now).work_ns(Look::Waited(before), run_ns);
        assert_eq!(waited(100, 100, 900), 900);
        assert_eq!(waited(100, 500, 900), 500);
        assert_eq!(waited(100, 5_000, 900), 0);
        let used = |before, now, run_ns| Look::Used(now).work_ns(Look::Used(before), run_ns);
        assert_eq!((used(100, 150, 900), used(100, 5_000, 900)), (50, 900));
        assert_eq!(Look::Used(9).work_ns(Look::Waited(1), 900), 900);
    }

    #[test]
    fn counters_of_the_scheduler_are_read() {
        for (text, ns) in [("500 2241243 1\n", Some(2_241_243)), ("0 0 3", Some(0)), ("0 0 0\n", None), ("7 8", None)] {
            assert_eq!(waited_ns(text), ns, "{text:?}");
        }
    }

    /// A run that computes for so long, by its CPU time, is long: each one, whatever the host is busy with.
    #[test]
    fn every_run_that_computes_is_long() {
        for _ in 0..20 {
            let since_ns = now_ns();
            prepare(since_ns);
            let began_ns = cpu_ns();
            while cpu_ns() - began_ns < 3_000_000 {
                std::hint::spin_loop();
            }
            let ended_ns = now_ns();
            // A wait before the run, since a look that was younger than a millisecond, may be taken for one in it.
            let work_ns = work_ns(ended_ns - since_ns, ended_ns);
            assert!(work_ns >= 3_000_000 - LOOK_AGE_MAX_NS, "{work_ns}");
        }
    }

    #[test]
    fn the_counter_is_looked_at_again_once_the_look_is_old() {
        let mut clock = CoreClock::of_this_thread(1_000);
        for (now_ns, looked_ns) in [(1_500, 1_000), (LOOK_AGE_MAX_NS + 1_000, LOOK_AGE_MAX_NS + 1_000)] {
            clock.prepare(now_ns);
            assert_eq!(clock.looked_ns, looked_ns);
        }
        clock.work_ns(5, LOOK_AGE_MAX_NS + 2_000);
        assert_eq!(clock.looked_ns, LOOK_AGE_MAX_NS + 2_000);
    }
}
