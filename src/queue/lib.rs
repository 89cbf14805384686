//! How work changes threads: lock-free queues, the sleep/wake handshake and the batcher token.
//!
//! A hand-over is the only crossing between a shard and an instance worker (docs/design.md, decisions 2 and 3), so it
//! must never fail, never block the thread that hands over, and wake only a sleeping thread: both ends awake cost 0.4
//! µs there and back, a parked end 20–25 µs each way. Everything here is modelled in loom (`queue/loom.rs`) before
//! anything uses it:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release --package nereid-queue --lib
//! ```

#![allow(unsafe_code)]

mod actor;
mod batcher_token;
pub mod bell;
pub mod frames;
mod mpsc;
mod post;
mod segmented_vec;
mod sleeper;
mod spin;
mod sync;
pub mod waits;
mod wake_flag;

#[cfg(all(test, loom))]
mod loom;

pub use actor::{Actor, NoActor};
pub use batcher_token::{Acquisition, Armed, BatcherToken, IdleState, TooManyWorkers, Worker};
pub use mpsc::{Consumer, Mpsc, Outlet};
pub use post::Post;
pub use segmented_vec::SegmentedVec;
pub use sleeper::{Sleeper, Wake};
pub use spin::{AdaptiveSpin, CoreInUse, Spin};
pub use wake_flag::WakeFlag;
