//! The whole server in one thread without sockets and without time: a seed decides all that happens, and in which
//! order.
//!
//! Real are the shards (`Shard::turn`), their transports and protocols (`Net`), the service (`Api`), the schedulers,
//! the execution of payloads (`backend::instance`), maps of models and memory pools. Simulated are the I/O engine and
//! the network behind it ([`engine`], [`network`]), clients over HTTP/1.1 and gRPC ([`clients`]), the models and the
//! threads of their workers ([`models`]), the control thread, and the clock, which [`world`] moves from one event to
//! the next. A reload loads a version, publishes a map to the shards and ends the old version as
//! `repository::lifecycle` does; the life cycle itself needs threads and is not under the simulation. Neither are TLS
//! and the accounts of client addresses.
//!
//! What must hold of every run ([`ledger`], `Server::check_rest`, `Generation::check`):
//!
//! - A request is answered at most once, and exactly once unless its connection ended: with its own id and payload, by
//!   the model that it names and a version that served meanwhile; or with an error that has a reason.
//! - A request of an ensemble is executed by exactly the models of its steps, in their order, and its answer is what
//!   they made; shards execute some of the steps, and workers hand some over to each other.
//! - No request is executed twice, in a batch beyond the model's maximum, or with other bytes than its client sent.
//! - The statistics of each version count exactly what its instances did.
//! - When all is over, nothing is left: connections, calls, timers, chunks, requests in flight, versions, bytes.
//!
//! A failure prints the seed, and the last events before it. `NEREID_TEST_SIMULATED_SEED=<seed>` runs that seed alone,
//! and gives the same run. `NEREID_TEST_SIMULATED_REQUESTS=<count>` sets how many requests are simulated.
//!
//! [`mistakes`] plants mistakes in the server, one at a time; the simulation has to catch each.

// Release builds have neither the played clock nor the planted mistakes.
#![cfg(debug_assertions)]

mod clients;
mod engine;
mod ledger;
mod mistakes;
mod models;
mod network;
mod random;
mod server;
mod weather;
mod world;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use world::Figures;

/// Requests that one seed simulates.
const REQUESTS_PER_SEED: u64 = 4_000;
/// Requests that a test run simulates where the environment does not say otherwise.
const REQUESTS: u64 = 1_000_000;
/// Threads of a test: each has a server, a clock and a ledger of its own, in its memory.
const THREADS_MAX: usize = 8;

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs a seed; once more with a trace where it fails.
fn run(seed: u64) -> Figures {
    match world::run(seed, REQUESTS_PER_SEED, false) {
        Ok(figures) => figures,
        Err(first) => {
            let traced = world::run(seed, REQUESTS_PER_SEED, true).err();
            panic!("NEREID_TEST_SIMULATED_SEED={seed}: {}", traced.unwrap_or(first));
        }
    }
}

/// Runs `work` for each number, on a thread for each core: a thread that is done takes the next number, so that none
/// has nothing to do while another has much. The results are in no order.
fn on_every_core<R: Send>(numbers: Range<u64>, work: impl Fn(u64) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).min(THREADS_MAX);
    let next = AtomicU64::new(numbers.start);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < numbers.end);
    let share = || std::iter::from_fn(take).map(&work).collect::<Vec<R>>();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.flat_map(|results| results.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

#[test]
fn every_request_gets_its_answer_and_nothing_remains() {
    if let Some(seed) = number_of("NEREID_TEST_SIMULATED_SEED") {
        return println!("{:#?}", run(seed));
    }
    let wanted = number_of("NEREID_TEST_SIMULATED_REQUESTS").unwrap_or(REQUESTS);
    let first = number_of("NEREID_TEST_SIMULATED_FIRST_SEED").unwrap_or(1);
    let seeds = wanted.div_ceil(REQUESTS_PER_SEED);
    let started = Instant::now();
    let mut total = Figures::default();
    on_every_core(first..first + seeds, run).iter().for_each(|figures| total.add(figures));
    let secs = started.elapsed().as_secs_f64();
    println!("{seeds} seeds, {} requests in {secs:.0} s, {:.0} a second", total.requests, total.requests as f64 / secs);
    println!("{total:#?}");
    assert!(total.requests >= wanted, "{} of {wanted} requests", total.requests);
    assert!(total.steps_of_shards > 0 && total.handed_over > 0, "all steps took one way");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..=14 {
        let run = || format!("{:?}", world::run(seed, 300, false));
        assert_eq!(run(), run(), "seed {seed}");
    }
}
