//! [`TurnWatch`] logs turns of a shard that use more CPU time than they may, where `NEREID_TURN_BUDGET_US` is set.
//!
//! A long turn holds up every other connection of the shard. Time on the CPU is measured and not time that passes, so
//! that a busy host makes no turn look long; reading that clock is a system call, so that it is off by default.

use rustix::time::{ClockId, clock_gettime};
use tracing::warn;

/// Microseconds of CPU time that one turn may use; unset, nothing is measured.
pub const VARIABLE: &str = "NEREID_TURN_BUDGET_US";

/// Measures the turns of one shard.
#[derive(Debug)]
pub(super) struct TurnWatch {
    budget_ns: Option<u64>,
    name: String,
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

impl TurnWatch {
    pub fn of_process(name: &str) -> TurnWatch {
        let budget_us = std::env::var(VARIABLE).ok().and_then(|text| text.parse::<u64>().ok());
        TurnWatch { budget_ns: budget_us.map(|us| us.saturating_mul(1000)), name: name.to_owned() }
    }

    /// Runs a turn.
    pub fn measure<R>(&self, turn: impl FnOnce() -> R) -> R {
        let Some(budget_ns) = self.budget_ns else { return turn() };
        let before_ns = thread_cpu_ns();
        let outcome = turn();
        let used_ns = thread_cpu_ns().saturating_sub(before_ns);
        if used_ns > budget_ns {
            warn!("{}: a turn used {} us of CPU time", self.name, used_ns / 1000);
        }
        outcome
    }
}
