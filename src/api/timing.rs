//! Where one request's time went, for the client that asks: `x-request-timing: true` as header or metadata, or the
//! request's parameter `nereid_timing`. The answer is the text of a `Server-Timing` header (W3C Server Timing): names,
//! and durations in milliseconds.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Asks for the breakdown, as an HTTP header or as metadata of gRPC.
pub const ASK: &str = "x-request-timing";
/// Asks for it as a parameter of the request; it is not passed on to the model.
pub const PARAMETER: &str = "nereid_timing";
/// What the answer's header and metadata are called.
pub const ANSWER: &str = "Server-Timing";
pub const ANSWER_METADATA: &str = "server-timing";

/// Whether the value of [`ASK`] asks for it.
pub fn asks(value: Option<&[u8]>) -> bool {
    value.is_some_and(|value| value.eq_ignore_ascii_case(b"true") || value == b"1")
}

/// The stamps of one request, and the sums over those that were executed for it.
#[derive(Debug, Default)]
pub struct Timing {
    /// When it began to arrive, and when it was there: 0 where nobody looked at the clock then.
    since_ns: u64,
    received_ns: u64,
    accepted_ns: AtomicU64,
    answered_ns: AtomicU64,
    pub sums: Sums,
}

/// Nanoseconds.
#[derive(Debug, Default)]
pub struct Sums {
    queue: AtomicU64,
    batch: AtomicU64,
    input: AtomicU64,
    compute: AtomicU64,
    output: AtomicU64,
}

impl Timing {
    pub fn new(since_ns: u64, received_ns: u64) -> Timing {
        Timing { since_ns, received_ns, ..Timing::default() }
    }

    pub fn accepted(&self, at_ns: u64) {
        self.accepted_ns.store(at_ns, Ordering::Relaxed);
    }

    /// The last answer is there, and is about to be encoded.
    pub fn answered(&self, at_ns: u64) {
        self.answered_ns.store(at_ns, Ordering::Relaxed);
    }

    /// The breakdown of a request whose answer is encoded at `encoded_ns`.
    pub fn text(&self, encoded_ns: u64) -> String {
        let (accepted_ns, answered_ns) =
            (self.accepted_ns.load(Ordering::Relaxed), self.answered_ns.load(Ordering::Relaxed));
        let mut text = String::with_capacity(192);
        if self.since_ns > 0 {
            put(&mut text, "receive", self.received_ns.saturating_sub(self.since_ns));
            put(&mut text, "parse", accepted_ns.saturating_sub(self.received_ns));
        }
        let Sums { queue, batch, input, compute, output } = &self.sums;
        let sums = [("queue", queue), ("batch", batch), ("input", input), ("compute", compute), ("output", output)];
        for (name, sum) in sums {
            put(&mut text, name, sum.load(Ordering::Relaxed));
        }
        put(&mut text, "encode", encoded_ns.saturating_sub(answered_ns));
        text
    }
}

/// Microseconds are the third digit.
fn put(text: &mut String, name: &str, ns: u64) {
    let us = ns.saturating_add(500) / 1000;
    let comma = if text.is_empty() { "" } else { ", " };
    // Writing to a String cannot fail.
    let _ = write!(text, "{comma}{name};dur={}.{:03}", us / 1000, us % 1000);
}

/// Where one execution stands: of the request itself, or of a step of an ensemble.
#[derive(Debug, Default)]
pub struct Lap {
    queued_ns: AtomicU64,
    /// 0: it is with no worker, or the worker's times are in the sums.
    taken_ns: AtomicU64,
}

impl Lap {
    pub fn queued(&self, at_ns: u64) {
        self.queued_ns.store(at_ns, Ordering::Relaxed);
    }

    pub fn taken(&self, at_ns: u64, sums: &Sums) {
        self.taken_ns.store(at_ns, Ordering::Relaxed);
        add(&sums.queue, self.queued_ns.load(Ordering::Relaxed), at_ns);
    }

    /// The model reports its times: start, computation's start and end, end.
    pub fn executed(&self, [start, compute, computed, end]: [u64; 4], sums: &Sums) {
        let taken_ns = self.taken_ns.swap(0, Ordering::Relaxed);
        if taken_ns == 0 {
            return;
        }
        add(&sums.batch, taken_ns, start);
        add(&sums.input, start, compute);
        add(&sums.compute, compute, computed);
        add(&sums.output, computed, end);
    }

    /// The answer is there. A model that has not reported yet was computing all the time, for all we know.
    pub fn answered(&self, at_ns: u64, sums: &Sums) {
        let taken_ns = self.taken_ns.swap(0, Ordering::Relaxed);
        if taken_ns > 0 {
            add(&sums.compute, taken_ns, at_ns);
        }
    }
}

fn add(sum: &AtomicU64, from_ns: u64, to_ns: u64) {
    sum.fetch_add(to_ns.saturating_sub(from_ns), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn the_breakdown_names_its_parts_in_order() {
        let timing = Timing::new(1_000 * US, 1_010 * US);
        timing.accepted(1_030 * US);
        let lap = Lap::default();
        lap.queued(1_031 * US);
        lap.taken(1_131 * US, &timing.sums);
        lap.executed([1_132, 1_142, 1_342, 1_349].map(|us| us * US), &timing.sums);
        lap.answered(1_400 * US, &timing.sums);
        timing.answered(1_400 * US);
        let expected = "receive;dur=0.010, parse;dur=0.020, queue;dur=0.100, batch;dur=0.001, input;dur=0.010, \
                        compute;dur=0.200, output;dur=0.007, encode;dur=1.600";
        assert_eq!(timing.text(3_000 * US), expected);
    }

    #[test]
    fn what_nobody_measured_is_left_out_and_late_reports_are_no_loss() {
        let timing = Timing::new(0, 0);
        let lap = Lap::default();
        lap.queued(10 * US);
        lap.taken(15 * US, &timing.sums);
        // The answer comes before the report, which then changes nothing.
        lap.answered(115 * US, &timing.sums);
        lap.executed([16, 17, 18, 19].map(|us| us * US), &timing.sums);
        timing.answered(115 * US);
        let expected = "queue;dur=0.005, batch;dur=0.000, input;dur=0.000, compute;dur=0.100, output;dur=0.000, \
                        encode;dur=0.000";
        assert_eq!(timing.text(115 * US), expected);
    }

    #[test]
    fn only_a_clear_wish_is_one() {
        for (value, expected) in
            [(None, false), (Some(&b"true"[..]), true), (Some(b"TRUE"), true), (Some(b"1"), true), (Some(b"0"), false)]
        {
            assert_eq!(asks(value), expected, "{value:?}");
        }
    }
}
