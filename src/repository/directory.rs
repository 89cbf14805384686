//! The current map of models, where ensembles look up the models of their steps.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::lifecycle::Lifecycle;
use super::models::ModelMap;
use nereid_request::Status;
use nereid_scheduler::ensemble::{Composing, Models, StepModel};

/// The current map. Its lock is held for one lookup or for a swap of the pointer only, so shards may take it.
pub struct Directory {
    present: RwLock<Option<Arc<ModelMap>>>,
    /// Builds the map when none has been built yet.
    lifecycle: Weak<Lifecycle>,
}

impl Directory {
    pub fn new(lifecycle: Weak<Lifecycle>) -> Directory {
        Directory { present: RwLock::new(None), lifecycle }
    }

    /// With None the map is built at the next lookup.
    pub fn set(&self, map: Option<Arc<ModelMap>>) {
        let before = std::mem::replace(&mut *self.present.write().unwrap_or_else(PoisonError::into_inner), map);
        // This may be the last reference to the map; it is dropped outside the lock.
        drop(before);
    }
}

impl Models for Directory {
    fn find(&self, wanted: &StepModel) -> Result<Arc<dyn Composing>, Status> {
        {
            let present = self.present.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(map) = &*present {
                return map.composing(wanted).map(|served| Arc::clone(served) as Arc<dyn Composing>);
            }
        }
        let lifecycle = self.lifecycle.upgrade().ok_or_else(|| Status::unavailable("Server not ready"))?;
        let map = lifecycle.map();
        map.composing(wanted).map(|served| Arc::clone(served) as Arc<dyn Composing>)
    }
}
