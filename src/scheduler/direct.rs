//! The default scheduler: every request is a payload of its own, first come, first served by the first free instance.
//!
//! Requests wait in one lock-free inbox. The worker that holds the batcher token looks into it; there is nothing to
//! form here, so it takes the oldest request, passes the token on, and executes. An enqueuer wakes a worker only if one
//! sleeps that has to see the request (see [`Roster`]).

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;

use super::{Refused, Scheduler, WakeUp};
use crate::instance::{Payload, PayloadSource};
use crate::observe::statistics::ModelStatistics;
use crate::queue::{Armed, Mpsc, Place, Roster, Turn};
use crate::request::{Request, Status};

pub struct Direct {
    inbox: Mpsc<Box<Request>>,
    /// Requests in the inbox and on their way into it, tombstones included.
    waiting: AtomicUsize,
    roster: Roster,
    /// How to wake each worker; filled by the worker before it first asks for work.
    threads: Box<[OnceLock<Thread>]>,
    stopping: AtomicBool,
    statistics: Arc<ModelStatistics>,
}

impl Direct {
    /// A scheduler for that many instance workers.
    pub fn new(workers: usize, statistics: Arc<ModelStatistics>) -> Result<Direct, Status> {
        let roster = Roster::new(workers).map_err(|error| Status::invalid(error.to_string()))?;
        Ok(Direct {
            inbox: Mpsc::new(),
            waiting: AtomicUsize::new(0),
            roster,
            threads: (0..workers).map(|_| OnceLock::new()).collect(),
            stopping: AtomicBool::new(false),
            statistics,
        })
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    fn wake(&self, worker: Option<usize>) {
        if let Some(thread) = worker.and_then(|worker| self.threads.get(worker)).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    /// The oldest request that nobody took back.
    fn take(&self) -> Option<Payload> {
        let mut inbox = self.inbox.consume()?;
        loop {
            let request = inbox.pop()?;
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            if !request.admission().take() {
                // A tombstone: whoever took it back has answered and counted.
                continue;
            }
            self.statistics.pending_removed();
            let mut payload = Payload::default();
            payload.push(request);
            return Some(payload);
        }
    }

    /// What is left when nothing new comes any more.
    fn take_rest(&self) -> Option<Payload> {
        loop {
            if let Some(payload) = self.take() {
                return Some(payload);
            }
            if self.waiting() == 0 {
                return None;
            }
            // Another worker is taking, or a push is under way.
            std::thread::yield_now();
        }
    }
}

impl Scheduler for Direct {
    fn enqueue(&self, request: Box<Request>) -> Result<WakeUp, Refused> {
        // Counted first: a worker that sees nothing waiting after the stop may leave, because whoever counts later
        // sees the stop.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.stopping.load(Ordering::SeqCst) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let text = "Server is stopping, scheduler for model has stopped accepting new inference requests";
            return Err(Refused { status: Status::unavailable(text).prefixed(&request.log_id()), request });
        }
        self.statistics.pending_added();
        self.inbox.push(request);
        let worker = self.roster.enqueued(|| self.waiting());
        Ok(WakeUp(worker.and_then(|worker| self.threads.get(worker)?.get().cloned())))
    }

    fn withdrawn(&self) {
        self.statistics.pending_removed();
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for worker in self.roster.stop() {
            self.wake(Some(worker));
        }
    }
}

impl PayloadSource for Direct {
    fn joined(&self, worker: usize) {
        if let Some(thread) = self.threads.get(worker) {
            let _ = thread.set(std::thread::current());
        }
    }

    fn next_payload(&self, worker: usize) -> Option<Payload> {
        let mut turn = self.roster.acquire(worker);
        while turn == Turn::Idle {
            match self.roster.place(worker) {
                Place::Waiting => std::thread::park(),
                Place::Holder => turn = Turn::Holder,
                Place::Stopped => turn = Turn::Stopped,
            }
        }
        if turn == Turn::Stopped {
            return self.take_rest();
        }
        loop {
            if let Some(payload) = self.take() {
                self.wake(self.roster.pass(worker, || self.waiting() > 0));
                return Some(payload);
            }
            match self.roster.arm(worker, 1, || self.waiting() > 0) {
                Armed::Park => {
                    std::thread::park();
                    self.roster.disarm(worker);
                }
                // A push is under way.
                Armed::LookAgain => std::hint::spin_loop(),
                Armed::Stopped => {
                    self.wake(self.roster.pass(worker, || self.waiting() > 0));
                    return self.take_rest();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{BlockMut, Exhausted};
    use crate::request::{Completion, Delivery, Response, Sink, Text};

    #[derive(Default)]
    struct Counter {
        answers: AtomicUsize,
        errors: AtomicUsize,
    }

    impl Sink for Counter {
        fn deliver(&self, _key: u64, delivery: Delivery) {
            self.answers.fetch_add(1, Ordering::SeqCst);
            if delivery.response.is_none_or(|response| response.error.is_some()) {
                self.errors.fetch_add(1, Ordering::SeqCst);
            }
        }

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    fn serve(scheduler: &Direct, worker: usize) -> usize {
        scheduler.joined(worker);
        let mut served = 0;
        while let Some(mut payload) = scheduler.next_payload(worker) {
            for request in payload.take() {
                request.finish(Response::new(Text::default()));
                served += 1;
            }
        }
        served
    }

    #[test]
    fn every_request_is_served_once_by_some_worker() {
        const EACH: usize = 5_000;
        let scheduler = Direct::new(3, Arc::default()).unwrap();
        let sink = Arc::new(Counter::default());
        let served: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|worker| {
                    scope.spawn({
                        let s = &scheduler;
                        move || serve(s, worker)
                    })
                })
                .collect();
            let clients: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..EACH {
                            let request = Box::new(Request::new(Completion::new(sink.clone(), 1)));
                            scheduler.enqueue(request).unwrap().now();
                        }
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            scheduler.stop();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert_eq!(served, 2 * EACH);
        assert_eq!(sink.answers.load(Ordering::SeqCst), 2 * EACH);
        assert_eq!(sink.errors.load(Ordering::SeqCst), 0);
        assert_eq!(scheduler.statistics.snapshot().pending, 0);
    }

    #[test]
    fn a_stopped_scheduler_refuses_and_keeps_what_it_accepted() {
        let scheduler = Direct::new(1, Arc::default()).unwrap();
        let sink = Arc::new(Counter::default());
        let request = || Box::new(Request::new(Completion::new(sink.clone(), 1)));
        scheduler.enqueue(request()).unwrap().now();
        scheduler.stop();
        let refused = scheduler.enqueue(request()).unwrap_err();
        assert_eq!(
            refused.status.message,
            "[request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting new inference \
             requests"
        );
        refused.request.withdraw();
        assert_eq!(serve(&scheduler, 0), 1);
    }

    #[test]
    fn a_request_that_was_taken_back_is_skipped() {
        let scheduler = Direct::new(1, Arc::default()).unwrap();
        let sink = Arc::new(Counter::default());
        let gone = Box::new(Request::new(Completion::new(sink.clone(), 1)));
        let admission = Arc::clone(gone.admission());
        scheduler.enqueue(gone).unwrap().now();
        scheduler.enqueue(Box::new(Request::new(Completion::new(sink.clone(), 2)))).unwrap().now();
        assert!(admission.cancel() && admission.end());
        scheduler.withdrawn();
        scheduler.stop();
        assert_eq!(serve(&scheduler, 0), 1);
        assert_eq!(sink.answers.load(Ordering::SeqCst), 1, "nobody answers for the tombstone");
    }
}
