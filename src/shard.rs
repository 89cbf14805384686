//! One core, one thread: connections, timers and whatever needs no model run here, in turns.

pub mod clock;
pub mod engine;
pub mod listener;
pub mod slab;
pub mod timer;
