//! What the clients of a run have counted. Each process prints it as a line of JSON a few times a second; the lines are
//! cumulative, so the last one of a process counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

type Counts = BTreeMap<String, u64>;

/// Requests by model. Each one that was asked is in exactly one of the others when the run is over.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Tally {
    pub asked: Counts,
    /// Answered, and what the answer says is what the request asked for.
    pub right: Counts,
    /// Refused in a documented way, by model and text.
    pub refused: BTreeMap<String, Counts>,
    /// The client itself has cut the connection, or cancelled the request, before the answer.
    pub left: Counts,
    /// What clients did to the server, by kind of fault.
    pub faults: Counts,
    /// What must not be. The run has failed.
    pub wrong: Vec<String>,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        add(&mut self.asked, &other.asked);
        add(&mut self.right, &other.right);
        add(&mut self.left, &other.left);
        add(&mut self.faults, &other.faults);
        for (model, texts) in &other.refused {
            add(self.refused.entry(model.clone()).or_default(), texts);
        }
        self.wrong.extend_from_slice(&other.wrong);
    }

    pub fn asked_in_all(&self) -> u64 {
        self.asked.values().sum()
    }

    pub fn right_in_all(&self) -> u64 {
        self.right.values().sum()
    }

    pub fn left_in_all(&self) -> u64 {
        self.left.values().sum()
    }

    pub fn refused_of(&self, model: &str) -> u64 {
        self.refused.get(model).map_or(0, |texts| texts.values().sum())
    }

    pub fn refused_in_all(&self) -> u64 {
        self.refused.keys().map(|model| self.refused_of(model)).sum()
    }
}

pub fn of(counts: &Counts, model: &str) -> u64 {
    counts.get(model).copied().unwrap_or(0)
}

pub fn count(counts: &mut Counts, name: &str, more: u64) {
    if more > 0 {
        *counts.entry(name.to_owned()).or_default() += more;
    }
}

fn add(counts: &mut Counts, more: &Counts) {
    more.iter().for_each(|(name, more)| count(counts, name, *more));
}
