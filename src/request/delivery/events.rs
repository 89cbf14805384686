//! Events of a request beside its answers, for those that registered for them.

use crate::{NOT_RESCHEDULED, Request, Status};

/// Called where an event happens, on any thread, a shard's included: no method may block. The key is the one that the
/// implementation registered with. An implementation overrides the events that it registers for.
pub trait RequestEvents: Send + Sync {
    /// The backend has released the request and does not read it any more. Its responses may still be on their way.
    fn released(&self, _key: u64) {}

    /// A backend gives the request back to be scheduled once more. On refusal the backend still has it.
    fn reschedule(&self, _key: u64, request: Box<Request>) -> Result<(), (Status, Box<Request>)> {
        Err((Status::invalid(NOT_RESCHEDULED), request))
    }

    /// The client does not wait for the answer any more. Called under a lock of the request: it must not end a
    /// [`CancelWatch`](super::CancelWatch).
    fn cancelled(&self, _key: u64) {}

    /// The first response leaves. The core accepted the request at `started_ns`.
    fn first_response(&self, _started_ns: u64) {}

    /// There may be room for the responses that an [`Outbox`](super::Outbox) keeps.
    fn has_room(&self, _key: u64) {}
}
