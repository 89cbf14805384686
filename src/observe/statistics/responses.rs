//! Statistics that backends report of single responses, by their index within the request (contract/metrics.md section
//! 3).
//!
//! A model may send any number of responses to one request, so the table is bounded: further indices share one entry.
//! It grows block by block, because most models report nothing.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::snapshot::{ResponseTally, Tally};

const BLOCK: usize = 64;
const BLOCKS: usize = 16;
/// The key of the indices beyond the table.
const OVERFLOW: &str = "overflow";

/// The outcome of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// With outputs, or empty where computing them never began.
    Sent,
    Failed,
    Cancelled,
}

/// When one response was made, in nanoseconds of the request clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponseTimes {
    pub start_ns: u64,
    /// `None` if there are no outputs.
    pub output_start_ns: Option<u64>,
    pub end_ns: u64,
}

impl ResponseTimes {
    /// An error, with a text of the specification, where the times are out of order.
    pub fn check(&self) -> Result<(), &'static str> {
        match self.output_start_ns {
            Some(output_ns) if self.start_ns > output_ns => {
                Err("Response start cannot happen after compute output start")
            }
            Some(output_ns) if output_ns > self.end_ns => Err("Compute output start cannot happen after response end"),
            _ if self.start_ns > self.end_ns => Err("Response start cannot happen after response end"),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Sum {
    fn add(&self, ns: u64) {
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
    }

    fn read(&self) -> Tally {
        Tally { count: self.count.load(Ordering::Acquire), ns: self.ns.load(Ordering::Relaxed) }
    }
}

#[derive(Debug, Default)]
struct Entry {
    compute_infer: Sum,
    compute_output: Sum,
    success: Sum,
    fail: Sum,
    empty_response: Sum,
    cancel: Sum,
}

impl Entry {
    fn add(&self, outcome: ResponseOutcome, times: &ResponseTimes) {
        let total_ns = times.end_ns.saturating_sub(times.start_ns);
        let infer_ns = times.output_start_ns.unwrap_or(times.end_ns).saturating_sub(times.start_ns);
        let output_ns = times.output_start_ns.map(|output_ns| times.end_ns.saturating_sub(output_ns));
        match outcome {
            ResponseOutcome::Cancelled => return self.cancel.add(total_ns),
            ResponseOutcome::Failed => {
                if infer_ns > 0 || output_ns.is_none() {
                    self.compute_infer.add(infer_ns);
                }
                output_ns.filter(|ns| *ns > 0).into_iter().for_each(|ns| self.compute_output.add(ns));
                return self.fail.add(total_ns);
            }
            ResponseOutcome::Sent => {}
        }
        self.compute_infer.add(infer_ns);
        match output_ns {
            Some(output_ns) => {
                self.compute_output.add(output_ns);
                self.success.add(total_ns);
            }
            None => self.empty_response.add(total_ns),
        }
    }

    fn read(&self) -> ResponseTally {
        ResponseTally {
            compute_infer: self.compute_infer.read(),
            compute_output: self.compute_output.read(),
            success: self.success.read(),
            fail: self.fail.read(),
            empty_response: self.empty_response.read(),
            cancel: self.cancel.read(),
        }
    }
}

/// Written by backends' threads, a few atomic additions each.
#[derive(Debug, Default)]
pub struct Responses {
    blocks: [OnceLock<Box<[Entry]>>; BLOCKS],
    overflow: Entry,
}

impl Responses {
    pub fn add(&self, index: u64, outcome: ResponseOutcome, times: &ResponseTimes) {
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        let block = self.blocks.get(place / BLOCK);
        let block = block.map(|block| block.get_or_init(|| (0..BLOCK).map(|_| Entry::default()).collect()));
        block.and_then(|block| block.get(place % BLOCK)).unwrap_or(&self.overflow).add(outcome, times);
    }

    pub fn read(&self) -> BTreeMap<String, ResponseTally> {
        let entries = self.blocks.iter().enumerate().filter_map(|(at, block)| Some((at, block.get()?)));
        let entries = entries.flat_map(|(at, block)| block.iter().enumerate().map(move |(i, e)| (at * BLOCK + i, e)));
        let mut read: BTreeMap<String, ResponseTally> = entries.map(|(at, e)| (at.to_string(), e.read())).collect();
        read.insert(OVERFLOW.to_owned(), self.overflow.read());
        read.retain(|_, tally| *tally != ResponseTally::default());
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDICES: u64 = (BLOCK * BLOCKS) as u64;
    const WITH_OUTPUTS: ResponseTimes = ResponseTimes { start_ns: 10, output_start_ns: Some(14), end_ns: 20 };
    const WITHOUT: ResponseTimes = ResponseTimes { start_ns: 10, output_start_ns: None, end_ns: 20 };

    fn once(ns: u64) -> Tally {
        Tally { count: 1, ns }
    }

    #[test]
    fn every_case_of_the_table() {
        let (infer, output, total) = (once(4), once(6), once(10));
        let at_once = ResponseTimes { output_start_ns: Some(10), end_ns: 10, ..WITH_OUTPUTS };
        let none = ResponseTally::default();
        for (outcome, times, expected) in [
            (
                ResponseOutcome::Sent,
                WITH_OUTPUTS,
                ResponseTally { compute_infer: infer, compute_output: output, success: total, ..none },
            ),
            (ResponseOutcome::Sent, WITHOUT, ResponseTally { compute_infer: total, empty_response: total, ..none }),
            (
                ResponseOutcome::Failed,
                WITH_OUTPUTS,
                ResponseTally { compute_infer: infer, compute_output: output, fail: total, ..none },
            ),
            (ResponseOutcome::Failed, at_once, ResponseTally { fail: once(0), ..none }),
            (ResponseOutcome::Failed, WITHOUT, ResponseTally { compute_infer: total, fail: total, ..none }),
            (ResponseOutcome::Cancelled, WITH_OUTPUTS, ResponseTally { cancel: total, ..none }),
        ] {
            let responses = Responses::default();
            responses.add(3, outcome, &times);
            assert_eq!(responses.read(), BTreeMap::from([("3".to_owned(), expected)]), "{outcome:?} {times:?}");
        }
    }

    #[test]
    fn indices_beyond_the_table_share_one_entry() {
        let responses = Responses::default();
        for index in [0, 63, 64, INDICES - 1, INDICES, INDICES + 7, u64::MAX] {
            responses.add(index, ResponseOutcome::Sent, &WITHOUT);
        }
        let read = responses.read();
        let counts: Vec<_> = read.iter().map(|(key, tally)| (key.as_str(), tally.empty_response.count)).collect();
        assert_eq!(counts, [("0", 1), ("1023", 1), ("63", 1), ("64", 1), (OVERFLOW, 3)]);
        assert!(Responses::default().read().is_empty());
    }

    #[test]
    fn times_out_of_order_are_refused_by_their_texts() {
        let check = |start_ns, output_start_ns, end_ns| ResponseTimes { start_ns, output_start_ns, end_ns }.check();
        assert_eq!(check(1, Some(1), 1), Ok(()));
        assert_eq!(check(1, None, 1), Ok(()));
        assert_eq!(check(2, Some(1), 3), Err("Response start cannot happen after compute output start"));
        assert_eq!(check(1, Some(3), 2), Err("Compute output start cannot happen after response end"));
        assert_eq!(check(2, None, 1), Err("Response start cannot happen after response end"));
    }
}
