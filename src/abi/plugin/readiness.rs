//! Queries of a library whether one of its instances is ready.
//!
//! The query runs on other threads than the instance's own, perhaps while the instance ends. A lock orders the two, so
//! that the library is never queried about an instance that it has finalised.

use std::sync::{Arc, Mutex, PoisonError};

use super::library::{Call, Library};
use crate::abi::handles::InstanceHandle;
use nereid_request::Status;
use nereid_scheduler::Readiness;

/// Calls `TRITONBACKEND_ModelInstanceReady` of one instance until it ends.
pub(super) struct Gate {
    ready: Call,
    /// None once the instance ends.
    behind: Mutex<Option<(Arc<Library>, Arc<InstanceHandle>)>>,
}

impl Gate {
    pub fn new(ready: Call, library: &Arc<Library>, instance: &Arc<InstanceHandle>) -> Gate {
        Gate { ready, behind: Mutex::new(Some((Arc::clone(library), Arc::clone(instance)))) }
    }

    /// Waits for a query under way, and prevents further ones.
    pub fn close(&self) {
        *self.behind.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Readiness for Gate {
    fn check(&self) -> Result<(), Status> {
        let behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        match &*behind {
            Some((library, instance)) => {
                let context = &instance.context;
                let work = library.work_on("TRITONBACKEND_ModelInstanceReady", &context.model.name, &context.name);
                library.call(&work, Some(self.ready), Arc::as_ptr(instance).cast_mut().cast())
            }
            None => Ok(()),
        }
    }
}
