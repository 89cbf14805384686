//! The models of the repositories as a whole: the start, and what polling finds changed (schedulers.md section 10,
//! "Control modes").

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::{error, warn};

use super::super::models::{Entry, ModelId};
use super::super::overrides::Override;
use super::super::store::Store;
use super::super::{ControlMode, index};
use super::operation::Asker;
use super::{Lifecycle, lock, poll_failed};
use crate::request::Status;

/// What polling saw of a model when it last looked: how new its files were, or why that cannot be told.
pub type Attempt = Result<i128, Status>;

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
            self.in_parallel(&self.settings.startup_models, |name| {
                let outcome = self.load_named(name, &Override::None, Asker::Server);
                if outcome.is_err() && !self.settings.namespacing {
                    self.expect(&ModelId { name: name.clone(), ..ModelId::default() });
                }
                count(outcome);
            });
        } else {
            let found = self.find()?;
            self.in_parallel(&found, |found| count(self.load_found(found)));
        }
        Ok(failures.into_inner() == 0)
    }

    fn in_parallel<T: Sync>(&self, work: &[T], job: impl Fn(&T) + Sync) {
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
        for store in &self.settings.stores {
            for name in store.models()? {
                found.entry(self.id(&name, &**store)).or_default().push(Arc::clone(store));
            }
        }
        Ok(found.into_iter().map(|(id, stores)| Found { id, stores }).collect())
    }

    fn load_found(self: &Arc<Self>, found: &Found) -> Result<(), Status> {
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
    fn poll_model(self: &Arc<Self>, id: &ModelId, store: &Arc<dyn Store>) -> Result<(), Status> {
        let slot = self.slot(id);
        let mut slot = lock(&slot);
        let attempt: Attempt = match store.stamp(&id.name) {
            Ok(Some(stamp)) => Ok(stamp.newest_ns),
            // Gone since the repository was listed: the next poll unloads it.
            Ok(None) => return Ok(()),
            Err(status) => Err(status),
        };
        let is_known = slot.attempt.as_ref() == Some(&attempt);
        slot.attempt = Some(attempt.clone());
        match attempt {
            Ok(_) if is_known => Ok(()),
            Ok(_) => self.load_slot(id, &mut slot, Some(store), &Override::None, Asker::Server),
            Err(status) if is_known => Err(status),
            Err(status) => {
                self.expect(id);
                Err(poll_failed(&id.name, &status))
            }
        }
    }

    /// Looks for what was added, changed or removed. A repository that cannot be read changes nothing.
    pub fn poll(self: &Arc<Self>) {
        // Counted, so that the end of the server waits for what is being loaded.
        let Ok(_operation) = self.begin() else { return };
        let found = match self.find() {
            Ok(found) => found,
            Err(status) => {
                warn!("the model repositories are not polled this time: {status}");
                return;
            }
        };
        self.in_parallel(&found, |found| {
            // Why it failed is in the log already.
            let _ = self.load_found(found);
        });
        for (id, slot) in self.slots() {
            if found.iter().any(|found| found.id == id) {
                continue;
            }
            self.unload_slot(&id, &mut lock(&slot));
            lock(&self.slots).remove(&id);
            self.change(|entries| {
                if let Some(entry) = entries.get(&id)
                    && entry.versions.is_empty()
                {
                    entries.remove(&id);
                }
            });
        }
    }
}
