//! The default scheduler: every request is a payload of its own, and the first free instance gets the oldest request.
//!
//! No batch is formed, so the worker that has the token takes the oldest request, passes the token on, and executes
//! (see [`BatchQueue`]).

use std::collections::VecDeque;
use std::sync::Arc;

use super::batch_queue::{Arrivals, BatchQueue, EXPIRED, PayloadFormer, PayloadStatus};
use super::{
    Accepted, Borrowable, Next, Payload, PayloadSource, Purpose, Refused, Scheduler, Services, WorkerInfo,
    answer_cancelled, answer_expired,
};
use nereid_request::{Request, Status, Ticket, WakeUp};

pub struct Direct {
    queue: BatchQueue<OneByOne>,
}

/// The former of payloads with one request.
#[derive(Default)]
struct OneByOne {
    /// The next payload, once a check has found it.
    next: Option<Box<Request>>,
    /// Requests that a sweep took out of the inbox; older than those in it.
    swept: VecDeque<Box<Request>>,
}

impl PayloadFormer for OneByOne {
    fn weight(_: &Request) -> usize {
        1
    }

    fn check(&mut self, arrivals: &mut Arrivals<'_>, _now_ns: u64, _is_draining: bool) -> PayloadStatus {
        loop {
            let next = self.next.take().or_else(|| self.swept.pop_front()).or_else(|| arrivals.pop());
            match next {
                None => return PayloadStatus::Wait { drained: 0, wake_at: 1, until_ns: None },
                Some(request) if request.admission().is_queued() => {
                    self.next = Some(request);
                    return PayloadStatus::Ready;
                }
                Some(tombstone) => arrivals.bury(tombstone, 1),
            }
        }
    }

    fn cut(&mut self, arrivals: &mut Arrivals<'_>) -> Payload {
        let mut payload = Payload::default();
        if let Some(request) = self.next.take() {
            arrivals.take(request, 1, &mut payload);
        }
        payload
    }

    fn sweep(&mut self, arrivals: &mut Arrivals<'_>) {
        let mut all = std::mem::take(&mut self.swept);
        self.next.take().into_iter().for_each(|next| all.push_front(next));
        all.extend(std::iter::from_fn(|| arrivals.pop()));
        for request in all {
            match request.admission().is_queued() {
                true => self.swept.push_back(request),
                false => arrivals.bury(request, 1),
            }
        }
    }
}

impl Direct {
    /// A scheduler without workers: it accepts requests once one has joined.
    pub fn new(purpose: &Purpose, services: &Services) -> Direct {
        Direct { queue: BatchQueue::new(OneByOne::default(), false, 1, purpose, services) }
    }
}

impl Scheduler for Direct {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        let request = match self.queue.run_here(request) {
            Ok(ticket) => return Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None }),
            Err(request) => request,
        };
        let (wake_up, ticket) = self.queue.enqueue(request, |_| Ok(()))?;
        Ok(Accepted { wake_up, ticket, expires_at_ns: None })
    }

    fn may_run_here(&self) -> bool {
        self.queue.may_run_here()
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().cancel() {
            let wake_up = self.queue.taken_back(ticket);
            answer_cancelled(ticket, &self.queue.statistics);
            return wake_up;
        }
        WakeUp::needless()
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().expire() {
            let wake_up = self.queue.taken_back(ticket);
            answer_expired(ticket, &self.queue.statistics, EXPIRED);
            return wake_up;
        }
        WakeUp::needless()
    }

    fn stop(&self) {
        self.queue.stop();
    }
}

impl PayloadSource for Direct {
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
