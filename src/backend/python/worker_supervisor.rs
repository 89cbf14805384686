//! Supervises the worker process of an instance: starts it, and starts a successor when it has died
//! (contract/python_backend.md section 6; `--python-restart=false` gives the behaviour of its row "stub dies during
//! execute").
//!
//! The thread that kept the dead worker looks for the next one: it is there as long as anything of the worker is, has
//! nothing else to do any more, and is confined as the instance's own. So nobody waits for a request to notice a death,
//! and nothing runs beside a worker that lives.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use super::backoff::Backoff;
use super::worker::{OnEnd, Worker};
use crate::backend::ModelContext;
use nereid_observe::metrics::Counter;
use nereid_request::Status;

/// How long a request waits for a worker that is being started.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an instance without a worker leaves requests to the others of its model before it refuses one.
const RESERVE: Duration = Duration::from_secs(1);

/// Finds workers for one instance.
pub trait Recruiter: Send + Sync {
    /// Starts a process. `ended` is to be called on its keeper's thread once it is gone.
    fn start(&self, ended: OnEnd) -> Result<Arc<Worker>, Status>;

    /// The worker in office has died, and with it what the model knew of earlier requests.
    fn lost(&self);

    /// Has it initialise the model; waits as long as that takes or the worker lives.
    fn initialize(&self, worker: &Arc<Worker>) -> Result<(), Status>;
}

/// What the instances of one model have in common.
pub struct Crew {
    /// Instances whose worker lives.
    filled: AtomicUsize,
    restarts: Option<Counter>,
    deaths: Option<Counter>,
}

impl Crew {
    pub fn new(context: &ModelContext) -> Crew {
        let version = context.version.to_string();
        let counter = |name: &str, help: &str| {
            let family = context.metrics.own_counter_family(name, help);
            let counter = family.and_then(|family| family.counter(&[("model", &context.name), ("version", &version)]));
            counter.inspect_err(|error| warn!("no metric '{name}' for model '{}': {error}", context.name)).ok()
        };
        Crew {
            filled: AtomicUsize::new(0),
            restarts: counter("nereid_python_restarts", "Python processes started in place of one that had died"),
            deaths: counter("nereid_python_deaths", "Python processes that ended without being asked to"),
        }
    }
}

enum Phase {
    /// Since when.
    Filled(Arc<Worker>, Instant),
    /// A successor is being started or initialised, since then.
    Starting(Instant),
    /// Until the next attempt.
    Pausing,
    /// Nobody comes any more.
    Abandoned,
    /// The instance is gone.
    Closed,
}

struct State {
    phase: Phase,
    /// The last one's keeper, who looks for a successor.
    keeper: Option<JoinHandle<()>>,
    /// Who is being initialised.
    candidate: Option<Arc<Worker>>,
    /// What became of the last one, after "The process of model '…' ".
    fate: String,
    backoff: Backoff,
}

/// See the [module](self).
pub struct WorkerSupervisor {
    /// The instance's.
    name: String,
    model: String,
    recruiter: Box<dyn Recruiter>,
    restarts: bool,
    crew: Arc<Crew>,
    state: Mutex<State>,
    changed: Condvar,
}

impl WorkerSupervisor {
    /// Starts the first worker.
    pub fn open(
        name: &str,
        model: &str,
        recruiter: Box<dyn Recruiter>,
        restarts: bool,
        crew: Arc<Crew>,
    ) -> Result<Arc<WorkerSupervisor>, Status> {
        let state = State {
            phase: Phase::Starting(Instant::now()),
            keeper: None,
            candidate: None,
            fate: "has not been started".to_owned(),
            backoff: Backoff::default(),
        };
        let (name, model) = (name.to_owned(), model.to_owned());
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let supervisor = Arc::new(WorkerSupervisor { name, model, recruiter, restarts, crew, state, changed });
        supervisor.fill()?;
        Ok(supervisor)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who works, if anybody can now.
    pub fn current(&self) -> Option<Arc<Worker>> {
        match &self.lock().phase {
            Phase::Filled(worker, _) if worker.is_fit() => Some(Arc::clone(worker)),
            _ => None,
        }
    }

    /// The instance is gone, and has nothing to say any more.
    pub fn is_closed(&self) -> bool {
        matches!(self.lock().phase, Phase::Closed)
    }

    /// The text of whoever asks for what is not there.
    pub fn not_healthy(&self) -> String {
        not_healthy(&self.name)
    }

    /// Who is to execute. While one is being started that is waited for, within bounds; otherwise an error says why
    /// there is nobody.
    pub fn worker(&self) -> Result<Arc<Worker>, Status> {
        let mut state = self.lock();
        let asked = Instant::now();
        loop {
            let deadline = match &state.phase {
                Phase::Filled(worker, _) if worker.is_fit() => return Ok(Arc::clone(worker)),
                // Its keeper is about to tell.
                Phase::Filled(..) => asked + PATIENCE,
                Phase::Starting(since) => *since + PATIENCE,
                Phase::Pausing | Phase::Abandoned | Phase::Closed => return Err(self.vacant(&state)),
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.vacant(&state));
            }
            state = self.wait(state, left);
        }
    }

