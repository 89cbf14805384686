//! Executor of in-process requests: one thread with a mailbox and timers, for what they need beside their models.
//!
//! docs/design.md, decision 1, gives them a shard without sockets; this is what remains of a shard without them.
//! Ensembles, expiries and cancellations run here one after the other, so that the models see the same order of events
//! as for requests over the wire. User code may run here too, where a shard would otherwise have had to run it: if it
//! blocks, only timers are late. The thread starts with the first job, and parks when there is none.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::error;

use nereid_clock::now_ns;
use nereid_request::{Job, WakeUp, never_wait_here};

/// See the [module](self). When dropped, it finishes the posted jobs, drops its timers, and ends.
#[derive(Default)]
pub struct InprocExecutor {
    shared: Arc<ExecutorInner>,
}

/// The time when a job is due, and its number among the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerKey {
    at_ns: u64,
    number: u64,
}

#[derive(Default)]
struct ExecutorInner {
    state: Mutex<ExecutorState>,
    changed: Condvar,
}

#[derive(Default)]
struct ExecutorState {
    jobs: VecDeque<Box<dyn Job>>,
    timers: BTreeMap<TimerKey, Box<dyn Job>>,
    timers_so_far: u64,
    thread: Option<JoinHandle<()>>,
    is_closed: bool,
}

thread_local! {
    /// The executor that runs on this thread.
    static CURRENT: Cell<*const ExecutorInner> = const { Cell::new(std::ptr::null()) };
}

