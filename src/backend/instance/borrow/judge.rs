//! Decides from the times of a worker's runs whether shards may run its instances themselves.
//!
//! The average decides, not one run: a run that another program interrupted is long on the clock, and says nothing.
//! So a run that looks too long only causes the next ones to be measured with the time for which the kernel kept the
//! thread waiting for a core. Where the average gets too long, shards leave the instances to their worker, and try
//! again later; each time it takes them longer.
//!
//! Sizes count as well: a shard runs only requests that are no larger than some that were short.

use nereid_clock::now_ns;

/// The weight of a run in the average: one of so many.
const AVERAGED_RUNS: i64 = 32;
/// Runs that are judged before shards may borrow, at first and at most.
const RUNS_MIN: u32 = 100;
const RUNS_MAX: u32 = 6_400;
/// The runs behind a long one that are measured closely.
const CLOSE_RUNS: u32 = 16;
/// How many times as many runs are not measured at all, after as many that were too long on average.
const RESTS: u32 = 15;

/// Judges the runs of one worker's instances. Used by the thread that runs them.
#[derive(Debug)]
pub(super) struct Judge {
    limit_ns: u64,
    /// Shards may borrow.
    is_earned: bool,
    average_ns: u64,
    /// Runs since the last decision.
    judged: u32,
    /// Runs that the next decision needs.
    needed: u32,
    /// Runs that are not measured.
    rest: u32,
    /// Runs that are measured closely.
    close: u32,
    /// The input bytes of the largest request that was short.
    bytes_max: usize,
}

/// The measurement of a run under way.
#[derive(Debug)]
pub(super) enum Run {
    Unmeasured,
    Timed {
        since_ns: u64,
    },
    /// With the time for which the thread waited for a core until then, if the kernel says it.
    Close {
        waited_ns: Option<u64>,
        since_ns: u64,
    },
}

/// What is run: how many requests, and the bytes of their inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub requests: usize,
    pub bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Earned,
    Lost,
}

impl Judge {
    pub fn new(limit_ns: u64) -> Judge {
        Judge {
            limit_ns,
            is_earned: false,
            average_ns: 0,
            judged: 0,
            needed: RUNS_MIN,
            rest: 0,
            close: 0,
            bytes_max: 0,
        }
    }

    /// The time of a run, on average.
    pub fn average_ns(&self) -> u64 {
        self.average_ns
    }

    pub fn limit_ns(&self) -> u64 {
        self.limit_ns
    }

    /// Whether a request with inputs of that size may be short.
    pub fn admits(&self, bytes: usize) -> bool {
        bytes <= self.bytes_max
    }

    pub fn begin(&mut self) -> Run {
        if let Some(rest) = self.rest.checked_sub(1) {
            self.rest = rest;
            return Run::Unmeasured;
        }
        if let Some(close) = self.close.checked_sub(1) {
            self.close = close;
            let waited_ns = waited_for_a_core_ns();
            return Run::Close { waited_ns, since_ns: now_ns() };
        }
        Run::Timed { since_ns: now_ns() }
    }

    pub fn end(&mut self, run: Run, size: Size) -> Option<Verdict> {
        let (run_ns, is_certain) = match run {
            Run::Unmeasured => return None,
            Run::Timed { since_ns } => {
                let run_ns = now_ns().saturating_sub(since_ns);
                (run_ns, run_ns <= self.limit_ns)
            }
            Run::Close { waited_ns, since_ns } => {
                let run_ns = now_ns().saturating_sub(since_ns);
                let after_ns = waited_ns.and_then(|before_ns| Some(waited_for_a_core_ns()?.saturating_sub(before_ns)));
                (run_ns.saturating_sub(after_ns.unwrap_or(0)), true)
            }
        };
        self.judge(run_ns, is_certain, size)
    }

    /// `is_certain`: the time is that of the run, without what the thread waited for a core.
    fn judge(&mut self, run_ns: u64, is_certain: bool, size: Size) -> Option<Verdict> {
        let is_short = run_ns <= self.limit_ns;
        // Shards run single requests, and none that is larger: such runs say something only if they are short.
        let is_of_others = size.requests != 1 || (self.is_earned && !self.admits(size.bytes));
        if !is_short && is_of_others {
            return None;
        }
        if !is_short {
            self.close = CLOSE_RUNS;
        }
        if !is_certain {
            return None;
        }
        if is_short {
            self.bytes_max = self.bytes_max.max(size.bytes);
        }
        self.average(run_ns);
        self.judged += 1;
        self.decide()
    }

    fn average(&mut self, run_ns: u64) {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let (average, run) = (signed(self.average_ns), signed(run_ns));
        let next = match self.average_ns {
            0 => run,
            _ => average.saturating_add((run - average) / AVERAGED_RUNS),
        };
        self.average_ns = next.max(0).unsigned_abs();
    }

    fn decide(&mut self) -> Option<Verdict> {
        let more = self.needed.saturating_mul(2).min(RUNS_MAX);
        if self.is_earned {
            // Twice the limit, so that an average close to it does not change its mind all the time.
            if self.average_ns > self.limit_ns.saturating_mul(2) {
                (self.is_earned, self.judged, self.bytes_max, self.needed) = (false, 0, 0, more);
                return Some(Verdict::Lost);
            }
            if self.judged >= self.needed.saturating_mul(RESTS) {
                (self.judged, self.needed) = (0, (self.needed / 2).max(RUNS_MIN));
            }
            return None;
        }
        if self.judged < self.needed {
            return None;
        }
        self.judged = 0;
        if self.average_ns <= self.limit_ns {
            self.is_earned = true;
            return Some(Verdict::Earned);
        }
        (self.rest, self.needed) = (self.needed.saturating_mul(RESTS), more);
        None
    }
}

/// How long this thread was ready and waited for a core, since its start; `None` if the kernel does not say it.
fn waited_for_a_core_ns() -> Option<u64> {
    let file = rustix::fs::open(
        "/proc/thread-self/schedstat",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let mut bytes = [0; 64];
    let count = rustix::io::read(file.ok()?, &mut bytes).ok()?;
    // Time on a core, time waiting for one, and the number of times.
    let text = std::str::from_utf8(bytes.get(..count)?).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests;
