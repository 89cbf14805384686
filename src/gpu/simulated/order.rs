//! The order of operations: clocks of streams, events and the host, and the accesses that have to agree with them.
//!
//! Every operation is a point of its stream. A clock holds, for each stream, the point that its holder comes after: a
//! stream comes after the work that an event covered when it waited for it, and after all work that the host had seen
//! complete when the operation was enqueued. All threads of the host are one holder: how they synchronise cannot be
//! seen from here. Two accesses to the same bytes, one of which writes, must be ordered by these clocks alone, however
//! the operations happen to run.

use std::collections::{BTreeMap, VecDeque};

/// The operation `seq` of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub stream: u64,
    pub seq: u64,
}

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Clock {
    seen: BTreeMap<u64, u64>,
}

impl Clock {
    pub fn covers(&self, point: Point) -> bool {
        self.seen.get(&point.stream).is_some_and(|seq| *seq >= point.seq)
    }

    pub fn join(&mut self, other: &Clock) {
        for (&stream, &seq) in &other.seen {
            self.reach(Point { stream, seq });
        }
    }

    pub fn reach(&mut self, point: Point) {
        let seq = self.seen.entry(point.stream).or_default();
        *seq = point.seq.max(*seq);
    }

    /// Drops the entry of a stream that is no longer compared.
    pub fn forget(&mut self, stream: u64) {
        self.seen.remove(&stream);
    }
}

/// Bytes that an operation reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub from: u64,
    pub to: u64,
    pub writes: bool,
}

impl Span {
    pub fn new(at: u64, len: usize, writes: bool) -> Span {
        Span { from: at, to: at.saturating_add(len as u64), writes }
    }

    pub fn meets(&self, other: &Span) -> bool {
        self.from < other.to && other.from < self.to
    }

    /// True if the two must be ordered.
    pub fn conflicts(&self, other: &Span) -> bool {
        (self.writes || other.writes) && self.meets(other)
    }

    fn is_inside(&self, other: &Span) -> bool {
        other.from <= self.from && self.to <= other.to
    }
}

/// One access that later ones have to come after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub span: Span,
    pub point: Point,
    /// The operation that made it, for messages.
    pub what: &'static str,
}

/// The accesses that the host has not seen complete: only these can conflict with a new one.
#[derive(Debug, Default)]
pub(super) struct History {
    records: VecDeque<Record>,
}

/// Accesses that are kept. Only programs that never query an event reach this; the oldest are dropped.
const RECORDS_MAX: usize = 32_768;

impl History {
    /// An access that conflicts with one of `spans` and does not come before `clock`.
    pub fn conflict(&self, clock: &Clock, spans: &[Span]) -> Option<(Record, Span)> {
        self.records.iter().filter(|record| !clock.covers(record.point)).find_map(|record| {
            let span = spans.iter().find(|span| span.conflicts(&record.span))?;
            Some((*record, *span))
        })
    }

    /// Adds the accesses of an operation, whose clock is `clock`. Earlier ones that it covers are no longer needed: an
    /// access that conflicts with them, and does not come after them, also conflicts with this one.
    pub fn add(&mut self, point: Point, clock: &Clock, spans: &[Span], what: &'static str) {
        for &span in spans.iter().filter(|span| span.from < span.to) {
            let is_covered = |record: &Record| {
                record.span.is_inside(&span)
                    && (span.writes || !record.span.writes)
                    && record.point != point
                    && clock.covers(record.point)
            };
            self.records.retain(|record| !is_covered(record));
            self.records.push_back(Record { span, point, what });
        }
        while self.records.len() > RECORDS_MAX {
            self.records.pop_front();
        }
    }

    /// Drops accesses that the host has seen complete.
    pub fn forget_seen(&mut self, host: &Clock) {
        self.records.retain(|record| !host.covers(record.point));
    }

    /// Drops the accesses of streams that are over.
    pub fn forget_of(&mut self, is_over: impl Fn(u64) -> bool) {
        self.records.retain(|record| !is_over(record.point.stream));
    }

    /// An access to these bytes that the host has not seen complete.
    pub fn user_of(&self, span: &Span, only_writers: bool) -> Option<Record> {
        self.records.iter().find(|record| record.span.meets(span) && (record.span.writes || !only_writers)).copied()
    }

    pub fn names(&self, stream: u64) -> bool {
        self.records.iter().any(|record| record.point.stream == stream)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(stream: u64, seq: u64) -> Point {
        Point { stream, seq }
    }

    #[test]
    fn accesses_conflict_where_one_writes_and_no_clock_orders_them() {
        let mut history = History::default();
        let mut clock = Clock::default();
        clock.reach(point(1, 1));
        history.add(point(1, 1), &clock, &[Span::new(100, 50, true), Span::new(500, 10, false)], "a copy");
        let other = Clock::default();
        for (at, len, writes, is_conflict) in [
            (0, 100, true, false),
            (0, 101, false, true),
            (149, 1, true, true),
            (150, 10, true, false),
            (500, 10, false, false),
            (505, 1, true, true),
        ] {
            let spans = [Span::new(at, len, writes)];
            assert_eq!(history.conflict(&other, &spans).is_some(), is_conflict, "{at} {len} {writes}");
            assert!(history.conflict(&clock, &spans).is_none(), "ordered: {at} {len} {writes}");
        }
    }

    #[test]
    fn what_a_later_access_covers_or_the_host_has_seen_is_dropped() {
        let mut history = History::default();
        let mut clock = Clock::default();
        for seq in 1..=1000 {
            clock.reach(point(1, seq));
            history.add(point(1, seq), &clock, &[Span::new(100, 50, true)], "a copy");
        }
        assert_eq!(history.len(), 1, "each covers the one before");
        clock.reach(point(1, 1001));
        history.add(point(1, 1001), &clock, &[Span::new(100, 50, false)], "a copy");
        assert_eq!(history.len(), 2, "a read does not stand for a write");
        history.add(point(2, 1), &Clock::default(), &[Span::new(900, 1, true)], "a fill");
        let mut host = Clock::default();
        host.reach(point(1, 1000));
        history.forget_seen(&host);
        assert_eq!((history.len(), history.names(1), history.names(2)), (2, true, true));
        assert!(history.user_of(&Span::new(0, 200, true), true).is_none());
        assert!(history.user_of(&Span::new(0, 200, true), false).is_some());
        clock.forget(1);
        assert!(!clock.covers(point(1, 1)));
    }

    #[test]
    fn kept_accesses_have_a_bound() {
        let mut history = History::default();
        for seq in 0..RECORDS_MAX as u64 + 10 {
            history.records.push_back(Record {
                span: Span::new(seq * 8, 8, true),
                point: point(1, seq),
                what: "a fill",
            });
        }
        history.add(point(2, 1), &Clock::default(), &[Span::new(0, 1, false)], "a copy");
        assert_eq!(history.len(), RECORDS_MAX);
    }
}
