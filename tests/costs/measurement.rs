//! Measures the cost of one request of a load.

use std::collections::BTreeMap;

use super::child::{Counted, STACKS};
use super::ledger::EVENTS;
use super::models::Row;
use crate::side::load::Load;

/// Not the server's: the harness of this binary and the thread that tells the counts.
const FOREIGN: [&str; 2] = ["allocations", "teller"];
/// The server's, but of no request: what they do goes by the clock.
const BACKGROUND: [&str; 2] = ["control", "log"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of each kind of thread, in the order of [`super::ledger::Event`].
    by_kind: BTreeMap<String, [u64; EVENTS]>,
    pub all_sleep: bool,
}

impl Counts {
    /// What the child tells: a line for each thread.
    pub fn parse(text: &str) -> Counts {
        let mut counts = Counts { by_kind: BTreeMap::new(), all_sleep: true };
        for line in text.lines() {
            let mut words = line.splitn(EVENTS + 2, ' ');
            let row: [u64; EVENTS] =
                std::array::from_fn(|_| words.next().and_then(|word| word.parse().ok()).expect("a count"));
            let (state, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let kind = name.trim_end_matches(|c: char| c.is_ascii_digit() || "-_:#. ".contains(c));
            if FOREIGN.iter().any(|foreign| kind.starts_with(&foreign[..foreign.len().min(15)])) {
                continue;
            }
            counts.all_sleep &= state == "S";
            let sum = counts.by_kind.entry(kind.to_owned()).or_default();
            row.iter().zip(sum).for_each(|(count, sum)| *sum += count);
        }
        counts
    }

    pub fn since(&self, before: &Counts) -> Counts {
        let none = [0; EVENTS];
        let since = |(kind, now): (&String, &[u64; EVENTS])| {
            let then = before.by_kind.get(kind).unwrap_or(&none);
            (kind.clone(), std::array::from_fn(|at| now[at].saturating_sub(then[at])))
        };
        Counts { by_kind: self.by_kind.iter().map(since).collect(), all_sleep: self.all_sleep }
    }

    /// Over all threads that serve requests.
    fn sum(&self) -> [u64; EVENTS] {
        let serving = self.by_kind.iter().filter(|(kind, _)| !BACKGROUND.contains(&kind.as_str()));
        serving.fold([0; EVENTS], |sum, (_, row)| std::array::from_fn(|at| sum[at] + row[at]))
    }
}

/// What one request took.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub allocations: f64,
    pub reallocations: f64,
    pub frees: f64,
    pub copied_bytes: f64,
    pub middling_copies: f64,
}

impl Cost {
    /// Calls of the allocator, of whatever kind.
    pub fn calls(&self) -> f64 {
        self.allocations + self.reallocations + self.frees
    }
}

/// Warms `row` up and measures it, several times: the smallest count is the answer. What a pause or a timer adds is not
/// in every window, what a request needs is.
pub fn measure(row: &Row, counted: &mut Counted) -> Result<Cost, String> {
    const WINDOWS: usize = 6;
    let mut load = Load::connect(row.peers(&counted.server)?)?;
    load.answer(row.requests)?;
    if std::env::var_os(STACKS).is_some() {
        counted.keep_stacks();
        let answers = load.answer(row.requests.min(100))?;
        println!("{}, {answers} requests:\n{}", row.name, counted.stacks());
    }
    let mut least: Option<Cost> = None;
    let mut before = counted.at_rest();
    for _ in 0..WINDOWS {
        let answers = load.answer(row.requests)? as f64;
        let after = counted.at_rest();
        let [allocations, reallocations, frees, copied_bytes, middling_copies] =
            after.since(&before).sum().map(|count| count as f64 / answers);
        let least = least.get_or_insert(Cost { allocations, reallocations, frees, copied_bytes, middling_copies });
        // A window's own noise is either of the two.
        if allocations + reallocations + frees < least.calls() {
            (least.allocations, least.reallocations, least.frees) = (allocations, reallocations, frees);
        }
        least.copied_bytes = least.copied_bytes.min(copied_bytes);
        least.middling_copies = least.middling_copies.min(middling_copies);
        before = after;
    }
    least.ok_or_else(|| "nothing was measured".to_owned())
}
