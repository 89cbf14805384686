//! The cache's threads for work that could stall a shard: hashing and copying large data, and waiting for another
//! process.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tracing::error;

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that wait or are reserved; beyond it requests bypass the cache.
pub const JOBS_MAX: usize = 1024;

/// A number of threads and the queue of their jobs.
pub struct CachePool(Arc<JobQueue>);

struct JobQueue {
    state: Mutex<CachePoolState>,
    changed: Condvar,
}

#[derive(Default)]
struct CachePoolState {
    jobs: VecDeque<Job>,
    /// Reservations for jobs that are being made.
    reserved: usize,
    is_closed: bool,
}

/// Reservation for one job. Dropped: given up.
pub struct JobReservation(Arc<JobQueue>);

impl CachePool {
    pub fn start(count: usize) -> std::io::Result<CachePool> {
        let queue = Arc::new(JobQueue { state: Mutex::default(), changed: Condvar::new() });
        // Closes the queue if a thread cannot be started.
        let pool = CachePool(queue);
        for number in 0..count.max(1) {
            let queue = Arc::clone(&pool.0);
            std::thread::Builder::new().name(format!("cache-{number}")).spawn(move || queue.work())?;
        }
        Ok(pool)
    }

    /// Reserves room for a job, if there is any.
    pub fn reserve(&self) -> Option<JobReservation> {
        let mut state = self.0.lock();
        if state.jobs.len() + state.reserved >= JOBS_MAX {
            return None;
        }
        state.reserved += 1;
        Some(JobReservation(Arc::clone(&self.0)))
    }
}

impl Drop for CachePool {
    /// The threads finish the waiting jobs and end; the last job may be the one that drops this.
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl JobReservation {
    pub fn fill(self, job: impl FnOnce() + Send + 'static) {
        self.0.lock().jobs.push_back(Box::new(job));
        self.0.changed.notify_one();
    }
}

impl Drop for JobReservation {
    fn drop(&mut self) {
        self.0.lock().reserved -= 1;
    }
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, CachePoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let job = {
                let mut state = self.lock();
                loop {
                    if let Some(job) = state.jobs.pop_front() {
                        break job;
                    }
                    if state.is_closed {
                        return;
                    }
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                error!("a thread of the response cache panicked over one request");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn there_is_room_for_so_many_jobs_and_no_more() {
        let pool = CachePool::start(1).unwrap();
        let reservations: Vec<JobReservation> = std::iter::from_fn(|| pool.reserve()).take(JOBS_MAX + 1).collect();
        assert_eq!(reservations.len(), JOBS_MAX);
        drop(reservations);
        assert!(pool.reserve().is_some());
    }

    #[test]
    fn jobs_are_done_in_order_even_behind_a_panic_and_the_end() {
        let pool = CachePool::start(1).unwrap();
        let (sender, received) = channel();
        for number in 0..5 {
            let sender = sender.clone();
            pool.reserve().unwrap().fill(move || {
                assert_ne!(number, 2, "one that fails on purpose");
                sender.send(number).unwrap();
            });
        }
        drop((pool, sender));
        assert_eq!(received.iter().collect::<Vec<_>>(), [0, 1, 3, 4]);
    }
}
