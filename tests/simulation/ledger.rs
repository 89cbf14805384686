//! What is known of every request: who sent it, what its answer must be, what its model did with it.
//!
//! The rules that hold of every request are checked here. Models run on the thread of the simulation but are values
//! that may be sent to others, so the ledger lies in a place of the thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use nereid_backend::InstanceContext;
use nereid_request::{Request, ResponseFactory, Text};

use crate::random::{Random, mix};

/// The models, in the order of `models::KINDS`.
pub const DIRECT: usize = 0;
pub const HERE: usize = 1;
pub const BATCHED: usize = 2;
pub const QUEUED: usize = 3;
pub const SEQUENCE: usize = 4;
pub const ENSEMBLE: usize = 5;
pub const DECOUPLED: usize = 6;
pub const ORDERED: usize = 7;
/// An ensemble with a graph of the seed's, another one for each version.
pub const GRAPH: usize = 8;
/// Joins two tensors; clients do not ask for it.
pub const JOIN: usize = 9;
pub const MODELS: usize = 10;

/// Events that the report of a failure shows.
const TRACE_MAX: usize = 60;

/// How long a cancellation takes at most on its way to the model, in nanoseconds.
const CANCELLED_WITHIN_NS: u64 = 30_000_000;

/// What a model adds to every element but the first of its input.
pub fn offset(model: usize, version: i64) -> i32 {
    (model as i32 + 1) * 100_000 + version as i32
}

/// Element `at` of the input of request `number`; the first one is the number.
pub fn element(number: u32, at: usize) -> i32 {
    match at {
        0 => number as i32,
        _ => (mix(u64::from(number) << 20 | at as u64) & 0xFFFF) as i32,
    }
}

/// A request, from its sending to its end.
#[derive(Debug)]
pub struct Sent {
    pub model: usize,
    pub elements: usize,
    /// Versions below this one were gone from every shard when it was sent.
    pub version_min: i64,
    /// The sum of its sequence with this request, in a model with sequences.
    pub sum: Option<i32>,
    /// Why it may fail: its model was told to fail it, its client or a deadline ended it.
    pub excuse: Option<&'static str>,
    /// Its client has set a deadline.
    pub deadline_ns: Option<u64>,
    /// Its model executed it, for each of the models of an ensemble.
    pub executed: u32,
    /// The models that succeeded with it, in their order, and what they added.
    pub path: Vec<usize>,
    pub added: i32,
    /// Its model's execution has answered it with success.
    pub has_succeeded: bool,
    /// Responses that a decoupled model gives, and those that have come.
    pub responses: u32,
    pub arrived: u32,
}

/// Counts of one version of a model, to be compared with its statistics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub successes: u64,
    pub executions: u64,
    pub rows: u64,
}

/// What a model does later.
pub enum Late {
    Answer {
        request: Box<Request>,
        context: InstanceContext,
        number: u32,
    },
    /// The next response of a decoupled model.
    Response {
        responses: ResponseFactory,
        id: Text,
        number: u32,
        at: u32,
        of: u32,
        offset: i32,
    },
    /// It waits for the cancellation of the request.
    Held {
        request: Box<Request>,
        context: InstanceContext,
        until_ns: u64,
    },
}

/// How often models do what they should not.
#[derive(Debug, Clone, Copy, Default)]
pub struct Troubles {
    pub failure_once_in: u64,
    pub panic_once_in: u64,
    pub late_once_in: u64,
    pub drop_once_in: u64,
    pub hold_once_in: u64,
}

