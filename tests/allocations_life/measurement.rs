//! From a load to what one of its requests took.

use std::collections::BTreeMap;

use super::child::{Counted, STACKS};
use super::ledger::EVENTS;
use super::models::Row;
use crate::side::load::Load;

/// Not the server's: the harness of this binary and the thread that tells the counts.
const FOREIGN: [&str; 2] = ["allocations", "teller"];
/// The server's, but of no request: what they do goes by the clock.
const BACKGROUND: [&str; 2] = ["control", "log"];

/// Of each kind of thread, in the order of [`super::ledger::Event`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, [u64; EVENTS]>);

impl Counts {
    /// What the child tells: a line for each thread.
    pub fn parse(text: &str) -> Counts {
        let mut counts: BTreeMap<String, [u64; EVENTS]> = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.splitn(EVENTS + 1, ' ');
            let row: [u64; EVENTS] =
                std::array::from_fn(|_| words.next().and_then(|word| word.parse().ok()).expect("a count"));
            let name = words.next().unwrap_or_default();
            let kind = name.trim_end_matches(|c: char| c.is_ascii_digit() || "-_:#. ".contains(c));
            if FOREIGN.iter().any(|foreign| kind.starts_with(&foreign[..foreign.len().min(15)])) {
                continue;
            }
            let sum = counts.entry(kind.to_owned()).or_default();
            row.iter().zip(sum).for_each(|(count, sum)| *sum += count);
        }
        Counts(counts)
    }

    pub fn since(&self, before: &Counts) -> Counts {
        let none = [0; EVENTS];
        let since = |(kind, now): (&String, &[u64; EVENTS])| {
            let then = before.0.get(kind).unwrap_or(&none);
            (kind.clone(), std::array::from_fn(|at| now[at].saturating_sub(then[at])))
        };
        Counts(self.0.iter().map(since).collect())
    }

    /// Over all threads that serve requests.
    fn sum(&self) -> [u64; EVENTS] {
        let serving = self.0.iter().filter(|(kind, _)| !BACKGROUND.contains(&kind.as_str()));
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
        let [allocations, reallocations, frees, copied_bytes] =
            after.since(&before).sum().map(|count| count as f64 / answers);
        let least = least.get_or_insert(Cost { allocations, reallocations, frees, copied_bytes });
        // A window's own noise is either of the two.
        if allocations + reallocations + frees < least.calls() {
            (least.allocations, least.reallocations, least.frees) = (allocations, reallocations, frees);
        }
        least.copied_bytes = least.copied_bytes.min(copied_bytes);
        before = after;
    }
    least.ok_or_else(|| "nothing was measured".to_owned())
}
