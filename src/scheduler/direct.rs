//! The default scheduler: every request is a payload of its own, first come, first served by the first free instance.
//!
//! Requests wait in one lock-free inbox. The worker that holds the batcher token looks into it; there is nothing to
//! form here, so it takes the oldest request, passes the token on, and executes. An enqueuer wakes a worker only if one
//! sleeps that has to see the request (see [`Roster`]). Workers come and go while it runs.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::mutants::{self, Mutant};
use super::{Accepted, Gate, Limiter, Refused, STOPPING, Scheduler, answer_cancelled, answer_expired};
use crate::instance::{Next, Payload, PayloadSource, Seat};
use crate::observe::statistics::ModelStatistics;
use crate::queue::{Armed, Mpsc, Place, Roster, Seats, Turn};
use crate::request::{Request, Status, Ticket, WakeUp, Waker};

pub struct Direct {
    inbox: Mpsc<Box<Request>>,
    /// Requests in the inbox and on their way into it, tombstones included.
    waiting: AtomicUsize,
    roster: Roster,
    desks: Seats<Desk>,
    /// Workers that joined and were neither dismissed nor left.
    present: Mutex<usize>,
    /// [`OPEN`], or why nothing is accepted.
    door: AtomicU8,
    statistics: Arc<ModelStatistics>,
    /// With the model's name.
    limiter: Option<(Arc<dyn Limiter>, String)>,
}

const OPEN: u8 = 0;
/// Nobody would execute what is accepted: all instances are passive.
const DESERTED: u8 = 1;
const STOPPED: u8 = 2;

/// What the scheduler knows of a worker.
#[derive(Default)]
struct Desk {
    /// Locked for the moment of a copy: a number may go to another worker.
    waker: Mutex<Option<Waker>>,
    is_dismissed: AtomicBool,
    /// What the worker was told last. Only the worker itself looks at it.
    posture: AtomicU8,
    /// Only the worker itself goes through it.
    gate: Mutex<Option<Arc<dyn Gate>>>,
}

/// Of a worker that executes, or has not asked yet.
const BUSY: u8 = 0;
/// It sleeps on the stack of idle workers.
const IDLE: u8 = 1;
/// It sleeps with the token.
const ARMED: u8 = 2;

/// Whether a worker may look into the inbox.
#[derive(PartialEq, Eq)]
enum Call {
    Holder,
    Idle,
    Dismissed,
    Stopped,
}

impl Direct {
    /// A scheduler without workers: it accepts requests once one has joined.
    pub fn new(statistics: Arc<ModelStatistics>) -> Direct {
        Direct {
            inbox: Mpsc::new(),
            waiting: AtomicUsize::new(0),
            roster: Roster::new(),
            desks: Seats::default(),
            present: Mutex::new(0),
            door: AtomicU8::new(DESERTED),
            statistics,
            limiter: None,
        }
    }

