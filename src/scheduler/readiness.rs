//! Readiness checks: whether the instances of a model version agree that it is ready (contract/schedulers.md section
//! 10, "Readiness").
//!
//! Some backends have a readiness check, which may take long. A version without such instances is ready when the
//! server's own state is, and no thread waits. Otherwise a thread of this version queries the instances one after the
//! other, and all callers from before it began get its answer: the thread lives as long as there are callers, and one
//! that hangs does not delay callers of another model.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tracing::info;

use nereid_gpu::Gpu;
use nereid_observe::log::verbose;
use nereid_request::Status;

/// Most callers that wait for one model version at the same time.
const WAITING_MAX: usize = 1024;

/// A readiness check of an instance. It is called from other threads than the one that drives the instance, also while
/// that one executes, but never twice at the same time.
pub trait Readiness: Send + Sync {
    /// The error is the reason why it is not ready. May take long; once the instance is gone there is no objection.
    fn check(&self) -> Result<(), Status>;

    /// What stops the instance at the moment, if that can be read at once: a clause for the log.
    fn stopped(&self) -> Option<String> {
        None
    }

    /// Has the process of the instance write the stacks of its threads to its stderr, if it has one that can.
    fn write_stack(&self) {}
}

/// The count of a worker's executions.
pub trait Executions: Send + Sync {
    /// Odd during an execution; it changes with each begin and each end.
    fn count(&self) -> u64;
}

/// The names of a worker's instances, and the count of its executions.
pub type WorkerExecutions = (Arc<str>, Weak<dyn Executions>);

/// Result of a readiness check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Ready,
    /// An instance is not ready, with its reason.
    NotReady(Status),
    /// The instances could not be queried.
    Unknown(Status),
}

/// Called once, on the thread that queries the instances, or at once where there is none to query.
pub type VerdictCallback = Box<dyn FnOnce(Verdict) + Send>;

/// The instances of one model version that have readiness checks, and the callers that wait.
pub struct Checks {
    /// For messages: model and version.
    name: String,
    /// There are such instances.
    is_needed: AtomicBool,
    /// Some instances use devices.
    has_gpus: AtomicBool,
    /// The instances read inputs where these lie on a device.
    is_on_devices: AtomicBool,
    /// All workers are stalled.
    is_stalled: AtomicBool,
    /// A worker has ended before its time.
    has_lost_worker: AtomicBool,
    state: Mutex<ReadinessState>,
}

#[derive(Default)]
struct ReadinessState {
    instances: Vec<Arc<dyn Readiness>>,
    /// The devices of all instances.
    gpus: Vec<Gpu>,
    /// The locations of the instances that take requests: a device, or the host.
    working: Vec<Option<Gpu>>,
    /// The counts of the workers that take requests; gone with the worker.
    executions: Vec<WorkerExecutions>,
    /// Why all workers are stalled.
    stall: Option<String>,
    /// Why a worker has ended before its time.
    lost_worker: Option<String>,
    waiting: Vec<VerdictCallback>,
    /// A thread queries the instances.
    is_querying: bool,
}

impl Checks {
    pub fn new(model: &str, version: i64) -> Arc<Checks> {
        let name = format!("'{model}' version {version}");
        let (is_needed, has_gpus, is_on_devices, is_stalled, has_lost_worker) = Default::default();
        let state = Mutex::default();
        Arc::new(Checks { name, is_needed, has_gpus, is_on_devices, is_stalled, has_lost_worker, state })
    }

