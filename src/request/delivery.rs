//! How an answer finds its way from the model that makes it back to the client that waits for it.
//!
//! A backend sends each response through the [`Request`](crate::Request) or a [`ResponseFactory`]. Both hold the
//! request's [`Completion`], the address of its answers, which takes a response through these modules:
//!
//! 1. `credit`: the response of a limited request waits for room. An [`Outbox`] keeps the responses of a thread that
//!    must not wait.
//! 2. `cancel`: the state word decides whether the request has ended; worker, timer and cancellation compete for it.
//!    `first_response` reports that the first response leaves, `cancel_watch` that the request is cancelled.
//! 3. [`shared`]: copies outputs to the shared memory of the client, where they do not lie there already.
//! 4. [`local_delivery`]: keeps the answer on this thread if its shard is executing the request. Any other answer goes
//!    to the request's [`Sink`]: `shard_sink` for a request that came over a connection.
//!
//! Beside the way of a response: `home` runs jobs where a request's answers arrive, a `ticket` lets the sender cancel
//! the request, `release` reports that a backend has released it, `events` is the trait of all these reports, and
//! `recycle` keeps the memory of requests and responses that are over.

mod cancel;
mod cancel_watch;
pub(super) mod completion;
mod credit;
mod events;
mod first_response;
mod home;
pub mod local_delivery;
pub mod mutants;
mod outbox;
mod recycle;
mod release;
mod shard_sink;
pub mod shared;
mod ticket;

pub use cancel::{Admission, CancelToken, State};
pub use cancel_watch::CancelWatch;
pub use completion::{Completion, Delivery, OutputQuery, ResponseFactory, Sink};
pub use credit::{Credit, NeverWaits, never_wait_here, never_waits};
pub use events::RequestEvents;
pub use home::{Home, Job, WakeUp, Waker};
pub use outbox::Outbox;
pub use release::{ReleaseHooks, ReleaseReport};
pub use shard_sink::ShardSink;
pub use ticket::Ticket;
