//! The default scheduler with threads as workers, which join and leave.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::{Parker, next_payload};
use nereid_memory::{BlockMut, Exhausted};
use nereid_model_config::ModelSpec;
use nereid_queue::Spin;
use nereid_request::{Completion, Delivery, Response, Sink, Text};
use nereid_wire::inference::ModelConfig;

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

fn request(sink: &Arc<Counter>) -> Box<Request> {
    Box::new(Request::new(Completion::new(sink.clone(), 1)))
}

thread_local! {
    static PARKER: RefCell<Parker> = RefCell::new(Parker::new(std::thread::current(), Spin::new(Spin::BUDGET_NS, 1)));
}

/// Of the calling thread.
fn worker_info() -> WorkerInfo {
    WorkerInfo { waker: PARKER.with_borrow(Parker::waker), name: String::new(), device: 0, rate_limiter: None }
}

/// Runs the calling thread as `worker` until the scheduler ends it.
fn work(scheduler: &Direct, worker: usize) -> usize {
    let mut served = 0;
    while let Some(mut payload) = PARKER.with_borrow_mut(|parker| next_payload(scheduler, worker, parker, || false)) {
        for request in payload.take() {
            request.finish(Response::new(Text::default()));
            served += 1;
        }
    }
    scheduler.left(worker);
    served
}

fn join_and_work(scheduler: &Direct) -> usize {
    work(scheduler, scheduler.join(worker_info()).unwrap())
}

fn purpose() -> Purpose {
    let config = ModelConfig { name: "m".into(), ..Default::default() };
    Purpose::of(Arc::new(ModelSpec::new(config).unwrap()))
}

/// A scheduler with a worker that no thread drives yet.
fn with_worker() -> (Direct, usize, Arc<Counter>) {
    let scheduler = Direct::new(&purpose(), &Services::default());
    let worker = scheduler.join(worker_info()).unwrap();
    (scheduler, worker, Arc::default())
}

