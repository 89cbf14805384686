//! The load generator with real servers: its requests arrive, its counts and reports are correct, and it cleans up.

mod compare;
mod encryption;
mod exits;
mod generator_limit;
mod input_data;
mod loads;
mod openai;
mod plans;
mod program;
mod recordings;
mod reports;
mod ring;
mod sequences;
mod shared_memory;
mod signals;
mod stand_in;
mod trouble;
