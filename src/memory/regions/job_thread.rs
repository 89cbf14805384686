//! The background thread of the registry: it maps, unmaps and copies what takes too long for a shard.
//!
//! It runs one job at a time, in the order of submission, so that a region can be registered again under a name that
//! was unregistered before. The first job starts the thread, if nothing started it before; the thread ends when its
//! last sender is dropped.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

/// Jobs of clients that wait at a time; `try_run` refuses further ones.
const PENDING_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

/// Why `try_run` refused a job.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{PENDING_MAX} operations on shared memory are waiting already")]
    Full,
    #[error("cannot start a thread for shared memory: {0}")]
    NoThread(io::Error),
}

/// A handle to the thread; clones share one thread.
#[derive(Debug, Clone, Default)]
pub struct JobThread(Arc<Jobs>);

#[derive(Debug, Default)]
struct Jobs {
    thread: Mutex<Option<(Sender<Job>, ThreadId)>>,
    pending: AtomicUsize,
}

/// Counts a job of a client until the job has run.
struct PendingJob(Arc<Jobs>);

impl Drop for PendingJob {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

impl JobThread {
    /// Starts the thread, if it does not run yet. It inherits the affinity of the caller, which must not be a thread
    /// with a core of its own.
    pub fn start(&self) -> io::Result<()> {
        if self.lock().is_none() {
            // Not under the lock, which shards take. Of two threads that start at a time one ends with its sender.
            let started = start()?;
            self.lock().get_or_insert(started);
        }
        Ok(())
    }

    /// Queues a job of a client, within the bound.
    pub fn try_run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Refused> {
        let pending = PendingJob(Arc::clone(&self.0));
        if self.0.pending.fetch_add(1, Ordering::AcqRel) >= PENDING_MAX {
            return Err(Refused::Full);
        }
        let job = move || {
            let _pending = pending;
            job();
        };
        self.send(Box::new(job)).map_err(|(error, _)| Refused::NoThread(error))
    }

    /// Queues a job that must run, without a bound. It runs in place if this is the thread itself, or if no thread can
    /// be started.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let is_here = self.lock().as_ref().is_some_and(|(_, id)| *id == std::thread::current().id());
        if is_here {
            return job();
        }
        if let Err((_, job)) = self.send(Box::new(job)) {
            job();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Sender<Job>, ThreadId)>> {
        self.0.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, job: Job) -> Result<(), (io::Error, Job)> {
        if let Err(error) = self.start() {
            return Err((error, job));
        }
        let thread = self.lock();
        let Some((jobs, _)) = &*thread else { return Err((io::Error::other("there is no thread"), job)) };
        // The thread ends after its last sender, and this is one.
        jobs.send(job).map_err(|unsent| (io::Error::other("the thread has ended"), unsent.0))
    }
}

fn start() -> io::Result<(Sender<Job>, ThreadId)> {
    let (jobs, waiting) = channel::<Job>();
    let work = move || {
        for job in waiting {
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("an operation on shared memory panicked");
            }
        }
    };
    let thread = std::thread::Builder::new().name("shared-memory".to_owned()).spawn(work)?;
    Ok((jobs, thread.thread().id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_done_in_their_order_and_a_panic_ends_one_of_them() {
        let job_thread = JobThread::default();
        let (done, finished) = channel();
        for number in 0..3 {
            let done = done.clone();
            let job = move || match number {
                1 => std::panic::resume_unwind(Box::new(())),
                _ => done.send(number).unwrap(),
            };
            job_thread.try_run(job).unwrap();
        }
        let again = job_thread.clone();
        job_thread.run(move || again.run(move || done.send(3).unwrap()));
        assert_eq!(finished.iter().collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn threads_that_come_at_a_time_get_one_thread() {
        let (job_thread, start) = (JobThread::default(), Arc::new(std::sync::Barrier::new(8)));
        let (done, finished) = channel();
        let senders = (0..8).map(|_| {
            let (job_thread, start, done) = (job_thread.clone(), Arc::clone(&start), done.clone());
            std::thread::spawn(move || {
                start.wait();
                job_thread.try_run(move || done.send(std::thread::current().id()).unwrap()).unwrap();
            })
        });
        senders.collect::<Vec<_>>().into_iter().for_each(|sender| sender.join().unwrap());
        drop(done);
        let threads: Vec<ThreadId> = finished.iter().collect();
        assert!(threads.len() == 8 && threads.iter().all(|thread| *thread == threads[0]));
        assert_eq!(job_thread.lock().as_ref().map(|(_, id)| *id), Some(threads[0]));
    }

    #[test]
    fn clients_jobs_are_bounded_and_ours_are_not() {
        let job_thread = JobThread::default();
        let (gate, opened) = channel::<()>();
        let (done, finished) = channel();
        job_thread.try_run(move || opened.recv().unwrap_or_default()).unwrap();
        (1..PENDING_MAX).for_each(|_| job_thread.try_run(|| {}).unwrap());
        let refused = job_thread.try_run(|| {}).unwrap_err();
        assert_eq!(refused.to_string(), "4096 operations on shared memory are waiting already");
        job_thread.run(move || done.send(()).unwrap());
        drop(gate);
        finished.recv().unwrap();
        job_thread.try_run(|| {}).unwrap();
    }
}
