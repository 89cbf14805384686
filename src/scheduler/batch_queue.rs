//! The batch queue of one model version: requests wait in its inbox, and its workers take turns at reading it.
//!
//! Requests are pushed to one lock-free inbox. The worker that holds the batcher token reads them through a
//! [`PayloadFormer`], which returns whether there is a payload, or the time and the weight at which to check again. The
//! worker cuts the payload, passes the token on, and executes. An enqueuer wakes a worker only if one sleeps that has
//! to see the request (see [`BatcherToken`]). Workers join and leave while all this runs. The state of a former is
//! guarded by the right to pop the inbox, so no thread ever waits for a lock here.

mod worker_slot;

use std::sync::atomic::{AtomicIsize, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use smallvec::SmallVec;

use self::worker_slot::{WorkerPhase, WorkerSlot};
use super::ensemble::turn::{self, Place};
use super::gate::Limiter;
use super::mutants::{self, Mutant};
use super::service_time::ServiceTime;
use super::{Borrowable, Next, Payload, Purpose, Refused, STOPPING, Services, WorkerInfo, answer_expired};
use nereid_observe::panics::fault_point;
use nereid_observe::statistics::ModelStatistics;
use nereid_queue::{Acquisition, Armed, BatcherToken, IdleState, Mpsc, Outlet, SegmentedVec};
use nereid_request::{RefusalReason, Request, Status, Ticket, WakeUp, Waker};

/// Forms payloads. Only one thread at a time uses it: the holder of the token, or a thread that sweeps.
pub trait PayloadFormer: Send + 'static {
    /// The weight of a waiting request: 1, or the rows of a batch. Never 0.
    fn weight(request: &Request) -> usize;

    /// Checks whether there is a payload at `now_ns`. `is_draining`: no more requests will come, so the waiting ones
    /// go.
    fn check(&mut self, arrivals: &mut Arrivals<'_>, now_ns: u64, is_draining: bool) -> PayloadStatus;

    /// Cuts the payload that the last check found. Empty if its requests were taken back meanwhile.
    fn cut(&mut self, arrivals: &mut Arrivals<'_>) -> Payload;

    /// Drops the requests that were taken back.
    fn sweep(&mut self, arrivals: &mut Arrivals<'_>);
}

/// Result of a former's check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadStatus {
    Ready,
    Wait {
        /// The weight that the former has taken out of the inbox and keeps.
        drained: usize,
        /// The waiting weight from which another check is useful.
        wake_at: usize,
        /// When to check in any case.
        until_ns: Option<u64>,
    },
}

/// The inbox, as it is passed to a former.
pub struct Arrivals<'a> {
    outlet: Outlet<'a, Box<Request>>,
    waiting: &'a AtomicUsize,
    tombstones: &'a AtomicIsize,
    statistics: &'a ModelStatistics,
    expired: Vec<Ticket>,
}

impl Arrivals<'_> {
    /// The next request in the inbox, tombstone or not.
    pub fn pop(&mut self) -> Option<Box<Request>> {
        self.outlet.pop()
    }

    /// Takes `request` for a payload; false if it was taken back meanwhile, in which case it is buried.
    pub fn take(&mut self, request: Box<Request>, weight: usize, payload: &mut Payload) -> bool {
        if !request.admission().take() {
            self.bury(request, weight);
            return false;
        }
        self.waiting.fetch_sub(weight, Ordering::AcqRel);
        if request.is_counted() {
            self.statistics.pending_removed();
        }
        payload.push(request);
        true
    }

    /// Drops a tombstone: the thread that took it back has answered and counted it.
    pub fn bury(&mut self, request: Box<Request>, weight: usize) {
        self.waiting.fetch_sub(weight, Ordering::AcqRel);
        self.tombstones.fetch_sub(1, Ordering::AcqRel);
        drop(request);
    }

    /// Takes out a request that timed out, which the caller won by
    /// [`Admission::expire`](nereid_request::Admission::expire).
    pub fn expire(&mut self, request: Box<Request>, weight: usize) {
        self.waiting.fetch_sub(weight, Ordering::AcqRel);
        if request.is_counted() {
            self.statistics.pending_removed();
        }
        // Answered when the inbox is free again: an answer may run user code.
        self.expired.push(request.ticket());
    }
}

