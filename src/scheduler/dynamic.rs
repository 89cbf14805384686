//! The dynamic batcher: requests of several clients in one execution (contract/schedulers.md section 2).
//!
//! Requests are refused at once, by a count per priority level. Accepted requests wait in one inbox; the idle worker
//! that holds the token sorts them by priority and policy, and decides whether there is a batch to cut. So a batch
//! grows until a worker takes it: none is formed ahead of time, and requests that upstream merges at pickup are in it
//! from the start.

mod consultation;
mod equality;
mod former;
mod levels;
mod policy;
mod queues;

use std::sync::Arc;

use self::former::Batches;
use self::levels::Levels;
use self::policy::{Policies, Policy};
use super::batch_queue::{BatchQueue, EXPIRED};
use super::{
    Accepted, Borrowable, Next, Payload, PayloadSource, Purpose, Refused, Scheduler, Services, WorkerInfo,
    answer_cancelled, answer_expired,
};
use nereid_observe::log::verbose;
use nereid_request::{RefusalReason, Request, Status, Ticket, WakeUp};
use nereid_wire::inference::ModelDynamicBatching;
use nereid_wire::inference::model_queue_policy::TimeoutAction;

pub struct Dynamic {
    queue: BatchQueue<Batches>,
    levels: Arc<Levels>,
    policies: Arc<Policies>,
    /// Waiting gains nothing, so a shard may run a request itself.
    is_immediate: bool,
    model: String,
}

impl Dynamic {
    pub fn new(config: &ModelDynamicBatching, purpose: &Purpose, services: &Services) -> Dynamic {
        let policies = Arc::new(Policies::new(config));
        let levels = Arc::new(Levels::new(config.priority_levels));
        let former =
            Batches::new(config, &purpose.spec, Arc::clone(&policies), Arc::clone(&levels), services.delayed_until)
                .consulting(purpose.strategy.clone());
        let rows_max = usize::try_from(purpose.spec.max_batch_size).unwrap_or(usize::MAX).max(1);
        // Scripts wait for Triton's text; here the workers of the model form its batches themselves.
        verbose!(1, "Starting dynamic-batcher thread for {} at nice 0...", purpose.spec.name);
        Dynamic {
            queue: BatchQueue::new(former, config.max_queue_delay_microseconds > 0, rows_max, purpose, services),
            levels,
            policies,
            // A strategy's code never runs on a shard.
            is_immediate: config.max_queue_delay_microseconds == 0
                && services.delayed_until == 0
                && purpose.strategy.is_none(),
            model: purpose.spec.name.clone(),
        }
    }

    /// Takes a place in the queue of the request's level, if there is one.
    fn admit(&self, request: &Request, policy: &Policy) -> Result<(), Status> {
        let Some(most) = policy.max_queue_size else { return Ok(()) };
        self.levels.enter(request.queueing.priority, most).map_err(|waiting| {
            let (model, level) = (&self.model, request.queueing.priority);
            verbose!(
                1,
                "{}model '{model}': {waiting} requests of priority level {level} wait, and max_queue_size is {most}",
                request.log_id()
            );
            if request.is_counted() {
                self.queue.statistics.refused(RefusalReason::QueueFull);
            }
            Status::refused(RefusalReason::QueueFull, "Exceeds maximum queue size").prefixed(&request.log_id())
        })
    }

    fn taken_back(&self, ticket: &Ticket) -> WakeUp {
        self.levels.leave(ticket.tag, self.policies.of(ticket.tag));
        self.queue.taken_back(ticket)
    }
}

impl Scheduler for Dynamic {
    fn enqueue(&self, mut request: Box<Request>) -> Result<Accepted, Refused> {
        if self.is_immediate {
            request = match self.queue.run_here(request) {
                Ok(ticket) => return Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None }),
                Err(request) => request,
            };
        }
        let (level, policy) = (request.queueing.priority, self.policies.of(request.queueing.priority));
        let deadline_ns = policy.deadline_ns(&request);
        let (wake_up, mut ticket) = self.queue.enqueue(request, |request| self.admit(request, policy))?;
        ticket.tag = level;
        // The home sets a timer only for rejection, which is due as soon as the deadline is in the past.
        let is_rejected = policy.action == TimeoutAction::Reject;
        let expires_at_ns = deadline_ns.filter(|_| is_rejected).map(|at_ns| at_ns.saturating_add(1));
        Ok(Accepted { wake_up, ticket, expires_at_ns })
    }

    fn may_run_here(&self) -> bool {
        self.is_immediate && self.queue.may_run_here()
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().cancel() {
            let wake_up = self.taken_back(ticket);
            answer_cancelled(ticket, &self.queue.statistics);
            return wake_up;
        }
        WakeUp::needless()
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().expire() {
            let wake_up = self.taken_back(ticket);
            answer_expired(ticket, &self.queue.statistics, EXPIRED);
            return wake_up;
        }
        WakeUp::needless()
    }

    fn stop(&self) {
        self.queue.stop();
    }
}

impl PayloadSource for Dynamic {
    fn join(&self, info: WorkerInfo) -> Result<usize, Status> {
        self.queue.join(info)
    }

    fn lend(&self, worker: usize, borrowable: Arc<dyn Borrowable>) {
        self.queue.lend(worker, borrowable);
    }

    fn poll(&self, worker: usize, now_ns: u64) -> Next {
        self.queue.poll(worker, now_ns)
    }

    fn ahead(&self, worker: usize, now_ns: u64) -> Option<Payload> {
        self.queue.ahead(worker, now_ns)
    }

    fn executed(&self, worker: usize) {
        self.queue.executed(worker);
    }

    fn dismiss(&self, worker: usize) {
        self.queue.dismiss(worker);
    }

    fn left(&self, worker: usize) {
        self.queue.left(worker);
    }
}

#[cfg(test)]
mod tests;
