//! What the sender of a request keeps once a scheduler has accepted it: enough to take the request back.

use std::any::Any;
use std::sync::Arc;

use super::{Admission, Completion, ResponseFactory, recycle};
use crate::{Response, Status, Text};

/// Held by the thread that handed a request in. Its scheduler takes it to let the request expire or to cancel it.
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
    /// The thread that handed the request in has executed it meanwhile.
    pub has_run_here: bool,
}

impl Ticket {
    pub(crate) fn new(completion: Completion, id: Text, started_ns: u64, is_counted: bool) -> Ticket {
        Ticket { completion, id, started_ns, is_counted, tag: 0, state: None, has_run_here: false }
    }

    /// The state word, which decides which thread answers.
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

    /// Ends the request with an error. Only for the thread that won it by [`Admission::expire`] or
    /// [`Admission::cancel`].
    pub fn fail(&self, status: Status) {
        self.completion.deliver(Some(Response::failed(self.id.clone(), status)), true);
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("completion", &self.completion).field("tag", &self.tag).finish_non_exhaustive()
    }
}