    /// Leaves work to the other instances of the model, while there is nobody here and somebody there: an instance that
    /// refuses is faster than those that work, and would get all requests.
    pub fn hold_back(&self) {
        let mut state = self.lock();
        let asked = Instant::now();
        while self.crew.filled.load(Ordering::Relaxed) > 0 {
            let deadline = match &state.phase {
                Phase::Filled(worker, _) if worker.is_fit() => return,
                Phase::Closed => return,
                Phase::Starting(since) => *since + PATIENCE,
                _ => asked + RESERVE,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // Those of others are not told of here.
            state = self.wait(state, left.min(RESERVE));
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn vacant(&self, state: &State) -> Status {
        let WorkerSupervisor { name, model, .. } = self;
        let text = format!("{} The process of model '{model}' {}", not_healthy(name), state.fate);
        match state.phase {
            Phase::Abandoned | Phase::Closed => Status::internal(text),
            Phase::Pausing => Status::unavailable(format!("{text}; it will be started again")),
            _ => Status::unavailable(format!("{text}; it is being started again")),
        }
    }

    /// Starts and initialises one; an error is told by the last who tried.
    fn fill(self: &Arc<Self>) -> Result<(), Status> {
        let supervisor: Weak<WorkerSupervisor> = Arc::downgrade(self);
        let ended: OnEnd = Box::new(move |worker| {
            if let Some(supervisor) = supervisor.upgrade() {
                supervisor.vacated(worker);
            }
        });
        let worker = self.recruiter.start(ended)?;
        let mut state = self.lock();
        // One that is not wanted any more is killed before it is waited for.
        if matches!(state.phase, Phase::Closed) {
            worker.kill("is not needed any more");
        }
        state.candidate = Some(Arc::clone(&worker));
        drop(state);
        let outcome = self.recruiter.initialize(&worker);
        let mut state = self.lock();
        state.candidate = None;
        // Should it die from here on, its keeper finds it in office.
        if outcome.is_ok() && worker.is_fit() && !matches!(state.phase, Phase::Closed) {
            state.phase = Phase::Filled(worker, Instant::now());
            state.keeper = None;
            self.crew.filled.fetch_add(1, Ordering::Relaxed);
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

    /// A worker has ended: of the one in office that is a death. Called on its keeper's thread, which finds another.
    fn vacated(self: &Arc<Self>, worker: Arc<Worker>) {
        let in_office = |state: &State| match &state.phase {
            Phase::Filled(current, since) if Arc::ptr_eq(current, &worker) => Some(since.elapsed()),
            _ => None,
        };
        if in_office(&self.lock()).is_none() {
            return;
        }
        // Before there can be a successor, and without the lock: requests are answered.
        self.recruiter.lost();
        let mut state = self.lock();
        let Some(lived) = in_office(&state) else { return };
        self.crew.filled.fetch_sub(1, Ordering::Relaxed);
        count(self.crew.deaths.as_ref());
        state.fate = worker.ending();
        let number = worker.process_id().unwrap_or_default();
        error!("the process of model '{}', instance '{}' {} (process {number})", self.model, self.name, state.fate);
        state.phase = Phase::Abandoned;
        if !self.restarts {
            self.changed.notify_all();
            return;
        }
        state.keeper = worker.take_keeper();
        let mut pause = state.backoff.pause_after(lived);
        // Nothing of its memory is needed any more.
        drop(worker);
        while let Some(left) = self.pause(state, pause) {
            drop(left);
            match self.fill() {
                Ok(()) => {
                    count(self.crew.restarts.as_ref());
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

    /// Waits that long; `None`: the instance is gone meanwhile.
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

    /// Ends the search for a successor, and waits until it has ended. Returns who works, for a farewell.
    pub fn close(&self) -> Option<Arc<Worker>> {
        let mut state = self.lock();
        let phase = std::mem::replace(&mut state.phase, Phase::Closed);
        if let Some(candidate) = state.candidate.take() {
            candidate.kill("is not needed any more");
        }
        let keeper = state.keeper.take();
        self.changed.notify_all();
        drop(state);
        if let Phase::Filled(worker, _) = phase {
            self.crew.filled.fetch_sub(1, Ordering::Relaxed);
            return Some(worker);
        }
        if let Some(keeper) = keeper {
            let _ = keeper.join();
        }
        None
    }
}

/// What every text about a dead worker begins with.
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
