//! Requests in the order in which the batcher looks at them: by priority level, in a level the unexpired before the
//! delayed, and in each of these first come, first served.

use std::collections::{BTreeMap, VecDeque};

use crate::mutants::{self, Mutant};
use nereid_request::Request;

/// A request that waits, and what the batcher wants to know of it without looking into it.
#[derive(Debug)]
pub(super) struct Entry {
    pub request: Box<Request>,
    pub rows: usize,
    /// When its policy takes effect; a delayed one has none any more.
    pub deadline_ns: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Level {
    unexpired: VecDeque<Entry>,
    delayed: VecDeque<Entry>,
}

/// Levels that are kept when they are empty, with the memory of their queues.
const KEPT_LEVELS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Queues {
    levels: BTreeMap<u64, Level>,
    /// Of all entries.
    pub rows: usize,
    pub count: usize,
}

/// Where an entry stands; valid until an entry before it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    level: u64,
    is_delayed: bool,
    at: usize,
}

impl Position {
    /// Where the entry behind this one stands, if it is in the same queue.
    pub fn next(self) -> Position {
        Position { at: self.at + 1, ..self }
    }
}

impl Level {
    fn queue(&mut self, is_delayed: bool) -> &mut VecDeque<Entry> {
        if is_delayed { &mut self.delayed } else { &mut self.unexpired }
    }

    fn is_empty(&self) -> bool {
        self.unexpired.is_empty() && self.delayed.is_empty()
    }
}

impl Queues {
    pub fn push(&mut self, entry: Entry) {
        self.rows += entry.rows;
        self.count += 1;
        let level = match mutants::is(Mutant::PriorityInverted) {
            false => entry.request.priority,
            true => u64::MAX - entry.request.priority,
        };
        self.levels.entry(level).or_default().unexpired.push_back(entry);
    }

    /// Where the first entry would stand.
    pub fn first(&self) -> Option<Position> {
        let (&level, _) = self.levels.first_key_value()?;
        Some(Position { level, is_delayed: false, at: 0 })
    }

    pub fn get(&self, position: Position) -> Option<&Entry> {
        let level = self.levels.get(&position.level)?;
        if position.is_delayed { level.delayed.get(position.at) } else { level.unexpired.get(position.at) }
    }

    /// The entry at `position` or, if there is none, the one that comes next in order; `position` is where it stands.
    pub fn settle(&self, position: &mut Position) -> Option<&Entry> {
        loop {
            if let Some(entry) = self.get(*position) {
                return Some(entry);
            }
            position.at = 0;
            if position.is_delayed {
                let after = (std::ops::Bound::Excluded(position.level), std::ops::Bound::Unbounded);
                position.level = *self.levels.range(after).next()?.0;
            }
            position.is_delayed = !position.is_delayed;
        }
    }

    /// Takes the entry at `position` out; what came behind it stands there then.
    pub fn remove(&mut self, position: Position) -> Option<Entry> {
        let level = self.levels.get_mut(&position.level)?;
        let entry = level.queue(position.is_delayed).remove(position.at)?;
        self.rows -= entry.rows;
        self.count -= 1;
        Some(entry)
    }

    /// Puts the entry at `position` behind all unexpired ones of its level.
    pub fn delay(&mut self, position: Position) {
        let Some(level) = self.levels.get_mut(&position.level) else { return };
        if let Some(mut entry) = level.queue(position.is_delayed).remove(position.at) {
            entry.deadline_ns = None;
            level.delayed.push_back(entry);
        }
    }

    /// Takes out the entry that comes first.
    pub fn pop(&mut self) -> Option<Entry> {
        let mut position = self.first()?;
        self.settle(&mut position)?;
        self.remove(position)
    }

    /// Takes out the entries that are not to be kept.
    pub fn extract(&mut self, is_kept: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let mut out = Vec::new();
        for level in self.levels.values_mut() {
            for queue in [&mut level.unexpired, &mut level.delayed] {
                for entry in std::mem::take(queue) {
                    match is_kept(&entry) {
                        true => queue.push_back(entry),
                        false => out.push(entry),
                    }
                }
            }
        }
        self.rows -= out.iter().map(|entry| entry.rows).sum::<usize>();
        self.count -= out.len();
        out
    }

    /// Forgets levels that nobody uses, so that a client that goes through all of them costs no memory.
    pub fn tidy(&mut self) {
        if self.levels.len() > KEPT_LEVELS {
            self.levels.retain(|_, level| !level.is_empty());
        }
    }
}