#[test]
fn every_request_is_served_once_by_some_worker() {
    const EACH: usize = 5_000;
    let (scheduler, first, sink) = with_worker();
    scheduler.dismiss(first);
    let started = std::sync::Barrier::new(4);
    let served: usize = std::thread::scope(|scope| {
        let worker = || {
            let worker = scheduler.join(worker_info()).unwrap();
            started.wait();
            work(&scheduler, worker)
        };
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(worker)).collect();
        started.wait();
        let client = || (0..EACH).for_each(|_| scheduler.enqueue(request(&sink)).unwrap().wake_up.now());
        let clients: Vec<_> = (0..2).map(|_| scope.spawn(client)).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        scheduler.stop();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(served, 2 * EACH);
    assert_eq!(sink.answers.load(Ordering::SeqCst), 2 * EACH);
    assert_eq!(sink.errors.load(Ordering::SeqCst), 0);
    assert_eq!(scheduler.queue.statistics.snapshot().pending, 0);
}

#[test]
fn workers_come_and_go_and_nothing_is_lost() {
    const REQUESTS: usize = 20_000;
    let (scheduler, first, sink) = with_worker();
    let joined = std::sync::Barrier::new(2);
    let is_over = AtomicBool::new(false);
    let served: usize = std::thread::scope(|scope| {
        let stays = scope.spawn(|| {
            let stayer = scheduler.join(worker_info()).unwrap();
            joined.wait();
            work(&scheduler, stayer)
        });
        joined.wait();
        scheduler.dismiss(first);
        let changes = scope.spawn(|| {
            let mut served = 0;
            while !is_over.load(Ordering::SeqCst) {
                std::thread::scope(|scope| {
                    let guests: Vec<_> = (0..2)
                        .map(|_| {
                            let (sender, received) = std::sync::mpsc::channel();
                            let guest = scope.spawn(|| {
                                let sender = sender;
                                let number = scheduler.join(worker_info()).unwrap();
                                sender.send(number).unwrap();
                                work(&scheduler, number)
                            });
                            (received.recv().unwrap(), guest)
                        })
                        .collect();
                    for (number, guest) in guests {
                        scheduler.dismiss(number);
                        served += guest.join().unwrap();
                    }
                });
            }
            served
        });
        for _ in 0..REQUESTS {
            scheduler.enqueue(request(&sink)).unwrap().wake_up.now();
        }
        is_over.store(true, Ordering::SeqCst);
        let served = changes.join().unwrap();
        scheduler.stop();
        served + stays.join().unwrap()
    });
    assert_eq!(served, REQUESTS);
    assert_eq!(sink.answers.load(Ordering::SeqCst), REQUESTS);
    assert_eq!(sink.errors.load(Ordering::SeqCst), 0);
    assert_eq!(scheduler.queue.statistics.snapshot().pending, 0);
}

#[test]
fn a_stopped_scheduler_refuses_and_keeps_what_it_accepted() {
    let (scheduler, worker, sink) = with_worker();
    scheduler.enqueue(request(&sink)).unwrap().wake_up.now();
    scheduler.stop();
    let refused = scheduler.enqueue(request(&sink)).unwrap_err();
    assert_eq!(
        refused.status.message,
        "[request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting new inference \
         requests"
    );
    refused.request.withdraw();
    assert_eq!(work(&scheduler, worker), 1);
    assert_eq!(join_and_work(&scheduler), 0, "a worker that joins too late has nothing to do");
}

#[test]
fn a_request_that_was_taken_back_is_skipped() {
    let (scheduler, worker, sink) = with_worker();
    let gone = request(&sink);
    let accepted = scheduler.enqueue(gone).unwrap();
    accepted.wake_up.now();
    scheduler.enqueue(request(&sink)).unwrap().wake_up.now();
    scheduler.cancel(&accepted.ticket).now();
    assert_eq!(sink.errors.load(Ordering::SeqCst), 1, "a request cancelled in the queue is answered at once");
    scheduler.stop();
    assert_eq!(work(&scheduler, worker), 1);
    assert_eq!(sink.answers.load(Ordering::SeqCst), 2, "the tombstone is not answered again");
}

#[test]
fn without_workers_nothing_is_accepted() {
    let scheduler = Direct::new(&purpose(), &Services::default());
    let sink = Arc::default();
    let refused = |scheduler: &Direct| {
        let refused = scheduler.enqueue(request(&sink)).unwrap_err();
        refused.request.withdraw();
        refused.status.message
    };
    let text = "[request id: <id_unknown>] all instances of the model are passive and take no requests";
    assert_eq!(refused(&scheduler), text);
    let worker = scheduler.join(worker_info()).unwrap();
    scheduler.enqueue(request(&sink)).unwrap().wake_up.now();
    scheduler.dismiss(worker);
    assert_eq!(refused(&scheduler), text);
    assert_eq!(work(&scheduler, worker), 1, "the last one finishes what was accepted");
    let again = scheduler.join(worker_info()).unwrap();
    assert_eq!(again, worker, "numbers are used again");
    scheduler.enqueue(request(&sink)).unwrap().wake_up.now();
    scheduler.left(again);
    assert_eq!(sink.errors.load(Ordering::SeqCst), 1, "no worker is left to execute it");
}

#[test]
fn a_dismissed_worker_leaves_the_requests_to_the_others() {
    let (scheduler, first, sink) = with_worker();
    let second = scheduler.join(worker_info()).unwrap();
    scheduler.enqueue(request(&sink)).unwrap().wake_up.now();
    scheduler.dismiss(first);
    assert_eq!(work(&scheduler, first), 0);
    scheduler.stop();
    assert_eq!(work(&scheduler, second), 1);
}

/// Cancelled requests do not pile up behind a busy worker.
#[test]
fn tombstones_are_swept_while_all_workers_are_busy() {
    let (scheduler, worker, sink) = with_worker();
    let stays = scheduler.enqueue(request(&sink)).unwrap();
    for _ in 0..10_000 {
        let accepted = scheduler.enqueue(request(&sink)).unwrap();
        scheduler.cancel(&accepted.ticket).now();
        assert!(scheduler.queue.waiting() < 1_000, "tombstones are kept");
    }
    stays.wake_up.now();
    assert_eq!(sink.errors.load(Ordering::SeqCst), 10_000);
    scheduler.stop();
    assert_eq!(work(&scheduler, worker), 1, "what is alive is kept");
    assert_eq!(scheduler.queue.statistics.snapshot().pending, 0);
}
