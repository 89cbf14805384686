//! How other threads reach a shard: a queue that takes everything, and a wake-up only for a sleeper.

use std::sync::Arc;

use super::engine::Waker;
use crate::queue::{Mpsc, Sleeper};

struct Shared<M> {
    queue: Mpsc<M>,
    sleeper: Sleeper<Waker>,
}

/// The sending side; clones reach the same shard.
pub struct Post<M>(Arc<Shared<M>>);

impl<M> Clone for Post<M> {
    fn clone(&self) -> Post<M> {
        Post(Arc::clone(&self.0))
    }
}

impl<M: Send> Post<M> {
    /// Cannot fail and does not block.
    pub fn post(&self, mail: M) {
        self.0.queue.push(mail);
        self.0.sleeper.notify();
    }
}

/// The shard's side.
pub struct Mailbox<M>(Arc<Shared<M>>);

impl<M: Send> Mailbox<M> {
    /// `waker` ends a parked turn of the shard's engine.
    pub fn new(waker: Waker) -> Mailbox<M> {
        Mailbox(Arc::new(Shared { queue: Mpsc::new(), sleeper: Sleeper::new(waker) }))
    }

    pub fn post(&self) -> Post<M> {
        Post(Arc::clone(&self.0))
    }

    /// The oldest mail.
    pub fn take(&self) -> Option<M> {
        self.0.queue.consume()?.pop()
    }

    /// True if there is nothing to take now.
    pub fn is_empty(&self) -> bool {
        self.0.queue.consume().is_none_or(|consumer| consumer.is_empty())
    }

    /// Runs `park` unless mail came after the shard was declared asleep.
    pub fn sleep<R>(&self, park: impl FnOnce() -> R) -> Option<R> {
        self.0.sleeper.sleep(|| !self.is_empty(), park)
    }
}
