//! Answers that come in any order leave in one order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::{STOPPING, answer_cancelled, mutants};
use nereid_request::{Response, Status};

/// Keeps its requests until a test answers them.
#[derive(Default)]
struct Held {
    requests: Mutex<Vec<Option<Box<Request>>>>,
    is_stopped: std::sync::atomic::AtomicBool,
}

impl Held {
    fn take(&self, at: usize) -> Box<Request> {
        self.requests.lock().unwrap()[at].take().unwrap()
    }
}

impl Scheduler for Held {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        if self.is_stopped.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(Refused { status: Status::unavailable(STOPPING), request });
        }
        let ticket = request.ticket();
        self.requests.lock().unwrap().push(Some(request));
        Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None })
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        if ticket.admission().cancel() {
            answer_cancelled(ticket, &Default::default());
        }
        WakeUp::needless()
    }

    fn expire(&self, _ticket: &Ticket) -> WakeUp {
        WakeUp::needless()
    }

    fn stop(&self) {
        self.is_stopped.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Answers that reach the home, by key, and whether they are the last.
struct Home(Mutex<Sender<(u64, bool)>>);

impl Sink for Home {
    fn deliver(&self, key: u64, delivery: Delivery) {
        self.0.lock().unwrap().send((key, delivery.last)).unwrap();
    }

    fn allocate(&self, key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        assert_eq!(byte_size as u64, key, "allocated for the right request");
        Ok(BlockMut::unpooled(byte_size))
    }
}

struct Bench {
    inner: Arc<Held>,
    ordered: Ordered,
    home: Arc<Home>,
    got: Receiver<(u64, bool)>,
    sent: u64,
}

impl Bench {
    fn new() -> Bench {
        let ((sender, got), inner) = (channel(), Arc::<Held>::default());
        let ordered = Ordered::new(inner.clone());
        Bench { inner, ordered, home: Arc::new(Home(Mutex::new(sender))), got, sent: 0 }
    }

    fn send(&mut self) -> Result<Accepted, Refused> {
        self.sent += 1;
        self.ordered.enqueue(Box::new(Request::new(Completion::new(self.home.clone(), self.sent - 1))))
    }

    fn got(&self) -> Vec<u64> {
        self.got.try_iter().map(|(key, _)| key).collect()
    }

    fn places(&self) -> usize {
        self.ordered.places.row().places.len()
    }
}

fn order() {
    let mut bench = Bench::new();
    let tickets: Vec<_> = (0..5).map(|_| bench.send().unwrap().ticket).collect();
    bench.inner.take(2).finish(Response::default());
    bench.inner.take(1).fail(Status::internal("an error has its place, too"));
    // Cancelled in the queue, and dropped without an answer.
    bench.ordered.cancel(&tickets[4]).now();
    drop(bench.inner.take(3));
    assert_eq!(bench.got(), [] as [u64; 0]);
    assert_eq!(bench.places(), 5);
    bench.inner.take(0).finish(Response::default());
    assert_eq!(bench.got(), [0, 1, 2, 3, 4]);
    assert_eq!(bench.places(), 0, "nothing is kept for what is over");
    bench.send().map(drop).unwrap();
    bench.inner.take(5).finish(Response::default());
    assert_eq!(bench.got(), [5]);
}

#[test]
fn answers_leave_in_the_order_of_the_requests() {
    order();
}

fn refusals() {
    let mut bench = Bench::new();
    bench.send().map(drop).unwrap();
    bench.ordered.stop();
    let Refused { status, request } = bench.send().map(drop).unwrap_err();
    assert_eq!(status.message, STOPPING);
    assert_eq!(bench.places(), 2, "a refused one is passed over when its turn comes");
    // The caller has it unchanged: its answers go straight home.
    request.fail(status);
    assert_eq!(bench.got(), [1]);
    bench.inner.is_stopped.store(false, std::sync::atomic::Ordering::SeqCst);
    bench.send().map(drop).unwrap();
    bench.inner.take(1).finish(Response::default());
    bench.inner.take(0).finish(Response::default());
    assert_eq!(bench.got(), [0, 2]);
    assert_eq!(bench.places(), 0);
}

#[test]
fn a_refused_request_delays_no_other() {
    refusals();
}

#[test]
fn several_responses_of_one_request_stay_together() {
    let mut bench = Bench::new();
    (0..2).for_each(|_| bench.send().map(drop).unwrap());
    let (first, second) = (bench.inner.take(0), bench.inner.take(1));
    let (to_first, to_second) = (first.responses(), second.responses());
    to_second.send(Response::default(), false);
    to_first.send(Response::default(), false);
    assert_eq!(bench.got.try_iter().collect::<Vec<_>>(), [(0, false)], "the first need not wait for its end");
    to_second.send_end();
    to_first.send(Response::default(), true);
    assert_eq!(bench.got.try_iter().collect::<Vec<_>>(), [(0, true), (1, false), (1, true)]);
    assert!(first.allocate(0).is_ok() && second.allocate(1).is_ok());
}

/// An answer that ends in code that sends and answers further requests.
#[test]
fn no_lock_is_held_while_an_answer_is_passed_on() {
    struct Again {
        ordered: Arc<Ordered>,
        inner: Arc<Held>,
        got: Mutex<Vec<u64>>,
    }

    impl Sink for Again {
        fn deliver(&self, key: u64, _delivery: Delivery) {
            if key < 3 {
                let next = Arc::new(Again {
                    ordered: Arc::clone(&self.ordered),
                    inner: Arc::clone(&self.inner),
                    got: Mutex::default(),
                });
                let at = self.inner.requests.lock().unwrap().len();
                let request = Box::new(Request::new(Completion::new(next, key + 1)));
                self.ordered.enqueue(request).map(drop).unwrap();
                self.inner.take(at).finish(Response::default());
            }
            self.got.lock().unwrap().push(key);
        }

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    let inner = Arc::<Held>::default();
    let ordered = Arc::new(Ordered::new(inner.clone()));
    let sink = Arc::new(Again { ordered: Arc::clone(&ordered), inner: Arc::clone(&inner), got: Mutex::default() });
    ordered.enqueue(Box::new(Request::new(Completion::new(sink.clone(), 0)))).map(drop).unwrap();
    inner.take(0).finish(Response::default());
    assert_eq!(*sink.got.lock().unwrap(), [0]);
    assert_eq!(inner.requests.lock().unwrap().len(), 4, "each answer sent another request");
    assert_eq!(ordered.places.row().places.len(), 0);
}

#[test]
fn threads_answer_and_the_order_stays() {
    const REQUESTS: usize = 2_000;
    let mut bench = Bench::new();
    (0..REQUESTS).for_each(|_| bench.send().map(drop).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let inner = &bench.inner;
            scope.spawn(move || {
                // From the end, so that most answers have to wait.
                (0..REQUESTS).rev().filter(|at| at % 3 == thread).for_each(|at| {
                    inner.take(at).finish(Response::default());
                });
            });
        }
    });
    assert!(bench.got().into_iter().eq(0..REQUESTS as u64));
}

#[test]
fn each_mistake_is_noticed() {
    for (mutant, scenario) in [(Mutant::OrderForgotten, order as fn()), (Mutant::RefusalKeepsPlace, refusals)] {
        let noticed = mutants::with(Some(mutant), || catch_unwind(AssertUnwindSafe(scenario)).is_err());
        assert!(noticed, "{mutant:?}");
    }
}
