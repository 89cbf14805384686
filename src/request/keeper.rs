//! Who wants to know when a backend lets go of a request.

use std::sync::Arc;

use super::{Request, Status};

/// Told of requests that a backend releases.
pub trait Owner: Send + Sync {
    /// The request is released: its backend will not look at it any more. Its responses may still be on their way.
    fn released(&self, key: u64);

    /// A backend gives the request back to be scheduled once more. On refusal the backend still has it.
    fn reschedule(&self, key: u64, request: Box<Request>) -> Result<(), (Status, Box<Request>)>;
}

/// Inside a request: tells its owner when the request is dropped.
pub struct Keeper {
    owner: Option<Arc<dyn Owner>>,
    key: u64,
}

impl Keeper {
    pub fn new(owner: Arc<dyn Owner>, key: u64) -> Keeper {
        Keeper { owner: Some(owner), key }
    }

    /// The owner, and the key under which it knows the request; nothing will be told any more.
    pub fn dismiss(mut self) -> Option<(Arc<dyn Owner>, u64)> {
        let owner = self.owner.take()?;
        Some((owner, self.key))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.released(self.key);
        }
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keeper({:#x})", self.key)
    }
}