/// The answer of a scheduler with a queue policy that rejects requests that waited too long.
pub const EXPIRED: &str = "Request timeout expired";

/// The thread that makes this many tombstones sweeps them out: their tensors hold memory that is no longer needed.
const SWEPT_FROM: isize = 256;
/// How many instances a shard tries to borrow before it leaves the request to the workers.
const BORROWS_TRIED: usize = 4;

const OPEN: u8 = 0;
/// All instances are passive, so no worker would execute an accepted request.
const NO_WORKERS: u8 = 1;
const STOPPED: u8 = 2;

pub struct BatchQueue<F> {
    inbox: Mpsc<Box<Request>, F>,
    /// Weight of the requests that are in no payload yet: in the inbox, kept by the former, or about to be pushed;
    /// tombstones included.
    waiting: AtomicUsize,
    /// Below zero for the moment in which a tombstone is buried before it was counted.
    tombstones: AtomicIsize,
    /// How often requests were taken back or swept out. A change invalidates what the holder saw before.
    removals: AtomicUsize,
    /// From this waiting weight on a worker may take a payload before it has executed the last one: waiting would not
    /// make it larger.
    ahead_from: usize,
    /// The removal of a request may complete a payload: the batch without it has a preferred size.
    removals_matter: bool,
    token: BatcherToken,
    slots: SegmentedVec<WorkerSlot>,
    /// Workers that have joined and have been neither dismissed nor left.
    present: Mutex<usize>,
    /// The same number, for threads that do not wait.
    workers: AtomicUsize,
    /// Requests that would be answered too late are refused.
    service_time: Option<ServiceTime>,
    is_decoupled: bool,
    /// [`OPEN`], or the reason why no request is accepted.
    intake: AtomicU8,
    /// The workers whose instances may be borrowed, and how many they are.
    lenders: RwLock<Vec<usize>>,
    lender_count: AtomicUsize,
    model: String,
    limiter: Option<Arc<dyn Limiter>>,
    pub statistics: Arc<ModelStatistics>,
}

/// A worker's right to read the inbox, or why it has none.
#[derive(PartialEq, Eq)]
enum InboxAccess {
    Holder,
    Idle,
    Dismissed,
    Stopped,
}

/// The token while a worker forms a payload: a panic over one passes it on, or the other workers would wait for ever.
struct HeldToken<'a, F: PayloadFormer> {
    queue: &'a BatchQueue<F>,
    worker: usize,
}

impl<F: PayloadFormer> Drop for HeldToken<'_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.queue.pass(self.worker);
        }
    }
}

/// Result of a check of the inbox.
enum FindResult {
    Payload(Payload),
    /// There is a payload, but the resources for it are not free.
    Gated,
    Nothing {
        drained: usize,
        wake_at: usize,
        until_ns: Option<u64>,
        removals: usize,
    },
    /// Another thread uses the inbox for a moment.
    Occupied,
}

impl<F: PayloadFormer> BatchQueue<F> {
    /// A queue without workers: it accepts requests once one has joined.
    pub fn new(
        former: F,
        removals_matter: bool,
        ahead_from: usize,
        purpose: &Purpose,
        services: &Services,
    ) -> BatchQueue<F> {
        BatchQueue {
            inbox: Mpsc::with_state(former),
            waiting: AtomicUsize::new(0),
            tombstones: AtomicIsize::new(0),
            removals: AtomicUsize::new(0),
            ahead_from,
            removals_matter,
            token: BatcherToken::new(),
            slots: SegmentedVec::default(),
            present: Mutex::new(0),
            workers: AtomicUsize::new(0),
            service_time: services.admits_by_deadline(&purpose.spec).then(|| ServiceTime::new(ahead_from)),
            is_decoupled: purpose.spec.decoupled,
            intake: AtomicU8::new(NO_WORKERS),
            lenders: RwLock::default(),
            lender_count: AtomicUsize::new(0),
            model: purpose.spec.name.clone(),
            limiter: services.limiter.clone(),
            statistics: Arc::clone(&purpose.statistics),
        }
    }

