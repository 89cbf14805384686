//! Measures the time until the first response of every accepted request (contract/metrics.md section 2, histogram),
//! where the histogram is configured.
//!
//! It wraps all other schedulers, so that it sees requests however they are answered: by a model, from the cache, or
//! with an error because they timed out.

use std::sync::Arc;

use super::{Accepted, Refused, Scheduler};
use nereid_clock::now_ns;
use nereid_observe::statistics::ModelStatistics;
use nereid_request::{Request, RequestEvents, Ticket, WakeUp};

pub struct FirstResponseTimes {
    inner: Arc<dyn Scheduler>,
    events: Arc<dyn RequestEvents>,
}

impl FirstResponseTimes {
    /// Returns `inner` itself where the histogram is not configured.
    pub fn around(inner: Arc<dyn Scheduler>, statistics: &Arc<ModelStatistics>) -> Arc<dyn Scheduler> {
        match statistics.observes_first_response() {
            true => Arc::new(FirstResponseTimes { inner, events: Arc::new(Recorder(Arc::clone(statistics))) }),
            false => inner,
        }
    }
}

struct Recorder(Arc<ModelStatistics>);

impl RequestEvents for Recorder {
    fn first_response(&self, started_ns: u64) {
        self.0.first_response(started_ns, now_ns());
    }
}

impl Scheduler for FirstResponseTimes {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        if request.is_counted() {
            request.admission().watch_first_response(Arc::clone(&self.events), request.stamps.started_ns);
        }
        self.inner.enqueue(request).inspect_err(|refused| refused.request.admission().ignore_first_response())
    }

    fn may_run_here(&self) -> bool {
        self.inner.may_run_here()
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        self.inner.cancel(ticket)
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        self.inner.expire(ticket)
    }

    fn stop(&self) {
        self.inner.stop();
    }

    fn close(&self) {
        self.inner.close();
    }

    fn unfinished(&self) -> usize {
        self.inner.unfinished()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use nereid_memory::{BlockMut, Exhausted};
    use nereid_observe::statistics::DistributionConfig;
    use nereid_request::{Completion, Delivery, Origin, Response, Sink, Status, Text};

    struct Nowhere;

    impl Sink for Nowhere {
        fn deliver(&self, _key: u64, _delivery: Delivery) {}

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    /// Keeps its requests, unless a request is called `no`.
    #[derive(Default)]
    struct Shelf(Mutex<Vec<Request>>);

    impl Scheduler for Shelf {
        fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
            if request.id.as_bytes() == b"no" {
                return Err(Refused { status: Status::unavailable("no"), request });
            }
            let ticket = request.ticket();
            self.0.lock().unwrap().push(*request);
            Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None })
        }

        fn cancel(&self, _ticket: &Ticket) -> WakeUp {
            WakeUp::needless()
        }

        fn expire(&self, _ticket: &Ticket) -> WakeUp {
            WakeUp::needless()
        }

        fn stop(&self) {}
    }

    fn request(id: &str) -> Box<Request> {
        let mut request = Request::new(Completion::new(Arc::new(Nowhere), 1));
        request.id = Text::from(id);
        request.stamps.started_ns = now_ns();
        Box::new(request)
    }

    #[test]
    fn only_the_first_response_of_an_accepted_request_counts() {
        let wanted = DistributionConfig { first_response_ms: Some([1e9].into()), ..DistributionConfig::default() };
        let statistics = Arc::new(ModelStatistics::with(wanted));
        let shelf = Arc::new(Shelf::default());
        let scheduler = FirstResponseTimes::around(shelf.clone(), &statistics);
        let count = || statistics.distributions().unwrap().first_response.unwrap().count();
        for id in ["two", "error", "none", "dropped"] {
            assert!(scheduler.enqueue(request(id)).is_ok());
        }
        let mut warming = request("warming");
        warming.ingress.origin = Origin::WarmUp;
        assert!(scheduler.enqueue(warming).is_ok());
        let refused = scheduler.enqueue(request("no")).unwrap_err();
        refused.request.fail(refused.status.clone());
        assert_eq!(count(), 0);
        let mut taken = shelf.0.lock().unwrap().drain(..).collect::<Vec<_>>().into_iter();
        let mut next = || taken.next().unwrap();
        let two = next().responses();
        two.send(Response::new(Text::default()), false);
        assert_eq!(count(), 1);
        two.send(Response::new(Text::default()), true);
        assert_eq!(count(), 1, "the second one");
        next().fail(Status::internal("x"));
        assert_eq!(count(), 2, "an error is a response");
        next().responses().send_end();
        assert_eq!(count(), 2, "a bare end is none");
        drop(next());
        assert_eq!(count(), 3, "answered in the model's place");
        next().finish(Response::new(Text::default()));
        assert_eq!(count(), 3, "the server's own requests do not count");
    }

    #[test]
    fn without_a_histogram_there_is_no_wrapper() {
        let shelf: Arc<dyn Scheduler> = Arc::new(Shelf::default());
        let same = FirstResponseTimes::around(Arc::clone(&shelf), &Arc::default());
        assert!(Arc::ptr_eq(&same, &shelf));
    }
}
