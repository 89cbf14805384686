//! Supervises the worker process of an instance: starts it, and starts a successor when it has died
//! (contract/python_backend.md section 6; `--python-restart=false` gives the behaviour of its row "stub dies during
//! execute").
//!
//! The monitor thread of a dead worker starts the next one: it lives as long as the worker's process, has no other
//! work, and is confined as the instance's own thread. So a death is handled before a request needs the worker, and no
//! further thread runs beside a live worker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use super::backoff::Backoff;
use super::worker::{OnEnd, Worker};
use crate::ModelContext;
use nereid_observe::metrics::{Counter, Kind};
use nereid_request::{RefusalReason, Status};

/// How long a request waits for a worker that is being started.
const START_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long an instance without a worker leaves requests to the other instances of its model before it refuses one.
const HOLD_BACK_MAX: Duration = Duration::from_secs(1);

/// Starts the workers of one instance.
pub trait WorkerFactory: Send + Sync {
    /// Starts a process. Its monitor thread calls `ended` when the process has ended.
    fn start(&self, ended: OnEnd) -> Result<Arc<Worker>, Status>;

    /// Reports that the serving worker has died, and with it the model's state of earlier requests.
    fn lost(&self);

    /// Initialises the model in the worker; waits until that is done or the worker has ended.
    fn initialize(&self, worker: &Arc<Worker>) -> Result<(), Status>;
}

/// Counters that the instances of one model share.
pub struct WorkerCounts {
    /// The number of instances with a live worker.
    filled: AtomicUsize,
    restarts: Option<Counter>,
    deaths: Option<Counter>,
}

impl WorkerCounts {
    pub fn new(context: &ModelContext) -> WorkerCounts {
        let version = context.version.to_string();
        let counter = |name: &str, help: &str| {
            let family = context.metrics.own_family(name, help, Kind::Counter);
            let counter = family.and_then(|family| family.counter(&[("model", &context.name), ("version", &version)]));
            counter.inspect_err(|error| warn!("no metric '{name}' for model '{}': {error}", context.name)).ok()
        };
        WorkerCounts {
            filled: AtomicUsize::new(0),
            restarts: counter("nereid_python_restarts", "Python processes started in place of one that had died"),
            deaths: counter("nereid_python_deaths", "Python processes that ended without being asked to"),
        }
    }
}

enum Phase {
    /// The serving worker, and since when it serves.
    Filled(Arc<Worker>, Instant),
    /// A successor is being started or initialised, since this time.
    Starting(Instant),
    /// The pause before the next attempt.
    Pausing,
    /// No further worker is started.
    Abandoned,
    /// The instance has ended.
    Closed,
}

struct State {
    phase: Phase,
    /// The last worker's monitor thread, which starts a successor.
    monitor: Option<JoinHandle<()>>,
    /// The worker that is being initialised.
    candidate: Option<Arc<Worker>>,
    /// How the last worker ended, as the end of "The process of model '…' ".
    fate: String,
    backoff: Backoff,
}

/// See the [module](self).
pub struct WorkerSupervisor {
    /// The instance's name.
    name: String,
    model: String,
    factory: Box<dyn WorkerFactory>,
    restarts: bool,
    counts: Arc<WorkerCounts>,
    state: Mutex<State>,
    changed: Condvar,
}

impl WorkerSupervisor {
    /// Starts the first worker.
    pub fn open(
        name: &str,
        model: &str,
        factory: Box<dyn WorkerFactory>,
        restarts: bool,
        counts: Arc<WorkerCounts>,
    ) -> Result<Arc<WorkerSupervisor>, Status> {
        let state = State {
            phase: Phase::Starting(Instant::now()),
            monitor: None,
            candidate: None,
            fate: "has not been started".to_owned(),
            backoff: Backoff::default(),
        };
        let (name, model) = (name.to_owned(), model.to_owned());
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let supervisor = Arc::new(WorkerSupervisor { name, model, factory, restarts, counts, state, changed });
        supervisor.fill()?;
        Ok(supervisor)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The serving worker, if there is one.
    pub fn current(&self) -> Option<Arc<Worker>> {
        match &self.lock().phase {
            Phase::Filled(worker, _) if worker.is_fit() => Some(Arc::clone(worker)),
            _ => None,
        }
    }

    /// The instance has ended.
    pub fn is_closed(&self) -> bool {
        matches!(self.lock().phase, Phase::Closed)
    }

    /// The error of a request without a worker.
    pub fn not_healthy(&self) -> String {
        not_healthy(&self.name)
    }

    /// The serving worker. Waits, within a bound, for one that is being started; else the error states why there is
    /// none.
    pub fn worker(&self) -> Result<Arc<Worker>, Status> {
        let mut state = self.lock();
        let asked = Instant::now();
        loop {
            let deadline = match &state.phase {
                Phase::Filled(worker, _) if worker.is_fit() => return Ok(Arc::clone(worker)),
                // Its monitor thread is about to call `worker_ended`.
                Phase::Filled(..) => asked + START_WAIT_MAX,
                Phase::Starting(since) => *since + START_WAIT_MAX,
                Phase::Pausing | Phase::Abandoned | Phase::Closed => return Err(self.no_worker(&state)),
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.no_worker(&state));
            }
            state = self.wait(state, left);
        }
    }

