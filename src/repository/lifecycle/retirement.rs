//! The end of versions that no longer serve, and of all versions.
//!
//! A version ends when it cannot receive another request: after every shard has the map without it, and when the last
//! request that refers to it is answered.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::{error, info};

use super::super::generations::History;
use super::super::models::{ModelId, UNLOADED, VersionState};
use super::super::version::RunningVersion;
use super::{Lifecycle, ModelSlot, lock};

/// First pause between counts of a version's references: short, since most requests are short.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// Attempts to remove a model that an operation still refers to.
const FORGET_ATTEMPTS: usize = 50;

/// The unanswered requests of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    pub name: String,
    pub version: i64,
    pub requests: usize,
}

impl Lifecycle {
    /// Ends a version in the background. `shows`: the index lists it as unloading, and then as unloaded.
    pub(super) fn retire(self: &Arc<Self>, id: &ModelId, running: RunningVersion, shows: bool) {
        let version = running.served.version;
        if shows {
            *lock(&self.visible).unloading.entry((id.clone(), version)).or_default() += 1;
        }
        self.retiring.fetch_add(1, Ordering::SeqCst);
        let (lifecycle, id) = (Arc::clone(self), id.clone());
        let work = move || {
            running.leave();
            let mut pause = FIRST_PAUSE;
            while running.holders() > 0 {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            running.end();
            info!("successfully unloaded '{}' version {version}", id.name);
            if shows {
                lifecycle.unloaded(&id, version);
            }
            lifecycle.retiring.fetch_sub(1, Ordering::SeqCst);
        };
        if let Err(error) = std::thread::Builder::new().name("model-unload".to_owned()).spawn(work) {
            // Its threads and its memory stay; no accepted request is lost.
            error!("a version stays in memory because no thread can be started to end it: {error}");
            self.retiring.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn unloaded(&self, id: &ModelId, version: i64) {
        let is_last = {
            let mut visible = lock(&self.visible);
            let key = (id.clone(), version);
            let left = visible.unloading.get(&key).map_or(0, |count| count.saturating_sub(1));
            match left {
                0 => drop(visible.unloading.remove(&key)),
                left => drop(visible.unloading.insert(key, left)),
            }
            left == 0
        };
        if is_last {
            let mut is_forgotten = false;
            self.change(id, |entry| {
                let Some(entry) = entry else { return };
                if let Some(state @ VersionState::Unloading) = entry.versions.get_mut(&version) {
                    *state = VersionState::Unavailable(UNLOADED.to_owned());
                }
                is_forgotten = entry.is_forgotten && entry.is_over();
            });
            // The operation that requested the unload may still hold the slot.
            for _ in 0..if is_forgotten { FORGET_ATTEMPTS } else { 0 } {
                if self.forget(id) {
                    break;
                }
                std::thread::sleep(LONGEST_PAUSE);
            }
        }
    }

    /// Versions that have requests in flight. References of requests are separated from the others: the running version
    /// itself, and the map.
    pub fn in_flight(&self) -> Vec<InFlight> {
        let map = self.map();
        let mut found = Vec::new();
        for served in map.ready() {
            let ours = 1 + map.references(served) + served.pins.load(Ordering::SeqCst);
            let requests = Arc::strong_count(served).saturating_sub(ours).max(served.scheduler.unfinished());
            if requests > 0 {
                found.push(InFlight { name: served.name.clone(), version: served.version, requests });
            }
        }
        found
    }

    /// Refuses new requests to every model. Accepted requests are still executed.
    pub fn stop_scheduling(&self) {
        self.map().ready().for_each(|served| served.scheduler.stop());
    }

    /// Ends every version. Returns at once; [`Lifecycle::live_models`] returns how many are left.
    pub fn unload_all(self: &Arc<Self>) {
        self.is_ending.store(true, Ordering::SeqCst);
        for (id, slot) in self.slots() {
            self.end_slot(&id, &slot);
        }
    }

    /// Ends the versions of one model, unless an operation holds its slot: that one calls this again when it has left
    /// the slot.
    pub(super) fn end_slot(self: &Arc<Self>, id: &ModelId, slot: &Mutex<ModelSlot>) {
        if let Ok(mut slot) = slot.try_lock() {
            // An ensemble's agents no longer wait for its parts, and nothing is loaded again.
            slot.source = None;
            slot.generations = History::default();
            for running in std::mem::take(&mut slot.running).into_values() {
                running.served.scheduler.stop();
                self.end_in_background(id, running);
            }
        }
    }

    fn end_in_background(self: &Arc<Self>, id: &ModelId, running: RunningVersion) {
        self.retiring.fetch_add(1, Ordering::SeqCst);
        let (lifecycle, name) = (Arc::clone(self), id.name.clone());
        let work = move || {
            let version = running.served.version;
            running.leave();
            running.end();
            info!("successfully unloaded '{name}' version {version}");
            lifecycle.retiring.fetch_sub(1, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("model-unload".to_owned()).spawn(work).is_err() {
            self.retiring.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Closes the agents and the response cache that models have used, once all models are gone.
    pub fn close(&self) {
        self.settings.agents.close();
        self.keeper.close();
        if let Some(cache) = &self.settings.scheduling.cache {
            cache.close();
        }
    }

    /// The agents that models have used, and where their code lies.
    pub fn agents(&self) -> Vec<(String, String)> {
        self.settings.agents.code_locations()
    }

    /// Versions that are being ended.
    pub fn live_models(&self) -> usize {
        self.retiring.load(Ordering::SeqCst)
    }
}
