//! Loads on demand (docs/many-models.md): what waits for the load of a model, the loads that are queued, and those that
//! failed.
//!
//! A shard whose look-up finds no version calls [`Demand::wait`], which takes a lock for a few steps and never blocks.
//! A thread looks for the model in the repositories, so that names that clients make up do not wait among the loads,
//! and hence not before those of models that exist. Loads run on threads of their own. All of them exist as long as
//! they have work, and call back to what waits. A request for a model that is loaded comes nowhere near here.

mod failures;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tracing::{error, warn};

use super::lifecycle::{Lifecycle, Places};
use super::residency::{Reason, ResidencySettings, Residents, Schedules};
use failures::{Failure, Failures};
use nereid_clock::now_ns;
use nereid_request::{RefusalReason, Status};

/// The longest name of a model for which a load is tried: that of an object in a bucket.
const NAME_BYTES_MAX: usize = 1024;
/// Requests that wait for the load of one model, and for all loads.
const WAITING_FOR_MODEL_MAX: usize = 4096;
const WAITING_MAX: usize = 65_536;
/// Names that wait to be looked for, and as many models whose loads wait for a thread.
const QUEUED_MAX: usize = 1024;
/// Models that a client has unloaded, which loads on demand leave alone.
const HELD_BACK_MAX: usize = 65_536;

/// What a load has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded {
    Serves,
    /// No repository has the model: the request is answered as without loads on demand.
    Unknown,
    Failed(Status),
}

/// Called once, by a thread of loads.
pub type Waiter = Box<dyn FnOnce(Loaded) + Send>;

/// See the [module](self).
pub struct Demand {
    pub(super) settings: ResidencySettings,
    state: Mutex<State>,
    /// Loads under a budget run one after the other, with what is unloaded for them.
    pub(super) room: Mutex<()>,
    pub(super) residents: Mutex<Residents>,
    pub(super) schedules: Mutex<Schedules>,
    /// Models that a schedule keeps.
    pub(super) prewarmed: Mutex<HashSet<String>>,
    /// When thrashing was last reported, so that it is reported once a minute.
    pub(super) reported_ns: AtomicU64,
    /// The thread of rounds ends.
    ended: (Mutex<bool>, Condvar),
    is_stopping: AtomicBool,
    /// Loads at a time.
    threads_max: usize,
    /// Names that are looked for at a time.
    lookers_max: usize,
    lifecycle: Weak<Lifecycle>,
    pub(super) counts: Counts,
}

/// For metrics.
#[derive(Debug, Default)]
pub struct Counts {
    loads: AtomicU64,
    pub(super) evictions: [AtomicU64; Reason::ALL.len()],
    pub(super) reloads: AtomicU64,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct State {
    pending: HashMap<String, Pending>,
    /// The names of those that may be in no repository.
    unplaced: VecDeque<String>,
    /// Threads that look for them.
    lookers: usize,
    /// The names of those that are in a repository, and that no thread loads yet.
    queue: VecDeque<String>,
    /// Threads that load.
    threads: usize,
    waiting: usize,
    waits: u64,
    failures: Failures,
    held_back: HashSet<String>,
    /// Models that a client has loaded with a configuration or files of its own.
    overridden: HashSet<String>,
    /// Models of which a client has activated an earlier generation.
    activated: HashSet<String>,
}

#[derive(Default)]
struct Pending {
    waiters: BTreeMap<u64, Waiter>,
    /// A schedule wants it, whether requests wait or not.
    is_scheduled: bool,
}

/// A request that waits for a load, until this is dropped.
pub struct LoadWait {
    demand: Arc<Demand>,
    name: String,
    number: u64,
}

impl Drop for LoadWait {
    fn drop(&mut self) {
        let mut state = self.demand.state();
        let gone = state.pending.get_mut(&self.name).and_then(|pending| pending.waiters.remove(&self.number));
        if gone.is_some() {
            state.waiting -= 1;
            self.demand.counts.waiting.store(state.waiting, Ordering::Relaxed);
        }
        drop(state);
    }
}

/// What a thread is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    LookUp,
    Load,
}

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread loads a model because requests came for it.
pub fn is_here() -> bool {
    IS_HERE.get()
}

