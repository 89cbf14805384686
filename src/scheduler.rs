//! Request → payload: what must be refused is refused in the caller's thread, batches are pulled by idle workers.
//!
//! There is no scheduler thread. A request waits in an inbox until a worker that is free cuts it into a payload; see
//! `direct` for how the right to cut passes between workers.

mod direct;

use crate::request::{Request, Status};

pub use direct::Direct;

/// A request that was not accepted, and why. It goes back to its caller, unanswered and uncounted.
#[derive(Debug)]
pub struct Refused {
    pub status: Status,
    pub request: Box<Request>,
}

/// Accepts validated requests of one model version.
pub trait Scheduler: Send + Sync {
    /// Takes the request or says at once why not. Never blocks.
    fn enqueue(&self, request: Box<Request>) -> Result<(), Refused>;

    /// The home shard took a queued request back (its client left): it no longer counts as waiting.
    fn withdrawn(&self);

    /// Refuses whatever comes from now on. What was accepted is still executed; workers end when it is.
    fn stop(&self);
}
