//! Control threads, which run jobs that could stall a shard, one after the other; and the polling of repositories.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use crate::repository::Lifecycle;
use nereid_memory::{Pool, trim_heap};
use nereid_observe::statistics::slowest;

/// Most waiting jobs. Later ones are dropped, and their callers get no answer in time.
const WAITING_MAX: usize = 1024;

/// How often the pool is trimmed of free blocks that are not used.
const TRIM_EVERY: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// What a control thread keeps small besides its jobs; one thread of a server is enough for that.
pub struct Upkeep {
    pub pool: Pool,
    /// How many connections are open.
    pub connections: Box<dyn Fn() -> usize + Send>,
}

/// So many connections that closed leave memory in the heap that is worth a walk through it.
const CLOSED_MIN: usize = 1024;
/// Rounds in which no more have closed, until the pool has given back what they held.
const STILL_ROUNDS: u32 = 3;

/// Decides when the free memory of the heap goes back to the system. That of few connections is used again.
#[derive(Debug, Default)]
struct HeapTrim {
    /// Most connections since the last time.
    most: usize,
    before: usize,
    still_rounds: u32,
}

impl HeapTrim {
    /// `connections`: those that are open in this round.
    fn is_due(&mut self, connections: usize) -> bool {
        let falls = connections < std::mem::replace(&mut self.before, connections);
        self.most = self.most.max(connections);
        let is_worth_it = self.most - connections >= CLOSED_MIN;
        self.still_rounds = if falls || !is_worth_it { 0 } else { self.still_rounds + 1 };
        let is_due = self.still_rounds == STILL_ROUNDS;
        if is_due {
            (self.most, self.still_rounds) = (connections, 0);
        }
        is_due
    }
}

pub struct ControlThread {
    jobs: SyncSender<Job>,
    thread: JoinHandle<()>,
}

impl ControlThread {
    /// Besides its jobs the thread trims memory, if that is its upkeep, and forgets slow requests of long ago.
    pub fn start(name: &str, upkeep: Option<Upkeep>) -> std::io::Result<ControlThread> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING_MAX);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let (mut trimmed, mut heap) = (Instant::now(), HeapTrim::default());
            loop {
                match waiting.recv_timeout(TRIM_EVERY) {
                    // A job that panics is dropped, and with it the call that waits for it.
                    Ok(job) => drop(catch_unwind(AssertUnwindSafe(job))),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if let Some(Upkeep { pool, connections }) = &upkeep
                    && trimmed.elapsed() >= TRIM_EVERY
                {
                    trimmed = Instant::now();
                    pool.trim();
                    if heap.is_due(connections()) {
                        trim_heap();
                    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_trimmed_once_after_many_connections_have_closed() {
        let mut heap = HeapTrim::default();
        let mut rounds = |connections: &[usize]| {
            let due: Vec<bool> = connections.iter().map(|count| heap.is_due(*count)).collect();
            due.iter().position(|due| *due)
        };
        assert_eq!(rounds(&[0, 500, 0, 0, 0, 0, 0]), None, "few have closed");
        assert_eq!(rounds(&[5000, 5000, 5000, 5000]), None, "none has closed");
        assert_eq!(rounds(&[3000, 2000, 100, 100, 101, 101, 100]), Some(5), "once no more close");
        assert_eq!(rounds(&[100, 100, 100, 100, 100, 0, 0, 0, 0]), None, "once");
    }
}
