//! One core: an engine, a mailbox, timers and a clock, and the turn that goes round between them.
//!
//! A shard is one thread that never blocks but when it has nothing to do. What it serves is a [`Handler`]: the
//! transport in the server, a script in simulations.

pub mod clock;
pub mod engine;
pub mod mailbox;
pub mod placement;
pub mod timer;
mod turn;

pub use turn::{Core, Handler, Turn};
