//! What stays behind when a scheduler has accepted a request: enough to call it back.

use std::any::Any;
use std::sync::Arc;

use super::{Admission, Completion, ResponseFactory, recycle};
use crate::{Response, Status, Text};

/// Held by whoever handed a request in. With it the request's scheduler can be asked to let it expire or to cancel it.
pub struct Ticket {
    completion: Completion,
    pub id: Text,
    /// When the core accepted the request.
    pub started_ns: u64,
    /// False for requests that enter no statistics.
    pub is_counted: bool,
    /// The scheduler's own: a priority level, a slot.
    pub tag: u64,
    /// The scheduler's own: what does not fit into the tag.
    pub state: Option<Arc<dyn Any + Send + Sync>>,
}

impl Ticket {
    pub(crate) fn new(completion: Completion, id: Text, started_ns: u64, is_counted: bool) -> Ticket {
        Ticket { completion, id, started_ns, is_counted, tag: 0, state: None }
    }

    /// The state word that decides who answers.
    pub fn admission(&self) -> &Admission {
        &self.completion.admission
    }

    /// A producer of responses for the request, as [`Request::responses`](crate::Request::responses).
    pub fn responses(&self) -> ResponseFactory {
        ResponseFactory::new(self.completion.clone())
    }

    /// The request is over.
    pub fn retire(self) {
        recycle::keep_admission(self.completion.into_admission());
    }

    /// Ends the request with an error. Only for who won it by [`Admission::expire`] or [`Admission::cancel`].
    pub fn fail(&self, status: Status) {
        self.completion.deliver(Some(Response::failed(self.id.clone(), status)), true);
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("completion", &self.completion).field("tag", &self.tag).finish_non_exhaustive()
    }
}
