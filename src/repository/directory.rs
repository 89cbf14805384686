//! Where ensembles look up the models of their steps: the map of the moment, for everybody who has no map of their own.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::lifecycle::Lifecycle;
use super::models::ModelMap;
use crate::scheduler::ensemble::{Composing, Models, Wanted};
use crate::scheduler::{Accepted, Refused, ServedModel};
use nereid_model_config::ModelSpec;
use nereid_model_config::labels::Labels;
use nereid_request::{Request, Status, Ticket, WakeUp};

/// The present map. Its lock is held for a look or a change of a pointer, so that shards may take it.
pub struct Directory {
    present: RwLock<Option<Arc<ModelMap>>>,
    /// Makes the map where nobody has asked for one yet.
    lifecycle: Weak<Lifecycle>,
}

impl Directory {
    pub fn new(lifecycle: Weak<Lifecycle>) -> Directory {
        Directory { present: RwLock::new(None), lifecycle }
    }

    /// None: there will be a map when somebody asks.
    pub fn set(&self, map: Option<Arc<ModelMap>>) {
        let before = std::mem::replace(&mut *self.present.write().unwrap_or_else(PoisonError::into_inner), map);
        // It may be the last to hold that map; nobody waits for its end.
        drop(before);
    }
}

impl Models for Directory {
    fn find(&self, wanted: &Wanted) -> Result<Arc<dyn Composing>, Status> {
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

impl Composing for ServedModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn takes_device_tensors(&self) -> bool {
        self.checks.take_device_tensors()
    }

    fn labels(&self, output: &str) -> Option<Arc<Labels>> {
        self.labels.get(output).cloned()
    }

    fn submit(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        ServedModel::submit(self, request)
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        self.scheduler.cancel(ticket)
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        self.scheduler.expire(ticket)
    }
}
