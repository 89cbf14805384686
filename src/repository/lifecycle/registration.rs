//! Repositories that come and go while the server runs: registered by the C API, or by the models of a multi-model
//! endpoint (contract/http.md section 8).
//!
//! Removing a repository takes no model out of service. Its models that do not run are removed with it, so that a
//! server to which models are brought for years lists only the current ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tracing::info;

use super::super::ControlMode;
use super::super::models::ModelId;
use super::super::store::{self, MappedStore, Store};
use super::{Lifecycle, check_name, lock};
use nereid_request::Status;

/// Most repositories at a time: those of the start and those registered later.
const REPOSITORIES_MAX: usize = 4096;

/// The current repositories.
pub type Stores = Arc<Vec<Arc<dyn Store>>>;

impl Lifecycle {
    pub(in super::super) fn stores(&self) -> Stores {
        Arc::clone(&self.stores.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The repositories that may have a model of that name: only the mapping's, where a mapping names it.
    pub(super) fn stores_of(&self, name: &str) -> Vec<Arc<dyn Store>> {
        let stores = self.stores();
        let mapped = stores.iter().find(|store| store.maps(name));
        mapped.map_or_else(|| stores.to_vec(), |store| vec![Arc::clone(store)])
    }

    /// Adds the repository at `location`. `mapping`: its directories, and the names under which they are served.
    pub fn register_repository(&self, location: &str, mapping: &[(String, String)]) -> Result<(), Status> {
        let mut names = BTreeSet::new();
        if let Some((_, model)) = mapping.iter().find(|(_, model)| !names.insert(model)) {
            let text = format!("failed to register '{location}', there is a conflicting mapping for '{model}'");
            return Err(Status::invalid(text));
        }
        if self.settings.mode != ControlMode::Explicit {
            let text = "repository registration is not allowed if model control mode is not EXPLICIT";
            return Err(Status::unsupported(text));
        }
        let store = store::open(location, &|name| std::env::var_os(name))?;
        if let Err(status) = store.models() {
            info!("the repository '{location}' cannot be read: {status}");
            return Err(Status::invalid(format!("failed to register '{location}', repository not found")));
        }
        let directories: BTreeMap<String, String> =
            mapping.iter().map(|(directory, model)| (model.clone(), directory.clone())).collect();
        let store: Arc<dyn Store> = Arc::new(MappedStore::new(store, directories));
        let mut stores = self.stores.write().unwrap_or_else(PoisonError::into_inner);
        if stores.iter().any(|other| other.location() == location) {
            return Err(Status::already_exists(format!("model repository '{location}' has already been registered")));
        }
        if let Some((_, model)) = mapping.iter().find(|(_, model)| stores.iter().any(|other| other.maps(model))) {
            let text = format!("failed to register '{model}', there is a conflicting mapping for '{model}'");
            return Err(Status::already_exists(text));
        }
        if stores.len() >= REPOSITORIES_MAX {
            return Err(Status::unavailable(format!("{REPOSITORIES_MAX} model repositories are registered already")));
        }
        Arc::make_mut(&mut *stores).push(store);
        info!("Model repository registered: {location}");
        Ok(())
    }

    /// Removes a repository, also one of the start. Its models serve on until they are unloaded.
    pub fn unregister_repository(&self, location: &str) -> Result<(), Status> {
        if self.settings.mode != ControlMode::Explicit {
            let text = "repository unregistration is not allowed if model control mode is not EXPLICIT";
            return Err(Status::unsupported(text));
        }
        let store = {
            let mut stores = self.stores.write().unwrap_or_else(PoisonError::into_inner);
            let at = stores.iter().position(|store| store.location() == location);
            let text = || format!("failed to unregister '{location}', repository not found");
            let at = at.ok_or_else(|| Status::invalid(text()))?;
            Arc::make_mut(&mut *stores).remove(at)
        };
        info!("Model repository unregistered: {location}");
        // Its directory may already be gone.
        let names: BTreeSet<String> = store.models().unwrap_or_default().into_iter().chain(store.mapped()).collect();
        for name in &names {
            self.forget(&self.id(name, &*store));
        }
        Ok(())
    }

    /// Removes a model of which the repository is gone, as soon as no version of it serves, loads or unloads. False if
    /// not yet.
    pub(super) fn forget(&self, id: &ModelId) -> bool {
        let is_idle = {
            let mut slots = lock(&self.slots);
            // Only the table refers to it, and no thread can get it now.
            let is_idle = slots.get(id).is_none_or(|slot| {
                let has_nothing = slot.try_lock().is_ok_and(|slot| slot.running.is_empty());
                has_nothing && Arc::strong_count(slot) == 1
            });
            if is_idle {
                slots.remove(id);
            }
            is_idle
        };
        if is_idle {
            lock(&self.graph).forget(id);
        }
        let mut is_gone = is_idle;
        self.change(id, |present| match present {
            Some(entry) if is_idle && entry.is_over() => *present = None,
            Some(entry) => {
                entry.is_forgotten = true;
                is_gone = false;
            }
            None => {}
        });
        is_gone
    }

    /// No version of any model of that name serves, loads or unloads.
    pub fn is_unloaded(&self, name: &str) -> bool {
        let map = self.map();
        map.of_name(name).all(|(_, entry)| entry.is_over())
    }

    /// The folder of a model on this host; none if it is in a bucket.
    pub fn folder_of(&self, name: &str) -> Option<PathBuf> {
        let folder = |store: Arc<dyn Store>| {
            let mapped = store.mapped_path(name).map(PathBuf::from);
            mapped.or_else(|| Some(Path::new(store.location()).join(name))).filter(|folder| folder.is_dir())
        };
        check_name(name).ok()?;
        self.stores_of(name).into_iter().find_map(folder)
    }

    /// Whether the server ends.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }
}
