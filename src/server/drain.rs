//! The end of the server: signals, readiness turned off, connections and requests finished, models unloaded.
//!
//! Everything shares one budget, `--exit-timeout-secs` (cli.md section 7).

use std::cell::RefCell;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals as SignalStream;
use tracing::{error, info};

use super::Failure;
use super::options::Options;
use super::shards::Shards;
use crate::api::{Facts, ServerState};
use crate::repository::{InFlight, Lifecycle};
use crate::request::Status;

/// How often the end of the work is looked for.
const POLL: Duration = Duration::from_millis(5);
/// Connections that have nothing to do any more get this long to be closed by their clients.
const GRACE: Duration = Duration::from_millis(500);

/// Why the server ends.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Signal(i32),
    /// A shard's thread ended by itself: its connections are answered by nobody.
    Shard(usize),
}

/// The signals that end the server, later ones change nothing, and whatever else does.
pub struct Ends {
    signals: SignalStream,
    sender: Sender<End>,
    ends: Receiver<End>,
}

impl Ends {
    pub fn install() -> io::Result<Ends> {
        let (sender, ends) = channel();
        SignalStream::new([SIGINT, SIGTERM]).map(|signals| Ends { signals, sender, ends })
    }

    /// For those who may end the server themselves.
    pub fn notify(&self) -> Sender<End> {
        self.sender.clone()
    }

    /// Blocks until the first comes.
    pub fn wait(self) -> io::Result<End> {
        let Ends { mut signals, sender, ends } = self;
        // The thread goes on, and with it the handlers: a second signal is swallowed, as Triton does.
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let _ = sender.send(End::Signal(signal));
            }
        })?;
        ends.recv().map_err(io::Error::other)
    }
}

thread_local! {
    static NOTICE: RefCell<Option<Notice>> = const { RefCell::new(None) };
}

struct Notice(Sender<End>, usize);

impl Drop for Notice {
    fn drop(&mut self) {
        // Nobody listens any more once the server stops.
        let _ = self.0.send(End::Shard(self.1));
    }
}

/// Tells of the end of the calling thread, be it by an error or a panic: shard number `shard`.
pub fn tell_of_end(ends: Sender<End>, shard: usize) {
    NOTICE.set(Some(Notice(ends, shard)));
}

struct Budget(Instant);

impl Budget {
    fn of(exit_timeout_secs: u32) -> Budget {
        Budget(Instant::now() + Duration::from_secs(u64::from(exit_timeout_secs)))
    }

    fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    fn is_spent(&self) -> bool {
        self.left().is_zero()
    }
}

/// Finishes what was accepted, within the budget.
pub fn run(
    options: &Options,
    facts: &Arc<Facts>,
    shards: Shards,
    lifecycle: &Arc<Lifecycle>,
) -> Result<ExitCode, Failure> {
    let budget = Budget::of(options.exit_timeout_secs);
    facts.set_state(ServerState::Exiting);
    lifecycle.refuse_changes();
    shards.drain();
    wait_for_connections(&shards, &budget);
    let unloaded = finish(lifecycle, &budget);
    shards.stop();
    match unloaded && !budget.is_spent() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::Stop(expired())),
    }
}

/// The same for a server without ports.
pub fn run_without_ports(exit_timeout_secs: u32, facts: &Facts, lifecycle: &Arc<Lifecycle>) -> Result<(), Status> {
    let budget = Budget::of(exit_timeout_secs);
    facts.set_state(ServerState::Exiting);
    lifecycle.refuse_changes();
    if finish(lifecycle, &budget) { Ok(()) } else { Err(expired()) }
}

fn expired() -> Status {
    Status::internal("Exit timeout expired. Exiting immediately.")
}

/// Finishes the requests that models have, and ends the models. False: not within the budget.
fn finish(lifecycle: &Arc<Lifecycle>, budget: &Budget) -> bool {
    info!("Waiting for in-flight requests to complete.");
    lifecycle.stop_scheduling();
    let answered = wait_for(budget, || lifecycle.in_flight().is_empty(), || log_in_flight(lifecycle, budget));
    info!("All models are stopped, unloading models");
    lifecycle.detach();
    answered && wait_for_models(lifecycle, budget)
}

/// Waits until `is_done`, and tells once a second what it waits for. False if the budget is spent first.
fn wait_for(budget: &Budget, is_done: impl Fn() -> bool, tell: impl Fn()) -> bool {
    let mut told = Instant::now();
    while !is_done() {
        if budget.is_spent() {
            return false;
        }
        if told.elapsed() >= Duration::from_secs(1) {
            told = Instant::now();
            tell();
        }
        std::thread::sleep(POLL);
    }
    true
}

fn log_in_flight(lifecycle: &Lifecycle, budget: &Budget) {
    let in_flight = lifecycle.in_flight();
    let (secs, count) = (budget.left().as_secs(), in_flight.len());
    info!("Timeout {secs}: Found {count} model versions that have in-flight inferences");
    for InFlight { name, version, requests } in in_flight {
        info!("Model '{name}' (version {version}) has {requests} in-flight inferences");
    }
}

fn wait_for_models(lifecycle: &Arc<Lifecycle>, budget: &Budget) -> bool {
    let is_done = || {
        // Again each time: a load that was under way leaves its model behind.
        lifecycle.unload_all();
        lifecycle.operations() == 0 && lifecycle.live_models() == 0
    };
    let unloaded = wait_for(budget, is_done, || {
        let (secs, live, waiting) = (budget.left().as_secs(), lifecycle.live_models(), lifecycle.operations());
        info!("Timeout {secs}: Found {live} live models and {waiting} in-flight non-inference requests");
    });
    if unloaded {
        lifecycle.close();
    }
    unloaded
}

fn wait_for_connections(shards: &Shards, budget: &Budget) {
    let started = Instant::now();
    let mut told = started;
    while !budget.is_spent() {
        let (http, grpc, busy) = (shards.http_connections(), shards.grpc_connections(), shards.busy());
        if http + grpc == 0 || (busy == 0 && started.elapsed() >= GRACE) {
            return;
        }
        if told.elapsed() >= Duration::from_secs(1) {
            told = Instant::now();
            let secs = budget.left().as_secs();
            if http > 0 {
                info!("Timeout {secs}: Found {http} HTTP service connections");
            }
            if grpc > 0 {
                info!("Timeout {secs}: Found {grpc} gRPC service connections and inference handlers");
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Ends models that will not be served after all. Those that take longer than the end of a server may are left.
pub fn unload(lifecycle: &Arc<Lifecycle>, exit_timeout_secs: u32) {
    lifecycle.refuse_changes();
    if !wait_for_models(lifecycle, &Budget::of(exit_timeout_secs)) {
        error!("{}", expired().message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_thread_is_told_however_it_ends() {
        let (sender, ends) = channel();
        for (shard, panics) in [(3, false), (4, true)] {
            let sender = sender.clone();
            let thread = std::thread::spawn(move || {
                tell_of_end(sender, shard);
                assert!(!panics, "this thread shall panic");
            });
            assert_eq!(thread.join().is_err(), panics);
            assert_eq!(ends.recv().unwrap(), End::Shard(shard));
        }
    }
}
