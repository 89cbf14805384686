//! The contract between a scheduler and its workers: how they join, ask for payloads, lend their instances and leave.

use std::sync::Arc;

use super::payload::Payload;
use nereid_request::{Request, Status, Ticket, Waker};
use nereid_wire::inference::ModelRateLimiter;

/// What a scheduler learns about a worker that joins it.
#[derive(Debug, Clone)]
pub struct WorkerInfo {
    pub waker: Waker,
    /// Of its first instance.
    pub name: String,
    pub device: i32,
    /// What its instances need to execute, of the group's configuration.
    pub rate_limiter: Option<ModelRateLimiter>,
}

/// What a worker does next.
#[derive(Debug)]
pub enum Next {
    Execute(Payload),
    /// Sleep until it is woken, or until this time of [`now_ns`], and ask again.
    Sleep {
        until_ns: Option<u64>,
    },
    /// There will be nothing any more.
    Leave,
}

/// Where a worker gets its work: a scheduler.
///
/// Nothing here blocks, and time comes from outside, so that a simulation can stand in for the threads.
pub trait PayloadSource: Send + Sync {
    /// One more worker. The number that it gets is its own until it has left.
    fn join(&self, info: WorkerInfo) -> Result<usize, Status>;

    /// Who has a request may borrow what the worker drives.
    fn lend(&self, _worker: usize, _borrowable: Arc<dyn Borrowable>) {}

    /// What is there for worker number `worker`, which asks for itself and executes nothing.
    fn poll(&self, worker: usize, now_ns: u64) -> Next;

    /// One more payload for worker number `worker`, which has not returned from its execution.
    fn ahead(&self, _worker: usize, _now_ns: u64) -> Option<Payload> {
        None
    }

    /// The worker's execution has returned.
    fn executed(&self, _worker: usize) {}

    /// The instances of worker number `worker` have lost what they kept of earlier requests: their process died, and
    /// another one takes its place. Called from any thread; does not block.
    fn lost(&self, _worker: usize) {}

    /// Asks a worker to leave: what it executes it finishes, what waits is left to the others, and then
    /// [`poll`](PayloadSource::poll) sends it away.
    fn dismiss(&self, worker: usize);

    /// The worker is gone, or never came.
    fn left(&self, worker: usize);
}

/// Which instances shards may borrow: `--run-to-completion`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunToCompletion {
    Off,
    /// Those whose backend declares that they never block.
    #[default]
    Declared,
    /// Also those that may run anywhere, as long as each run is short.
    Measured,
}

/// What a worker drives, for a shard that has a request and no need to wait for the worker.
pub trait Borrowable: Send + Sync {
    /// Runs the request here and now, if nobody else runs one and it may be borrowed; its answers go their usual way.
    /// Otherwise the request comes back. Never waits.
    fn run_here(&self, request: Box<Request>) -> Result<Ticket, Box<Request>>;
}
