//! The models of the repositories as a whole: the start, and what polling finds changed
//! (contract/schedulers.md section 10, "Control modes").

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::error;

use super::super::models::{Entry, ModelId};
use super::super::overrides::Override;
use super::super::store::{Store, TreeStamp};
use super::super::{ControlMode, index};
use super::operation::Loading;
use super::{Lifecycle, lock, poll_failed};
use nereid_observe::log::verbose;
use nereid_request::Status;

/// What polling saw of a model when it last looked: what its files looked like, or why that cannot be told.
pub type Attempt = Result<TreeStamp, Status>;

/// A model that repositories hold.
struct Found {
    id: ModelId,
    stores: Vec<Arc<dyn Store>>,
}

impl Lifecycle {
    /// Loads what `--model-control-mode` and `--load-model` say. True if all of it serves; an error if a repository
    /// cannot be read.
    pub fn start(self: &Arc<Self>) -> Result<bool, Status> {
        let failures = AtomicUsize::new(0);
        let count = |outcome: Result<(), Status>| {
            if outcome.is_err() {
                failures.fetch_add(1, Ordering::Relaxed);
            }
        };
        let is_all = self.settings.startup_models.iter().any(|name| name == "*");
        if self.settings.mode == ControlMode::Explicit && !is_all {
            // A repository that is not there is found out now, not by the first load.
            for store in self.stores().iter() {
                store.models()?;
            }
            self.in_parallel(&self.settings.startup_models, |name| {
                // Ensembles see to it themselves that their parts are there before them.
                count(self.load_named(name, &Override::None, &mut BTreeSet::new()));
            });
        } else {
            let found = self.find()?;
            self.load_all(&found, count);
        }
        Ok(failures.into_inner() == 0)
    }

    fn in_parallel<'w, T: Sync>(&self, work: &'w [T], job: impl Fn(&'w T) + Sync) {
        let next = AtomicUsize::new(0);
        let run = || {
            while let Some(item) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                job(item);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.settings.load_thread_count.min(work.len()) {
                // A thread that cannot be started leaves its share to the others.
                let _ = std::thread::Builder::new().name("model-load".to_owned()).spawn_scoped(scope, run);
            }
            run();
        });
    }

    /// Every model of every repository.
    fn find(&self) -> Result<Vec<Found>, Status> {
        let mut found: BTreeMap<ModelId, Vec<Arc<dyn Store>>> = BTreeMap::new();
        for store in self.stores().iter() {
            let location = store.location();
            let names = store.models();
            let failed = |status: &Status| error!("failed to poll model repository '{location}': {}", status.message);
            let names = names.inspect_err(failed)?;
            for name in names {
                found.entry(self.id(&name, &**store)).or_default().push(Arc::clone(store));
            }
        }
        Ok(found.into_iter().map(|(id, stores)| Found { id, stores }).collect())
    }

    /// Loads what is new: at first all that stands alone, then the ensembles whose parts were not there yet, each after
    /// the ensembles that it is made of. Returns what changed, and which of that waited for its parts.
    fn load_all(
        self: &Arc<Self>,
        found: &[Found],
        count: impl Fn(Result<(), Status>) + Sync,
    ) -> (BTreeSet<ModelId>, BTreeSet<ModelId>) {
        let (changed, waiting) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeMap::new()));
        self.in_parallel(found, |found| match self.load_found(found) {
            Ok(Loading::Same) => count(Ok(())),
            Ok(Loading::Changed) => {
                lock(&changed).insert(found.id.clone());
                count(Ok(()));
            }
            Ok(Loading::Waits(parts)) => drop(lock(&waiting).insert(found.id.clone(), (found, parts))),
            Err(status) => {
                // It may have been taken out of service.
                lock(&changed).insert(found.id.clone());
                count(Err(status));
            }
        });
        let mut changed = changed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let waiting = waiting.into_inner().unwrap_or_else(PoisonError::into_inner);
        let parts: BTreeSet<String> = waiting.values().flat_map(|(_, parts)| parts.iter().cloned()).collect();
        let ordered = lock(&self.graph).dependents(&parts);
        let mut fresh = BTreeSet::new();
        for found in ordered.iter().filter_map(|id| waiting.get(id)).map(|(found, _)| found) {
            let store = found.stores.first();
            let loaded = self.load_one(&found.id, store, &Override::None, false);
            if loaded == Ok(Loading::Changed) {
                changed.insert(found.id.clone());
                fresh.insert(found.id.clone());
            }
            count(loaded.map(drop));
        }
        (changed, fresh)
    }

    fn load_found(self: &Arc<Self>, found: &Found) -> Result<Loading, Status> {
        match found.stores.as_slice() {
            [store] => self.poll_model(&found.id, store),
            _ => {
                error!("failed to poll model '{}': not unique across all model repositories", found.id.name);
                let slot = self.slot(&found.id);
                self.unload_slot(&found.id, &mut lock(&slot));
                self.change(|entries| {
                    let entry: &mut Entry = entries.entry(found.id.clone()).or_default();
                    entry.reason = index::DUPLICATE.to_owned();
                });
                Err(Status::internal(index::DUPLICATE))
            }
        }
    }

    /// Loads a model if its files changed since they were last looked at, be it that they loaded then or did not: files
    /// that were half there load when the rest has come, and what is wrong is told once.
    fn poll_model(self: &Arc<Self>, id: &ModelId, store: &Arc<dyn Store>) -> Result<Loading, Status> {
        let slot = self.slot(id);
        let mut slot = lock(&slot);
        let attempt: Attempt = match store.stamp(&id.name) {
            Ok(Some(stamp)) => Ok(stamp),
            // Gone since the repository was listed: the next poll unloads it.
            Ok(None) => return Ok(Loading::Same),
            Err(status) => Err(status),
        };
        let is_known = slot.attempt.as_ref() == Some(&attempt);
        slot.attempt = Some(attempt.clone());
        match attempt {
            Ok(_) if is_known => Ok(Loading::Same),
            Ok(_) => self.load_slot(id, &mut slot, Some(store), &Override::None, true),
            Err(status) if is_known => Err(status),
            Err(status) => Err(poll_failed(&id.name, &status)),
        }
    }

    /// Looks for what was added, changed or removed. A repository that cannot be read changes nothing.
    pub fn poll(self: &Arc<Self>) {
        // Counted, so that the end of the server waits for what is being loaded.
        let Ok(_operation) = self.begin() else { return };
        let _polling = lock(&self.polling);
        verbose!(1, "Polling model repository");
        let found = match self.find() {
            Ok(found) => found,
            Err(status) => {
                error!("failed to poll model repository: {} - {}", status.code.name(), status.message);
                return;
            }
        };
        // Why something failed is in the log already.
        let (mut changed, fresh) = self.load_all(&found, drop);
        for (id, slot) in self.slots() {
            if found.iter().any(|found| found.id == id) {
                continue;
            }
            self.unload_slot(&id, &mut lock(&slot));
            changed.insert(id.clone());
            lock(&self.slots).remove(&id);
            self.change(|entries| {
                if let Some(entry) = entries.get(&id)
                    && entry.versions.is_empty()
                {
                    entries.remove(&id);
                }
            });
        }
        self.follow(&changed, &fresh);
    }
}
