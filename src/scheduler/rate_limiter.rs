//! The rate limiter: instances of all models wait in one queue for resources that they share (contract/schedulers.md
//! section 6).
//!
//! The instance that has executed least, by number of executions × priority number, comes first. In Triton all wait
//! behind a blocked head of the queue; here others pass it as long as they fit into the free resources, but not more
//! than [`PASSED_MAX`] times: from then on no instance takes what it waits for. So small demands are met, and a large
//! one is met after a bounded number of executions.
//!
//! A model that calls another one keeps its resources meanwhile. They serve the model that it waits for (see
//! `leases`), and where models would wait for each other for ever, the request that closes the circle is refused.
//!
//! All of it is one state behind one lock, held briefly; wakers are called outside.

mod leases;
mod limiter_state;
mod pools;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::limiter_state::LimiterState;
use super::WorkerInfo;
use super::gate::{Gate, Limiter, Registration};
use nereid_model_config::validate::ResourceLimit;
use nereid_request::{Grant, Lender, ResourceLease, Status, Waker};
use nereid_wire::inference::ModelInstanceGroup;

/// How often an instance that waits for its resources is passed by others that take some of them.
pub const PASSED_MAX: u32 = 16;

/// `--rate-limit=execution_count`.
pub struct RateLimiter(SharedState);

type SharedState = Arc<Mutex<LimiterState>>;

impl RateLimiter {
    /// `limits` are those of `--rate-limit-resource`; without one, there is as much of a resource as the largest demand
    /// of an instance.
    pub fn new(limits: Vec<ResourceLimit>) -> RateLimiter {
        RateLimiter(Arc::new(Mutex::new(LimiterState::new(limits))))
    }
}

impl Limiter for RateLimiter {
    fn register(&self, groups: &[ModelInstanceGroup]) -> Result<Registration, Status> {
        let number = lock(&self.0).register(groups)?;
        Ok(Registration { number, guard: Box::new(RegistrationGuard { state: Arc::clone(&self.0), number }) })
    }

    fn change(&self, registration: &Registration, groups: &[ModelInstanceGroup]) -> Result<(), Status> {
        lock(&self.0).change(registration.number, groups)
    }

    fn admit(&self, model: &str, info: &WorkerInfo) -> Result<Arc<dyn Gate>, Status> {
        let member = lock(&self.0).join(model, info);
        Ok(Arc::new(Member { state: Arc::clone(&self.0), number: member }))
    }
}

/// Removes the groups of a model version when it is dropped.
struct RegistrationGuard {
    state: SharedState,
    number: u64,
}

impl Drop for RegistrationGuard {
    fn drop(&mut self) {
        lock(&self.state).unregister(self.number);
    }
}

/// The gate of one instance.
struct Member {
    state: SharedState,
    number: u64,
}

impl Gate for Member {
    fn enter(&self) -> bool {
        let (is_open, wakers) = lock(&self.state).enter(self.number);
        wake(wakers);
        is_open
    }

    fn executed(&self) {
        lock(&self.state).executed(self.number);
    }

    fn leave(&self) {
        let wakers = lock(&self.state).leave(self.number);
        wake(wakers);
    }

    fn grant(&self) -> Option<Grant> {
        let hold = lock(&self.state).hold(self.number)?;
        let holder = HoldLender { state: Arc::clone(&self.state), member: self.number, hold };
        Some(Grant::new(Arc::new(holder)))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let wakers = lock(&self.state).remove(self.number);
        wake(wakers);
    }
}

/// One execution that holds resources.
struct HoldLender {
    state: SharedState,
    member: u64,
    hold: u64,
}

impl Lender for HoldLender {
    fn lend(&self, model: &str) -> Result<Option<ResourceLease>, Status> {
        let (outcome, wakers) = lock(&self.state).lend(self.member, self.hold, model);
        wake(wakers);
        let number = outcome?;
        Ok(number.map(|number| ResourceLease::new(LeaseGuard { state: Arc::clone(&self.state), number })))
    }
}

/// Ends a lease when it is dropped.
struct LeaseGuard {
    state: SharedState,
    number: u64,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let wakers = lock(&self.state).end_lease(self.number);
        wake(wakers);
    }
}

fn lock(state: &SharedState) -> MutexGuard<'_, LimiterState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(wakers: Vec<Waker>) {
    wakers.iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests;
