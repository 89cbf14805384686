//! The instances of one worker, which the worker runs, or a shard that borrows them.
//!
//! For a model that answers in a microsecond, a change of threads costs more than the execution. A shard may run such a
//! request itself if the backend declares that its instance never blocks and runs on any thread, or if it runs on any
//! thread and its runs are short on average ([`judge`]). The running thread holds the lock; a shard only tries to take
//! it, and not while the worker waits for it.

mod core_clock;
mod judge;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tracing::info;

use self::judge::{Judge, Size, Verdict};
use super::cancelled;
use super::device_inputs::land;
use super::stall::Pulse;
use super::worker::{check_alive, execute};
use crate::{Instance, InstanceContext, Mobility, fail, successes};
use nereid_clock::now_ns;
use nereid_mutants::{self as mutants, Mutant};
use nereid_request::{Request, Status, Ticket};
use nereid_scheduler::{Borrowable, Payload, RunToCompletion};
use nereid_wire::inference::model_config::SchedulingChoice;

/// Only the worker runs the instances, for good.
const CLOSED: u8 = 0;
/// The worker's runs are judged.
const MEASURED: u8 = 1;
/// May be borrowed as long as runs are short on average.
const EARNED: u8 = 2;
/// May be borrowed.
const OPEN: u8 = 3;

#[derive(Default)]
pub(super) struct WorkerInstances {
    rotation: Mutex<Rotation>,
    terms: AtomicU8,
    /// The worker has a payload and waits for the lock: shards leave the instances to it, or one after the other would
    /// be faster than the worker, whose requests have waited longer.
    worker_wants: AtomicBool,
    /// Whether its instances read inputs in device memory.
    takes_device_tensors: AtomicBool,
    /// Whether its instances return as soon as they have answered.
    answer_last: AtomicBool,
    pulse: Arc<Pulse>,
}

/// The instances of one thread, which execute in rotation.
#[derive(Default)]
struct Rotation {
    members: Vec<(Box<dyn Instance>, InstanceContext)>,
    turn: usize,
    /// Where runs decide whether they may be borrowed.
    judge: Option<Judge>,
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
        // A shard runs requests one by one, so that batches do not form.
        let batches = |(_, context): &(_, InstanceContext)| {
            matches!(context.spec.config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_)))
        };
        let is_judged = match run_to_completion {
            RunToCompletion::Off | RunToCompletion::Declared => false,
            RunToCompletion::Auto => !members.iter().any(batches),
            RunToCompletion::Measured => true,
        };
        let terms = match mobility {
            Mobility::Free if run_to_completion != RunToCompletion::Off => OPEN,
            Mobility::FreeIfShort if is_judged => MEASURED,
            Mobility::FreeIfAsked if run_to_completion == RunToCompletion::Measured => MEASURED,
            _ => CLOSED,
        };
        let takes_device_tensors =
            !members.is_empty() && members.iter().all(|(instance, _)| instance.takes_device_tensors());
        self.takes_device_tensors.store(takes_device_tensors, Ordering::Release);
        let answer_last = !members.is_empty() && members.iter().all(|(instance, _)| instance.answers_last());
        self.answer_last.store(answer_last, Ordering::Release);
        let mut rotation = self.lock();
        rotation.members = members;
        rotation.judge = (terms == MEASURED).then(|| Judge::new(run_to_completion.limit_ns()));
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

    pub(super) fn answer_last(&self) -> bool {
        self.answer_last.load(Ordering::Acquire)
    }

    /// Whether shards may borrow it now or later.
    pub(super) fn is_offered(&self) -> bool {
        self.terms.load(Ordering::Acquire) != CLOSED
    }

    /// The right to run a payload of so many input bytes on this thread, if no other thread runs one. Never waits.
    fn borrow(&self, bytes: impl FnOnce() -> usize) -> Option<Borrowed<'_>> {
        if self.terms.load(Ordering::Acquire) < EARNED || self.worker_wants.load(Ordering::Acquire) {
            return None;
        }
        let rotation = match self.rotation.try_lock() {
            Ok(rotation) => rotation,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // The worker may have left with its instances meanwhile, or runs got too long.
        let is_there = !rotation.members.is_empty() && self.terms.load(Ordering::Acquire) >= EARNED;
        let is_admitted = is_there && rotation.judge.as_ref().is_none_or(|judge| judge.admits(bytes()));
        is_admitted.then_some(Borrowed { instances: self, rotation })
    }

    /// Runs `payload` once no other thread runs one; every request is answered, now or later.
    pub(super) fn run(&self, payload: Payload) {
        self.worker_wants.store(true, Ordering::Release);
        let mut rotation = self.lock();
        self.worker_wants.store(false, Ordering::Release);
        let size = rotation.size_of(&payload);
        self.measure(&mut rotation, size, |rotation| rotation.run(payload));
    }

    fn lock(&self) -> MutexGuard<'_, Rotation> {
        self.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counter that shows whether its executions progress.
    pub(super) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Runs, and judges the run if it has a size.
    fn measure(&self, rotation: &mut Rotation, size: Option<Size>, run: impl FnOnce(&mut Rotation)) {
        self.pulse.begin();
        let judged = size.and_then(|size| Some((size, successes(), rotation.judge.as_mut()?.begin())));
        run(rotation);
        if let Some((size, before, measured)) = judged
            && let Some(judge) = &mut rotation.judge
            && let Some(verdict) = judge.end(measured, size, successes().wrapping_sub(before) >= size.requests as u64)
        {
            self.heed(verdict, judge);
        }
        self.pulse.end();
    }

    fn heed(&self, verdict: Verdict, judge: &mut Judge) {
        let becomes =
            |terms: u8, next: u8| self.terms.compare_exchange(terms, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let is_lost = match verdict {
            Verdict::Earned => {
                becomes(MEASURED, EARNED);
                false
            }
            Verdict::Lost => becomes(EARNED, MEASURED),
        };
        if is_lost && judge.tells(now_ns()) {
            let (average_ns, longest_ns) = judge.decided_ns();
            info!(
                "executions take {} us on average, the longest {} us, and more than {} us on average are too long for \
                 shards: they leave the instance to its worker for some time",
                average_ns / 1_000,
                longest_ns / 1_000,
                judge.limit_ns() / 1_000
            );
        }
    }
}

impl Size {
    fn of(payload: &Payload) -> Size {
        let requests = payload.requests();
        Size { requests: requests.len(), bytes: requests.iter().map(|request| input_bytes(request)).sum() }
    }
}

fn input_bytes(request: &Request) -> usize {
    request.inputs.iter().map(|input| input.byte_size()).sum()
}

impl Borrowed<'_> {
    /// Runs `payload`; every request is answered, now or later.
    fn run(mut self, payload: Payload) {
        let size = self.rotation.size_of(&payload);
        self.instances.measure(&mut self.rotation, size, |rotation| rotation.run(payload));
    }
}

impl Borrowable for WorkerInstances {
    fn run_here(&self, request: Box<Request>) -> Result<Ticket, Box<Request>> {
        let Some(borrowed) = self.borrow(|| input_bytes(&request)) else { return Err(request) };
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
    /// Of a payload whose run is judged.
    fn size_of(&self, payload: &Payload) -> Option<Size> {
        self.judge.is_some().then(|| Size::of(payload))
    }

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
