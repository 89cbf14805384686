//! [`SchedulePace`] finds out whether a thread of an open loop had time to spare: it did where the next request was not
//! due yet when a turn of the thread ended.
//!
//! Counted from turn to turn, so that it can be asked in the middle of a window, when too many requests are outstanding
//! and either the server or the thread is to blame.

/// In parts of the time since the load began: a thread with less had none.
const SPARE_MIN: f64 = 0.05;

#[derive(Debug, Default)]
pub struct SchedulePace {
    began_ns: Option<u64>,
    /// When the last turn ended, and when the next request was due.
    rest: Option<(u64, u64)>,
    spare_ns: u64,
}

impl SchedulePace {
    pub fn turn_began(&mut self, now_ns: u64) {
        self.began_ns.get_or_insert(now_ns);
        if let Some((ended_ns, due_ns)) = self.rest.take() {
            // A thread that comes later than the request is due had no more time to spare.
            self.spare_ns += now_ns.min(due_ns).saturating_sub(ended_ns);
        }
    }

    pub fn turn_ended(&mut self, now_ns: u64, due_ns: u64) {
        self.rest = Some((now_ns, due_ns));
    }

    /// Of a turn that began at `now_ns`.
    pub fn had_no_time(&self, now_ns: u64) -> bool {
        let whole_ns = self.began_ns.map_or(0, |began_ns| now_ns.saturating_sub(began_ns));
        self.spare_ns as f64 <= SPARE_MIN * whole_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of 10, each of which begins when a request is due, but not before the last one has ended.
    fn had_no_time(every: u64) -> bool {
        let (mut pace, mut now) = (SchedulePace::default(), 1000);
        for turn in 1..=100 {
            pace.turn_began(now);
            let due = 1000 + turn * every;
            pace.turn_ended(now + 10, due);
            now = due.max(now + 10);
        }
        pace.turn_began(now);
        pace.had_no_time(now)
    }

    #[test]
    fn a_schedule_that_is_kept_leaves_time() {
        assert!(!had_no_time(100) && !had_no_time(12));
        assert!(had_no_time(10) && had_no_time(1));
    }

    #[test]
    fn what_is_late_was_not_spare() {
        let mut pace = SchedulePace::default();
        pace.turn_began(0);
        pace.turn_ended(10, 11);
        // The thread had no core meanwhile.
        pace.turn_began(500);
        assert!(pace.had_no_time(500));
    }

    #[test]
    fn the_first_turn_had_none() {
        let mut pace = SchedulePace::default();
        pace.turn_began(7);
        assert!(pace.had_no_time(7));
    }
}
