//! Tokens of pieces of text that were encoded before, within a bound of bytes.
//!
//! Two generations stand in for a list by time of use: what was not used while one generation filled goes with it. A
//! text is compared in full, so that two texts of one hash cannot be taken for each other; hashing and comparing happen
//! outside the lock.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What an entry takes besides its text and tokens: counts, lengths, its place in the map.
const ENTRY_BYTES: usize = 128;

/// What happens under the lock at once.
const ENTRIES_PER_LOCK: usize = 256;

pub(super) struct Entry {
    pub(super) text: Box<str>,
    pub(super) tokens: Box<[u32]>,
}

impl Entry {
    fn bytes(&self) -> usize {
        let tokens = self.tokens.len().saturating_mul(size_of::<u32>());
        self.text.len().saturating_add(tokens).saturating_add(ENTRY_BYTES)
    }
}

pub(super) struct Cache {
    generation_bytes_max: usize,
    /// Random, so that peers cannot find texts of one hash.
    hashes: RandomState,
    generations: Mutex<Generations>,
}

type Entries = HashMap<u64, Arc<Entry>, BuildHasherDefault<HashItself>>;

#[derive(Default)]
struct Generations {
    young: Entries,
    young_bytes: usize,
    old: Entries,
}

impl Cache {
    pub(super) fn new(bytes_max: usize) -> Cache {
        let generations = Mutex::new(Generations::default());
        Cache { generation_bytes_max: bytes_max / 2, hashes: RandomState::new(), generations }
    }

    pub(super) fn hash(&self, text: &str) -> u64 {
        self.hashes.hash_one(text)
    }

    /// What there is for each hash. The caller compares the texts.
    pub(super) fn get(&self, hashes: &[u64]) -> Vec<Option<Arc<Entry>>> {
        let mut found = Vec::with_capacity(hashes.len());
        for hashes in hashes.chunks(ENTRIES_PER_LOCK) {
            let mut dropped = Vec::new();
            let mut generations = self.lock();
            for hash in hashes {
                let young = generations.young.get(hash).cloned();
                let old = if young.is_some() { None } else { generations.old.get(hash).cloned() };
                // A use keeps it for another generation.
                if let Some(entry) = &old {
                    dropped.push(generations.insert(*hash, Arc::clone(entry), self.generation_bytes_max));
                }
                found.push(young.or(old));
            }
            drop(generations);
            // Freeing a generation takes long, hence outside the lock.
            drop(dropped);
        }
        found
    }

    pub(super) fn insert(&self, entries: &[(u64, Arc<Entry>)]) {
        for entries in entries.chunks(ENTRIES_PER_LOCK) {
            let mut dropped = Vec::new();
            let mut generations = self.lock();
            for (hash, entry) in entries {
                dropped.push(generations.insert(*hash, Arc::clone(entry), self.generation_bytes_max));
            }
            drop(generations);
            drop(dropped);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let generations = self.generations.lock().unwrap();
        generations.young.values().chain(generations.old.values()).map(|entry| entry.bytes()).sum()
    }
}

impl Generations {
    /// Returns what is no longer kept, for the caller to free.
    fn insert(&mut self, hash: u64, entry: Arc<Entry>, bytes_max: usize) -> (Option<Arc<Entry>>, Option<Entries>) {
        let bytes = entry.bytes();
        if bytes > bytes_max {
            return (Some(entry), None);
        }
        let mut dropped = None;
        if bytes > bytes_max.saturating_sub(self.young_bytes) {
            dropped = Some(mem::replace(&mut self.old, mem::take(&mut self.young)));
            self.young_bytes = 0;
        }
        self.young_bytes = self.young_bytes.saturating_add(bytes);
        let replaced = self.young.insert(hash, entry);
        let replaced_bytes = replaced.as_ref().map_or(0, |entry| entry.bytes());
        self.young_bytes = self.young_bytes.saturating_sub(replaced_bytes);
        (replaced, dropped)
    }
}

/// The keys are hashes already.
#[derive(Default)]
struct HashItself(u64);

impl Hasher for HashItself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only `write_u64` is called.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
