//! The load generator against real servers: what it sends arrives, what it counts and says is true, and nothing of it
//! stays.

mod encryption;
mod exits;
mod input_data;
mod loads;
mod plans;
mod program;
mod reports;
mod sequences;
mod shared_memory;
mod signals;
mod trouble;
