//! Decides from the times of a worker's runs whether shards may run its instances themselves.
//!
//! The average of all runs of a period decides, not one run: runs differ, and a few long ones among many short ones
//! cost less than handing all of them over. Time for which the kernel kept the thread waiting for a core is not counted
//! ([`core_clock`](super::core_clock)). Where the average gets too long, or one run is far too long, shards leave the
//! instances to their worker, and try again later; each time it takes them longer.
//!
//! Sizes count as well: a shard runs only requests that are no larger than some that were short. Runs that were
//! refused, cancelled or failed say nothing if they were short.

use super::core_clock;
use nereid_clock::now_ns;

/// Runs that are judged before shards may borrow, at first and at most.
const RUNS_MIN: u32 = 100;
const RUNS_MAX: u32 = 6_400;
/// The runs of a period while shards may borrow.
const PERIOD: u32 = 100;
/// A run of more than so many times the limit is far too long.
const FAR: u64 = 50;
/// How many times as many runs are not measured at all, after as many that were too long on average; and how many times
/// as many have to pass without a loss until half as many are needed after the next.
const RESTS: u32 = 15;
/// The log tells of losses no more often.
const TOLD_EVERY_NS: u64 = 60_000_000_000;

/// Judges the runs of one worker's instances. Used by the thread that runs them.
#[derive(Debug)]
pub(super) struct Judge {
    limit_ns: u64,
    /// Shards may borrow.
    is_earned: bool,
    period: Period,
    /// The last one that was decided.
    decided: Period,
    /// Runs that a decision needs before shards may borrow.
    needed: u32,
    /// Runs that are not measured.
    rest: u32,
    /// Runs since shards may borrow, or since `needed` became less.
    kept: u32,
    /// The input bytes of the largest request that was short.
    bytes_max: usize,
    /// When the log was last told of a loss.
    told_ns: Option<u64>,
}

/// All runs since the last decision.
#[derive(Debug, Clone, Copy, Default)]
struct Period {
    runs: u32,
    sum_ns: u64,
    longest_ns: u64,
}

/// The measurement of a run under way.
#[derive(Debug)]
pub(super) enum Run {
    Unmeasured,
    Timed { since_ns: u64 },
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

impl Period {
    fn add(&mut self, run_ns: u64) {
        self.runs = self.runs.saturating_add(1);
        self.sum_ns = self.sum_ns.saturating_add(run_ns);
        self.longest_ns = self.longest_ns.max(run_ns);
    }

    fn average_ns(&self) -> u64 {
        self.sum_ns / u64::from(self.runs.max(1))
    }
}

impl Judge {
    pub fn new(limit_ns: u64) -> Judge {
        Judge {
            limit_ns,
            is_earned: false,
            period: Period::default(),
            decided: Period::default(),
            needed: RUNS_MIN,
            rest: 0,
            kept: 0,
            bytes_max: 0,
            told_ns: None,
        }
    }

    /// The average and the longest run of the last period.
    pub fn decided_ns(&self) -> (u64, u64) {
        (self.decided.average_ns(), self.decided.longest_ns)
    }

    pub fn limit_ns(&self) -> u64 {
        self.limit_ns
    }

    /// Whether a request with inputs of that size may be short.
    pub fn admits(&self, bytes: usize) -> bool {
        bytes <= self.bytes_max
    }

    /// Whether the log is to be told of a loss at `now_ns`.
    pub fn tells(&mut self, now_ns: u64) -> bool {
        let is_due = self.told_ns.is_none_or(|told_ns| now_ns.saturating_sub(told_ns) >= TOLD_EVERY_NS);
        if is_due {
            self.told_ns = Some(now_ns);
        }
        is_due
    }

    pub fn begin(&mut self) -> Run {
        if let Some(rest) = self.rest.checked_sub(1) {
            self.rest = rest;
            return Run::Unmeasured;
        }
        let since_ns = now_ns();
        core_clock::prepare(since_ns);
        Run::Timed { since_ns }
    }

    /// `is_answered`: all requests were executed, with success.
    pub fn end(&mut self, run: Run, size: Size, is_answered: bool) -> Option<Verdict> {
        let Run::Timed { since_ns } = run else { return None };
        let now_ns = now_ns();
        let run_ns = now_ns.saturating_sub(since_ns);
        let run_ns = if run_ns <= self.limit_ns { run_ns } else { core_clock::work_ns(run_ns, now_ns) };
        self.judge(run_ns, size, is_answered)
    }

    fn judge(&mut self, run_ns: u64, size: Size, is_answered: bool) -> Option<Verdict> {
        if run_ns <= self.limit_ns {
            if !is_answered {
                return None;
            }
            self.bytes_max = self.bytes_max.max(size.bytes);
        } else if size.requests != 1 || (self.is_earned && !self.admits(size.bytes)) {
            // Shards run single requests, and none that is larger: such runs say something only if they are short.
            return None;
        }
        self.period.add(run_ns);
        self.decide()
    }

    fn decide(&mut self) -> Option<Verdict> {
        let is_far = self.period.longest_ns > self.limit_ns.saturating_mul(FAR);
        let more = self.needed.saturating_mul(2).min(RUNS_MAX);
        if self.is_earned {
            // Twice the limit, so that an average close to it does not change its mind all the time. Once the sum is
            // reached, no run of the rest of the period can change the average for the better.
            let sum_max_ns = self.limit_ns.saturating_mul(2).saturating_mul(PERIOD.into());
            if is_far || self.period.sum_ns > sum_max_ns {
                (self.is_earned, self.bytes_max, self.needed) = (false, 0, more);
                self.decided = std::mem::take(&mut self.period);
                return Some(Verdict::Lost);
            }
            if self.period.runs >= PERIOD {
                self.decided = std::mem::take(&mut self.period);
                self.kept = self.kept.saturating_add(PERIOD);
                if self.kept >= self.needed.saturating_mul(RESTS) {
                    (self.kept, self.needed) = (0, (self.needed / 2).max(RUNS_MIN));
                }
            }
            return None;
        }
        if self.period.runs < self.needed {
            return None;
        }
        self.decided = std::mem::take(&mut self.period);
        if !is_far && self.decided.average_ns() <= self.limit_ns {
            (self.is_earned, self.kept) = (true, 0);
            return Some(Verdict::Earned);
        }
        (self.rest, self.needed) = (self.needed.saturating_mul(RESTS), more);
        None
    }
}

#[cfg(test)]
mod tests;
