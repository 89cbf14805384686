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
use tracing::info;

use super::Failure;
use super::options::Options;
use super::shards::Shards;
use crate::api::{Facts, ServerState};
use crate::repository::{ModelMap, RunningModel};
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
    models: &ModelMap,
    running: Vec<RunningModel>,
) -> Result<ExitCode, Failure> {
    let budget = Budget(Instant::now() + Duration::from_secs(u64::from(options.exit_timeout_secs)));
    facts.set_state(ServerState::Exiting);
    shards.drain();
    wait_for_connections(&shards, &budget);
    info!("Waiting for in-flight requests to complete.");
    models.ready().for_each(|model| model.scheduler.stop());
    let finished = wait_for_workers(running, &budget);
    info!("All models are stopped, unloading models");
    shards.stop();
    if finished && !budget.is_spent() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::Stop(Status::internal("Exit timeout expired. Exiting immediately.")))
}

fn wait_for_connections(shards: &Shards, budget: &Budget) {
    let started = Instant::now();
    let mut told = started;
    while !budget.is_spent() {
        let (connections, busy) = (shards.connections(), shards.busy());
        if connections == 0 || (busy == 0 && started.elapsed() >= GRACE) {
            return;
        }
        if told.elapsed() >= Duration::from_secs(1) {
            told = Instant::now();
            info!("Timeout {}: Found {connections} service connections", budget.left().as_secs());
        }
        std::thread::sleep(POLL);
    }
}

/// True if every worker ended in time.
fn wait_for_workers(running: Vec<RunningModel>, budget: &Budget) -> bool {
    let (done, waiting) = channel();
    let count = running.len();
    std::thread::spawn(move || {
        for model in running {
            model.join();
            let _ = done.send(());
        }
    });
    for left in (1..=count).rev() {
        while waiting.recv_timeout(budget.left().min(Duration::from_secs(1))).is_err() {
            if budget.is_spent() {
                return false;
            }
            let secs = budget.left().as_secs();
            info!("Timeout {secs}: Found {left} model versions that have in-flight inferences");
        }
    }
    true
}

/// Ends models that will not be served after all.
pub fn unload(running: Vec<RunningModel>) {
    running.iter().for_each(|model| model.model.scheduler.stop());
    running.into_iter().for_each(RunningModel::join);
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
