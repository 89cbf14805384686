//! The state of one worker in a batch queue: how to wake it, its gate, and what it does now.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::gate::Gate;
use crate::{Borrowable, Payload};
use nereid_request::Waker;

/// What a worker was told last. Only the worker itself looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Posture {
    /// It executes, has not asked yet, or waits at its gate.
    Busy,
    /// It sleeps on the stack of idle workers.
    Idle,
    /// It sleeps with the token.
    Armed,
}

#[derive(Default)]
pub(super) struct WorkerSlot {
    /// Locked for the moment of a copy: a number may go to another worker.
    waker: Mutex<Option<Waker>>,
    is_dismissed: AtomicBool,
    posture: AtomicU8,
    has_gate: AtomicBool,
    gate: Mutex<Option<Arc<dyn Gate>>>,
    /// It has its resources, or is in line for them. Only the worker itself looks at it.
    is_at_gate: AtomicBool,
    borrowable: Mutex<Option<Arc<dyn Borrowable>>>,
}

impl WorkerSlot {
    /// For the worker that is about to join.
    pub fn furnish(&self, waker: Waker, gate: Option<Arc<dyn Gate>>) {
        *lock(&self.waker) = Some(waker);
        self.has_gate.store(gate.is_some(), Ordering::Relaxed);
        *lock(&self.gate) = gate;
        self.is_at_gate.store(false, Ordering::Relaxed);
        self.set_posture(Posture::Busy);
    }

    pub fn welcome(&self) {
        self.is_dismissed.store(false, Ordering::SeqCst);
    }

    /// True the first time.
    pub fn dismiss(&self) -> bool {
        !self.is_dismissed.swap(true, Ordering::SeqCst)
    }

    pub fn is_dismissed(&self) -> bool {
        self.is_dismissed.load(Ordering::SeqCst)
    }

    /// The worker is gone; true if its instance could be borrowed.
    pub fn clear(&self) -> bool {
        self.leave_gate();
        // Dropped without the locks: it may wake others.
        let gate = lock(&self.gate).take();
        drop(gate);
        lock(&self.waker).take();
        lock(&self.borrowable).take().is_some()
    }

    pub fn waker(&self) -> Option<Waker> {
        lock(&self.waker).clone()
    }

    /// Returns what was there before.
    pub fn lend(&self, borrowable: Option<Arc<dyn Borrowable>>) -> Option<Arc<dyn Borrowable>> {
        std::mem::replace(&mut *lock(&self.borrowable), borrowable)
    }

    /// The instance that may be borrowed.
    pub fn borrowable(&self) -> Option<Arc<dyn Borrowable>> {
        if self.is_dismissed() { None } else { lock(&self.borrowable).clone() }
    }

    pub fn posture(&self) -> Posture {
        match self.posture.load(Ordering::Relaxed) {
            0 => Posture::Busy,
            1 => Posture::Idle,
            _ => Posture::Armed,
        }
    }

    pub fn set_posture(&self, posture: Posture) {
        self.posture.store(posture as u8, Ordering::Relaxed);
    }

    pub fn take_posture(&self) -> Posture {
        let posture = self.posture();
        self.set_posture(Posture::Busy);
        posture
    }

    fn gate(&self) -> Option<Arc<dyn Gate>> {
        if self.has_gate.load(Ordering::Relaxed) { lock(&self.gate).clone() } else { None }
    }

    /// True: the worker may execute. False: its waker is called when it may.
    pub fn enter_gate(&self) -> bool {
        match self.gate() {
            Some(gate) => {
                self.is_at_gate.store(true, Ordering::Relaxed);
                gate.enter()
            }
            None => true,
        }
    }

    /// Tells what is about to be executed what requests made on its behalf may use.
    pub fn stamp(&self, mut payload: Payload) -> Payload {
        if let Some(gate) = self.gate() {
            for mut request in payload.take() {
                request.grant = gate.grant();
                payload.push(request);
            }
        }
        payload
    }

    /// The worker has executed and is about to ask again, or to leave.
    pub fn executed(&self) {
        if self.is_at_gate.load(Ordering::Relaxed)
            && let Some(gate) = self.gate()
        {
            gate.executed();
        }
    }

    /// Gives back the resources, or the place in line for them.
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
