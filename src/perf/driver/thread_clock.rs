//! [`ThreadClock`] reads what a thread of the load used: CPU time, and the time in which it waited for a core.
//!
//! It is read at the ends of windows, on the thread itself, and costs a request nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::time::{ClockId, clock_gettime};

use super::SECOND_NS;
use crate::generator_limit::ThreadUsage;

/// Three numbers and their separators.
const SCHEDSTAT_BYTES_MAX: usize = 128;

/// Of the thread that made it.
pub struct ThreadClock {
    /// The scheduler's counters; none where the kernel has none.
    schedstat: Option<File>,
    cpu_ns: u64,
    run_queue_ns: Option<u64>,
}

impl ThreadClock {
    pub fn of_this_thread() -> ThreadClock {
        let schedstat = File::open("/proc/thread-self/schedstat").ok();
        let mut clock = ThreadClock { schedstat, cpu_ns: 0, run_queue_ns: None };
        clock.lap(0);
        clock
    }

    /// What was used since the last lap, which took `wall_ns`.
    pub fn lap(&mut self, wall_ns: u64) -> ThreadUsage {
        let (cpu_ns, run_queue_ns) = (cpu_ns(), self.read_run_queue_ns());
        let usage = ThreadUsage {
            wall_ns,
            cpu_ns: cpu_ns.saturating_sub(self.cpu_ns),
            run_queue_ns: run_queue_ns.zip(self.run_queue_ns).map(|(now, before)| now.saturating_sub(before)),
            spun_ns: 0,
        };
        (self.cpu_ns, self.run_queue_ns) = (cpu_ns, run_queue_ns);
        usage
    }

    fn read_run_queue_ns(&self) -> Option<u64> {
        let mut bytes = [0; SCHEDSTAT_BYTES_MAX];
        let n = self.schedstat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        run_queue_ns(std::str::from_utf8(bytes.get(..n)?).ok()?)
    }
}

/// CPU time of this thread.
pub(super) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * SECOND_NS + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The second of `CPU time, wait for a core, time slices`. Without a time slice nothing is counted: a thread that reads
/// has had one.
fn run_queue_ns(text: &str) -> Option<u64> {
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
    let (_, waited_ns, slices) = (numbers.next()??, numbers.next()??, numbers.next()??);
    (slices > 0).then_some(waited_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_scheduler_are_read() {
        for (text, ns) in [
            ("500 2241243 1\n", Some(2_241_243)),
            ("0 0 3\n", Some(0)),
            ("0 0 0\n", None),
            ("7 8\n", None),
            ("a b c\n", None),
            ("", None),
        ] {
            assert_eq!(run_queue_ns(text), ns, "{text:?}");
        }
    }

    #[test]
    fn a_lap_has_what_was_used_since_the_last_one() {
        let mut clock = ThreadClock::of_this_thread();
        let mut used_ns = 0;
        // As the clock of CPU time has it, whatever the host is busy with.
        while used_ns < 2_000_000 {
            used_ns += clock.lap(1).cpu_ns;
        }
        let before = clock.run_queue_ns;
        let usage = clock.lap(5);
        assert_eq!((usage.wall_ns, usage.run_queue_ns.is_some()), (5, before.is_some()));
    }
}
