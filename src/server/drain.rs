//! The end of the server: signals, readiness turned off, connections and requests finished, models unloaded.
//!
//! Everything shares one budget, `--exit-timeout-secs` (cli.md section 7).

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
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

/// The signals that end the server. Later ones change nothing.
pub struct Signals(SignalStream);

impl Signals {
    pub fn install() -> io::Result<Signals> {
        SignalStream::new([SIGINT, SIGTERM]).map(Signals)
    }

    /// Blocks until one comes, and says which.
    pub fn wait(mut self) -> i32 {
        let signal = self.0.forever().next().unwrap_or(SIGTERM);
        // The handlers stay: a second signal is swallowed, as Triton does.
        std::mem::forget(self.0);
        signal
    }
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
