//! [`SchedulePace`] finds out whether a thread of an open loop could keep its schedule, so that it can be asked when
//! too many requests are outstanding and either the server or the thread is to blame.
//!
//! A thread kept it if it had time to spare: the next request was not due yet when a turn ended. At high rates a thread
//! that never sleeps may keep it too, as it sends more in each turn: its turns get no longer than they have to be, so
//! that about half of its requests cost less than the time between two of them. Of a thread that does not keep it, none
//! do, but for a few: the cheapest turn proves nothing.
//!
//! A thread that had no core for a while takes up at once what was due meanwhile. If few requests were outstanding when
//! that turn began, the server has kept up until then, and is not to blame for what the turn adds.

/// In parts of the time since the load began: a thread with less had none.
const SPARE_MIN: f64 = 0.05;
/// A thread keeps its schedule if one request of so many, or more, costs it less than the time between two.
const CHEAP_OF: u64 = 4;
/// A turn that begins so long after its first request was due is one behind a stall.
const STALL_NS: u64 = 1_000_000;

#[derive(Debug, Default)]
pub struct SchedulePace {
    began_ns: Option<u64>,
    turn_began_ns: u64,
    /// Requests of the present turn.
    launched: u64,
    /// Of all turns.
    launched_in_all: u64,
    /// When the first request that the present turn took up was due, and those outstanding when it began.
    first_due_ns: Option<u64>,
    outstanding: usize,
    last: Option<Turn>,
    spare_ns: u64,
    /// Requests taken up, and when the first and the last of them were due.
    due: u64,
    due_ns: Option<(u64, u64)>,
    /// Requests of turns that had places for all, and of those that had not.
    with_places: Costs,
    without_places: Costs,
}

/// How many requests cost less than the time between two.
#[derive(Debug, Default)]
struct Costs {
    cheap: u64,
    all: u64,
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
    /// `outstanding`: requests due before, and not answered.
    pub fn turn_began(&mut self, now_ns: u64, outstanding: usize) {
        self.began_ns.get_or_insert(now_ns);
        (self.turn_began_ns, self.outstanding) = (now_ns, outstanding);
        (self.launched, self.first_due_ns) = (0, None);
        let Some(turn) = self.last.take() else { return };
        // A thread that comes later than the request is due had no more time to spare.
        self.spare_ns += now_ns.min(turn.next_due_ns).saturating_sub(turn.ended_ns);
        let Some(between_ns) = self.between_ns().filter(|_| turn.launched > 0) else { return };
        // Without a place it would have sent more in the same round of system calls: only its own part counts.
        let (until_ns, costs) = match turn.has_places {
            true => (now_ns, &mut self.with_places),
            false => (turn.ended_ns, &mut self.without_places),
        };
        let cost_ns = until_ns.saturating_sub(turn.began_ns) as f64 / turn.launched as f64;
        costs.all += turn.launched;
        costs.cheap += if cost_ns <= between_ns { turn.launched } else { 0 };
    }

    /// The time between two requests that are due.
    fn between_ns(&self) -> Option<f64> {
        let (first_ns, last_ns) = self.due_ns.filter(|_| self.due > 1)?;
        Some(last_ns.saturating_sub(first_ns) as f64 / (self.due - 1) as f64)
    }

    /// A request was taken up.
    pub fn took_up(&mut self, due_ns: u64) {
        self.due += 1;
        self.first_due_ns.get_or_insert(due_ns);
        self.due_ns = Some((self.due_ns.map_or(due_ns, |(first_ns, _)| first_ns), due_ns));
    }

    pub fn launched(&mut self) {
        self.launched += 1;
        self.launched_in_all += 1;
    }

    /// `has_places`: another request could have been sent.
    pub fn turn_ended(&mut self, now_ns: u64, next_due_ns: u64, has_places: bool) {
        let (began_ns, launched) = (self.turn_began_ns, self.launched);
        self.last = Some(Turn { began_ns, ended_ns: now_ns, next_due_ns, launched, has_places });
    }

    /// Whether the thread is why `outstanding_max` requests are outstanding, in a turn that began at `now_ns`.
    pub fn is_outrun(&self, now_ns: u64, outstanding_max: usize) -> bool {
        let has_stalled = self.first_due_ns.is_some_and(|due_ns| now_ns.saturating_sub(due_ns) > STALL_NS);
        if has_stalled && self.outstanding < outstanding_max.div_ceil(2) {
            return true;
        }
        let whole_ns = self.began_ns.map_or(0, |began_ns| now_ns.saturating_sub(began_ns));
        let has_spare_time = self.spare_ns as f64 > SPARE_MIN * whole_ns as f64;
        let costs = if self.with_places.all > 0 { &self.with_places } else { &self.without_places };
        // Nothing was sent: the server is not to blame.
        let is_slower = self.launched_in_all == 0 || costs.cheap.saturating_mul(CHEAP_OF) < costs.all;
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
            pace.turn_began(now_ns, 0);
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
        pace.turn_began(now_ns, 0);
        pace.is_outrun(now_ns, 1 << 40)
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
        pace.turn_began(0, 0);
        pace.turn_ended(10, 11, true);
        // The thread had no core meanwhile, and has sent nothing.
        pace.turn_began(500, 0);
        assert!(pace.is_outrun(500, 8));
    }

    #[test]
    fn one_cheap_turn_of_many_proves_nothing() {
        let mut pace = SchedulePace::default();
        // A request is due every 100 ns and costs 200, but for one turn.
        for turn in 0..100 {
            let now_ns = turn * 400;
            pace.turn_began(now_ns, 0);
            (0..4).for_each(|at| pace.took_up(turn * 400 + at * 100));
            (0..if turn == 50 { 40 } else { 2 }).for_each(|_| pace.launched());
            pace.turn_ended(now_ns + 399, now_ns, true);
        }
        pace.turn_began(40_000, 0);
        assert!(pace.is_outrun(40_000, 1 << 40));
    }

    #[test]
    fn what_a_stall_of_the_thread_adds_is_not_the_server_s() {
        // A request is due every 100 us, most of the time is spare, and then the thread has no core for 50 ms.
        let with_outstanding = |outstanding| {
            let mut pace = SchedulePace::default();
            for turn in 0..1000 {
                pace.turn_began(turn * 100_000, 1);
                pace.took_up(turn * 100_000);
                pace.launched();
                pace.turn_ended(turn * 100_000 + 10_000, (turn + 1) * 100_000, true);
            }
            let now_ns = 150_000_000;
            pace.turn_began(now_ns, outstanding);
            (1000..1500).for_each(|number| pace.took_up(number * 100_000));
            pace.is_outrun(now_ns, 100)
        };
        assert!(with_outstanding(1), "the server had answered all but one");
        assert!(!with_outstanding(99), "the server was behind before");
    }
}
