//! The instances of one worker, which the worker runs, or a shard that borrows them.
//!
//! For a model that answers in a microsecond, a change of threads costs more than the execution. A shard may run such a
//! request itself if the backend declares that its instance never blocks and runs on any thread, or, if the operator
//! enables that, if every run was short so far. The running thread holds the lock; a shard only tries to take it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tracing::info;

use super::cancelled;
use super::device_inputs::land;
use super::stall::Pulse;
use super::worker::{check_alive, execute};
use crate::{Instance, InstanceContext, Mobility, fail};
use nereid_clock::now_ns;
use nereid_mutants::{self as mutants, Mutant};
use nereid_request::{Request, Status, Ticket};
use nereid_scheduler::{Borrowable, Payload, RunToCompletion};

/// A longer run revokes the permission that short runs earned.
const LONGEST_RUN_NS: u64 = 50_000;
/// The number of short runs in a row that earn it.
const SHORT_RUNS_MIN: u32 = 100;

/// Only the worker runs the instances, for good.
const CLOSED: u8 = 0;
/// The worker's runs are measured.
const MEASURED: u8 = 1;
/// May be borrowed as long as every run is short.
const EARNED: u8 = 2;
/// May be borrowed.
const OPEN: u8 = 3;

#[derive(Default)]
pub(super) struct WorkerInstances {
    rotation: Mutex<Rotation>,
    terms: AtomicU8,
    short_runs: AtomicU32,
    /// Whether its instances read inputs in device memory.
    takes_device_tensors: AtomicBool,
    pulse: Arc<Pulse>,
}

/// The instances of one thread, which execute in rotation.
#[derive(Default)]
struct Rotation {
    members: Vec<(Box<dyn Instance>, InstanceContext)>,
    turn: usize,
}

/// The right to run one payload.
struct Borrowed<'a> {
    instances: &'a WorkerInstances,
    rotation: MutexGuard<'a, Rotation>,
}

impl WorkerInstances {
    /// Makes the instances available once they are ready.
    pub(super) fn open(&self, members: Vec<(Box<dyn Instance>, InstanceContext)>, run_to_completion: RunToCompletion) {
        let mobility = members.iter().map(|(instance, _)| instance.mobility()).min().unwrap_or_default();
        let terms = match (mobility, run_to_completion) {
            (Mobility::Free, RunToCompletion::Declared | RunToCompletion::Measured) => OPEN,
            (Mobility::FreeIfShort, RunToCompletion::Measured) => MEASURED,
            _ => CLOSED,
        };
        let takes_device_tensors =
            !members.is_empty() && members.iter().all(|(instance, _)| instance.takes_device_tensors());
        self.takes_device_tensors.store(takes_device_tensors, Ordering::Release);
        self.lock().members = members;
        self.terms.store(terms, Ordering::Release);
    }

    /// Takes them back, after the run of a borrower.
    pub(super) fn close(&self) -> Vec<(Box<dyn Instance>, InstanceContext)> {
        self.terms.store(CLOSED, Ordering::Release);
        std::mem::take(&mut self.lock().members)
    }

    pub(super) fn takes_device_tensors(&self) -> bool {
        self.takes_device_tensors.load(Ordering::Acquire)
    }

    /// Whether shards may borrow it now or later.
    pub(super) fn is_offered(&self) -> bool {
        self.terms.load(Ordering::Acquire) != CLOSED
    }

    /// The right to run one payload on this thread, if no other thread runs one. Never waits.
    fn borrow(&self) -> Option<Borrowed<'_>> {
        if self.terms.load(Ordering::Acquire) < EARNED {
            return None;
        }
        let rotation = match self.rotation.try_lock() {
            Ok(rotation) => rotation,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // The worker may have left with its instances meanwhile, or a run was too long.
        let is_there = !rotation.members.is_empty() && self.terms.load(Ordering::Acquire) >= EARNED;
        is_there.then_some(Borrowed { instances: self, rotation })
    }

    /// Runs `payload` once no other thread runs one; every request is answered, now or later.
    pub(super) fn run(&self, payload: Payload) {
        let mut rotation = self.lock();
        self.measure(|| rotation.run(payload));
    }

    fn lock(&self) -> MutexGuard<'_, Rotation> {
        self.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counter that shows whether its executions progress.
    pub(super) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    fn measure(&self, run: impl FnOnce()) {
        self.pulse.begin();
        self.time(run);
        self.pulse.end();
    }

    fn time(&self, run: impl FnOnce()) {
        let terms = self.terms.load(Ordering::Acquire);
        if terms != MEASURED && terms != EARNED {
            return run();
        }
        let started_ns = now_ns();
        run();
        self.judge(terms, now_ns().saturating_sub(started_ns));
    }

    fn judge(&self, terms: u8, run_ns: u64) {
        let becomes =
            |terms: u8, next: u8| self.terms.compare_exchange(terms, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let is_short = run_ns <= LONGEST_RUN_NS;
        if terms == EARNED {
            if !is_short && becomes(EARNED, CLOSED) {
                info!("a run took {} us: shards leave the instance to its worker from now on", run_ns / 1_000);
            }
        } else if !is_short {
            // The first runs of new instances are slow.
            self.short_runs.store(0, Ordering::Relaxed);
        } else if self.short_runs.fetch_add(1, Ordering::Relaxed) + 1 >= SHORT_RUNS_MIN {
            becomes(MEASURED, EARNED);
        }
    }
}

impl Borrowed<'_> {
    /// Runs `payload`; every request is answered, now or later.
    fn run(mut self, payload: Payload) {
        self.instances.measure(|| self.rotation.run(payload));
    }
}

impl Borrowable for WorkerInstances {
    fn run_here(&self, request: Box<Request>) -> Result<Ticket, Box<Request>> {
        let Some(borrowed) = self.borrow() else { return Err(request) };
        let ticket = request.ticket();
        request.admission().take();
        let execution = request.executes_at_home();
        let mut payload = Payload::default();
        payload.push(request);
        borrowed.run(payload);
        drop(execution);
        Ok(ticket)
    }
}

impl Rotation {
    fn run(&mut self, mut payload: Payload) {
        let at = self.turn % self.members.len().max(1);
        self.turn = at + 1;
        // Never without members: the worker runs only between opening and closing, and a borrower has checked.
        let Some((instance, context)) = self.members.get_mut(at) else { return };
        if context.model.gpus.is_supported() {
            if let Err(status) = check_alive(context) {
                payload.take().into_iter().for_each(|request| fail(&context.statistics, request, status.clone()));
                return;
            }
            land(&mut payload, context, instance.takes_device_tensors());
            if payload.is_empty() {
                return;
            }
        }
        if cancelled::leave_out(&mut payload, context) && payload.is_empty() {
            return;
        }
        let outcome = execute(&mut **instance, context, &mut payload);
        if payload.is_empty() {
            return;
        }
        let unanswered = || Status::internal(format!("instance '{}' left the request unanswered", context.name));
        let status = outcome.err().unwrap_or_else(unanswered);
        for (at, request) in payload.take().into_iter().enumerate() {
            if at > 0 && mutants::is(Mutant::FailureOfOne) {
                std::mem::forget(request);
                continue;
            }
            fail(&context.statistics, request, status.clone());
        }
    }
}

impl std::fmt::Debug for WorkerInstances {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WorkerInstances({})", self.terms.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests;
