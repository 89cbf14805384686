//! The models of the repositories as a whole: the start, and the changes that polling finds (contract/schedulers.md
//! section 10, "Control modes").

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::error;

use super::super::models::ModelId;
use super::super::overrides::Override;
use super::super::store::{Store, TreeStamp};
use super::super::{ControlMode, index};
use super::operation::Loading;
use super::{Lifecycle, ModelSlot, lock, poll_failed};
use nereid_observe::log::verbose;
use nereid_request::Status;

/// Result of the last poll of a model: the stamp of its files, or why it could not be read.
pub type Attempt = Result<TreeStamp, Status>;

/// A model that repositories hold.
struct FoundModel {
    id: ModelId,
    stores: Vec<Arc<dyn Store>>,
}

impl Lifecycle {
    /// Loads the models of `--model-control-mode` and `--load-model`. True if all of them serve; an error if a
    /// repository cannot be read.
    pub fn start(self: &Arc<Self>) -> Result<bool, Status> {
        let failures = AtomicUsize::new(0);
        let count = |outcome: Result<(), Status>| {
            if outcome.is_err() {
                failures.fetch_add(1, Ordering::Relaxed);
            }
        };
        self.start_rounds();
        let is_all = self.settings.startup_models.iter().any(|name| name == "*");
        let pinned = match &self.demand {
            Some(demand) if self.is_empty_at_start() => Some(self.pinned_at_start(demand)?),
            _ => None,
        };
        if (self.settings.mode == ControlMode::Explicit && !is_all) || pinned.is_some() {
            // A missing repository is reported now, not at the first load.
            for store in self.stores().iter() {
                store.models()?;
            }
            self.in_parallel(pinned.as_ref().unwrap_or(&self.settings.startup_models), |name| {
                // Ensembles load their own parts before themselves.
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
                // If a thread cannot be started, the others do its share.
                let _ = std::thread::Builder::new().name("model-load".to_owned()).spawn_scoped(scope, run);
            }
            run();
        });
    }

    /// Every model of every repository, sorted by id.
    fn find(&self) -> Result<Vec<FoundModel>, Status> {
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
        Ok(found.into_iter().map(|(id, stores)| FoundModel { id, stores }).collect())
    }

    /// Loads new models: at first all that stand alone, then the ensembles with parts that were missing, each after the
    /// ensembles that it is made of. Returns the changed models, and those of them that waited for their parts.
    fn load_all(
        self: &Arc<Self>,
        found: &[FoundModel],
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
                // The load may have taken it out of service.
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

    fn load_found(self: &Arc<Self>, found: &FoundModel) -> Result<Loading, Status> {
        match found.stores.as_slice() {
            [store] => self.poll_model(&found.id, store),
            _ => {
                error!("failed to poll model '{}': not unique across all model repositories", found.id.name);
                let slot = self.slot(&found.id);
                self.in_slot(&found.id, &slot, |slot| self.unload_slot(&found.id, slot));
                self.change(&found.id, |entry| {
                    entry.get_or_insert_default().reason = index::DUPLICATE.to_owned();
                });
                Err(Status::internal(index::DUPLICATE))
            }
        }
    }

    /// Loads a model if its files changed since the last poll, whether that load succeeded or not: an incomplete
    /// directory is loaded when the rest has arrived, and an error is logged once.
    fn poll_model(self: &Arc<Self>, id: &ModelId, store: &Arc<dyn Store>) -> Result<Loading, Status> {
        let slot = self.slot(id);
        self.in_slot(id, &slot, |slot| self.poll_held_slot(id, slot, store))
    }

    fn poll_held_slot(
        self: &Arc<Self>,
        id: &ModelId,
        slot: &mut ModelSlot,
        store: &Arc<dyn Store>,
    ) -> Result<Loading, Status> {
        let attempt: Attempt = match store.stamp(&id.name) {
            Ok(Some(stamp)) => Ok(stamp),
            // Removed since the repository was listed; the next poll unloads it.
            Ok(None) => return Ok(Loading::Same),
            Err(status) => Err(status),
        };
        let is_unchanged = slot.attempt.as_ref() == Some(&attempt);
        slot.attempt = Some(attempt.clone());
        match attempt {
            Ok(_) if is_unchanged => Ok(Loading::Same),
            Ok(_) if self.is_rolled_back_from(id, slot, store) => Ok(Loading::Same),
            Ok(_) => self.load_slot(id, slot, Some(store), &Override::None, true),
            Err(status) if is_unchanged => Err(status),
            Err(status) => Err(poll_failed(&id.name, &status)),
        }
    }

    /// Polls for added, changed and removed models. A repository that cannot be read changes nothing.
    pub fn poll(self: &Arc<Self>) {
        // Counted, so that the server's end waits for loads.
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
        // The reason of a failure is in the log already.
        let (mut changed, fresh) = self.load_all(&found, drop);
        for (id, slot) in self.slots() {
            // By their ids, as `find` has sorted them.
            if found.binary_search_by(|found| found.id.cmp(&id)).is_ok() {
                continue;
            }
            self.in_slot(&id, &slot, |slot| self.unload_slot(&id, slot));
            changed.insert(id.clone());
            lock(&self.slots).remove(&id);
            self.change(&id, |entry| drop(entry.take_if(|entry| entry.versions.is_empty())));
        }
        self.follow(&changed, &fresh);
    }
}
