//! What a library says to the question whether an instance of it could serve.
//!
//! The question comes from other threads than the instance's own, and may come while the instance ends: a gate stands
//! between the two, so that the library is never asked about an instance that it has finalised.

use std::sync::{Arc, Mutex, PoisonError};

use super::library::{Call, Library};
use crate::abi::handles::InstanceHandle;
use crate::scheduler::Readiness;
use nereid_request::Status;

/// The way to one instance's `TRITONBACKEND_ModelInstanceReady`.
pub(super) struct Gate {
    ready: Call,
    /// None once the instance ends.
    behind: Mutex<Option<(Arc<Library>, Arc<InstanceHandle>)>>,
}

impl Gate {
    pub fn new(ready: Call, library: &Arc<Library>, instance: &Arc<InstanceHandle>) -> Gate {
        Gate { ready, behind: Mutex::new(Some((Arc::clone(library), Arc::clone(instance)))) }
    }

    /// Waits for a question that is being answered; there will be no other.
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
