//! Detects instances that stall: an execution that does not return, or a process that was stopped.
//!
//! A worker counts its executions in an atomic that the watch reads, which costs the path of a request two stores. One
//! thread of the server compares the counts from time to time. An instance that stalls for longer than
//! `--stall-timeout` is logged by name and counted; a model version is not ready while all its workers stall. The watch
//! ends no execution: one that returns after all makes its model ready again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use crate::ModelContext;
use nereid_observe::metrics::{Counter, Kind};
use nereid_observe::stacks::{self, ThreadNumber};
use nereid_scheduler::{Checks, Executions, Readiness};

/// The bounds of the interval between comparisons, which is a quarter of the limit.
const TICK_MIN: Duration = Duration::from_millis(10);
const TICK_MAX: Duration = Duration::from_secs(5);
/// The limit for a stopped process, which does not merely take long.
const STOPPED_MAX: Duration = Duration::from_secs(10);

/// The executions of one worker: odd during one.
#[derive(Debug, Default)]
pub(super) struct Pulse(AtomicU64, ExecutingThread);

/// The thread of the last execution: the worker's, or that of a shard that borrowed the instances.
#[derive(Debug, Default)]
struct ExecutingThread(AtomicI32);

impl Pulse {
    /// Only the thread that runs the worker's instances writes it, one at a time.
    fn step(&self, by: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
    }

    pub fn begin(&self) {
        self.1.0.store(ThreadNumber::current().to_raw(), Ordering::Relaxed);
        self.step(1);
    }

    pub fn end(&self) {
        self.step(1);
    }

    /// The execution under way has taken another payload.
    pub fn goes_on(&self) {
        self.step(2);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// The stack of the thread that executes, for the log.
    fn stack(&self) -> String {
        let thread = ThreadNumber::from_raw(self.1.0.load(Ordering::Relaxed));
        let stack = thread.and_then(stacks::of_thread);
        stack.map(|stack| format!("\nstack of its thread:{stack}")).unwrap_or_default()
    }
}

impl Executions for Pulse {
    fn count(&self) -> u64 {
        self.read()
    }
}

/// The parts of one worker that the watch reads.
pub(super) struct Watched {
    /// The names of its instances, for the log.
    pub name: String,
    /// Dropped with the worker's thread.
    pub pulse: Weak<Pulse>,
    /// The readiness of its instances that report it.
    pub readiness: Vec<Weak<dyn Readiness>>,
}

/// A worker, and since when it stalls.
struct Followed {
    watched: Watched,
    pulse: u64,
    /// Since when the count has not changed during an execution.
    busy_since: Option<Instant>,
    /// Since when its process is stopped.
    stopped_since: Option<Instant>,
    is_stalled: bool,
}

/// The workers of one model version.
struct Group {
    checks: Weak<Checks>,
    stalls: Option<Counter>,
    workers: Vec<Followed>,
}

#[derive(Default)]
struct State {
    groups: Vec<Group>,
    thread: Option<JoinHandle<()>>,
    is_over: bool,
}

struct Inner {
    limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// Watches the workers of a server; see the [module](self).
pub struct StallWatch(Arc<Inner>);

impl StallWatch {
    /// `limit`, greater than 0, is how long an execution may take before it counts as a stall.
    pub fn new(limit: Duration) -> Arc<StallWatch> {
        let inner = Inner { limit, state: Mutex::default(), changed: Condvar::new() };
        Arc::new(StallWatch(Arc::new(inner)))
    }