const EXITING: &str = "Server not ready";
const TOO_MANY: &str = "or would be, but as many other loads as may wait do";

fn exiting() -> Loaded {
    Loaded::Failed(Status::refused(RefusalReason::Exiting, EXITING))
}

/// Whether something waits for the model, which is forgotten otherwise.
fn is_wanted(state: &mut State, name: &str) -> bool {
    let pending = state.pending.get(name);
    let is_wanted = pending.is_some_and(|pending| pending.is_scheduled || !pending.waiters.is_empty());
    if !is_wanted {
        state.pending.remove(name);
    }
    is_wanted
}

/// The refusal of a request that has waited for too long.
#[cold]
pub fn late(model: &[u8]) -> Status {
    loading(&String::from_utf8_lossy(model), "which takes longer than --model-load-wait-secs")
}

/// The refusal of a request that cannot wait.
#[cold]
pub fn loading(name: &str, why: &str) -> Status {
    Status::refused(RefusalReason::ModelLoading, format!("model '{name}' is being loaded, {why}"))
}

impl Demand {
    pub fn new(settings: &ResidencySettings, threads: usize, lifecycle: Weak<Lifecycle>) -> Demand {
        Demand {
            state: Mutex::default(),
            room: Mutex::default(),
            residents: Mutex::default(),
            schedules: Mutex::new(Schedules::new(&settings.prewarm)),
            prewarmed: Mutex::default(),
            reported_ns: AtomicU64::new(0),
            ended: Default::default(),
            is_stopping: AtomicBool::new(false),
            threads_max: if settings.has_budget() { 1 } else { threads.max(1) },
            // A repository that does not answer holds up one.
            lookers_max: threads.max(2),
            settings: settings.clone(),
            lifecycle,
            counts: Counts::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a request waits for a load.
    pub fn wait_time(&self) -> Duration {
        Duration::from_secs(self.settings.wait_secs.into())
    }

    /// Has the model loaded, and `waiter` called when that has ended. An error: the request is answered with it, or
    /// with none as without loads on demand.
    pub fn wait(self: &Arc<Self>, model: &[u8], waiter: Waiter) -> Result<LoadWait, Option<Status>> {
        let name = std::str::from_utf8(model).map_err(|_| None)?;
        // No repository has such a model, and names of clients are kept here.
        if name.is_empty() || name == "." || name.len() > NAME_BYTES_MAX {
            return Err(None);
        }
        let mut state = self.state();
        self.check(&mut state, name)?;
        if state.waiting >= WAITING_MAX {
            return Err(Some(loading(name, "and as many requests as may wait for loads do")));
        }
        let waiting = state.pending.get(name).map_or(0, |pending| pending.waiters.len());
        if waiting >= WAITING_FOR_MODEL_MAX {
            return Err(Some(loading(name, "and as many requests as may wait for one model do")));
        }
        let begins = self.queue(&mut state, name)?;
        state.waits += 1;
        state.waiting += 1;
        self.counts.waiting.store(state.waiting, Ordering::Relaxed);
        let number = state.waits;
        if let Some(pending) = state.pending.get_mut(name) {
            pending.waiters.insert(number, waiter);
        }
        drop(state);
        if begins {
            self.start_thread(Task::LookUp);
        }
        Ok(LoadWait { demand: Arc::clone(self), name: name.to_owned(), number })
    }

    /// Waits on this thread for the load of a model, as long as it `is_absent`: for requests from inside the process,
    /// whose senders may wait.
    pub fn wait_here(self: &Arc<Self>, model: &[u8], is_absent: &mut dyn FnMut() -> bool) -> Result<(), Status> {
        let deadline = Instant::now() + self.wait_time();
        while is_absent() {
            let (ended, end) = channel();
            let waiter = move |loaded| {
                // Fails when it was too late.
                let _ = ended.send(loaded);
            };
            let wait = match self.wait(model, Box::new(waiter)) {
                Ok(wait) => wait,
                Err(None) => return Ok(()),
                Err(Some(status)) => return Err(status),
            };
            let loaded = end.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            drop(wait);
            match loaded {
                Ok(Loaded::Serves) => {}
                Ok(Loaded::Unknown) => return Ok(()),
                Ok(Loaded::Failed(status)) => return Err(status),
                Err(_) => return Err(late(model)),
            }
        }
        Ok(())
    }

    /// Has the model loaded at the time of its schedule.
    pub(super) fn begin_scheduled(self: &Arc<Self>, name: &str) {
        let begins = {
            let mut state = self.state();
            if self.check(&mut state, name).is_err() {
                return;
            }
            let begins = self.queue(&mut state, name);
            if let Some(pending) = state.pending.get_mut(name) {
                pending.is_scheduled = true;
            }
            begins
        };
        match begins {
            Ok(true) => self.start_thread(Task::LookUp),
            Ok(false) => {}
            Err(_) => warn!("model '{name}' is not loaded at the time of its schedule: {QUEUED_MAX} loads wait"),
        }
    }

    /// Whether the model may be loaded.
    fn check(&self, state: &mut State, name: &str) -> Result<(), Option<Status>> {
        if self.is_stopping.load(Ordering::SeqCst) || state.held_back.contains(name) {
            return Err(None);
        }
        match state.failures.refuses(now_ns(), name) {
            None => Ok(()),
            Some(Failure::Unknown) => Err(None),
            Some(Failure::Failed(status)) => Err(Some(status.clone())),
        }
    }

    /// Queues a model to be looked for and loaded, unless it is queued or under way. True if a thread is needed.
    fn queue(&self, state: &mut State, name: &str) -> Result<bool, Option<Status>> {
        if state.pending.contains_key(name) {
            return Ok(false);
        }
        if state.unplaced.len() >= QUEUED_MAX {
            return Err(Some(loading(name, TOO_MANY)));
        }
        state.pending.insert(name.to_owned(), Pending::default());
        state.unplaced.push_back(name.to_owned());
        let begins = state.lookers < self.lookers_max;
        state.lookers += usize::from(begins);
        Ok(begins)
    }

    fn start_thread(self: &Arc<Self>, task: Task) {
        let demand = Arc::clone(self);
        let run = move || match task {
            Task::LookUp => demand.look_up(),
            Task::Load => demand.load_queued(),
        };
        if let Err(error) = std::thread::Builder::new().name("model-demand".to_owned()).spawn(run) {
            error!("no model can be loaded on demand because no thread can be started: {error}");
            let waiting = {
                let mut state = self.state();
                let names = match task {
                    Task::LookUp => {
                        state.lookers -= 1;
                        if state.lookers > 0 { VecDeque::new() } else { std::mem::take(&mut state.unplaced) }
                    }
                    Task::Load => {
                        state.threads -= 1;
                        // Another thread does the rest.
                        if state.threads > 0 { VecDeque::new() } else { std::mem::take(&mut state.queue) }
                    }
                };
                self.take(&mut state, names)
            };
            let status = Status::refused(RefusalReason::Operations, "no thread can be started to load the model");
            waiting.into_iter().for_each(|waiter| waiter(Loaded::Failed(status.clone())));
        }
    }

    /// Looks for what is queued, and passes on what a repository has.
    fn look_up(self: &Arc<Self>) {
        loop {
            let name = {
                let mut state = self.state();
                let Some(name) = state.unplaced.pop_front() else {
                    state.lookers -= 1;
                    return;
                };
                if !is_wanted(&mut state, &name) {
                    continue;
                }
                name
            };
            let found = catch_unwind(AssertUnwindSafe(|| self.find(&name)));
            let panicked = || Err((Loaded::Failed(Status::internal(format!("the search of '{name}' panicked"))), 0));
            let ended = match found.unwrap_or_else(|_| panicked()) {
                Err(ended) => Some(ended),
                Ok(()) => match self.pass_on(&name) {
                    Ok(begins) => {
                        if begins {
                            self.start_thread(Task::Load);
                        }
                        None
                    }
                    Err(status) => Some((Loaded::Failed(status), 0)),
                },
            };
            if let Some((loaded, stamp)) = ended {
                self.tell(&name, loaded, stamp);
            }
        }
    }

    /// Queues the load of a model that is in a repository. True if a thread is needed.
    fn pass_on(&self, name: &str) -> Result<bool, Status> {
        let mut state = self.state();
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(Status::refused(RefusalReason::Exiting, EXITING));
        }
        if state.queue.len() >= QUEUED_MAX {
            return Err(loading(name, TOO_MANY));
        }
        state.queue.push_back(name.to_owned());
        let begins = state.threads < self.threads_max;
        state.threads += usize::from(begins);
        Ok(begins)
    }

    /// An error: no repository has the model, or there is none to ask.
    fn find(&self, name: &str) -> Result<(), (Loaded, u64)> {
        let Some(lifecycle) = self.lifecycle.upgrade() else { return Err((exiting(), 0)) };
        if lifecycle.is_in_a_repository(name) {
            return Ok(());
        }
        let Places { ids, fingerprint } = lifecycle.places_of(name);
        if ids.is_empty() { Err((Loaded::Unknown, fingerprint)) } else { Ok(()) }
    }

    /// Loads what is queued.
    fn load_queued(self: &Arc<Self>) {
        IS_HERE.set(true);
        loop {
            let name = {
                let mut state = self.state();
                let Some(name) = state.queue.pop_front() else {
                    state.threads -= 1;
                    return;
                };
                if !is_wanted(&mut state, &name) {
                    continue;
                }
                name
            };
            let loaded = catch_unwind(AssertUnwindSafe(|| self.load(&name)));
            let panicked = || (Loaded::Failed(Status::internal(format!("the load of model '{name}' panicked"))), 0);
            let (loaded, stamp) = loaded.unwrap_or_else(|_| panicked());
            self.tell(&name, loaded, stamp);
        }
    }

    /// Calls what waited for a load that has ended.
    fn tell(&self, name: &str, loaded: Loaded, stamp: u64) {
        for waiter in self.end(name, &loaded, stamp) {
            // One that panics takes neither the others nor the thread with it.
            let _ = catch_unwind(AssertUnwindSafe(|| waiter(loaded.clone())));
        }
    }

    /// The outcome, and a number that changes with the model's files.
    fn load(self: &Arc<Self>, name: &str) -> (Loaded, u64) {
        let Some(lifecycle) = self.lifecycle.upgrade() else { return (exiting(), 0) };
        let Places { ids, fingerprint } = lifecycle.places_of(name);
        if ids.is_empty() {
            return (Loaded::Unknown, fingerprint);
        }
        let loaded = match lifecycle.run(|lifecycle| lifecycle.load_on_demand(self, name, &ids)) {
            Ok(true) => {
                self.counts.loads.fetch_add(1, Ordering::Relaxed);
                Loaded::Serves
            }
            Ok(false) => Loaded::Serves,
            // What the server lacked; the model is not to blame.
            Err(status) if status.refusal.is_some() => Loaded::Failed(status),
            Err(status) => {
                let text = format!("model '{name}' is not available: {}", status.message.trim_end());
                Loaded::Failed(Status::refused(RefusalReason::ModelUnavailable, text))
            }
        };
        (loaded, fingerprint)
    }

    /// What waited for a load that has ended.
    fn end(&self, name: &str, loaded: &Loaded, stamp: u64) -> Vec<Waiter> {
        let mut state = self.state();
        match loaded {
            Loaded::Serves => state.failures.forget(name),
            Loaded::Unknown => state.failures.failed(now_ns(), name, Failure::Unknown, stamp),
            Loaded::Failed(status) if status.refusal == Some(RefusalReason::ModelUnavailable) => {
                state.failures.failed(now_ns(), name, Failure::Failed(status.clone()), stamp);
            }
            Loaded::Failed(_) => {}
        }
        let pending = state.pending.remove(name).unwrap_or_default();
        if let (true, Loaded::Failed(status)) = (pending.is_scheduled, loaded) {
            warn!("model '{name}' is not loaded at the time of its schedule: {}", status.message);
        }
        state.waiting -= pending.waiters.len();
        self.counts.waiting.store(state.waiting, Ordering::Relaxed);
        pending.waiters.into_values().collect()
    }

    /// What waits for loads that have not begun; their models are not loaded.
    fn take(&self, state: &mut State, names: VecDeque<String>) -> Vec<Waiter> {
        let pending = names.iter().filter_map(|name| state.pending.remove(name)).collect::<Vec<_>>();
        let waiters: Vec<Waiter> = pending.into_iter().flat_map(|pending| pending.waiters.into_values()).collect();
        state.waiting -= waiters.len();
        self.counts.waiting.store(state.waiting, Ordering::Relaxed);
        waiters
    }

    /// A client unloads the model, which is in a repository: it stays unloaded.
    pub(super) fn hold_back(&self, name: &str, is_in_repository: bool) {
        let mut state = self.state();
        state.overridden.remove(name);
        state.activated.remove(name);
        if !is_in_repository {
            return;
        }
        if state.held_back.len() >= HELD_BACK_MAX {
            warn!("the unloading of model '{name}' is undone by its next request: {HELD_BACK_MAX} are remembered");
        } else {
            state.held_back.insert(name.to_owned());
        }
    }

    /// A client loads the model.
    pub(super) fn release(&self, name: &str) {
        let mut state = self.state();
        state.held_back.remove(name);
        state.failures.forget(name);
    }

    /// A client has activated an earlier generation of the model, which another load would not bring.
    pub(super) fn activated(&self, name: &str) {
        self.state().activated.insert(name.to_owned());
    }

    /// A client has loaded the model as the repository has it.
    pub(super) fn no_more_activated(&self, name: &str) {
        self.state().activated.remove(name);
    }

    /// A client has loaded the model with a configuration or files of its own, which another load would not have.
    pub(super) fn overridden(&self, name: &str) {
        self.state().overridden.insert(name.to_owned());
    }

    pub(super) fn is_overridden(&self, name: &str) -> bool {
        let state = self.state();
        state.overridden.contains(name) || state.activated.contains(name)
    }

    pub(super) fn is_held_back(&self, name: &str) -> bool {
        self.state().held_back.contains(name)
    }

    /// The failed models that clients request, with the numbers of their files.
    pub(super) fn failures_to_check(&self) -> Vec<(String, u64)> {
        self.state().failures.take_asked(now_ns())
    }

    /// The files of the model changed.
    pub(super) fn forget_failure(&self, name: &str) {
        self.state().failures.forget(name);
    }

    /// The server ends: what waits is refused.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        *self.ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.1.notify_all();
        let waiting = {
            let mut state = self.state();
            let names = state.unplaced.drain(..).collect::<Vec<_>>().into_iter();
            let names = names.chain(state.queue.drain(..)).collect();
            self.take(&mut state, names)
        };
        waiting.into_iter().for_each(|waiter| waiter(exiting()));
    }

    /// Waits for the next round; false at the end of the server.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let ended = self.ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.1.wait_timeout_while(ended, time, |ended| !*ended);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Loads because of requests or schedules that succeeded.
    pub fn loads(&self) -> u64 {
        self.counts.loads.load(Ordering::Relaxed)
    }

    /// Models that were unloaded for this reason.
    pub fn evictions(&self, reason: Reason) -> u64 {
        self.counts.evictions.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Loads of models soon after they had to make room.
    pub fn reloads(&self) -> u64 {
        self.counts.reloads.load(Ordering::Relaxed)
    }

    /// Requests that wait for loads.
    pub fn waiting(&self) -> usize {
        self.counts.waiting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
