//! `src/queue` alone, as a crate that loom's models are built in.

#[path = "../../src"]
mod src {
    pub mod queue;
}

pub use src::queue;