    /// Adds a worker of the model version of `checks` to the watch, until its thread has ended.
    pub(super) fn follow(&self, checks: &Arc<Checks>, context: &ModelContext, watched: Watched) {
        let followed = Followed { watched, pulse: 0, busy_since: None, stopped_since: None, is_stalled: false };
        let mut state = self.0.lock();
        let weak = Arc::downgrade(checks);
        match state.groups.iter_mut().find(|group| group.checks.ptr_eq(&weak)) {
            Some(group) => group.workers.push(followed),
            None => {
                let stalls = counter(context);
                state.groups.push(Group { checks: weak, stalls, workers: vec![followed] });
            }
        }
        if state.thread.is_none() {
            let inner = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("stalls".to_owned()).spawn(move || inner.run());
            state.thread = thread.inspect_err(|error| warn!("stalls are not watched for: {error}")).ok();
        }
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        let thread = state.thread.take();
        drop(state);
        self.0.changed.notify_all();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for StallWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StallWatch({:?})", self.0.limit)
    }
}

fn counter(context: &ModelContext) -> Option<Counter> {
    let help = "Times that an instance of the model stood still for longer than --stall-timeout";
    let family = context.metrics.own_family("nereid_instance_stalls", help, Kind::Counter);
    let labels = [("model", context.name.as_str()), ("version", &context.version.to_string())];
    let counter = family.and_then(|family| family.counter(&labels));
    counter.inspect_err(|error| warn!("no metric for stalls of model '{}': {error}", context.name)).ok()
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let tick = (self.limit / 4).clamp(TICK_MIN, TICK_MAX);
        let mut state = self.lock();
        while !state.is_over {
            let now = Instant::now();
            // A model whose check panics is not watched any more; the others are.
            let limit = self.limit;
            state.groups.retain_mut(|group| catch_unwind(AssertUnwindSafe(|| group.look(now, limit))).unwrap_or(false));
            state = self.changed.wait_timeout(state, tick).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Group {
    /// Checks the workers of one model version. False: the version has ended.
    fn look(&mut self, now: Instant, limit: Duration) -> bool {
        let Some(checks) = self.checks.upgrade() else { return false };
        let stalls = self.stalls.as_ref();
        self.workers.retain_mut(|worker| worker.look(now, limit, &checks, stalls));
        let mut stalled = self.workers.iter().filter(|worker| worker.is_stalled);
        let objection = match self.workers.iter().all(|worker| worker.is_stalled) {
            true => stalled.next().map(|worker| format!("instance '{}' is stalled", worker.watched.name)),
            false => None,
        };
        checks.set_stall(objection);
        true
    }
}

impl Followed {
    /// Checks one worker. False: its thread has ended.
    fn look(&mut self, now: Instant, limit: Duration, checks: &Checks, stalls: Option<&Counter>) -> bool {
        let Some(counts) = self.watched.pulse.upgrade() else { return false };
        let pulse = counts.read();
        let is_same = std::mem::replace(&mut self.pulse, pulse) == pulse;
        let is_busy = pulse % 2 == 1;
        self.busy_since = is_busy.then(|| self.busy_since.filter(|_| is_same).unwrap_or(now));
        let instances = self.watched.readiness.iter().filter_map(Weak::upgrade);
        let stopped = instances.into_iter().find_map(|instance| instance.stopped());
        self.stopped_since = stopped.as_ref().map(|_| self.stopped_since.unwrap_or(now));
        let lasts = |since: Option<Instant>, limit: Duration| {
            since.map(|since| now.saturating_duration_since(since)).filter(|time| *time >= limit)
        };
        let (busy, idle) = (lasts(self.busy_since, limit), lasts(self.stopped_since, limit.min(STOPPED_MAX)));
        let (name, is_stalled) = (&self.watched.name, busy.or(idle).is_some());
        match (std::mem::replace(&mut self.is_stalled, is_stalled), is_stalled) {
            (false, true) => {
                stalls.into_iter().for_each(|counter| counter.increment(1));
                let mut why =
                    busy.map(|time| format!("its execution has not returned for {:.1} s", time.as_secs_f64()));
                if let Some(stopped) = stopped {
                    why = Some(why.map_or(stopped.clone(), |why| format!("{why}, and {stopped}")));
                }
                let why = why.unwrap_or_default();
                // Only of an execution: the thread of a stopped process may have ended.
                let stack = if busy.is_some() { counts.stack() } else { String::new() };
                // The process of a Python model writes its own stacks to the log's stream.
                let instances = self.watched.readiness.iter().filter_map(Weak::upgrade);
                instances.filter(|_| busy.is_some()).for_each(|instance| instance.write_stack());
                error!("instance '{name}' of model {} is stalled: {why} (--stall-timeout){stack}", checks.name());
            }
            (true, false) => info!("instance '{name}' of model {} goes on after a stall", checks.name()),
            _ => {}
        }
        true
    }
}
