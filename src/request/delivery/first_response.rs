//! Reports that the first response of a request leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::RequestEvents;

/// Reports the first response of one request, once.
pub(super) struct FirstResponse {
    events: Arc<dyn RequestEvents>,
    started_ns: u64,
    is_over: AtomicBool,
}

impl FirstResponse {
    pub(super) fn new(events: Arc<dyn RequestEvents>, started_ns: u64) -> FirstResponse {
        FirstResponse { events, started_ns, is_over: AtomicBool::new(false) }
    }

    pub(super) fn responded(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            self.events.first_response(self.started_ns);
        }
    }

    /// Nothing is reported from now on.
    pub(super) fn dismiss(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for FirstResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstResponse").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
