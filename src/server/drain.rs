//! The end of the server: signals, readiness turned off, connections and requests finished, models unloaded.
//!
//! All steps share one budget of time, `--exit-timeout-secs` (contract/cli.md section 7).

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
use super::takeover::TakenOver;
use crate::api::{Facts, ServerState};
use crate::repository::{InFlight, Lifecycle};
use nereid_request::Status;

/// How often the waits check whether the work is done.
const POLL: Duration = Duration::from_millis(5);
/// How long idle connections may stay open after the last answer, to be closed by their clients: a client reads that
/// answer and then ends its stream.
const IDLE_GRACE: Duration = Duration::from_secs(2);
/// Time for messages to arrive that were sent before their sender could know of the drain.
const UNDER_WAY: Duration = Duration::from_millis(200);
/// How long clients of a server that was replaced have to connect to the other one, if `--drain-delay` is shorter.
const TAKEOVER_DELAY: Duration = Duration::from_secs(5);
/// Time for clients to read their last messages.
const READ_TIME: Duration = Duration::from_secs(1);

/// Why the server ends.
#[derive(Debug, PartialEq, Eq)]
pub enum EndReason {
    Signal(i32),
    /// A shard's thread ended by itself, so its connections get no answers.
    Shard(usize),
    /// Another server answers on the listening sockets.
    TakenOver(TakenOver),
}

/// Receives signals and the other reasons for the server to end.
pub struct EndReceiver {
    sender: Sender<EndReason>,
    ends: Receiver<EndReason>,
}

impl EndReceiver {
    pub fn install() -> io::Result<EndReceiver> {
        let (sender, ends) = channel();
        let (mut signals, noticed) = (SignalStream::new([SIGINT, SIGTERM])?, sender.clone());
        // The thread goes on, and with it the handlers: a later signal does not kill the process, as in Triton.
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let _ = noticed.send(EndReason::Signal(signal));
            }
        })?;
        Ok(EndReceiver { sender, ends })
    }

    /// The sender for threads that may end the server.
    pub fn sender(&self) -> Sender<EndReason> {
        self.sender.clone()
    }

    /// Blocks until a reason to end arrives.
    pub fn wait(&self) -> io::Result<EndReason> {
        self.ends.recv().map_err(io::Error::other)
    }

    /// The same, for `time` at most.
    fn wait_at_most(&self, time: Duration) -> Option<EndReason> {
        self.ends.recv_timeout(time).ok()
    }
}

thread_local! {
    static END_REPORTER: RefCell<Option<EndReporter>> = const { RefCell::new(None) };
}

struct EndReporter(Sender<EndReason>, usize);

impl Drop for EndReporter {
    fn drop(&mut self) {
        // Fails when the server has stopped receiving.
        let _ = self.0.send(EndReason::Shard(self.1));
    }
}

/// Registers the calling thread, shard number `shard`, to report its end, be it by an error or a panic.
pub fn report_end_of_thread(ends: Sender<EndReason>, shard: usize) {
    END_REPORTER.set(Some(EndReporter(ends, shard)));
}

struct TimeBudget(Instant);

impl TimeBudget {
    fn of(exit_timeout_secs: u32) -> TimeBudget {
        TimeBudget(Instant::now() + Duration::from_secs(u64::from(exit_timeout_secs)))
    }

    fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    fn is_spent(&self) -> bool {
        self.left().is_zero()
    }
}

