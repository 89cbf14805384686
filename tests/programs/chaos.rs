//! The real server while everything around it fails, and while it runs for a long time: client processes of every
//! protocol send requests whose answers they can check, and meanwhile connections, workers, models, descriptors,
//! memory, disks, the engine and the clock are taken away and given back.
//!
//! `campaign` runs the faults and states what must hold; `soak` runs the same clients without faults and states that
//! nothing grows. Each file of `faults` is one kind of fault, each of `client` one way of sending requests.

mod campaign;
mod client;
mod engine_lost;
mod faults;
mod hamper;
mod judge;
mod models;
mod prober;
mod resources;
mod site;
mod soak;
mod tally;
