//! The cache inside the process: entries by their keys, and in the order of their last use, bounded by their bytes.
//!
//! Every step takes the same time however full the cache is: the table has a fixed number of chains, a use moves an
//! entry to the front by changing its neighbours' links, and an insertion evicts the least recently used entries in
//! portions, so that no lookup waits for one large insertion. Memory is allocated and freed outside the lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::mutants::{self, Mutant};
use super::entry::Entry;
use super::key::Key;
use super::{Inserted, Store};
use nereid_model_config::ModelSpec;

pub struct LocalCache {
    size: usize,
    state: Mutex<LocalCacheState>,
}

/// One chain for so many bytes of the cache.
const BYTES_A_CHAIN: usize = 1024;
const CHAINS_MIN: usize = 64;
const CHAINS_MAX: usize = 1 << 22;
/// Most entries that are evicted under one lock.
const EVICTED_AT_ONCE: usize = 32;
/// Nodes are allocated by so many.
const NODES_A_CHUNK: usize = 1024;

/// No node: the end of a chain, of the usage list, or of the list of free nodes.
const NONE: u32 = u32::MAX;

struct LocalCacheState {
    /// First node of each chain.
    chains: Box<[u32]>,
    /// In chunks, so that growing moves nothing.
    chunks: Vec<Vec<Node>>,
    free: u32,
    /// The node used last, and the least recently used one.
    newest: u32,
    oldest: u32,
    used: usize,
    entries: usize,
}

struct Node {
    hash: u64,
    entry: Option<Arc<Entry>>,
    /// Next in the chain, or in the list of free nodes.
    next: u32,
    newer: u32,
    older: u32,
}