/// Continues to serve for `--drain-delay`, then finishes the accepted requests, all within the budget. If another
/// server has taken over, the clients that are connected have some time to go there.
pub fn run(
    options: &Options,
    ends: &EndReceiver,
    facts: &Arc<Facts>,
    mut shards: Shards,
    lifecycle: &Arc<Lifecycle>,
    taken_over: Option<&TakenOver>,
) -> Result<ExitCode, Failure> {
    let budget = TimeBudget::of(options.exit_timeout_secs);
    let outcome = match taken_over {
        Some(taken) => {
            shards.hand_over(&taken.services);
            let time = options.drain_delay.max(TAKEOVER_DELAY).min(budget.left() / 2);
            leave_to_other(time, taken.pid, ends, &shards)
        }
        None => {
            shards.leave_to_service_manager();
            leave(options.drain_delay.min(budget.left() / 2), ends, facts, &shards)
        }
    };
    facts.set_state(ServerState::Exiting);
    lifecycle.refuse_changes();
    shards.drain();
    wait_for_connections(&shards, &budget);
    let unloaded = finish(lifecycle, &budget, || give_up(&shards));
    shards.stop();
    outcome?;
    match unloaded && !budget.is_spent() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::Stop(expired())),
    }
}

/// Continues to serve while clients and balancers learn that they should go elsewhere. A second signal ends this phase.
fn leave(delay: Duration, ends: &EndReceiver, facts: &Facts, shards: &Shards) -> Result<(), Failure> {
    if delay.is_zero() {
        return Ok(());
    }
    let secs = delay.as_secs_f64();
    info!("Serving for {secs} s more (--drain-delay): not ready on the health endpoints, clients are sent elsewhere");
    facts.set_state(ServerState::Leaving);
    shards.leave();
    if let Some(EndReason::Shard(shard)) = ends.wait_at_most(delay) {
        return Err(Failure::Start(format!("shard {shard} ended by itself")));
    }
    last_call(shards);
    Ok(())
}

/// Serves the connections that are there until their clients have gone to the server that took over. The host is ready
/// all the time, so the health endpoints say so. A signal ends this phase.
fn leave_to_other(time: Duration, pid: u32, ends: &EndReceiver, shards: &Shards) -> Result<(), Failure> {
    let secs = time.as_secs_f64();
    info!("Process {pid} answers new connections. Serving those that are open for up to {secs} s more");
    shards.leave();
    let started = Instant::now();
    let is_over = || {
        let passed = started.elapsed();
        passed >= time || (passed >= UNDER_WAY && shards.http_connections() + shards.grpc_connections() == 0)
    };
    while !is_over() {
        match ends.wait_at_most(POLL) {
            Some(EndReason::Shard(shard)) => return Err(Failure::Start(format!("shard {shard} ended by itself"))),
            Some(EndReason::Signal(_)) => break,
            Some(EndReason::TakenOver(_)) | None => {}
        }
    }
    last_call(shards);
    Ok(())
}

/// Tells the last clients to go elsewhere.
fn last_call(shards: &Shards) {
    shards.last_call();
    let started = Instant::now();
    // First the time in which handshakes and messages under way arrive, then the time that clients need to read theirs.
    while started.elapsed() < UNDER_WAY || (shards.unwarned() > 0 && started.elapsed() < READ_TIME) {
        std::thread::sleep(POLL);
    }
}

/// Answers the unanswered requests, and waits until the answers are sent.
fn give_up(shards: &Shards) {
    shards.give_up();
    let started = Instant::now();
    while shards.busy_connections() > 0 && started.elapsed() < READ_TIME {
        std::thread::sleep(POLL);
    }
}

/// Closes the ports of one front end while its server goes on: takes no new connections and no new requests, and
/// finishes the accepted ones within `time`. The rest gets an error.
pub fn close(mut shards: Shards, time: Duration) {
    let budget = TimeBudget(Instant::now() + time);
    shards.drain();
    let mut was_busy = Instant::now();
    loop {
        let (connections, busy) = (shards.http_connections() + shards.grpc_connections(), shards.busy());
        if busy > 0 {
            was_busy = Instant::now();
        }
        // Clients have that long to read that they should go elsewhere, and to end their connections themselves.
        if busy == 0 && (connections == 0 || was_busy.elapsed() >= UNDER_WAY) {
            break;
        }
        if budget.is_spent() {
            if !time.is_zero() && shards.busy() > 0 {
                give_up(&shards);
            }
            break;
        }
        std::thread::sleep(POLL);
    }
    if !time.is_zero() && shards.grpc_connections() > 0 {
        // Streams that wait for nothing of the server's end with a status.
        give_up(&shards);
    }
    shards.stop();
}

