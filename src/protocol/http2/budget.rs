//! Allowances for what a well-behaved peer does now and then and an attacker does all the time.
//!
//! A connection has no clock. An allowance is spent by suspicious events and earned back by useful ones; whoever owns
//! the connection may add to it as time passes.

use super::Config;

/// What the peer of a connection may still do.
#[derive(Debug)]
pub(super) struct Allowances {
    pub(super) abnormal_ends: Budget,
    pub(super) idle_frames: Budget,
    /// Bytes in the output that answer frames of the peer; an upper bound, as the output is taken in any portions.
    pub(super) replies_unsent: usize,
}

impl Allowances {
    pub(super) fn new(config: &Config) -> Allowances {
        Allowances {
            abnormal_ends: Budget::new(config.abnormal_ends_max),
            idle_frames: Budget::new(config.idle_frames_max),
            replies_unsent: 0,
        }
    }
}

/// A bounded number of events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    left: u32,
    most: u32,
}

impl Budget {
    pub(super) fn new(most: u32) -> Budget {
        Budget { left: most, most }
    }

    /// False if nothing is left to spend.
    #[must_use]
    pub(super) fn spend(&mut self) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        true
    }

    pub(super) fn earn(&mut self, events: u32) {
        self.left = self.left.saturating_add(events).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_and_recovers_up_to_its_bound() {
        let mut budget = Budget::new(2);
        assert!(budget.spend() && budget.spend() && !budget.spend());
        budget.earn(u32::MAX);
        assert!(budget.spend() && budget.spend() && !budget.spend());
    }
}
