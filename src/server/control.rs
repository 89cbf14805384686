//! Control threads, which run jobs that could stall a shard, one after the other; and the polling of repositories.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use crate::repository::Lifecycle;
use nereid_memory::Pool;
use nereid_observe::statistics::slowest;

/// Most waiting jobs. Later ones are dropped, and their callers get no answer in time.
const WAITING_MAX: usize = 1024;

/// How often the pool is trimmed of free blocks that are not used.
const TRIM_EVERY: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

pub struct ControlThread {
    jobs: SyncSender<Job>,
    thread: JoinHandle<()>,
}

impl ControlThread {
    /// Besides its jobs the thread trims `pool` and forgets slow requests of long ago; one thread is enough for that.
    pub fn start(name: &str, pool: Option<Pool>) -> std::io::Result<ControlThread> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING_MAX);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut trimmed = Instant::now();
            loop {
                match waiting.recv_timeout(TRIM_EVERY) {
                    // A job that panics is dropped, and with it the call that waits for it.
                    Ok(job) => drop(catch_unwind(AssertUnwindSafe(job))),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if let Some(pool) = &pool
                    && trimmed.elapsed() >= TRIM_EVERY
                {
                    trimmed = Instant::now();
                    pool.trim();
                    slowest::expire();
                }
            }
        })?;
        Ok(ControlThread { jobs, thread })
    }

    /// The function by which shards post jobs; never blocks.
    pub fn handle(&self) -> Arc<dyn Fn(Job) + Send + Sync> {
        let jobs = self.jobs.clone();
        Arc::new(move |job| match jobs.try_send(job) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => warn!("the control thread is busy: a job was dropped"),
        })
    }

    /// Ends the thread once all handles are gone.
    pub fn join(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            warn!("the control thread ended by a panic");
        }
    }
}

/// Polls the repositories for changed models at once, and then periodically until it is dropped.
pub struct RepositoryPoller {
    alive: Sender<()>,
    thread: JoinHandle<()>,
}

impl RepositoryPoller {
    /// With a period of 0 it polls only once.
    pub fn start(lifecycle: &Arc<Lifecycle>, period_secs: u32) -> std::io::Result<RepositoryPoller> {
        let (alive, ended) = channel::<()>();
        let lifecycle = Arc::clone(lifecycle);
        let thread = std::thread::Builder::new().name("model-poll".to_owned()).spawn(move || {
            loop {
                if catch_unwind(AssertUnwindSafe(|| lifecycle.poll())).is_err() {
                    error!("a poll of the model repositories panicked; the next one comes in {period_secs} s");
                }
                let period = Duration::from_secs(u64::from(period_secs));
                if period.is_zero() || ended.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(RepositoryPoller { alive, thread })
    }

    /// Ends the thread, and waits for a poll that is under way.
    pub fn join(self) {
        drop(self.alive);
        if self.thread.join().is_err() {
            warn!("the thread that polls the model repositories ended by a panic");
        }
    }
}