#[derive(Default)]
pub struct Ledger {
    pub open: BTreeMap<u32, Sent>,
    pub tallies: BTreeMap<(usize, i64), Tally>,
    /// The latest version of each model that is or was published.
    pub published: [i64; MODELS],
    pub late: Vec<(u64, Late)>,
    /// Requests that their clients have given up, and when.
    pub given_up: BTreeMap<u32, u64>,
    pub troubles: Troubles,
    pub random: Option<Random>,
    /// What the graphs of [`GRAPH`] follow from.
    pub graphs: u64,
    /// The last events, for the report of a failure.
    pub trace: VecDeque<String>,
    pub is_traced: bool,
    /// What went wrong first.
    pub violation: Option<String>,
    /// Requests by their end, for the totals.
    pub sent: u64,
    pub succeeded: u64,
    pub failed: BTreeMap<String, u64>,
    pub lost: u64,
    pub faults: crate::network::Faults,
    /// Memory or places may run out, so requests may be refused for that.
    pub is_tight: bool,
    pub is_draining: bool,
}

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

pub fn with<R>(act: impl FnOnce(&mut Ledger) -> R) -> R {
    LEDGER.with_borrow_mut(act)
}

/// What the client of a request got.
#[derive(Debug)]
pub enum Answer<'a> {
    Success { model: &'a str, version: &'a str, id: &'a str, values: &'a [i32] },
    Failure { code: &'a str, text: &'a str },
}

