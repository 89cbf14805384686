//! The contract between a scheduler and its workers: how they join, poll for payloads, lend their instances and leave.

use std::sync::Arc;

use super::payload::Payload;
use nereid_request::{Request, Status, Ticket, Waker};
use nereid_wire::inference::ModelRateLimiter;

/// What a worker passes to the scheduler that it joins.
#[derive(Debug, Clone)]
pub struct WorkerInfo {
    pub waker: Waker,
    /// Name of its first instance.
    pub name: String,
    pub device: i32,
    /// The resources that its instances need to execute, from the group's configuration.
    pub rate_limiter: Option<ModelRateLimiter>,
}

/// Result of a worker's poll.
#[derive(Debug)]
pub enum Next {
    Execute(Payload),
    /// Sleep until it is woken, or until this time of [`now_ns`], and poll again.
    Sleep {
        until_ns: Option<u64>,
    },
    /// No payload will come any more.
    Leave,
}

/// The scheduler's side for workers: hands out payloads.
///
/// No method blocks, and the time is a parameter, so that a simulation can stand in for the threads.
pub trait PayloadSource: Send + Sync {
    /// Adds a worker. Its number is not reused before it has left.
    fn join(&self, info: WorkerInfo) -> Result<usize, Status>;

    /// Lets threads with a request borrow the instance that the worker drives.
    fn lend(&self, _worker: usize, _borrowable: Arc<dyn Borrowable>) {}

    /// The next payload for worker number `worker`, which calls it itself while it executes nothing.
    fn poll(&self, worker: usize, now_ns: u64) -> Next;

    /// One more payload for worker number `worker`, which has not returned from its execution.
    fn ahead(&self, _worker: usize, _now_ns: u64) -> Option<Payload> {
        None
    }

    /// The worker's execution has returned.
    fn executed(&self, _worker: usize) {}

    /// The instances of worker number `worker` have lost their state of earlier requests: their process died, and
    /// another one takes its place. Called from any thread; does not block.
    fn lost(&self, _worker: usize) {}

    /// Requests a worker to leave: it finishes its execution, waiting requests are left to the others, and then
    /// [`poll`](PayloadSource::poll) returns [`Next::Leave`].
    fn dismiss(&self, worker: usize);

    /// The worker has ended, or never started.
    fn left(&self, worker: usize);
}

/// Which instances shards may borrow: `--run-to-completion`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunToCompletion {
    Off,
    /// Those with a backend that declares that they never block.
    Declared,
    /// Also those that may run on any thread and compute on it alone for a time that their inputs bound, as long as a
    /// run takes less than it costs to hand it over; not those of models with a dynamic batcher, whose batches would
    /// not form.
    #[default]
    Auto,
    /// Also those of models with a dynamic batcher, those whose runs may wait for other threads or take any time, and
    /// for longer runs.
    Measured,
}

impl RunToCompletion {
    /// How long runs of instances that may run on any thread may take on average.
    ///
    /// A change of threads and back costs two wake-ups: about 10 us of CPU time and as much latency.
    pub fn limit_ns(self) -> u64 {
        match self {
            RunToCompletion::Off | RunToCompletion::Declared | RunToCompletion::Auto => 20_000,
            RunToCompletion::Measured => 50_000,
        }
    }
}

/// An instance that a worker drives, as a shard borrows it to run a request without waiting for the worker.
pub trait Borrowable: Send + Sync {
    /// Runs the request on the calling thread, if no other thread runs one and it may be borrowed; its answers go their
    /// usual way. Otherwise the request is returned. Never waits.
    fn run_here(&self, request: Box<Request>) -> Result<Ticket, Box<Request>>;
}