    /// False: the version is as ready as the server's own state.
    #[inline]
    pub fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Acquire) || self.objection().is_some()
    }

    /// Model and version, for messages.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records that all workers are stalled, and why; with None, that some proceed.
    pub fn set_stall(&self, stall: Option<String>) {
        if stall.is_some() || self.is_stalled.load(Ordering::Acquire) {
            self.is_stalled.store(stall.is_some(), Ordering::Release);
            self.lock().stall = stall;
        }
    }

    /// Records that a worker has ended before its time, and why: the version is not ready from now on.
    pub fn lose_worker(&self, why: String) {
        self.lock().lost_worker.get_or_insert(why);
        self.has_lost_worker.store(true, Ordering::Release);
    }

    /// Why the version is not ready whatever its instances answer. Does not block.
    pub fn objection(&self) -> Option<String> {
        let of = |flag: &AtomicBool, text: fn(&ReadinessState) -> &Option<String>| {
            flag.load(Ordering::Acquire).then(|| text(&self.lock()).clone()).flatten()
        };
        self.loss()
            .or_else(|| of(&self.has_lost_worker, |state| &state.lost_worker))
            .or_else(|| of(&self.is_stalled, |state| &state.stall))
    }

    /// Inputs may be left on a device: all instances take them there.
    #[inline]
    pub fn take_device_tensors(&self) -> bool {
        self.is_on_devices.load(Ordering::Acquire)
    }

    pub fn set_on_devices(&self, is_on_devices: bool) {
        self.is_on_devices.store(is_on_devices, Ordering::Release);
    }

    /// Replaces the instances with readiness checks, the devices of all instances, and the locations of those that take
    /// requests.
    pub fn set(&self, instances: Vec<Arc<dyn Readiness>>, gpus: Vec<Gpu>, working: Vec<Option<Gpu>>) {
        self.is_needed.store(!instances.is_empty(), Ordering::Release);
        self.has_gpus.store(!gpus.is_empty(), Ordering::Release);
        let mut state = self.lock();
        (state.instances, state.gpus, state.working) = (instances, gpus, working);
    }

    /// Replaces the counts of executions of the workers that take requests.
    pub fn set_executions(&self, executions: Vec<WorkerExecutions>) {
        self.lock().executions = executions;
    }

    /// The count of executions of each worker that takes requests, in the same order until the workers change. Does not
    /// block.
    pub fn executions(&self) -> Vec<u64> {
        self.workers().into_iter().map(|(_, count)| count).collect()
    }

    /// The same with the names of each worker's instances.
    pub fn workers(&self) -> Vec<(Arc<str>, u64)> {
        let workers = self.lock().executions.clone();
        let counts = workers.into_iter().filter_map(|(names, count)| Some((names, count.upgrade()?.count())));
        counts.collect()
    }

    /// The device is broken for good, and instances elsewhere can execute the requests of those on it.
    pub fn is_superseded(&self, gpu: &Gpu) -> bool {
        if gpu.failure().is_none() {
            return false;
        }
        let works = |place: &Option<Gpu>| place.as_ref().is_none_or(|other| other.failure().is_none());
        self.lock().working.iter().any(works)
    }

    /// A device of an instance that is broken for good, with the error. Does not block.
    fn loss(&self) -> Option<String> {
        if !self.has_gpus.load(Ordering::Acquire) {
            return None;
        }
        let text = |gpu: &Gpu| gpu.failure().map(|failure| format!("GPU {gpu} is lost to the server: {failure}"));
        self.lock().gpus.iter().find_map(text)
    }

    /// Queries every instance, and calls `callback` with the verdict; does not block.
    pub fn query(self: &Arc<Self>, callback: VerdictCallback) {
        if let Some(objection) = self.objection() {
            return callback(Verdict::NotReady(Status::unavailable(objection)));
        }
        if !self.is_needed() {
            return callback(Verdict::Ready);
        }
        let mut state = self.lock();
        if state.waiting.len() >= WAITING_MAX {
            drop(state);
            let text = format!("{WAITING_MAX} requests wait already for the readiness of {}", self.name);
            return callback(Verdict::Unknown(Status::unavailable(text)));
        }
        state.waiting.push(callback);
        if std::mem::replace(&mut state.is_querying, true) {
            return;
        }
        drop(state);
        let checks = Arc::clone(self);
        let thread = std::thread::Builder::new().name("readiness".to_owned()).spawn(move || checks.run());
        if let Err(error) = thread {
            let text = format!("cannot start a thread for the readiness of {}: {error}", self.name);
            let mut state = self.lock();
            state.is_querying = false;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_iter().for_each(|callback| callback(Verdict::Unknown(Status::unavailable(text.clone()))));
        }
    }

    /// Queries the instances until no caller waits.
    fn run(&self) {
        loop {
            let mut state = self.lock();
            if state.waiting.is_empty() {
                state.is_querying = false;
                return;
            }
            let (instances, waiting) = (state.instances.clone(), std::mem::take(&mut state.waiting));
            drop(state);
            // Every caller is answered, even if an instance's check panics.
            let check = || instances.iter().find_map(|instance| instance.check().err());
            let objection = catch_unwind(AssertUnwindSafe(check))
                .unwrap_or_else(|_| Some(Status::internal("the question whether an instance is ready panicked")));
            let verdict = objection.map_or(Verdict::Ready, |status| {
                info!("Model {} is not ready: {}", self.name, status.message);
                Verdict::NotReady(status)
            });
            waiting.into_iter().for_each(|callback| callback(verdict.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReadinessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checks({})", self.name)
    }
}

/// Queries several versions at the same time, and calls `callback` with the worst verdict once all have answered. Does
/// not block.
/// `is_for_server`: logs the versions that keep the server from being ready.
pub fn query_all(checks: &[Arc<Checks>], is_for_server: bool, callback: VerdictCallback) {
    let poll = Arc::new(ReadinessQuery { worst: Mutex::new(Verdict::Ready), callback: Mutex::new(Some(callback)) });
    for one in checks {
        let (poll, name) = (Arc::clone(&poll), is_for_server.then(|| one.name.clone()));
        one.query(Box::new(move |verdict| {
            if let (Some(name), Verdict::NotReady(status)) = (name, &verdict) {
                verbose!(
                    1,
                    "Model {name} is in READY lifecycle state but failed runtime readiness check during server \
                     readiness evaluation: {status}"
                );
            }
            poll.count(verdict);
        }));
    }
}

/// Queries, and blocks until all have answered.
pub fn wait_for_all(checks: &[Arc<Checks>], is_for_server: bool) -> Verdict {
    let (sender, received) = channel();
    query_all(checks, is_for_server, Box::new(move |verdict| drop(sender.send(verdict))));
    received
        .recv()
        .unwrap_or_else(|_| Verdict::Unknown(Status::internal("no verdict on the readiness of a model was delivered")))
}

/// A query of several versions. Its drop reports the result.
struct ReadinessQuery {
    worst: Mutex<Verdict>,
    callback: Mutex<Option<VerdictCallback>>,
}

impl ReadinessQuery {
    fn count(&self, verdict: Verdict) {
        let rank = |verdict: &Verdict| match verdict {
            Verdict::Ready => 0,
            Verdict::NotReady(_) => 1,
            Verdict::Unknown(_) => 2,
        };
        let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        if rank(&verdict) > rank(&worst) {
            *worst = verdict;
        }
    }
}

impl Drop for ReadinessQuery {
    fn drop(&mut self) {
        let callback = self.callback.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let worst = self.worst.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(callback) = callback {
            callback(std::mem::replace(worst, Verdict::Ready));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts its checks, and answers each when the test allows it.
    #[derive(Default)]
    struct Instance {
        queries: AtomicUsize,
        objects: AtomicBool,
        is_held: Mutex<bool>,
        let_go: Condvar,
    }

    impl Readiness for Instance {
        fn check(&self) -> Result<(), Status> {
            self.queries.fetch_add(1, Ordering::SeqCst);
            let held = self.is_held.lock().unwrap();
            drop(self.let_go.wait_while(held, |held| *held).unwrap());
            match self.objects.load(Ordering::SeqCst) {
                true => Err(Status::unavailable("not now")),
                false => Ok(()),
            }
        }
    }

    impl Instance {
        fn hold(&self, is_held: bool) {
            *self.is_held.lock().unwrap() = is_held;
            self.let_go.notify_all();
        }
    }

    fn of(instances: &[&Arc<Instance>]) -> Arc<Checks> {
        let checks = Checks::new("m", 3);
        checks.set(
            instances.iter().map(|instance| Arc::clone(instance) as Arc<dyn Readiness>).collect(),
            Vec::new(),
            Vec::new(),
        );
        checks
    }

    #[test]
    fn every_instance_has_to_agree() {
        let (one, two) = (Arc::new(Instance::default()), Arc::new(Instance::default()));
        let checks = of(&[&one, &two]);
        assert_eq!(wait_for_all(&[Arc::clone(&checks)], false), Verdict::Ready);
        two.objects.store(true, Ordering::SeqCst);
        let no = Verdict::NotReady(Status::unavailable("not now"));
        assert_eq!(wait_for_all(&[Arc::clone(&checks), of(&[]), of(&[&one])], false), no);
        assert_eq!((one.queries.load(Ordering::SeqCst), two.queries.load(Ordering::SeqCst)), (3, 2));
        // Without an instance to query, the answer comes at once, on this thread.
        let here = std::thread::current().id();
        let (sender, received) = channel();
        query_all(&[of(&[])], true, Box::new(move |verdict| drop(sender.send((verdict, std::thread::current().id())))));
        assert_eq!(received.recv(), Ok((Verdict::Ready, here)));
        assert_eq!(wait_for_all(&[], false), Verdict::Ready);
    }

    #[test]
    fn every_caller_is_answered_even_after_a_panic() {
        struct Panics;
        impl Readiness for Panics {
            fn check(&self) -> Result<(), Status> {
                panic!("this answer shall panic")
            }
        }
        let checks = Checks::new("m", 3);
        checks.set(vec![Arc::new(Panics)], Vec::new(), Vec::new());
        for _ in 0..2 {
            assert!(matches!(wait_for_all(&[Arc::clone(&checks)], false), Verdict::NotReady(_)));
        }
    }

    #[test]
    fn a_call_during_a_check_gets_the_next_answer_and_there_is_a_bound() {
        let instance = Arc::new(Instance::default());
        instance.hold(true);
        let checks = of(&[&instance]);
        let (sender, received) = channel();
        let query = || {
            let sender = sender.clone();
            checks.query(Box::new(move |verdict| drop(sender.send(verdict))));
        };
        query();
        while instance.queries.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        (0..WAITING_MAX).for_each(|_| query());
        assert!(received.try_recv().is_err(), "all of them wait");
        query();
        let text = "1024 requests wait already for the readiness of 'm' version 3";
        assert_eq!(received.recv(), Ok(Verdict::Unknown(Status::unavailable(text))));
        // Another model is not delayed.
        assert_eq!(wait_for_all(&[of(&[&Arc::new(Instance::default())])], false), Verdict::Ready);
        instance.objects.store(true, Ordering::SeqCst);
        instance.hold(false);
        let answers: Vec<_> = received.iter().take(1 + WAITING_MAX).collect();
        assert!(answers.iter().all(|answer| matches!(answer, Verdict::NotReady(_))));
        assert_eq!(instance.queries.load(Ordering::SeqCst), 2, "one more query for all that waited");
    }
}