    /// The same, with workers that wait for what instances of all models share.
    pub fn limited(mut self, limiter: Option<Arc<dyn Limiter>>, model: &str) -> Direct {
        self.limiter = limiter.map(|limiter| (limiter, model.to_owned()));
        self
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    fn is_dismissed(&self, worker: usize) -> bool {
        self.desks.get(worker).is_none_or(|desk| desk.is_dismissed.load(Ordering::SeqCst))
    }

    fn waker(&self, worker: Option<usize>) -> Option<Waker> {
        let desk = self.desks.get(worker?)?;
        desk.waker.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wake(&self, worker: Option<usize>) {
        WakeUp::of(self.waker(worker)).now();
    }

    /// Says that a worker does not count any more; true the first time.
    fn strike_off(&self, worker: usize) -> bool {
        let Some(desk) = self.desks.get(worker) else { return false };
        // One lock over both, so that a worker that joins meanwhile opens the door after us.
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if desk.is_dismissed.swap(true, Ordering::SeqCst) {
            return false;
        }
        *present = present.saturating_sub(1);
        if *present == 0 {
            let _ = self.door.compare_exchange(OPEN, DESERTED, Ordering::SeqCst, Ordering::SeqCst);
        }
        true
    }

    /// The oldest request that nobody took back.
    fn take(&self) -> Option<Payload> {
        let mut inbox = self.inbox.consume()?;
        loop {
            let request = inbox.pop()?;
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            if !request.admission().take() {
                // A tombstone: whoever took it back has answered and counted.
                continue;
            }
            self.statistics.pending_removed();
            let mut payload = Payload::default();
            payload.push(request);
            return Some(payload);
        }
    }

    /// What is left when nothing new comes any more.
    fn take_rest(&self) -> Option<Payload> {
        loop {
            if let Some(payload) = self.take() {
                return Some(payload);
            }
            if self.waiting() == 0 {
                return None;
            }
            // Another worker is taking, or a push is under way.
            std::thread::yield_now();
        }
    }

    fn is_deserted(&self) -> bool {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) == 0
    }

    /// The last payloads of a worker that leaves: none while others stay.
    fn take_farewell(&self) -> Option<Payload> {
        if self.door.load(Ordering::SeqCst) == OPEN { None } else { self.take_rest() }
    }

    /// The worker leaves once there is nothing more to execute.
    fn farewell(&self, desk: &Desk, take: impl Fn() -> Option<Payload>) -> Next {
        if self.waiting() > 0 && !desk.enter() {
            return Next::Sleep { until_ns: None };
        }
        match take() {
            Some(payload) => Next::Execute(desk.stamp(payload)),
            None => {
                desk.leave();
                Next::Leave
            }
        }
    }

    /// Whether the worker has the token, and if not, how it waits for it.
    fn call(&self, worker: usize, desk: &Desk) -> Call {
        match desk.posture.swap(BUSY, Ordering::Relaxed) {
            ARMED => {
                self.roster.disarm(worker);
                return Call::Holder;
            }
            IDLE => {}
            _ => match self.roster.acquire(worker) {
                Turn::Holder => return Call::Holder,
                Turn::Stopped => return Call::Stopped,
                Turn::Idle => {}
            },
        }
        match self.roster.place(worker) {
            Place::Holder => Call::Holder,
            Place::Stopped => Call::Stopped,
            Place::Waiting if !self.is_dismissed(worker) => {
                desk.posture.store(IDLE, Ordering::Relaxed);
                Call::Idle
            }
            Place::Waiting if self.roster.retire(worker) => Call::Dismissed,
            // Made the holder this very moment.
            Place::Waiting => Call::Holder,
        }
    }
}

impl Desk {
    fn gate(&self) -> Option<Arc<dyn Gate>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn enter(&self) -> bool {
        self.gate().is_none_or(|gate| gate.enter())
    }

    fn leave(&self) {
        if let Some(gate) = self.gate() {
            gate.leave();
        }
    }

    /// Tells the requests what those made on their behalf may use.
    fn stamp(&self, mut payload: Payload) -> Payload {
        if let Some(gate) = self.gate() {
            for mut request in payload.take() {
                request.grant = gate.grant();
                payload.push(request);
            }
        }
        payload
    }
}

impl Scheduler for Direct {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        // Counted first: a worker that sees nothing waiting after the door was closed may leave, because whoever
        // counts later sees the door.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let door = self.door.load(Ordering::SeqCst);
        if door != OPEN {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let text = match door {
                STOPPED => STOPPING,
                _ => "all instances of the model are passive and take no requests",
            };
            return Err(Refused { status: Status::unavailable(text).prefixed(&request.log_id()), request });
        }
        self.statistics.pending_added();
        let ticket = request.ticket();
        self.inbox.push(request);
        let wake_up = match mutants::is(Mutant::LostWake) {
            false => WakeUp::of(self.waker(self.roster.enqueued(|| self.waiting()))),
            true => WakeUp::needless(),
        };
        Ok(Accepted { wake_up, ticket, expires_at_ns: None })
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().cancel() {
            self.statistics.pending_removed();
            answer_cancelled(ticket, &self.statistics);
        }
        WakeUp::needless()
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().expire() {
            self.statistics.pending_removed();
            answer_expired(ticket, &self.statistics, "Request timeout expired");
        }
        WakeUp::needless()
    }

