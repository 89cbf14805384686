//! Sends recorded requests to a server at the times of the recording, and compares its answers with the recorded ones.
//!
//! ```text
//! Reader ─► lookahead (by arrival) ─► dispatch at its time ─► worker: Prepared ─► call ─► compare ─► Summary
//! ```

mod dispatch;
mod lookahead;
mod plan;
mod prepared;
mod summary;
mod worker;

pub use dispatch::{ReplayError, replay};
pub use plan::{CONCURRENCY_MAX, Plan, Server, Speed};
pub use summary::{Outcome, Summary};
