//! The state of one worker in a batch queue: its waker, its gate, and its phase.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::gate::Gate;
use crate::{Borrowable, Payload};
use nereid_request::Waker;

/// The worker's phase since its last poll. Used by the worker itself only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerPhase {
    /// It executes, has not polled yet, or waits at its gate.
    Busy,
    /// It sleeps on the stack of idle workers.
    Idle,
    /// It sleeps with the token.
    Armed,
}

#[derive(Default)]
pub(super) struct WorkerSlot {
    /// Locked while it is copied: a number may be reused by another worker.
    waker: Mutex<Option<Waker>>,
    is_dismissed: AtomicBool,
    phase: AtomicU8,
    has_gate: AtomicBool,
    gate: Mutex<Option<Arc<dyn Gate>>>,
    /// It has its resources, or is queued for them. Used by the worker itself only.
    is_at_gate: AtomicBool,
    borrowable: Mutex<Option<Arc<dyn Borrowable>>>,
    /// Since when it executes, 0 if it does not, and the number of batches that it has taken since. Used by the worker
    /// itself only.
    busy_since_ns: AtomicU64,
    batches: AtomicU64,
}

impl WorkerSlot {
    /// Prepares the slot for a worker that is about to join.
    pub fn prepare(&self, waker: Waker, gate: Option<Arc<dyn Gate>>) {
        *lock(&self.waker) = Some(waker);
        self.has_gate.store(gate.is_some(), Ordering::Relaxed);
        *lock(&self.gate) = gate;
        self.is_at_gate.store(false, Ordering::Relaxed);
        self.busy_since_ns.store(0, Ordering::Relaxed);
        self.set_phase(WorkerPhase::Busy);
    }

    pub fn mark_joined(&self) {
        self.is_dismissed.store(false, Ordering::SeqCst);
    }

    /// True the first time.
    pub fn dismiss(&self) -> bool {
        !self.is_dismissed.swap(true, Ordering::SeqCst)
    }

    pub fn is_dismissed(&self) -> bool {
        self.is_dismissed.load(Ordering::SeqCst)
    }

    /// Clears the slot of a worker that is gone; true if its instance could be borrowed.
    pub fn clear(&self) -> bool {
        self.leave_gate();
        // Dropped without the locks: the drop may wake others.
        let gate = lock(&self.gate).take();
        drop(gate);
        lock(&self.waker).take();
        lock(&self.borrowable).take().is_some()
    }

    pub fn waker(&self) -> Option<Waker> {
        lock(&self.waker).clone()
    }

    /// Returns the previous value.
    pub fn lend(&self, borrowable: Option<Arc<dyn Borrowable>>) -> Option<Arc<dyn Borrowable>> {
        std::mem::replace(&mut *lock(&self.borrowable), borrowable)
    }

    /// The instance that may be borrowed.
    pub fn borrowable(&self) -> Option<Arc<dyn Borrowable>> {
        if self.is_dismissed() { None } else { lock(&self.borrowable).clone() }
    }

    pub fn phase(&self) -> WorkerPhase {
        match self.phase.load(Ordering::Relaxed) {
            0 => WorkerPhase::Busy,
            1 => WorkerPhase::Idle,
            _ => WorkerPhase::Armed,
        }
    }

    /// The worker executes from now on.
    pub fn begin_busy(&self, now_ns: u64) {
        self.busy_since_ns.store(now_ns, Ordering::Relaxed);
        self.batches.store(1, Ordering::Relaxed);
    }

    /// It has taken another batch before it has executed the last one.
    pub fn took_ahead(&self) {
        self.batches.store(self.batches.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// The time for each batch, if it has executed any.
    pub fn end_busy(&self, now_ns: u64) -> Option<u64> {
        match self.busy_since_ns.swap(0, Ordering::Relaxed) {
            0 => None,
            since_ns => Some(now_ns.saturating_sub(since_ns) / self.batches.load(Ordering::Relaxed).max(1)),
        }
    }

    pub fn set_phase(&self, phase: WorkerPhase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub fn take_phase(&self) -> WorkerPhase {
        let phase = self.phase();
        self.set_phase(WorkerPhase::Busy);
        phase
    }

    fn gate(&self) -> Option<Arc<dyn Gate>> {
        if self.has_gate.load(Ordering::Relaxed) { lock(&self.gate).clone() } else { None }
    }

    /// True if the worker may execute now. If false, its waker is called when it may.
    pub fn enter_gate(&self) -> bool {
        match self.gate() {
            Some(gate) => {
                self.is_at_gate.store(true, Ordering::Relaxed);
                gate.enter()
            }
            None => true,
        }
    }

    /// Records in the requests of a payload which resources the requests made on their behalf may use.
    pub fn stamp(&self, mut payload: Payload) -> Payload {
        if let Some(gate) = self.gate() {
            for mut request in payload.take() {
                request.links.grant = gate.grant();
                payload.push(request);
            }
        }
        payload
    }

    /// Called when the worker has executed and is about to poll again, or to leave.
    pub fn executed(&self) {
        if self.is_at_gate.load(Ordering::Relaxed)
            && let Some(gate) = self.gate()
        {
            gate.executed();
        }
    }

    /// Gives back the resources, or the place in the queue for them.
    pub fn leave_gate(&self) {
        if self.is_at_gate.swap(false, Ordering::Relaxed)
            && let Some(gate) = self.gate()
        {
            gate.leave();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