    /// Puts a request into the queue unless the queue or `admit` refuses it.
    pub fn enqueue(
        &self,
        request: Box<Request>,
        admit: impl FnOnce(&Request) -> Result<(), Status>,
    ) -> Result<(WakeUp, Ticket), Refused> {
        let weight = F::weight(&request);
        // Counted first: a worker that finds nothing waiting after the queue was closed may leave, because later
        // counters see that it is closed.
        let in_front = self.waiting.fetch_add(weight, Ordering::SeqCst);
        let checked = self.check_open(&request).and_then(|()| self.check_time(&request, in_front));
        if let Err(status) = checked.and_then(|()| admit(&request)) {
            self.waiting.fetch_sub(weight, Ordering::SeqCst);
            return Err(Refused { status, request });
        }
        if request.is_counted() {
            self.statistics.pending_added();
        }
        let ticket = request.ticket();
        self.inbox.push(request);
        let wake_up = match mutants::is(Mutant::LostWake) {
            false => WakeUp::of(self.waker(self.token.enqueued(|| self.waiting()))),
            true => WakeUp::needless(),
        };
        Ok((wake_up, ticket))
    }

    fn check_open(&self, request: &Request) -> Result<(), Status> {
        let text = match self.intake.load(Ordering::SeqCst) {
            OPEN => return Ok(()),
            STOPPED => STOPPING,
            _ => "all instances of the model are passive and take no requests",
        };
        Err(Status::refused(RefusalReason::ModelUnavailable, text).prefixed(&request.log_id()))
    }

    /// Refuses a request that would be answered, or started, too late behind those `in_front` of it.
    fn check_time(&self, request: &Request, in_front: usize) -> Result<(), Status> {
        let Some(service_time) = &self.service_time else { return Ok(()) };
        // Tombstones are not executed. Those of batches weigh more; the worker that comes next buries them.
        let tombstones = usize::try_from(self.tombstones.load(Ordering::Relaxed)).unwrap_or(0);
        let in_front = in_front.saturating_sub(tombstones);
        let Some(expected) = service_time.expected(in_front, self.workers.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        expected.check(request, self.is_decoupled, &self.statistics)
    }

    /// Runs the request on the calling thread if that is a shard's, no request waits and an instance can be borrowed
    /// (docs/design.md, decision 4). Its answers go their usual way. Otherwise it is returned.
    pub fn run_here(&self, mut request: Box<Request>) -> Result<Ticket, Box<Request>> {
        let is_possible = request.ingress.is_on_shard
            && self.may_run_here()
            && self.waiting() == 0
            && self.intake.load(Ordering::SeqCst) == OPEN;
        if !is_possible {
            return Err(request);
        }
        for worker in self.lenders_from(own_seat()) {
            let Some(borrowable) = self.slots.get(worker).and_then(WorkerSlot::borrowable) else { continue };
            match borrowable.run_here(request) {
                Ok(mut ticket) => {
                    ticket.has_run_here = true;
                    return Ok(ticket);
                }
                Err(returned) => request = returned,
            }
        }
        Err(request)
    }

    /// Whether [`run_here`](BatchQueue::run_here) might succeed, now or later.
    pub fn may_run_here(&self) -> bool {
        self.lender_count.load(Ordering::Acquire) > 0
    }

    /// The workers whose instances a shard tries to borrow: each shard begins at another one. None while a worker lends
    /// its instances or leaves: a shard does not wait for that.
    fn lenders_from(&self, seat: usize) -> SmallVec<[usize; BORROWS_TRIED]> {
        let Ok(lenders) = self.lenders.try_read() else { return SmallVec::new() };
        let begin = seat.checked_rem(lenders.len()).unwrap_or(0);
        lenders.iter().cycle().skip(begin).take(lenders.len().min(BORROWS_TRIED)).copied().collect()
    }

    fn change_lenders(&self, change: impl FnOnce(&mut Vec<usize>)) {
        let mut lenders = self.lenders.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut lenders);
        self.lender_count.store(lenders.len(), Ordering::Release);
    }