impl InprocExecutor {
    /// Runs `job` soon. Jobs run in the order in which they came.
    pub fn post(&self, job: Box<dyn Job>) {
        let mut state = self.shared.lock();
        if state.is_closed || !self.shared.start(&mut state) {
            drop(state);
            // Better on a wrong thread than never.
            return self.shared.run(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Runs `job` at `at_ns` or soon after, unless it is cancelled before.
    pub fn time(&self, at_ns: u64, job: Box<dyn Job>) -> TimerKey {
        self.shared.time(at_ns, job)
    }

    /// Cancels a job that is not due yet.
    pub fn forget(&self, key: TimerKey) {
        let job = self.shared.lock().timers.remove(&key);
        // Dropping what the job holds may run code: not under the lock.
        drop(job);
    }

    /// True on its own thread.
    pub fn is_here(&self) -> bool {
        std::ptr::eq(CURRENT.get(), Arc::as_ptr(&self.shared))
    }
}

impl Drop for InprocExecutor {
    fn drop(&mut self) {
        let (timers, thread) = {
            let mut state = self.shared.lock();
            state.is_closed = true;
            (std::mem::take(&mut state.timers), state.thread.take())
        };
        self.shared.changed.notify_one();
        drop(timers);
        // The last reference may have been a job's.
        if let Some(thread) = thread.filter(|_| !self.is_here()) {
            let _ = thread.join();
        }
    }
}

impl ExecutorInner {
    fn lock(&self) -> MutexGuard<'_, ExecutorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if there is a thread, perhaps a new one.
    fn start(self: &Arc<Self>, state: &mut ExecutorState) -> bool {
        if state.thread.is_none() {
            let shared = Arc::clone(self);
            match std::thread::Builder::new().name("home".to_owned()).spawn(move || shared.run_jobs()) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => error!("requests from inside the process have no thread of their own: {error}"),
            }
        }
        state.thread.is_some()
    }

    fn time(self: &Arc<Self>, at_ns: u64, job: Box<dyn Job>) -> TimerKey {
        let mut state = self.lock();
        let key = TimerKey { at_ns, number: state.timers_so_far };
        state.timers_so_far += 1;
        if state.is_closed || !self.start(&mut state) {
            // No thread keeps timers any more.
            drop(state);
            return key;
        }
        state.timers.insert(key, job);
        let is_next = state.timers.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if is_next {
            self.changed.notify_one();
        }
        key
    }

    fn run_jobs(self: Arc<Self>) {
        CURRENT.set(Arc::as_ptr(&self));
        // Sends of ensembles from here may be limited, and the steps that would lift the limit run here too.
        never_wait_here();
        while let Some(job) = self.next() {
            self.run(job);
        }
    }

    /// Waits for a job; `None` when the executor is closed.
    fn next(&self) -> Option<Box<dyn Job>> {
        let mut state = self.lock();
        loop {
            let mut wait_ns = None;
            if let Some(first) = state.timers.first_entry() {
                let now_ns = now_ns();
                let at_ns = first.key().at_ns;
                if at_ns <= now_ns {
                    return Some(first.remove());
                }
                wait_ns = Some(at_ns - now_ns);
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            state = match wait_ns {
                Some(ns) => {
                    let waited = self.changed.wait_timeout(state, Duration::from_nanos(ns));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn run(self: &Arc<Self>, job: Box<dyn Job>) {
        if catch_unwind(AssertUnwindSafe(|| job.run(&mut JobContext(self)))).is_err() {
            error!("a job of a request from inside the process panicked");
        }
    }
}

/// The context that a job runs in.
struct JobContext<'a>(&'a Arc<ExecutorInner>);

impl nereid_request::Home for JobContext<'_> {
    fn wake(&mut self, wake_up: WakeUp) {
        wake_up.now();
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        self.0.time(at_ns, job);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn job(run: impl FnOnce(&mut dyn nereid_request::Home) + Send + 'static) -> Box<dyn Job> {
        Box::new(run)
    }

    #[test]
    fn jobs_run_in_order_on_one_thread_that_is_not_ours() {
        let executor = Arc::new(InprocExecutor::default());
        let (sender, received) = channel();
        for number in 0..100 {
            let (sender, executor) = (sender.clone(), Arc::downgrade(&executor));
            executor.upgrade().unwrap().post(job(move |_| {
                let here = executor.upgrade().is_some_and(|executor| executor.is_here());
                let _ = sender.send((number, here, nereid_request::never_waits()));
            }));
        }
        drop(sender);
        let all: Vec<_> = received.iter().collect();
        assert_eq!(all, (0..100).map(|number| (number, true, true)).collect::<Vec<_>>());
        assert!(!executor.is_here());
    }

    #[test]
    fn timers_run_in_the_order_of_their_times_and_can_be_forgotten() {
        let executor = InprocExecutor::default();
        let (sender, received) = channel();
        let now_ns = now_ns();
        let send = |number: u32| {
            let sender = sender.clone();
            job(move |_| sender.send(number).unwrap_or_default())
        };
        executor.time(now_ns + 20_000_000, send(3));
        executor.time(now_ns + 10_000_000, send(2));
        let forgotten = executor.time(now_ns + 1_000_000_000_000, send(9));
        executor.time(0, send(1));
        executor.forget(forgotten);
        assert!(executor.shared.lock().timers.len() <= 3);
        // A job that sets a timer itself.
        let again = send(4);
        executor.post(job(move |home| home.run_at(now_ns + 30_000_000, again)));
        assert_eq!(received.iter().take(4).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn its_end_does_what_was_given_and_forgets_what_is_not_due() {
        let (sender, received) = channel();
        let executor = InprocExecutor::default();
        let (one, never) = (sender.clone(), sender);
        executor.time(now_ns() + 3_600_000_000_000, job(move |_| never.send("late").unwrap_or_default()));
        executor.post(job(move |_| one.send("done").unwrap_or_default()));
        drop(executor);
        assert_eq!(received.iter().collect::<Vec<_>>(), ["done"]);
    }

    #[test]
    fn a_job_that_panics_ends_alone() {
        let executor = InprocExecutor::default();
        let (sender, received) = channel();
        executor.post(job(|_| std::panic::resume_unwind(Box::new(()))));
        executor.post(job(move |_| sender.send(()).unwrap_or_default()));
        assert_eq!(received.recv(), Ok(()));
    }

    #[test]
    fn the_last_holder_may_be_a_job() {
        let executor = Arc::new(InprocExecutor::default());
        let (sender, received) = channel();
        let (go, gate) = channel::<()>();
        let held = Arc::clone(&executor);
        executor.post(job(move |_| {
            let _ = gate.recv();
            drop(held);
            let _ = sender.send(());
        }));
        drop(executor);
        drop(go);
        assert_eq!(received.recv(), Ok(()));
    }
}
