//! Recorded work: the [`Capture`] that gathers it, and the [`Graph`] that a launch repeats.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ThreadId;

use super::order::Clock;
use super::work::Task;

/// One recorded operation.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub device: usize,
    pub task: Task,
    /// Nodes that it waits for.
    pub after: Vec<usize>,
}

/// A recording that is under way.
#[derive(Debug)]
pub(super) struct Capture {
    /// The stream in which it began.
    pub origin: u64,
    /// The thread that began it, which may make fewer calls meanwhile.
    pub thread: ThreadId,
    nodes: Vec<Node>,
    /// Of each node, all that come before it, as bits.
    before: Vec<Bits>,
    /// The last nodes of each stream that takes part.
    pub tails: BTreeMap<u64, Vec<usize>>,
}

/// A set of nodes.
#[derive(Debug, Clone, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn insert(&mut self, index: usize) {
        if self.0.len() <= index / 64 {
            self.0.resize(index / 64 + 1, 0);
        }
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn holds(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    fn join(&mut self, other: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }
}

impl Capture {
    pub fn new(origin: u64) -> Capture {
        let tails = BTreeMap::from([(origin, Vec::new())]);
        let thread = std::thread::current().id();
        Capture { origin, thread, nodes: Vec::new(), before: Vec::new(), tails }
    }

    /// Records an operation of a stream that takes part. `Err`: it conflicts with one that no order puts before it.
    pub fn add(&mut self, stream: u64, device: usize, task: Task) -> Result<(), String> {
        let after = self.tails.get(&stream).cloned().unwrap_or_default();
        let mut before = Bits::default();
        for &node in &after {
            before.join(&self.before[node]);
            before.insert(node);
        }
        let unordered = self.nodes.iter().enumerate().filter(|(index, _)| !before.holds(*index));
        for (_, other) in unordered {
            if task.spans.iter().any(|span| other.task.spans.iter().any(|other| span.conflicts(other))) {
                let (what, other) = (task.what, other.task.what);
                return Err(format!("{what} that is recorded conflicts with {other}, and nothing orders the two"));
            }
        }
        self.tails.insert(stream, vec![self.nodes.len()]);
        self.nodes.push(Node { device, task, after });
        self.before.push(before);
        Ok(())
    }

    /// Makes later work of the stream wait for these nodes too; the stream takes part from now on.
    pub fn join(&mut self, stream: u64, nodes: &[usize]) {
        let tail = self.tails.entry(stream).or_default();
        tail.extend(nodes);
        tail.sort_unstable();
        tail.dedup();
    }

    /// Records all of a graph as a part of this one.
    pub fn add_graph(&mut self, stream: u64, graph: &[Node]) -> Result<(), String> {
        let begin = self.tails.get(&stream).cloned().unwrap_or_default();
        let mut ends = Vec::new();
        let mut places: Vec<usize> = Vec::new();
        for node in graph {
            let mut tail: Vec<usize> = node.after.iter().map(|&index| places[index]).collect();
            tail.extend(&begin);
            ends.retain(|end| !tail.contains(end));
            self.tails.insert(stream, tail);
            self.add(stream, node.device, node.task.clone())?;
            places.push(self.nodes.len() - 1);
            ends.push(self.nodes.len() - 1);
        }
        self.tails.insert(stream, if ends.is_empty() { begin } else { ends });
        Ok(())
    }

    /// Ends the recording. `Err`: a stream took part, and no work of the first stream waits for its last work.
    pub fn finish(self) -> Result<Vec<Node>, String> {
        let last = self.tails.get(&self.origin).cloned().unwrap_or_default();
        let is_before = |node: &usize| last.iter().any(|end| end == node || self.before[*end].holds(*node));
        if !self.tails.values().flatten().all(is_before) {
            return Err("a recording ends, and a stream that joined it has not come back".to_owned());
        }
        Ok(self.nodes)
    }
}

/// A recording that can be launched.
#[derive(Debug)]
pub(super) struct Graph {
    pub device: usize,
    pub nodes: Arc<[Node]>,
    /// One launch comes after the one before, whatever their streams.
    pub last: Option<(u64, Clock)>,
}