    /// Counts a request of this queue that was taken back by its home, which is about to answer it.
    pub fn taken_back(&self, ticket: &Ticket) -> WakeUp {
        if ticket.is_counted {
            self.statistics.pending_removed();
        }
        let tombstones = self.tombstones.fetch_add(1, Ordering::AcqRel) + 1;
        let living = isize::try_from(self.waiting()).unwrap_or(isize::MAX).saturating_sub(tombstones);
        // Only when tombstones outnumber the others, so that each costs a few steps in all.
        let is_swept = tombstones >= SWEPT_FROM && tombstones >= living && self.sweep();
        if !is_swept && !self.removals_matter {
            return WakeUp::needless();
        }
        self.removals.fetch_add(1, Ordering::AcqRel);
        // The worker that sleeps with the token had taken the request into account.
        match mutants::is(Mutant::RemovalUnseen) {
            false => WakeUp::of(self.waker(self.token.enqueued(|| usize::MAX))),
            true => WakeUp::needless(),
        }
    }

    /// Drops all tombstones; false if another thread uses the inbox.
    fn sweep(&self) -> bool {
        let Some(mut inbox) = self.inbox.consume() else { return false };
        let (former, outlet) = inbox.parts();
        former.sweep(&mut self.arrivals(outlet));
        true
    }

    /// Refuses all requests from now on.
    pub fn stop(&self) {
        self.intake.store(STOPPED, Ordering::SeqCst);
        for worker in self.token.stop() {
            self.wake(Some(worker));
        }
    }

