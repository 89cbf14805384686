//! [`SchedulePace`] finds out whether a thread of an open loop could keep its schedule, so that it can be asked when
//! too many requests are outstanding and either the server or the thread is to blame.
//!
//! A thread kept it if it had time to spare: the next request was not due yet when a turn ended. At high rates a thread
//! that never sleeps may keep it too, as it sends more in each turn; then the cost of a request in its best turn is
//! less than the time between two of them.

/// In parts of the time since the load began: a thread with less had none.
const SPARE_MIN: f64 = 0.05;

#[derive(Debug, Default)]
pub struct SchedulePace {
    began_ns: Option<u64>,
    turn_began_ns: u64,
    /// Requests of the present turn.
    launched: u64,
    last: Option<Turn>,
    spare_ns: u64,
    /// Requests taken up, and when the first and the last of them were due.
    due: u64,
    due_ns: Option<(u64, u64)>,
    /// The least time for a request of a turn that had places for all, and of one that had not.
    cost_ns: Option<f64>,
    cost_without_place_ns: Option<f64>,
}

/// One that has ended.
#[derive(Debug, Clone, Copy)]
struct Turn {
    began_ns: u64,
    ended_ns: u64,
    next_due_ns: u64,
    launched: u64,
    has_places: bool,
}

impl SchedulePace {
    pub fn turn_began(&mut self, now_ns: u64) {
        self.began_ns.get_or_insert(now_ns);
        self.turn_began_ns = now_ns;
        self.launched = 0;
        let Some(turn) = self.last.take() else { return };
        // A thread that comes later than the request is due had no more time to spare.
        self.spare_ns += now_ns.min(turn.next_due_ns).saturating_sub(turn.ended_ns);
        if turn.launched == 0 {
            return;
        }
        // Without a place it would have sent more in the same round of system calls: only its own part counts.
        let (until_ns, least_ns) = match turn.has_places {
            true => (now_ns, &mut self.cost_ns),
            false => (turn.ended_ns, &mut self.cost_without_place_ns),
        };
        let cost_ns = until_ns.saturating_sub(turn.began_ns) as f64 / turn.launched as f64;
        *least_ns = Some(least_ns.map_or(cost_ns, |least_ns| least_ns.min(cost_ns)));
    }

    /// A request was taken up.
    pub fn took_up(&mut self, due_ns: u64) {
        self.due += 1;
        self.due_ns = Some((self.due_ns.map_or(due_ns, |(first_ns, _)| first_ns), due_ns));
    }

    pub fn launched(&mut self) {
        self.launched += 1;
    }

    /// `has_places`: another request could have been sent.
    pub fn turn_ended(&mut self, now_ns: u64, next_due_ns: u64, has_places: bool) {
        let (began_ns, launched) = (self.turn_began_ns, self.launched);
        self.last = Some(Turn { began_ns, ended_ns: now_ns, next_due_ns, launched, has_places });
    }

    /// Whether the thread is why requests are outstanding, in a turn that began at `now_ns`.
    pub fn is_outrun(&self, now_ns: u64) -> bool {
        let whole_ns = self.began_ns.map_or(0, |began_ns| now_ns.saturating_sub(began_ns));
        let has_spare_time = self.spare_ns as f64 > SPARE_MIN * whole_ns as f64;
        let between_ns = match self.due_ns {
            Some((first_ns, last_ns)) if self.due > 1 => {
                last_ns.saturating_sub(first_ns) as f64 / (self.due - 1) as f64
            }
            _ => f64::INFINITY,
        };
        // Nothing was sent: the server is not to blame.
        let is_slower = self.cost_ns.or(self.cost_without_place_ns).is_none_or(|cost_ns| cost_ns > between_ns);
        !has_spare_time && is_slower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request is due every so many ns, and so many have a place. A turn takes 10 ns, and 5 more for each request
    /// that is sent.
    fn is_outrun(every_ns: u64, places: u64) -> bool {
        let (mut pace, mut now_ns, mut taken, mut waiting, mut left) = (SchedulePace::default(), 1000, 0, 0, places);
        // Turns of a thread that does not keep up get longer and longer.
        while taken < 1000 {
            pace.turn_began(now_ns);
            while 1000 + taken * every_ns <= now_ns {
                pace.took_up(1000 + taken * every_ns);
                (taken, waiting) = (taken + 1, waiting + 1);
            }
            let sent = waiting.min(left);
            (waiting, left) = (waiting - sent, left - sent);
            (0..sent).for_each(|_| pace.launched());
            now_ns += 9 + 5 * sent;
            let due_ns = 1000 + taken * every_ns;
            pace.turn_ended(now_ns, due_ns, left > 0);
            now_ns = due_ns.max(now_ns + 1);
        }
        pace.turn_began(now_ns);
        pace.is_outrun(now_ns)
    }

    #[test]
    fn a_schedule_that_is_kept_is_not_outrun() {
        for (every_ns, places) in [(100, 1 << 40), (100, 3), (20, 1 << 40)] {
            assert!(!is_outrun(every_ns, places), "{every_ns} {places}");
        }
    }

    #[test]
    fn a_thread_that_needs_more_than_there_is_between_requests_is_outrun() {
        for (every_ns, places) in [(4, 1 << 40), (1, 1 << 40), (1, 50), (1, 3)] {
            assert!(is_outrun(every_ns, places), "{every_ns} {places}");
        }
    }

    #[test]
    fn a_busy_thread_without_places_waits_for_the_server() {
        // It never sleeps, but a request costs it less than the time between two.
        assert!(!is_outrun(9, 40));
    }

    #[test]
    fn what_is_late_was_not_spare() {
        let mut pace = SchedulePace::default();
        pace.turn_began(0);
        pace.turn_ended(10, 11, true);
        // The thread had no core meanwhile, and has sent nothing.
        pace.turn_began(500);
        assert!(pace.is_outrun(500));
    }
}
