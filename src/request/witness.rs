//! Who wants to know when the first response of a request leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Hears of first responses, on whatever thread sends them; must not block.
pub trait Witness: Send + Sync {
    /// `started_ns` is when the core accepted the request.
    fn responded(&self, started_ns: u64);
}

/// A witness of one request.
pub(super) struct FirstResponse {
    witness: Arc<dyn Witness>,
    started_ns: u64,
    is_over: AtomicBool,
}

impl FirstResponse {
    pub(super) fn new(witness: Arc<dyn Witness>, started_ns: u64) -> FirstResponse {
        FirstResponse { witness, started_ns, is_over: AtomicBool::new(false) }
    }

    pub(super) fn responded(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            self.witness.responded(self.started_ns);
        }
    }

    /// Nobody is to hear of what comes.
    pub(super) fn dismiss(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for FirstResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstResponse").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
