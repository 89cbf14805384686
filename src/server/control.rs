//! Control threads, which run jobs that could stall a shard, one after the other; and the polling of repositories.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use crate::repository::Lifecycle;
use nereid_memory::{HeapUse, Pool, heap_use, trim_heap};
use nereid_observe::statistics::slowest;

/// Most waiting jobs. Later ones are dropped, and their callers get no answer in time.
const WAITING_MAX: usize = 1024;

/// How often the pool is trimmed of free blocks that are not used.
const TRIM_EVERY: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// What a control thread keeps small besides its jobs; one thread of a server is enough for that.
pub struct Upkeep {
    pub pool: Pool,
    /// Whether the heap of the C library is the server's to trim: not in another program.
    pub owns_heap: bool,
}

/// Rounds between two looks at the heap; a look and a trim hold locks that threads wait for when they allocate.
const HEAP_ROUNDS: u32 = 60;
/// So many bytes that came free are worth a walk through the heap: those of some thousand connections.
const HEAP_FREE_MIN: u64 = 32 << 20;
/// The heap's part that has to be free: one in so many.
const HEAP_FREE_SHARE: u64 = 4;

/// Decides when the free memory of the heap goes back to the system: memory that was free in two looks in a row, so
/// that what a load takes again and again stays.
#[derive(Debug, Default)]
struct HeapTrim {
    rounds: u32,
    /// Free bytes in the last look.
    before: u64,
    /// Free bytes that are no reason for a trim: what the last one found, of which it left the pieces smaller than a
    /// page, and which the C library still counts.
    left: u64,
}

impl HeapTrim {
    /// A round of the thread, each of a second or more; `look` is called once in [`HEAP_ROUNDS`].
    fn is_due(&mut self, look: impl FnOnce() -> Option<HeapUse>) -> bool {
        self.rounds += 1;
        if self.rounds < HEAP_ROUNDS {
            return false;
        }
        self.rounds = 0;
        let Some(HeapUse { in_use, free, .. }) = look() else { return false };
        let lasting = free.min(std::mem::replace(&mut self.before, free));
        self.left = self.left.min(free);
        let is_large = lasting.saturating_sub(self.left) >= HEAP_FREE_MIN;
        let is_due = is_large && lasting >= in_use.saturating_add(free) / HEAP_FREE_SHARE;
        if is_due {
            self.left = free;
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
                if let Some(Upkeep { pool, owns_heap }) = &upkeep
                    && trimmed.elapsed() >= TRIM_EVERY
                {
                    trimmed = Instant::now();
                    pool.trim();
                    if *owns_heap && heap.is_due(heap_use) {
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

    const MIB: u64 = 1 << 20;
    const NONE: [usize; 0] = [];

    /// The looks, by their numbers, after which the heap is trimmed; each has the MiB in use and free.
    fn trims(looks: &[(u64, u64)]) -> Vec<usize> {
        let mut heap = HeapTrim::default();
        let mut due = Vec::new();
        for (at, (in_use, free)) in looks.iter().enumerate() {
            for round in 1..=HEAP_ROUNDS {
                let mut has_looked = false;
                let is_due = heap.is_due(|| {
                    has_looked = true;
                    Some(HeapUse { in_use: in_use * MIB, mapped: 0, free: free * MIB })
                });
                assert_eq!(has_looked, round == HEAP_ROUNDS, "once a minute at most");
                due.extend(is_due.then_some(at));
            }
        }
        due
    }

    #[test]
    fn the_heap_is_trimmed_of_much_that_stays_free() {
        assert_eq!(trims(&[(50, 31), (50, 31), (50, 31)]), NONE, "little is free");
        assert_eq!(trims(&[(1000, 200), (1000, 200), (1000, 200)]), NONE, "a small part is free");
        assert_eq!(trims(&[(300, 10), (200, 110), (200, 110), (200, 110)]), [2], "once");
        assert_eq!(trims(&[(200, 110), (300, 10), (200, 110), (300, 10)]), NONE, "it is used again");
        assert_eq!(trims(&[(100, 100), (0, 200), (90, 110), (0, 200)]), [1], "half of it is used again");
    }

    #[test]
    fn the_heap_is_trimmed_again_only_of_what_came_free_since() {
        let still = [(100, 200), (100, 200), (100, 200), (100, 200)];
        assert_eq!(trims(&still), [1], "what the C library counts after a trim");
        // The top of the heap went back and is counted no more; then as much comes free as before.
        assert_eq!(trims(&[(100, 200), (100, 200), (100, 20), (100, 40), (100, 200), (100, 200)]), [1, 5]);
        // Memory in the middle of the heap is used again, and comes free again.
        assert_eq!(trims(&[(100, 200), (100, 200), (280, 20), (100, 200), (100, 200), (100, 200)]), [1, 4]);
        // More comes free by and by.
        assert_eq!(trims(&[(300, 200), (300, 200), (280, 220), (267, 233), (267, 233), (267, 233)]), [1, 4]);
    }

    #[test]
    fn a_heap_that_cannot_be_looked_at_is_not_trimmed() {
        let mut heap = HeapTrim::default();
        assert!((0..HEAP_ROUNDS * 4).all(|_| !heap.is_due(|| None)));
    }
}
