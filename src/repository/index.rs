//! The repository index: every model of every repository, whatever its state (contract/schedulers.md section 10,
//! "States").

use std::collections::{BTreeMap, BTreeSet};

use super::lifecycle::Lifecycle;
use super::models::{ModelId, VersionState};
use nereid_request::Status;

/// Why a model that two repositories hold is not loaded.
pub const DUPLICATE: &str = "model appears in two or more repositories";

/// One row of the index. A model that was never loaded has only a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexRow {
    pub name: String,
    pub version: Option<i64>,
    /// Empty for a model that was never loaded.
    pub state: &'static str,
    pub reason: String,
}

impl Lifecycle {
    /// Reads the repositories again, so it takes as long as they do.
    pub fn index(&self, only_ready: bool) -> Result<Vec<IndexRow>, Status> {
        let mut holders: BTreeMap<ModelId, usize> = BTreeMap::new();
        let stores = self.stores();
        let mapped: BTreeSet<String> = stores.iter().flat_map(|store| store.mapped()).collect();
        for store in stores.iter() {
            for name in store.models()? {
                // A directory cannot have a name that a mapping gives to another one.
                if mapped.contains(&name) && !store.maps(&name) {
                    continue;
                }
                *holders.entry(self.id(&name, &**store)).or_default() += 1;
            }
        }
        let map = self.map();
        // Serving models are listed even where their directory is gone or was never in a repository.
        for (id, entry) in map.iter() {
            if entry.versions.values().any(|state| matches!(state, VersionState::Ready(_) | VersionState::Loading)) {
                holders.entry(id.clone()).or_insert(1);
            }
        }
        let mut rows = Vec::new();
        for (id, holders) in holders {
            let name = || id.name.clone();
            if holders > 1 && !only_ready {
                let reason = DUPLICATE.to_owned();
                rows.push(IndexRow { name: name(), version: None, state: "UNAVAILABLE", reason });
            }
            if holders > 1 {
                continue;
            }
            let entry = map.get(&id).filter(|entry| !entry.versions.is_empty());
            let Some(entry) = entry else {
                rows.extend((!only_ready).then(|| IndexRow { name: name(), ..IndexRow::default() }));
                continue;
            };
            for (&version, state) in &entry.versions {
                // A serving version answers only errors once a device of its instances is lost, and nothing while all
                // its workers are stalled.
                let objection = match state {
                    VersionState::Ready(model) => model.checks.objection(),
                    _ => None,
                };
                let is_ready = matches!(state, VersionState::Ready(_)) && objection.is_none();
                if !only_ready || is_ready {
                    let (state, reason) = match objection {
                        Some(objection) => ("UNAVAILABLE", objection),
                        None => (state.name(), state.reason().to_owned()),
                    };
                    rows.push(IndexRow { name: name(), version: Some(version), state, reason });
                }
            }
        }
        Ok(rows)
    }
}