    fn arrivals<'a>(&'a self, outlet: Outlet<'a, Box<Request>>) -> Arrivals<'a> {
        Arrivals {
            outlet,
            waiting: &self.waiting,
            tombstones: &self.tombstones,
            statistics: &self.statistics,
            expired: Vec::new(),
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    fn is_dismissed(&self, worker: usize) -> bool {
        self.slots.get(worker).is_none_or(WorkerSlot::is_dismissed)
    }

    fn waker(&self, worker: Option<usize>) -> Option<Waker> {
        self.slots.get(worker?)?.waker()
    }

    fn wake(&self, worker: Option<usize>) {
        WakeUp::of(self.waker(worker)).now();
    }

    fn pass(&self, worker: usize) {
        self.wake(self.token.pass(worker, || self.waiting() > 0));
    }

    /// Takes a worker off the count; true the first time.
    fn uncount_worker(&self, worker: usize) -> bool {
        let Some(slot) = self.slots.get(worker) else { return false };
        // One lock over both, so that a worker that joins meanwhile reopens the queue after us.
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if !slot.dismiss() {
            return false;
        }
        *present = present.saturating_sub(1);
        self.workers.store(*present, Ordering::Relaxed);
        if *present == 0 {
            let _ = self.intake.compare_exchange(OPEN, NO_WORKERS, Ordering::SeqCst, Ordering::SeqCst);
        }
        true
    }

    fn has_no_workers(&self) -> bool {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) == 0
    }

    /// Checks the inbox, acquires the worker's resources, and cuts.
    fn find(&self, slot: Option<&WorkerSlot>, now_ns: u64, is_draining: bool) -> FindResult {
        let Some(mut inbox) = self.inbox.consume() else { return FindResult::Occupied };
        let (former, outlet) = inbox.parts();
        let mut arrivals = self.arrivals(outlet);
        // Read before the check, which sees every removal counted here.
        let removals = self.removals.load(Ordering::Acquire);
        let found = loop {
            match former.check(&mut arrivals, now_ns, is_draining) {
                PayloadStatus::Wait { drained, wake_at, until_ns } => {
                    break FindResult::Nothing { drained, wake_at, until_ns, removals };
                }
                PayloadStatus::Ready if slot.is_some_and(|slot| !slot.enter_gate()) => break FindResult::Gated,
                PayloadStatus::Ready => {
                    let payload = former.cut(&mut arrivals);
                    fault_point("schedule", || payload.requests().first().map_or(&b""[..], |one| one.id.as_bytes()));
                    if !payload.is_empty() {
                        break FindResult::Payload(payload);
                    }
                }
            }
        };
        let expired = std::mem::take(&mut arrivals.expired);
        drop(inbox);
        for ticket in expired {
            answer_expired(&ticket, &self.statistics, EXPIRED);
        }
        found
    }

    /// Whether the worker holds the token, and if not, how it waits for it.
    fn inbox_access(&self, worker: usize, slot: &WorkerSlot) -> InboxAccess {
        match slot.take_phase() {
            WorkerPhase::Armed => {
                self.token.disarm(worker);
                return InboxAccess::Holder;
            }
            WorkerPhase::Idle => {}
            WorkerPhase::Busy => match self.token.acquire(worker) {
                Acquisition::Holder => return InboxAccess::Holder,
                Acquisition::Stopped => return InboxAccess::Stopped,
                Acquisition::Idle => {}
            },
        }
        match self.token.idle_state(worker) {
            IdleState::Holder => InboxAccess::Holder,
            IdleState::Stopped => InboxAccess::Stopped,
            IdleState::Waiting if !slot.is_dismissed() => {
                slot.leave_gate();
                slot.set_phase(WorkerPhase::Idle);
                InboxAccess::Idle
            }
            IdleState::Waiting if self.token.retire(worker) => InboxAccess::Dismissed,
            // It has become the holder this very moment.
            IdleState::Waiting => InboxAccess::Holder,
        }
    }

    /// Takes the remaining payloads when no new requests can come.
    fn take_remaining(&self, slot: &WorkerSlot, now_ns: u64) -> Next {
        loop {
            match self.find(Some(slot), now_ns, true) {
                FindResult::Payload(payload) => return Next::Execute(slot.stamp(payload)),
                FindResult::Gated => return Next::Sleep { until_ns: None },
                FindResult::Nothing { .. } if self.waiting() == 0 => {
                    slot.leave_gate();
                    return Next::Leave;
                }
                // Another worker is taking one, or a push is under way.
                FindResult::Nothing { .. } | FindResult::Occupied => std::thread::yield_now(),
            }
        }
    }

    /// The last payloads of a worker that leaves: none while others stay.
    fn take_last_payloads(&self, slot: &WorkerSlot, now_ns: u64) -> Next {
        if self.intake.load(Ordering::SeqCst) != OPEN {
            return self.take_remaining(slot, now_ns);
        }
        slot.leave_gate();
        Next::Leave
    }
}

/// The workers' side, called by [`PayloadSource`](super::PayloadSource).
impl<F: PayloadFormer> BatchQueue<F> {
    pub fn join(&self, info: WorkerInfo) -> Result<usize, Status> {
        let gate = self.limiter.as_ref().map(|limiter| limiter.admit(&self.model, &info)).transpose()?;
        let worker = self.token.join().map_err(|error| Status::invalid(error.to_string()))?;
        if !self.slots.provide(worker) {
            return Err(Status::internal(format!("there is no place for worker {worker}")));
        }
        let slot = &self.slots[worker];
        slot.prepare(info.waker, gate);
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        slot.mark_joined();
        *present += 1;
        self.workers.store(*present, Ordering::Relaxed);
        // Fails if the queue was stopped.
        let _ = self.intake.compare_exchange(NO_WORKERS, OPEN, Ordering::SeqCst, Ordering::SeqCst);
        Ok(worker)
    }

    /// Lets shards borrow the worker's instance, unless it has to acquire resources.
    pub fn lend(&self, worker: usize, borrowable: Arc<dyn Borrowable>) {
        if let Some(slot) = self.slots.get(worker)
            && self.limiter.is_none()
            && slot.lend(Some(borrowable)).is_none()
        {
            self.change_lenders(|lenders| lenders.push(worker));
        }
    }

