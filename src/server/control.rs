//! Control threads: what could stall a shard runs here, one job after the other; and the polling of repositories.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::repository::Lifecycle;
use nereid_memory::Pool;

/// Jobs that wait; beyond it they are refused, and whoever asked gets no answer in time.
const WAITING_MAX: usize = 1024;

/// How long a free block may be of no use before its memory goes back.
const TRIM_EVERY: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

pub struct ControlThread {
    jobs: SyncSender<Job>,
    thread: JoinHandle<()>,
}

impl ControlThread {
    /// Besides its jobs the thread gives back what `pool` has not needed for a while; one thread is enough for that.
    pub fn start(name: &str, pool: Option<Pool>) -> std::io::Result<ControlThread> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING_MAX);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut trimmed = Instant::now();
            loop {
                match waiting.recv_timeout(TRIM_EVERY) {
                    Ok(job) => job(),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if let Some(pool) = &pool
                    && trimmed.elapsed() >= TRIM_EVERY
                {
                    trimmed = Instant::now();
                    pool.trim();
                }
            }
        })?;
        Ok(ControlThread { jobs, thread })
    }

    /// How shards hand jobs over; never blocks.
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

/// Looks for changed models at once, and then time and again until it is dropped.
pub struct RepositoryPoller {
    alive: Sender<()>,
    thread: JoinHandle<()>,
}

impl RepositoryPoller {
    /// A period of 0 looks only once.
    pub fn start(lifecycle: &Arc<Lifecycle>, period_secs: u32) -> std::io::Result<RepositoryPoller> {
        let (alive, ended) = channel::<()>();
        let lifecycle = Arc::clone(lifecycle);
        let thread = std::thread::Builder::new().name("model-poll".to_owned()).spawn(move || {
            loop {
                lifecycle.poll();
                let period = Duration::from_secs(u64::from(period_secs));
                if period.is_zero() || ended.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(RepositoryPoller { alive, thread })
    }

    /// Ends it, and waits for the look that it may be at.
    pub fn join(self) {
        drop(self.alive);
        if self.thread.join().is_err() {
            warn!("the thread that looks for changed models ended by a panic");
        }
    }
}