    fn stop(&self) {
        self.door.store(STOPPED, Ordering::SeqCst);
        for worker in self.roster.stop() {
            self.wake(Some(worker));
        }
    }
}

impl PayloadSource for Direct {
    fn join(&self, seat: Seat) -> Result<usize, Status> {
        let gate = self.limiter.as_ref().map(|(limiter, model)| limiter.admit(model, &seat)).transpose()?;
        let worker = self.roster.join().map_err(|error| Status::invalid(error.to_string()))?;
        if !self.desks.provide(worker) {
            return Err(Status::internal(format!("there is no place for worker {worker}")));
        }
        let desk = &self.desks[worker];
        *desk.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(seat.waker);
        *desk.gate.lock().unwrap_or_else(PoisonError::into_inner) = gate;
        desk.posture.store(BUSY, Ordering::Relaxed);
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        desk.is_dismissed.store(false, Ordering::SeqCst);
        *present += 1;
        // Not if it was stopped.
        let _ = self.door.compare_exchange(DESERTED, OPEN, Ordering::SeqCst, Ordering::SeqCst);
        Ok(worker)
    }

    fn poll(&self, worker: usize, _now_ns: u64) -> Next {
        let Some(desk) = self.desks.get(worker) else { return Next::Leave };
        if self.is_dismissed(worker) && desk.posture.load(Ordering::Relaxed) == BUSY {
            return self.farewell(desk, || self.take_farewell());
        }
        match self.call(worker, desk) {
            Call::Holder => {}
            Call::Idle => {
                desk.leave();
                return Next::Sleep { until_ns: None };
            }
            Call::Dismissed => return self.farewell(desk, || self.take_farewell()),
            Call::Stopped => return self.farewell(desk, || self.take_rest()),
        }
        loop {
            if self.is_dismissed(worker) {
                self.wake(self.roster.pass(worker, || self.waiting() > 0));
                return self.farewell(desk, || self.take_farewell());
            }
            if self.waiting() > 0 && !desk.enter() {
                // Others may take the work; this one is woken once it has its resources.
                self.wake(self.roster.pass(worker, || self.waiting() > 0));
                return Next::Sleep { until_ns: None };
            }
            if let Some(payload) = self.take() {
                self.wake(self.roster.pass(worker, || self.waiting() > 0));
                return Next::Execute(desk.stamp(payload));
            }
            match self.roster.arm(worker, 1, || self.waiting() > 0) {
                Armed::Park => {
                    // What it entered for was taken back.
                    desk.leave();
                    desk.posture.store(ARMED, Ordering::Relaxed);
                    return Next::Sleep { until_ns: None };
                }
                // A push is under way.
                Armed::LookAgain => std::hint::spin_loop(),
                Armed::Stopped => {
                    self.wake(self.roster.pass(worker, || self.waiting() > 0));
                    return self.farewell(desk, || self.take_rest());
                }
            }
        }
    }

    fn executed(&self, worker: usize) {
        if let Some(desk) = self.desks.get(worker) {
            desk.leave();
        }
    }

    fn dismiss(&self, worker: usize) {
        if self.strike_off(worker) {
            self.wake(Some(worker));
        }
    }

    fn left(&self, worker: usize) {
        self.strike_off(worker);
        // Nobody else would answer what the last one left behind.
        while self.is_deserted()
            && let Some(mut payload) = self.take_farewell()
        {
            for request in payload.take() {
                let text = "the last instance of the model left before it took the request";
                request.fail(Status::unavailable(text).prefixed(&request.log_id()));
            }
        }
        if let Some(desk) = self.desks.get(worker) {
            desk.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            desk.gate.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        self.roster.left(worker);
    }
}

#[cfg(test)]
mod tests;
