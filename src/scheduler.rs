//! Request → payload: what must be refused is refused in the caller's thread, batches are pulled by idle workers.
//!
//! There is no scheduler thread. A request waits in an inbox until a worker that is free cuts it into a payload; see
//! `direct` for how the right to cut passes between workers.

mod direct;

use std::thread::Thread;

use crate::request::{Request, Status};

pub use direct::Direct;

/// A request that was not accepted, and why. It goes back to its caller, unanswered and uncounted.
#[derive(Debug)]
pub struct Refused {
    pub status: Status,
    pub request: Box<Request>,
}

/// The worker that an accepted request has to wake, if it sleeps.
///
/// Who accepts many requests in a row wakes when it is through with them: on a core that both share, each wake-up at
/// once would cost two changes of threads for one request.
#[derive(Debug)]
#[must_use = "a worker that is not woken leaves its request waiting"]
pub struct WakeUp(Option<Thread>);

impl WakeUp {
    pub fn now(self) {
        if let Some(thread) = self.0 {
            thread.unpark();
        }
    }

    /// True if nobody has to be woken.
    pub fn is_needless(&self) -> bool {
        self.0.is_none()
    }
}

/// Accepts validated requests of one model version.
pub trait Scheduler: Send + Sync {
    /// Takes the request or says at once why not. Never blocks. The wake-up is due before the caller sleeps.
    fn enqueue(&self, request: Box<Request>) -> Result<WakeUp, Refused>;

    /// The home shard took a queued request back (its client left): it no longer counts as waiting.
    fn withdrawn(&self);

    /// Refuses whatever comes from now on. What was accepted is still executed; workers end when it is.
    fn stop(&self);
}
