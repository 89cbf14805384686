//! The thread of the registry: it maps, unmaps and copies what takes too long for a shard.
//!
//! One job after the other, in the order in which they came, so that what is registered after it was unregistered finds
//! the name free. The thread begins with the first job, if it was not started before, and ends once nobody can send
//! another.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

/// Jobs of clients that wait at a time; beyond it they are refused.
const ASKED_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

/// Why a job was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{ASKED_MAX} operations on shared memory are waiting already")]
    Full,
    #[error("cannot start a thread for shared memory: {0}")]
    NoThread(io::Error),
}

/// A way to the thread; clones lead to the same one.
#[derive(Debug, Clone, Default)]
pub struct Clerk(Arc<Desk>);

#[derive(Debug, Default)]
struct Desk {
    thread: Mutex<Option<(Sender<Job>, ThreadId)>>,
    asked: AtomicUsize,
}

/// Counts a job of a client until it is done.
struct Asked(Arc<Desk>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.asked.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Clerk {
    /// Starts the thread, if it is not there yet. It gets the cores of the calling one, so that this is no thread that
    /// has a core to itself.
    pub fn start(&self) -> io::Result<()> {
        if self.lock().is_none() {
            // Not under the lock, which shards take. Of two threads that start at a time one ends with its sender.
            let started = start()?;
            self.lock().get_or_insert(started);
        }
        Ok(())
    }

    /// Has the thread do what a client asks for.
    pub fn ask(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Refused> {
        let asked = Asked(Arc::clone(&self.0));
        if self.0.asked.fetch_add(1, Ordering::AcqRel) >= ASKED_MAX {
            return Err(Refused::Full);
        }
        let job = move || {
            let _asked = asked;
            job();
        };
        self.send(Box::new(job)).map_err(|(error, _)| Refused::NoThread(error))
    }

    /// Has the thread do what must be done; here and now where there is none, or where this is it.
    pub fn entrust(&self, job: impl FnOnce() + Send + 'static) {
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
        let clerk = Clerk::default();
        let (done, heard) = channel();
        for number in 0..3 {
            let done = done.clone();
            let job = move || match number {
                1 => std::panic::resume_unwind(Box::new(())),
                _ => done.send(number).unwrap(),
            };
            clerk.ask(job).unwrap();
        }
        let again = clerk.clone();
        clerk.entrust(move || again.entrust(move || done.send(3).unwrap()));
        assert_eq!(heard.iter().collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn threads_that_come_at_a_time_get_one_thread() {
        let (clerk, start) = (Clerk::default(), Arc::new(std::sync::Barrier::new(8)));
        let (done, heard) = channel();
        let senders = (0..8).map(|_| {
            let (clerk, start, done) = (clerk.clone(), Arc::clone(&start), done.clone());
            std::thread::spawn(move || {
                start.wait();
                clerk.ask(move || done.send(std::thread::current().id()).unwrap()).unwrap();
            })
        });
        senders.collect::<Vec<_>>().into_iter().for_each(|sender| sender.join().unwrap());
        drop(done);
        let threads: Vec<ThreadId> = heard.iter().collect();
        assert!(threads.len() == 8 && threads.iter().all(|thread| *thread == threads[0]));
        assert_eq!(clerk.lock().as_ref().map(|(_, id)| *id), Some(threads[0]));
    }

    #[test]
    fn clients_jobs_are_bounded_and_ours_are_not() {
        let clerk = Clerk::default();
        let (gate, opened) = channel::<()>();
        let (done, heard) = channel();
        clerk.ask(move || opened.recv().unwrap_or_default()).unwrap();
        (1..ASKED_MAX).for_each(|_| clerk.ask(|| {}).unwrap());
        let refused = clerk.ask(|| {}).unwrap_err();
        assert_eq!(refused.to_string(), "4096 operations on shared memory are waiting already");
        clerk.entrust(move || done.send(()).unwrap());
        drop(gate);
        heard.recv().unwrap();
        clerk.ask(|| {}).unwrap();
    }
}
