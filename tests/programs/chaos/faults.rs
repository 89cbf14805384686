//! The kinds of faults. Each is injected, takes effect while the clients run, and is taken back.

mod clock;
mod connections;
mod descriptors;
mod disk;
mod io_uring;
mod memory;
mod models;
mod shared_memory;
mod workers;

use super::campaign::Campaign;
use nereid_test_support::variant::Variant;

pub struct Fault {
    pub name: &'static str,
    pub inject: fn(&mut Campaign),
}

const ALL: [Fault; 16] = [
    connections::KILLED_CLIENT,
    workers::KILLED,
    workers::STOPPED,
    workers::STOPPED_SERVER,
    models::RELOADED,
    models::DELETED,
    models::HALF_COPIED,
    models::CORRUPTED,
    models::FLIPPED,
    descriptors::EXHAUSTED,
    memory::EXHAUSTED,
    memory::WORKER_LIMITED,
    disk::FULL,
    shared_memory::FULL,
    io_uring::REFUSED,
    clock::SET_BACK,
];

/// What clients themselves inject.
const BY_CLIENTS: [&str; 3] = ["connections cut", "calls cancelled", "shared memory truncated"];

/// The faults that this variant can have.
pub fn of(variant: Variant) -> Vec<Fault> {
    let is_possible = |fault: &Fault| fault.name != io_uring::REFUSED.name || variant.io_engine == "io_uring";
    ALL.into_iter().filter(is_possible).collect()
}

/// The names of everything that must have been injected at least once.
pub fn kinds(variant: Variant) -> Vec<&'static str> {
    of(variant).into_iter().map(|fault| fault.name).chain(BY_CLIENTS).collect()
}

/// What happens while something is exhausted: short faults, each of which needs some of it.
fn meanwhile(campaign: &mut Campaign) {
    let short = [models::RELOADED, models::FLIPPED, workers::KILLED, connections::KILLED_CLIENT];
    let fault = &short[campaign.random.below(short.len())];
    campaign.event(&format!("  meanwhile: {}", fault.name));
    (fault.inject)(campaign);
}
