//! What happens when a backend has released a request.

use std::sync::Arc;

use super::RequestEvents;
use nereid_memory::ReleaseGuard;

/// The last field of a request: what is dropped after its completion, so that a dropped request is answered before its
/// owner receives the report.
#[derive(Debug, Default)]
pub struct ReleaseHooks {
    pub report: Option<ReleaseReport>,
    /// Of the memory that an application lent for the request. The last field: the application may free its memory when
    /// the last holder is dropped.
    pub guard: Option<Arc<ReleaseGuard>>,
}

/// Inside a request: reports the release when the request is dropped.
pub struct ReleaseReport {
    owner: Option<Arc<dyn RequestEvents>>,
    key: u64,
}

impl ReleaseReport {
    pub fn new(owner: Arc<dyn RequestEvents>, key: u64) -> ReleaseReport {
        ReleaseReport { owner: Some(owner), key }
    }

    /// The owner that registered, and its key; nothing is reported any more.
    pub fn dismiss(mut self) -> Option<(Arc<dyn RequestEvents>, u64)> {
        let owner = self.owner.take()?;
        Some((owner, self.key))
    }
}

impl Drop for ReleaseReport {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.released(self.key);
        }
    }
}

impl std::fmt::Debug for ReleaseReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReleaseReport({:#x})", self.key)
    }
}
