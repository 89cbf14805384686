//! Payloads: what a scheduler hands to a worker for one execution.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ensemble::hand_over;
use nereid_request::Request;

/// The requests of one execution.
#[derive(Debug, Default)]
pub struct Payload {
    requests: SmallVec<[Box<Request>; 4]>,
    more: Option<More>,
}

/// The source of the next payload.
#[derive(Clone)]
pub struct More(Arc<dyn Fn() -> Option<Payload> + Send + Sync>);

impl More {
    pub fn new(next: impl Fn() -> Option<Payload> + Send + Sync + 'static) -> More {
        More(Arc::new(next))
    }
}

impl std::fmt::Debug for More {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("More")
    }
}

impl Payload {
    /// Lets the execution take the next payload early.
    pub fn with_more(self, more: More) -> Payload {
        Payload { more: Some(more), ..self }
    }

    /// The next payload of this worker, if there is one already: for instances that can prepare it while this one is
    /// executed. Never while another worker could take it.
    #[inline]
    pub fn more(&self) -> Option<Payload> {
        let payload = (self.more.as_ref()?.0)()?;
        // The execution lasts beyond the payload that it began with.
        hand_over::send_home();
        payload.requests.iter().for_each(|request| request.mark_taken());
        Some(payload)
    }

    #[inline]
    pub fn push(&mut self, request: Box<Request>) {
        self.requests.push(request);
    }

    #[inline]
    pub fn requests(&self) -> &[Box<Request>] {
        &self.requests
    }

    /// Takes the only request of a payload of one.
    #[inline]
    pub fn take_only(&mut self) -> Option<Box<Request>> {
        if self.requests.len() == 1 { self.requests.pop() } else { None }
    }

    /// Takes every request; the payload is empty afterwards.
    #[inline]
    pub fn take(&mut self) -> SmallVec<[Box<Request>; 4]> {
        std::mem::take(&mut self.requests)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}