impl LocalCache {
    /// A cache for `size` bytes of answers.
    pub fn new(size: usize) -> LocalCache {
        let chains = (size / BYTES_A_CHAIN).clamp(CHAINS_MIN, CHAINS_MAX).next_power_of_two();
        let state = LocalCacheState {
            chains: vec![NONE; chains].into(),
            chunks: Vec::new(),
            free: NONE,
            newest: NONE,
            oldest: NONE,
            used: 0,
            entries: 0,
        };
        LocalCache { size, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, LocalCacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes and number of the entries.
    pub fn fill(&self) -> (usize, usize) {
        let state = self.lock();
        (state.used, state.entries)
    }

    pub fn find(&self, key: Key) -> Option<Arc<Entry>> {
        let mut state = self.lock();
        let at = state.find(key.hash)?;
        let entry = state.node(at)?.entry.clone()?;
        if entry.seal != key.seal && !mutants::is(Mutant::SealIgnored) {
            return None;
        }
        state.unlink_from_line(at);
        state.link_as_newest(at);
        Some(entry)
    }

    /// Inserts `entry`, if there was none under its key or if it replaces that one.
    pub fn put(&self, key: Key, entry: Arc<Entry>, replaces: bool) -> Inserted {
        let size = entry.byte_size();
        if size > self.size {
            return Inserted::Refused;
        }
        // Dropped after the lock, because freeing may return memory to the system.
        let mut evicted: Vec<Arc<Entry>> = Vec::with_capacity(EVICTED_AT_ONCE);
        loop {
            let mut state = self.lock();
            match state.find(key.hash) {
                Some(at) => {
                    let is_same =
                        state.node(at).and_then(|node| node.entry.as_ref()).is_some_and(|e| e.seal == key.seal);
                    if is_same && !replaces {
                        return Inserted::Present;
                    }
                    evicted.extend(state.remove(at));
                }
                None => {
                    while state.used.saturating_add(size) > self.size && evicted.len() < EVICTED_AT_ONCE {
                        let Some(entry) = state.evict() else { break };
                        evicted.push(entry);
                    }
                    if state.used.saturating_add(size) <= self.size {
                        return if state.add(key.hash, entry) { Inserted::Kept } else { Inserted::Refused };
                    }
                }
            }
            drop(state);
            evicted.clear();
        }
    }
}

impl Store for LocalCache {
    fn lookup(&self, key: Key, _spec: &ModelSpec) -> Option<Arc<Entry>> {
        self.find(key)
    }

    fn insert(&self, key: Key, entry: Arc<Entry>, replaces: bool) -> Inserted {
        self.put(key, entry, replaces)
    }

    fn is_quick(&self) -> bool {
        true
    }
}

impl LocalCacheState {
    fn node(&self, at: u32) -> Option<&Node> {
        let at = at as usize;
        self.chunks.get(at / NODES_A_CHUNK)?.get(at % NODES_A_CHUNK)
    }

    fn node_mut(&mut self, at: u32) -> Option<&mut Node> {
        let at = at as usize;
        self.chunks.get_mut(at / NODES_A_CHUNK)?.get_mut(at % NODES_A_CHUNK)
    }

    /// The number of chains is a power of two.
    fn chain(&self, hash: u64) -> usize {
        hash as usize & (self.chains.len() - 1)
    }

    fn find(&self, hash: u64) -> Option<u32> {
        let mut at = self.chains[self.chain(hash)];
        loop {
            let node = self.node(at)?;
            if node.hash == hash {
                return Some(at);
            }
            at = node.next;
        }
    }

    /// Adds an entry under a new key. False: the number of entries is at its limit.
    fn add(&mut self, hash: u64, entry: Arc<Entry>) -> bool {
        let chain = self.chain(hash);
        let next = self.chains[chain];
        let size = entry.byte_size();
        let fresh = Node { hash, entry: Some(entry), next, newer: NONE, older: NONE };
        let at = match self.free {
            NONE => {
                if self.chunks.last().is_none_or(|chunk| chunk.len() == NODES_A_CHUNK) {
                    self.chunks.push(Vec::with_capacity(NODES_A_CHUNK));
                }
                let before = (self.chunks.len() - 1) * NODES_A_CHUNK;
                let Some(chunk) = self.chunks.last_mut() else { return false };
                let Some(at) = u32::try_from(before + chunk.len()).ok().filter(|at| *at != NONE) else { return false };
                chunk.push(fresh);
                at
            }
            at => {
                let Some(node) = self.node_mut(at) else { return false };
                let free = node.next;
                *node = fresh;
                self.free = free;
                at
            }
        };
        self.chains[chain] = at;
        self.link_as_newest(at);
        self.used += size;
        self.entries += 1;
        true
    }

    fn evict(&mut self) -> Option<Arc<Entry>> {
        let at = if mutants::is(Mutant::NewestEvicted) { self.newest } else { self.oldest };
        self.remove(at)
    }

    fn remove(&mut self, at: u32) -> Option<Arc<Entry>> {
        let hash = self.node(at)?.hash;
        self.unlink_from_chain(at, hash);
        self.unlink_from_line(at);
        let free = self.free;
        let node = self.node_mut(at)?;
        let entry = node.entry.take()?;
        node.next = free;
        self.free = at;
        self.used -= entry.byte_size();
        self.entries -= 1;
        Some(entry)
    }

    fn unlink_from_chain(&mut self, at: u32, hash: u64) {
        let chain = self.chain(hash);
        let Some(next) = self.node(at).map(|node| node.next) else { return };
        let mut before = self.chains[chain];
        if before == at {
            self.chains[chain] = next;
            return;
        }
        while let Some(node) = self.node_mut(before) {
            if node.next == at {
                node.next = next;
                return;
            }
            before = node.next;
        }
    }

    fn unlink_from_line(&mut self, at: u32) {
        let Some((newer, older)) = self.node(at).map(|node| (node.newer, node.older)) else { return };
        match self.node_mut(newer) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.node_mut(older) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_as_newest(&mut self, at: u32) {
        let second = self.newest;
        if let Some(node) = self.node_mut(at) {
            (node.newer, node.older) = (NONE, second);
        }
        match self.node_mut(second) {
            Some(node) => node.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests;
