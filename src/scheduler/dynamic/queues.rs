//! Waiting requests in the batcher's order: by priority level, in a level the unexpired before the delayed, and in each
//! of these first come, first served.

use std::collections::{BTreeMap, VecDeque};

use crate::mutants::{self, Mutant};
use nereid_request::Request;

/// A waiting request, with the fields that the batcher needs without reading it.
#[derive(Debug)]
pub(super) struct Entry {
    pub request: Box<Request>,
    pub rows: usize,
    /// When its policy takes effect; a delayed request has none any more.
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

/// Position of an entry; valid until an entry before it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    level: u64,
    is_delayed: bool,
    at: usize,
}

impl Position {
    /// Position of the next entry, if it is in the same queue.
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
            false => entry.request.queueing.priority,
            true => u64::MAX - entry.request.queueing.priority,
        };
        self.levels.entry(level).or_default().unexpired.push_back(entry);
    }

    /// Position of the first entry, if there is one.
    pub fn first(&self) -> Option<Position> {
        let (&level, _) = self.levels.first_key_value()?;
        Some(Position { level, is_delayed: false, at: 0 })
    }

    pub fn get(&self, position: Position) -> Option<&Entry> {
        let level = self.levels.get(&position.level)?;
        if position.is_delayed { level.delayed.get(position.at) } else { level.unexpired.get(position.at) }
    }

    /// The entry at `position` or, if there is none, the next one in order; `position` is set to it.
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

    /// Removes the entry at `position`, which the following entry then has.
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

    /// Removes the first entry.
    pub fn pop(&mut self) -> Option<Entry> {
        let mut position = self.first()?;
        self.settle(&mut position)?;
        self.remove(position)
    }

    /// Removes the entries for which `is_kept` is false.
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

    /// Drops unused levels, so that a client that goes through all of them costs no memory.
    pub fn tidy(&mut self) {
        if self.levels.len() > KEPT_LEVELS {
            self.levels.retain(|_, level| !level.is_empty());
        }
    }
}
