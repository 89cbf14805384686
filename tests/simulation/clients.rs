//! The simulated clients: what they send, how they read, and how they misbehave.

pub mod grpc;
pub mod http;

use crate::ledger::{self, DECOUPLED, GRAPH, HERE, JOIN, MODELS, QUEUED, SEQUENCE, Sent, element};
use crate::random::Random;

/// How a client behaves beside its protocol.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// Bytes that it reads at a time, and the pause between two reads.
    pub read_bytes: usize,
    pub read_pause_ns: u64,
    /// Requests at a time.
    pub ahead: usize,
    /// Requests on one connection.
    pub requests: u32,
    /// The pause between two times when it sends something.
    pub pause_ns: u64,
    /// One of so many times it leaves without a word, breaks the connection, or gives a request up; 0: never.
    pub vanish_once_in: u64,
    pub reset_once_in: u64,
    pub cancel_once_in: u64,
    /// One of so many requests is large.
    pub large_once_in: u64,
}

/// A request that is about to be sent.
pub struct Draft {
    pub number: u32,
    pub model: usize,
    pub elements: usize,
    pub sequence: Option<Step>,
    pub deadline_ms: Option<u64>,
    pub priority: u64,
    pub timeout_us: u64,
}

/// A request's place in its sequence.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub id: u64,
    pub begins: bool,
    pub ends: bool,
}

/// The sequence that a client is in the middle of.
#[derive(Debug, Clone, Copy)]
pub struct Sequence {
    id: u64,
    sum: i32,
    left: u32,
    begun: bool,
}

/// What a client needs to make requests.
pub struct Plan<'a> {
    pub random: &'a mut Random,
    pub next_number: &'a mut u32,
    /// Versions below these are gone from every shard.
    pub acknowledged: &'a [i64; MODELS],
    pub habits: Habits,
    pub is_grpc: bool,
    pub is_stream: bool,
}

impl Plan<'_> {
    /// The next request, which counts as sent. `in_sequence`: the client may send requests of a sequence.
    pub fn draft(&mut self, sequence: &mut Option<Sequence>, is_idle: bool) -> Draft {
        *self.next_number += 1;
        let number = *self.next_number;
        let model = loop {
            let model = self.random.below(MODELS as u64) as usize;
            // Requests of one sequence follow each other; only streams have many responses.
            match model {
                SEQUENCE if !is_idle => {}
                DECOUPLED if !self.is_stream => {}
                JOIN => {}
                _ => break model,
            }
        };
        let elements = match model {
            DECOUPLED => 3,
            GRAPH | SEQUENCE | crate::ledger::BATCHED | QUEUED | crate::ledger::ENSEMBLE | crate::ledger::ORDERED => 4,
            _ if self.random.once_in(self.habits.large_once_in) => self.random.between(2_000, 60_000) as usize,
            _ => self.random.between(2, 40) as usize,
        };
        let step = (model == SEQUENCE).then(|| {
            let fresh = || Sequence { id: u64::from(number), sum: 0, left: 0, begun: false };
            let mut current = sequence.take().unwrap_or_else(fresh);
            if !current.begun {
                current.left = self.random.between(1, 6) as u32;
            }
            let begins = !std::mem::replace(&mut current.begun, true);
            current.left -= 1;
            current.sum = current.sum.wrapping_add(element(number, 1));
            let ends = current.left == 0;
            *sequence = (!ends).then_some(current);
            (Step { id: current.id, begins, ends }, current.sum)
        });
        let deadline_ms = (self.is_grpc && self.random.once_in(8)).then(|| match self.random.below(3) {
            // Most of these are over when the server is, and their deadlines with them.
            0 => self.random.between(60_000, 3_600_000),
            _ => self.random.between(1, 60),
        });
        let sent = Sent {
            model,
            elements,
            version_min: self.acknowledged[model],
            sum: step.map(|(_, sum)| sum),
            excuse: None,
            deadline_ns: deadline_ms.map(|ms| nereid_clock::now_ns() + ms * 1_000_000),
            executed: 0,
            path: Vec::new(),
            added: 0,
            has_succeeded: false,
            responses: if model == DECOUPLED { self.random.below(6) as u32 } else { 1 },
            arrived: 0,
        };
        ledger::with(|ledger| {
            ledger.open.insert(number, sent);
            ledger.sent += 1;
            ledger.note(|| format!("request {number} to model {model} leaves"));
        });
        let is_queued = model == QUEUED;
        Draft {
            number,
            model,
            elements,
            sequence: step.map(|(step, _)| step),
            deadline_ms,
            priority: if is_queued { self.random.below(4) } else { 0 },
            timeout_us: if is_queued && self.random.once_in(3) { self.random.between(100, 5_000) } else { 0 },
        }
    }
}

impl Draft {
    /// Whether the model takes batches, so that its tensors have a dimension more.
    pub fn is_batching(&self) -> bool {
        !matches!(self.model, ledger::DIRECT | HERE | DECOUPLED | GRAPH)
    }

    pub fn values(&self) -> Vec<i32> {
        (0..self.elements).map(|at| element(self.number, at)).collect()
    }
}
