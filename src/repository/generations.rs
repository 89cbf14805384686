//! Generations: the loaded states of a model, by id, and which of them can be loaded again (docs/generations.md).
//!
//! The id is a hash of what was loaded and the number of the load. With `--keep-generations` the files of the last
//! generations are kept, as files: a model that does not serve takes no memory. Nothing here locks; the history of a
//! model is part of its slot in the life cycle.

mod content;
mod files;

use std::collections::VecDeque;
use std::sync::Arc;

pub use content::{Content, read};
pub use files::{Keeper, KeptFiles};

/// The flag, for messages.
pub const FLAG: &str = "--keep-generations";

/// A loaded state of a model. `L`: what is needed to load it again.
#[derive(Debug)]
pub struct Generation<L> {
    pub id: Arc<str>,
    pub content: Content,
    loaded_ms: u64,
    versions: Vec<i64>,
    kept_bytes: Option<u64>,
    pub kept: Option<L>,
}

/// What a load brings about.
#[derive(Debug)]
pub struct Loaded<L> {
    pub content: Content,
    pub versions: Vec<i64>,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub kept: Option<(L, u64)>,
}

/// The generations of one model: the last one is the present one, while the model serves.
#[derive(Debug)]
pub struct History<L> {
    /// Loads so far.
    count: u64,
    entries: VecDeque<Generation<L>>,
    /// The present one was loaded by its id. Polling leaves it until the repository changes.
    is_rolled_back: bool,
    /// What the repository had when it was read last.
    pub repository: Option<Content>,
}

impl<L> Default for History<L> {
    fn default() -> History<L> {
        History { count: 0, entries: VecDeque::new(), is_rolled_back: false, repository: None }
    }
}

impl<L> History<L> {
    /// The generation that a load brings about: a new one.
    pub fn next_id(&self, content: &Content) -> Arc<str> {
        format!("{content}-{}", self.count + 1).into()
    }

    /// The present one, where the load of that content changed none of the versions.
    pub fn unchanged(&self, content: &Content) -> Option<Arc<str>> {
        self.entries.back().filter(|last| last.content == *content).map(|last| Arc::clone(&last.id))
    }

    /// A load succeeded that was given this new id. Of a content only the last generation stays, and `kept_max` beside
    /// the present one.
    pub fn loaded(&mut self, id: &Arc<str>, loaded: Loaded<L>, kept_max: usize) {
        self.count += 1;
        self.is_rolled_back = false;
        let Loaded { content, versions, at_ms: loaded_ms, kept } = loaded;
        let (kept, kept_bytes) = kept.map(|(kept, bytes)| (Some(kept), Some(bytes))).unwrap_or_default();
        self.entries.retain(|entry| entry.content != content);
        self.entries.push_back(Generation { id: Arc::clone(id), content, loaded_ms, versions, kept_bytes, kept });
        while self.entries.len() > kept_max + 1 {
            self.entries.pop_front();
        }
    }

    /// An earlier one was loaded again.
    pub fn restored(&mut self, id: &str) {
        let at = self.entries.iter().position(|entry| &*entry.id == id);
        if let Some(entry) = at.and_then(|at| self.entries.remove(at)) {
            self.entries.push_back(entry);
            self.is_rolled_back = true;
        }
    }

    /// The model was unloaded: what is loaded next is up to the repository.
    pub fn unloaded(&mut self) {
        self.is_rolled_back = false;
    }

    /// Whether polling leaves the present one, although files of the repository look new.
    pub fn holds_against(&self, content: &Content) -> bool {
        self.is_rolled_back && self.repository.as_ref() == Some(content)
    }

    pub fn is_rolled_back(&self) -> bool {
        self.is_rolled_back
    }

    /// By its id, or by the hash alone.
    pub fn find(&self, wanted: &str) -> Option<&Generation<L>> {
        let is_wanted = |entry: &&Generation<L>| *entry.id == *wanted || entry.content.to_string() == wanted;
        self.entries.iter().find(is_wanted)
    }

    /// As it is shown. `serves`: versions of the last one serve.
    pub fn shown(&self, serves: bool, kept_max: usize) -> Generations {
        let entries = self.entries.iter().rev().map(|entry| ShownGeneration {
            id: Arc::clone(&entry.id),
            versions: entry.versions.clone(),
            loaded_ms: entry.loaded_ms,
            kept_bytes: entry.kept_bytes,
        });
        Generations { serves, is_rolled_back: self.is_rolled_back, kept_max, entries: entries.collect() }
    }
}

/// The generations of a model, for the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generations {
    /// The first of the entries is the one that serves; else none serves.
    pub serves: bool,
    pub is_rolled_back: bool,
    /// `--keep-generations`.
    pub kept_max: usize,
    /// The newest first.
    pub entries: Vec<ShownGeneration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownGeneration {
    pub id: Arc<str>,
    pub versions: Vec<i64>,
    /// Milliseconds since 1970.
    pub loaded_ms: u64,
    /// Bytes of its files, where they are kept.
    pub kept_bytes: Option<u64>,
}

impl Generations {
    /// The one that serves.
    pub fn present(&self) -> Option<&ShownGeneration> {
        self.entries.first().filter(|_| self.serves)
    }

    /// The ids, for an error.
    pub fn known(&self) -> String {
        let ids: Vec<&str> = self.entries.iter().map(|entry| &*entry.id).collect();
        ids.join(", ")
    }
}

#[cfg(test)]
mod tests;