impl Ledger {
    pub fn violate(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    /// The models of the steps of a version of [`GRAPH`]: a chain; or a diamond of the first three, and a chain behind
    /// it.
    pub fn graph(&self, version: i64) -> Vec<usize> {
        let mut random = Random::new(self.graphs.wrapping_add(version as u64));
        let is_diamond = random.once_in(2);
        let length = random.between(1, 6) as usize;
        let mut step = move || random.one_of(&[DIRECT, HERE, HERE]);
        let mut models = if is_diamond { vec![step(), step(), JOIN] } else { Vec::new() };
        models.extend(std::iter::repeat_with(step).take(length));
        models
    }

    /// Notes an event for the report of a failure.
    pub fn note(&mut self, event: impl FnOnce() -> String) {
        if self.is_traced {
            if self.trace.len() == TRACE_MAX {
                self.trace.pop_front();
            }
            self.trace.push_back(event());
        }
    }

    /// Checks that a request that its model keeps has been cancelled if its deadline has passed, or its client has
    /// given it up.
    pub fn check_held(&mut self, number: u32, is_cancelled: bool) {
        let now_ns = nereid_clock::now_ns();
        let deadline_ns = self.open.get(&number).and_then(|sent| sent.deadline_ns);
        let due_ns = [deadline_ns, self.given_up.get(&number).copied()].into_iter().flatten().min();
        if let Some(due_ns) = due_ns.filter(|due_ns| !is_cancelled && due_ns + CANCELLED_WITHIN_NS < now_ns) {
            let late_us = (now_ns - due_ns) / 1000;
            self.violate(format!(
                "request {number} is not cancelled {late_us} us after its deadline or its cancellation"
            ));
        }
    }

    /// A request will never be answered: its client has left, or its connection has ended.
    pub fn lose(&mut self, number: u32) {
        self.lost += u64::from(self.open.remove(&number).is_some());
    }

    pub fn once_in(&mut self, times: u64) -> bool {
        self.random.as_mut().is_some_and(|random| random.once_in(times))
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.random.as_mut().map_or(0, |random| random.below(limit))
    }

    pub fn tally(&mut self, model: usize, version: i64) -> &mut Tally {
        self.tallies.entry((model, version)).or_default()
    }

    /// The client's last answer to a request, or all there will be of it.
    pub fn answered(&mut self, number: u32, answer: &Answer<'_>) {
        let Some(sent) = self.open.remove(&number) else {
            return self.violate(format!("request {number} is answered again, or was never sent: {answer:?}"));
        };
        match answer {
            Answer::Success { .. } => match self.check_success(number, &sent, answer) {
                Ok(()) => self.succeeded += 1,
                Err(text) => self.violate(format!("request {number} to model {}: {text}: {sent:?}", sent.model)),
            },
            Answer::Failure { code, text } => {
                let reason = self.reason(&sent, code, text);
                match reason {
                    Some(reason) => *self.failed.entry(reason.to_owned()).or_default() += 1,
                    None => self.violate(format!("request {number} fails without a reason: {code} {text}: {sent:?}")),
                }
            }
        }
    }

    /// Checks an answer with a payload; of a decoupled model each one.
    pub fn check_success(&self, number: u32, sent: &Sent, answer: &Answer<'_>) -> Result<(), String> {
        let Answer::Success { model, version, id, values } = answer else { return Ok(()) };
        if *id != format!("r{number}") {
            return Err(format!("the answer has the id '{id}'"));
        }
        if *model != crate::models::KINDS[sent.model].name {
            return Err(format!("the answer is of model '{model}'"));
        }
        let number_of = |text: &str| text.parse::<i64>().ok();
        let Some(version) = number_of(version) else { return Err(format!("the answer has version '{version}'")) };
        if version < sent.version_min || version > self.published[sent.model] {
            let published = self.published[sent.model];
            return Err(format!("version {version} is not from {} to {published}", sent.version_min));
        }
        if values.len() != sent.elements {
            return Err(format!("{} elements in place of {}", values.len(), sent.elements));
        }
        if sent.model == GRAPH {
            let (mut expected, mut path) = (self.graph(version), sent.path.clone());
            if expected.contains(&JOIN) {
                expected.sort_unstable();
                path.sort_unstable();
            }
            if path != expected {
                return Err(format!("models {path:?} executed it in place of {expected:?}"));
            }
        }
        for (at, &value) in values.iter().enumerate() {
            let mut given = element(number, at);
            if at == 1
                && let Some(sum) = sent.sum
            {
                given = sum;
            }
            let added = value.wrapping_sub(given);
            let is_right = match (at, sent.model) {
                (0, _) => added == 0,
                (_, ENSEMBLE) => {
                    let least = offset(ORDERED, 1) + offset(BATCHED, 1);
                    let most = offset(ORDERED, self.published[ORDERED]) + offset(BATCHED, self.published[BATCHED]);
                    (least..=most).contains(&added)
                }
                (_, GRAPH) => added == sent.added,
                (1, DECOUPLED) => added == offset(DECOUPLED, version) + sent.arrived as i32,
                (_, model) => added == offset(model, version),
            };
            if !is_right {
                return Err(format!("element {at} is {value}, which is {added} more than it was"));
            }
        }
        Ok(())
    }

    /// Why a request may have failed in this way; `None`: it may not.
    fn reason(&self, sent: &Sent, code: &str, text: &str) -> Option<&'static str> {
        let has = |part: &str| text.contains(part);
        let excused = sent.excuse.unwrap_or_default();
        if has("planned failure") || has("failed while it executed") || has("without a final response") {
            return (excused == "model" || sent.model == ENSEMBLE).then_some("failed by its model");
        }
        if has("bytes were asked for")
            || has("too many bytes")
            || has("memory")
            || has("too many requests wait")
            || has("too many calls wait")
            || has("too many streams wait")
            || (has("as many requests ") && has(" may have"))
            || has("exceeds")
        {
            return self.is_tight.then_some("refused for want of memory or places");
        }
        if has("the server exits before") || has("Server not ready") {
            return self.is_draining.then_some("unfinished at the end of the server");
        }
        if code == "DEADLINE_EXCEEDED" || has("Deadline Exceeded") {
            let is_due = sent.deadline_ns.is_some_and(|at_ns| at_ns <= nereid_clock::now_ns());
            return is_due.then_some("ended by its deadline");
        }
        if sent.model == QUEUED && (has("Exceeds maximum queue size") || has("Request timeout expired")) {
            return Some("refused or rejected by its queue");
        }
        if sent.model == SEQUENCE {
            return Some("its sequence was lost");
        }
        None
    }
}