/// The same for a server without ports.
pub fn run_without_ports(exit_timeout_secs: u32, facts: &Facts, lifecycle: &Arc<Lifecycle>) -> Result<(), Status> {
    let budget = TimeBudget::of(exit_timeout_secs);
    facts.set_state(ServerState::Exiting);
    lifecycle.refuse_changes();
    if finish(lifecycle, &budget, || ()) { Ok(()) } else { Err(expired()) }
}

fn expired() -> Status {
    Status::internal("Exit timeout expired. Exiting immediately.")
}

/// Finishes the requests that models have, and ends the models. False: not within the budget, and `give_up` was called
/// for the rest.
fn finish(lifecycle: &Arc<Lifecycle>, budget: &TimeBudget, give_up: impl FnOnce()) -> bool {
    info!("Waiting for in-flight requests to complete.");
    lifecycle.stop_scheduling();
    let answered = wait_for(budget, || lifecycle.in_flight().is_empty(), || log_in_flight(lifecycle, budget));
    if !answered || budget.is_spent() {
        give_up();
    }
    info!("All models are stopped, unloading models");
    lifecycle.detach_all();
    answered && wait_for_models(lifecycle, budget)
}

/// Waits until `is_done`, and calls `report` once a second. False if the budget is spent first.
fn wait_for(budget: &TimeBudget, is_done: impl Fn() -> bool, report: impl Fn()) -> bool {
    let mut reported = Instant::now();
    while !is_done() {
        if budget.is_spent() {
            return false;
        }
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
            report();
        }
        std::thread::sleep(POLL);
    }
    true
}

fn log_in_flight(lifecycle: &Lifecycle, budget: &TimeBudget) {
    let in_flight = lifecycle.in_flight();
    let (secs, count) = (budget.left().as_secs(), in_flight.len());
    info!("Timeout {secs}: Found {count} model versions that have in-flight inferences");
    for InFlight { name, version, requests } in in_flight {
        info!("Model '{name}' (version {version}) has {requests} in-flight inferences");
    }
}

fn wait_for_models(lifecycle: &Arc<Lifecycle>, budget: &TimeBudget) -> bool {
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

fn wait_for_connections(shards: &Shards, budget: &TimeBudget) {
    let mut was_busy = Instant::now();
    let mut reported = was_busy;
    while !budget.is_spent() {
        let (http, grpc, busy) = (shards.http_connections(), shards.grpc_connections(), shards.busy());
        if busy > 0 {
            was_busy = Instant::now();
        }
        if http + grpc == 0 || was_busy.elapsed() >= IDLE_GRACE {
            return;
        }
        if reported.elapsed() >= Duration::from_secs(1) {
            reported = Instant::now();
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

/// Ends models that will not be served after all. Those that take longer than the exit timeout are left.
pub fn unload(lifecycle: &Arc<Lifecycle>, exit_timeout_secs: u32) {
    lifecycle.refuse_changes();
    if !wait_for_models(lifecycle, &TimeBudget::of(exit_timeout_secs)) {
        error!("{}", expired().message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_thread_is_reported_however_it_ends() {
        let (sender, ends) = channel();
        for (shard, panics) in [(3, false), (4, true)] {
            let sender = sender.clone();
            let thread = std::thread::spawn(move || {
                report_end_of_thread(sender, shard);
                assert!(!panics, "this thread shall panic");
            });
            assert_eq!(thread.join().is_err(), panics);
            assert_eq!(ends.recv().unwrap(), EndReason::Shard(shard));
        }
    }
}