    /// Waits while this instance has no worker and another one of the model has one: an instance that refuses is faster
    /// than those that execute, and would get all requests.
    pub fn hold_back(&self) {
        let mut state = self.lock();
        let asked = Instant::now();
        while self.counts.filled.load(Ordering::Relaxed) > 0 {
            let deadline = match &state.phase {
                Phase::Filled(worker, _) if worker.is_fit() => return,
                Phase::Closed => return,
                Phase::Starting(since) => *since + START_WAIT_MAX,
                _ => asked + HOLD_BACK_MAX,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // Changes of other instances do not wake this thread.
            state = self.wait(state, left.min(HOLD_BACK_MAX));
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn no_worker(&self, state: &State) -> Status {
        let WorkerSupervisor { name, model, .. } = self;
        let text = format!("{} The process of model '{model}' {}", not_healthy(name), state.fate);
        match state.phase {
            Phase::Abandoned | Phase::Closed => Status::internal(text),
            ref phase => {
                let when = if matches!(phase, Phase::Pausing) { "will be" } else { "is being" };
                Status::refused(RefusalReason::ModelUnavailable, format!("{text}; it {when} started again"))
            }
        }
    }

    /// Starts and initialises a worker; the caller reports the error.
    fn fill(self: &Arc<Self>) -> Result<(), Status> {
        let supervisor: Weak<WorkerSupervisor> = Arc::downgrade(self);
        let ended: OnEnd = Box::new(move |worker| {
            if let Some(supervisor) = supervisor.upgrade() {
                supervisor.worker_ended(worker);
            }
        });
        let worker = self.factory.start(ended)?;
        let mut state = self.lock();
        // Killed here, so that the initialisation does not wait for it.
        if matches!(state.phase, Phase::Closed) {
            worker.kill("is not needed any more");
        }
        state.candidate = Some(Arc::clone(&worker));
        drop(state);
        let outcome = self.factory.initialize(&worker);
        let mut state = self.lock();
        state.candidate = None;
        // If it dies from here on, its monitor thread handles the death of a serving worker.
        if outcome.is_ok() && worker.is_fit() && !matches!(state.phase, Phase::Closed) {
            state.phase = Phase::Filled(worker, Instant::now());
            state.monitor = None;
            self.counts.filled.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_all();
            return Ok(());
        }
        drop(state);
        worker.kill("could not be initialized");
        worker.join();
        outcome.and_then(|()| {
            Err(Status::internal(format!("{} The process {}", not_healthy(&self.name), worker.ending())))
        })
    }

    /// Handles the end of a worker: if it was serving, that is a death. Called on its monitor thread, which starts the
    /// next one.
    fn worker_ended(self: &Arc<Self>, worker: Arc<Worker>) {
        let serving = |state: &State| match &state.phase {
            Phase::Filled(current, since) if Arc::ptr_eq(current, &worker) => Some(since.elapsed()),
            _ => None,
        };
        if serving(&self.lock()).is_none() {
            return;
        }
        // Before a successor can start, and without the lock, because this answers requests.
        self.factory.lost();
        let mut state = self.lock();
        let Some(lived) = serving(&state) else { return };
        self.counts.filled.fetch_sub(1, Ordering::Relaxed);
        count(self.counts.deaths.as_ref());
        state.fate = worker.ending();
        let number = worker.process_id().unwrap_or_default();
        error!("the process of model '{}', instance '{}' {} (process {number})", self.model, self.name, state.fate);
        state.phase = Phase::Abandoned;
        if !self.restarts {
            self.changed.notify_all();
            return;
        }
        state.monitor = worker.take_monitor();
        let mut pause = state.backoff.pause_after(lived);
        // Frees the dead worker's memory.
        drop(worker);
        while let Some(left) = self.pause(state, pause) {
            drop(left);
            match self.fill() {
                Ok(()) => {
                    count(self.counts.restarts.as_ref());
                    info!("the process of model '{}', instance '{}' is started again", self.model, self.name);
                    return;
                }
                Err(status) => {
                    state = self.lock();
                    if matches!(state.phase, Phase::Closed) {
                        return;
                    }
                    state.fate = format!("cannot be started again: {}", status.message);
                    error!("instance '{}' of model '{}' {}", self.name, self.model, state.fate);
                    pause = state.backoff.pause_after(Duration::ZERO);
                }
            }
        }
    }

    /// Waits for `pause`; `None`: the instance was closed meanwhile.
    fn pause<'a>(&'a self, mut state: MutexGuard<'a, State>, pause: Duration) -> Option<MutexGuard<'a, State>> {
        state.phase = Phase::Pausing;
        let until = Instant::now() + pause;
        if !pause.is_zero() {
            info!("instance '{}' of model '{}' is started again in {} s", self.name, self.model, pause.as_secs());
            self.changed.notify_all();
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if matches!(state.phase, Phase::Closed) {
                return None;
            }
            if left.is_zero() {
                state.phase = Phase::Starting(Instant::now());
                self.changed.notify_all();
                return Some(state);
            }
            state = self.wait(state, left);
        }
    }

    /// Stops starting successors, and waits until that has stopped. Returns the serving worker, which the caller
    /// finalises.
    pub fn close(&self) -> Option<Arc<Worker>> {
        let mut state = self.lock();
        let phase = std::mem::replace(&mut state.phase, Phase::Closed);
        if let Some(candidate) = state.candidate.take() {
            candidate.kill("is not needed any more");
        }
        let monitor = state.monitor.take();
        self.changed.notify_all();
        drop(state);
        if let Phase::Filled(worker, _) = phase {
            self.counts.filled.fetch_sub(1, Ordering::Relaxed);
            return Some(worker);
        }
        if let Some(monitor) = monitor {
            let _ = monitor.join();
        }
        None
    }
}

/// The beginning of every text about a dead worker.
pub fn not_healthy(instance: &str) -> String {
    format!("Stub process '{instance}' is not healthy.")
}

fn count(counter: Option<&Counter>) {
    if let Some(counter) = counter {
        counter.increment(1);
    }
}

#[cfg(test)]
mod tests;
