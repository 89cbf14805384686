//! `preserve_ordering` of the oldest strategy: the responses of an instance leave in the order in which their requests
//! entered its batches.
//!
//! The responses of a request that is behind others are held until these are done. The thread that delivers the
//! response that others wait for passes them all on, one thread at a time, so that no response overtakes another on the
//! last steps. A request that ends without a response, because it was dropped, delays no other.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_memory::{BlockMut, Exhausted, Target};
use nereid_request::shared::OutputDestination;
use nereid_request::{Completion, Delivery, Job, OutputQuery, Request, Sink, Status};

/// The unanswered requests of one instance, in their order.
#[derive(Default)]
pub(super) struct Order(Mutex<OrderedRequests>);

#[derive(Default)]
struct OrderedRequests {
    /// Number of the first entry.
    first: u64,
    entries: VecDeque<OrderedRequest>,
    /// A thread is passing responses on.
    is_passing: bool,
}

struct OrderedRequest {
    next: Completion,
    held: VecDeque<Delivery>,
    is_complete: bool,
}

/// A request's place in the queue, between the request and its home.
struct OrderedSink {
    order: Arc<Order>,
    number: u64,
    next: Completion,
}

impl Order {
    /// Puts a request at the end of the queue.
    pub fn enter(self: &Arc<Self>, request: &mut Request) {
        request.reroute(|next| {
            let mut queue = self.queue();
            let number = queue.first.wrapping_add(queue.entries.len() as u64);
            queue.entries.push_back(OrderedRequest { next: next.clone(), held: VecDeque::new(), is_complete: false });
            (Arc::new(OrderedSink { order: Arc::clone(self), number, next }), 0)
        });
    }

    fn queue(&self) -> MutexGuard<'_, OrderedRequests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, number: u64, delivery: Option<Delivery>) {
        let mut queue = self.queue();
        let at = usize::try_from(number.wrapping_sub(queue.first)).ok();
        // An entry that was passed on as a whole is gone.
        let Some(entry) = at.and_then(|at| queue.entries.get_mut(at)) else { return };
        entry.is_complete |= delivery.as_ref().is_none_or(|delivery| delivery.last);
        entry.held.extend(delivery);
        if std::mem::replace(&mut queue.is_passing, true) {
            return;
        }
        while let Some(front) = queue.entries.front_mut() {
            if let Some(delivery) = front.held.pop_front() {
                let next = front.next.clone();
                drop(queue);
                next.forward(delivery);
                queue = self.queue();
            } else if front.is_complete {
                queue.entries.pop_front();
                queue.first = queue.first.wrapping_add(1);
            } else {
                break;
            }
        }
        queue.is_passing = false;
    }
}

impl Sink for OrderedSink {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        self.order.deliver(self.number, Some(delivery));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.next.allocate(byte_size)
    }

    fn allocate_output(&self, _key: u64, query: &OutputQuery<'_>) -> Result<Option<Target>, Status> {
        self.next.allocate_in_place(query)
    }

    fn destination(&self, _key: u64, query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        self.next.receiver_destination(query)
    }

    fn begin(&self, _key: u64) -> bool {
        self.next.begin()
    }

    fn preferred_place(
        &self,
        _key: u64,
        query: (Option<&CStr>, Option<usize>),
        place: nereid_request::Place,
    ) -> Result<nereid_request::Place, Status> {
        self.next.preferred_place(query, place)
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.next.at_home(job);
    }
}

impl Drop for OrderedSink {
    /// No answer can come any more; without one so far there is none.
    fn drop(&mut self) {
        self.order.deliver(self.number, None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Answers, request_to};
    use super::*;
    use nereid_request::Response;

    #[test]
    fn responses_wait_for_those_before_them() {
        let answers = Arc::new(Answers::default());
        let order = Arc::new(Order::default());
        let mut requests: Vec<Box<Request>> = (0..4).map(|key| request_to(&answers, key)).collect();
        requests.iter_mut().for_each(|request| order.enter(request));
        requests.remove(2).finish(Response::default());
        assert!(answers.keys().is_empty());
        // The first one has several responses.
        let factory = requests[0].responses();
        factory.send(Response::default(), false);
        assert_eq!(answers.keys(), [0], "the first one does not wait");
        drop(requests.remove(1));
        assert_eq!(answers.keys(), [0], "the error of a dropped one waits as well");
        factory.send_end();
        assert_eq!(answers.keys(), [0, 0, 1, 2]);
        requests.remove(1).fail(Status::internal("no"));
        assert_eq!(answers.keys(), [0, 0, 1, 2, 3]);
        drop(requests);
        assert!(order.queue().entries.is_empty());
    }

    #[test]
    fn a_withdrawn_request_delays_no_other() {
        let answers = Arc::new(Answers::default());
        let order = Arc::new(Order::default());
        let [mut first, mut second] = [0, 1].map(|key| request_to(&answers, key));
        order.enter(&mut first);
        order.enter(&mut second);
        second.finish(Response::default());
        first.withdraw();
        assert_eq!(answers.keys(), [1]);
    }
}