    pub fn poll(&self, worker: usize, now_ns: u64) -> Next {
        let Some(slot) = self.slots.get(worker) else { return Next::Leave };
        if let Some(service_time) = &self.service_time {
            slot.end_busy(now_ns).inspect(|ns| service_time.measured(*ns));
        }
        if slot.is_dismissed() && slot.phase() == WorkerPhase::Busy {
            return self.take_last_payloads(slot, now_ns);
        }
        match self.inbox_access(worker, slot) {
            InboxAccess::Holder => {}
            InboxAccess::Idle => return Next::Sleep { until_ns: None },
            InboxAccess::Dismissed => return self.take_last_payloads(slot, now_ns),
            InboxAccess::Stopped => return self.take_remaining(slot, now_ns),
        }
        let mut spins = 0;
        loop {
            if self.is_dismissed(worker) {
                self.pass(worker);
                return self.take_last_payloads(slot, now_ns);
            }
            // Passed on below, it may be another worker's already, and is not passed on again.
            let held = HeldToken { queue: self, worker };
            let found = self.find(Some(slot), now_ns, false);
            drop(held);
            match found {
                FindResult::Payload(payload) => {
                    self.pass(worker);
                    if self.service_time.is_some() {
                        slot.begin_busy(now_ns);
                    }
                    return Next::Execute(slot.stamp(payload));
                }
                FindResult::Gated => {
                    // Others may take it meanwhile. The gate wakes this worker, which then acquires the token as after
                    // an execution.
                    self.pass(worker);
                    return Next::Sleep { until_ns: None };
                }
                FindResult::Nothing { drained, wake_at, until_ns, removals } => {
                    slot.leave_gate();
                    let has_changed = || self.waiting() > drained || self.removals.load(Ordering::Acquire) != removals;
                    match self.token.arm(worker, wake_at, has_changed) {
                        Armed::Park => {
                            slot.set_phase(WorkerPhase::Armed);
                            return Next::Sleep { until_ns };
                        }
                        // A push is under way.
                        Armed::DrainAgain => pause(&mut spins),
                        Armed::Stopped => {
                            self.pass(worker);
                            return self.take_remaining(slot, now_ns);
                        }
                    }
                }
                FindResult::Occupied => pause(&mut spins),
            }
        }
    }

    /// One more payload for a worker that executes, if no other worker is free to take it. Never where workers have to
    /// acquire resources.
    pub fn ahead(&self, worker: usize, now_ns: u64) -> Option<Payload> {
        let slot = self.slots.get(worker)?;
        let is_wanted = self.limiter.is_none() && !slot.is_dismissed() && self.waiting() >= self.ahead_from;
        if !is_wanted || !self.token.try_hold() {
            return None;
        }
        let held = HeldToken { queue: self, worker };
        let found = self.find(Some(slot), now_ns, false);
        drop(held);
        self.pass(worker);
        match found {
            FindResult::Payload(payload) => {
                slot.took_ahead();
                Some(payload)
            }
            FindResult::Gated | FindResult::Nothing { .. } | FindResult::Occupied => None,
        }
    }

    pub fn executed(&self, worker: usize) {
        if let Some(slot) = self.slots.get(worker) {
            slot.executed();
        }
    }

    pub fn dismiss(&self, worker: usize) {
        if self.uncount_worker(worker) {
            self.wake(Some(worker));
        }
    }

    pub fn left(&self, worker: usize) {
        self.uncount_worker(worker);
        // No worker is left to answer the requests that are still queued.
        while self.has_no_workers() && self.waiting() > 0 && self.intake.load(Ordering::SeqCst) != OPEN {
            // At time 0 no request has timed out.
            match self.find(None, 0, true) {
                FindResult::Payload(mut payload) => {
                    for request in payload.take() {
                        let text = "the last instance of the model left before it took the request";
                        let status = Status::refused(RefusalReason::ModelUnavailable, text);
                        request.fail(status.prefixed(&request.log_id()));
                    }
                }
                _ => std::thread::yield_now(),
            }
        }
        if let Some(slot) = self.slots.get(worker)
            && slot.clear()
        {
            self.change_lenders(|lenders| lenders.retain(|lender| *lender != worker));
        }
        self.token.left(worker);
    }
}

/// A number of this thread: shards that run requests themselves have 0, 1, 2 and so on. Workers that do so for steps of
/// ensembles have numbers of their own, so that those of the shards stay close together.
fn own_seat() -> usize {
    static SHARDS: AtomicUsize = AtomicUsize::new(0);
    static WORKERS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SEAT: usize =
            if turn::place() == Place::Worker { &WORKERS } else { &SHARDS }.fetch_add(1, Ordering::Relaxed);
    }
    SEAT.with(|seat| *seat)
}

/// Waits for a thread that is in the middle of a few steps, and may need this core for them.
fn pause(spins: &mut u32) {
    *spins += 1;
    match *spins {
        0..32 => std::hint::spin_loop(),
        _ => std::thread::yield_now(),
    }
}

#[cfg(test)]
mod tests;
