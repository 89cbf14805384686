//! Whether an instance could serve: whether its worker lives, and the result of its model's `is_ready`
//! (contract/python_backend.md section 2, "is_ready").
//!
//! The worker answers on a thread of its own, so also while it executes. At most one query is open at a time; one that
//! timed out stays open until the worker answers it, and later callers wait for that answer.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::marshal::{Malformed, Value, Writer};
use super::worker::Worker;
use super::worker_supervisor::WorkerSupervisor;
use nereid_request::Status;
use nereid_scheduler::Readiness;

/// The time limit of one check.
const LIMIT: Duration = Duration::from_secs(5);

/// The health of an instance.
pub struct Health {
    supervisor: Weak<WorkerSupervisor>,
}

impl Health {
    pub fn of(supervisor: &Arc<WorkerSupervisor>) -> Arc<Health> {
        Arc::new(Health { supervisor: Arc::downgrade(supervisor) })
    }
}

impl Readiness for Health {
    fn check(&self) -> Result<(), Status> {
        let Some(supervisor) = self.supervisor.upgrade().filter(|supervisor| !supervisor.is_closed()) else {
            return Ok(());
        };
        let worker = supervisor.current().ok_or_else(|| Status::internal(supervisor.not_healthy()))?;
        worker.readiness.query(&worker, LIMIT)
    }

    fn stopped(&self) -> Option<String> {
        let number = self.supervisor.upgrade()?.current()?.process_id()?;
        is_stopped(number).then(|| format!("its process {number} is stopped"))
    }

    fn write_stack(&self) {
        let worker = self.supervisor.upgrade().and_then(|supervisor| supervisor.current());
        worker.into_iter().for_each(|worker| worker.write_stacks());
    }
}

/// Whether a signal or a debugger has stopped the process (proc_pid_stat(5), field 3).
fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name before the field may contain any bytes.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'T' | b't'))
}

/// The query to one worker whether its model is ready.
#[derive(Default)]
pub struct ReadinessQuery {
    /// The slot on which the worker waits for it; unset if its model has no `is_ready`.
    slot: OnceLock<u32>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of the last query sent.
    sent: u64,
    /// The number of the last query answered.
    answered: u64,
    answer: Option<Result<bool, String>>,
}

impl ReadinessQuery {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the slot of the worker that gets the queries.
    pub fn open(&self, slot: u32) {
        let _ = self.slot.set(slot);
    }

    fn query(&self, worker: &Worker, limit: Duration) -> Result<(), Status> {
        let Some(slot) = self.slot.get() else { return Ok(()) };
        let mut state = self.lock();
        let follows = state.answered < state.sent;
        if !follows {
            state.sent += 1;
            let mut number = Writer::default();
            number.int(state.sent);
            worker.answer(*slot, Ok(number));
        }
        let (number, deadline) = (state.sent, Instant::now() + limit);
        loop {
            // An answer to a later query is accepted too.
            if state.answered >= number {
                return verdict(&worker.name, state.answer.as_ref());
            }
            if !worker.is_alive() {
                let text = "Stub process is not healthy while waiting for user-defined is_ready() response";
                return Err(Status::internal(text));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let kind = if follows { "in-flight" } else { "user-defined" };
                return Err(Status::unavailable(format!("Timed out waiting for {kind} is_ready() response")));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// (number of the query, bool or None, text or None): the worker's answer.
    pub fn answered(&self, value: &Value<'_>) -> Result<(), Malformed> {
        let [number, is_ready, text] = value.as_tuple()?;
        let number = number.as_int()?;
        let is_ready = is_ready.optional(Value::as_bool)?;
        let text = text.optional(Value::as_text)?;
        let mut state = self.lock();
        // Only the last query can be open.
        if number != state.sent || state.answered == state.sent {
            return Err(Malformed::Form);
        }
        state.answered = number;
        state.answer = Some(is_ready.ok_or_else(|| text.unwrap_or_default().into_owned()));
        self.changed.notify_all();
        Ok(())
    }

    /// Reports the worker's end to waiting callers; called after the end is visible.
    pub fn end(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }
}

fn verdict(instance: &str, answer: Option<&Result<bool, String>>) -> Result<(), Status> {
    match answer {
        Some(Ok(true)) => Ok(()),
        Some(Err(text)) => Err(Status::internal(text.clone())),
        Some(Ok(false)) | None => {
            Err(Status::unavailable(format!("Model '{instance}' is not ready (user-defined check failed).")))
        }
    }
}
