//! The thread where a request is at home, and the worker that has to be woken on its behalf.
//!
//! A request that came over the wire is at home on the shard that has its connection: timers, cancellation and the
//! plumbing of ensembles run there, one thing after the other, so that none of it needs a lock that others wait for. A
//! request from inside the process has no shard; its jobs run in the thread that has them.

use std::sync::Arc;

/// How a worker is woken. Waking one that does not sleep makes its next wait return at once.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub fn new(call: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(call))
    }

    pub fn wake(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}

/// The worker that has to be woken, if it sleeps.
///
/// A thread that accepts many requests in a row wakes the worker after the last of them: on a core that both share,
/// each wake-up at once would cost two changes of threads for one request.
#[derive(Debug, Default)]
#[must_use = "a worker that is not woken leaves its request waiting"]
pub struct WakeUp(Option<Waker>);

impl WakeUp {
    /// No worker sleeps that would have to be woken.
    pub fn needless() -> WakeUp {
        WakeUp(None)
    }

    pub fn of(waker: Option<Waker>) -> WakeUp {
        WakeUp(waker)
    }

    pub fn now(self) {
        if let Some(waker) = self.0 {
            waker.wake();
        }
    }

    /// True if no worker has to be woken.
    pub fn is_needless(&self) -> bool {
        self.0.is_none()
    }
}

/// A job that runs where a request is at home. It must not block.
pub trait Job: Send {
    fn run(self: Box<Self>, home: &mut dyn Home);
}

impl<F: FnOnce(&mut dyn Home) + Send> Job for F {
    fn run(self: Box<Self>, home: &mut dyn Home) {
        (*self)(home)
    }
}

/// What a job can use there.
pub trait Home {
    /// Wakes a worker, at the latest before the home sleeps.
    fn wake(&mut self, wake_up: WakeUp);

    /// Runs `job` here at `at_ns` of [`now_ns`](nereid_clock::now_ns) or soon after. It cannot be taken back: a job
    /// checks whether there is still something to do.
    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>);

    /// Runs `job` here after others have had their turn. A home without turns runs it soon.
    fn next_turn(&mut self, job: Box<dyn Job>) {
        self.run_at(0, job);
    }
}
