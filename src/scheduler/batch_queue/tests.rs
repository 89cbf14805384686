//! Batch queues with gates that stop workers.

use std::sync::Weak;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::{Direct, Gate, PayloadSource, Registration, Scheduler};
use nereid_memory::{BlockMut, Exhausted};
use nereid_model_config::ModelSpec;
use nereid_request::{Completion, Delivery, Response, Sink};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::ModelInstanceGroup;

/// Keys of the answered requests.
#[derive(Default)]
struct Answers(Mutex<Vec<u64>>);

impl Sink for Answers {
    fn deliver(&self, key: u64, _delivery: Delivery) {
        self.0.lock().unwrap().push(key);
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

fn purpose(config: ModelConfig) -> Purpose {
    Purpose::of(Arc::new(ModelSpec::new(config).unwrap()))
}

/// One resource for all instances, granted in the order of requests.
#[derive(Default)]
struct OneAtATime {
    this: Weak<OneAtATime>,
    queue: Mutex<Vec<usize>>,
    wakers: Mutex<Vec<Waker>>,
}

struct Turnstile {
    limiter: Arc<OneAtATime>,
    /// It gave the resource back when its execution was over.
    has_left: AtomicBool,
    number: usize,
}

impl Limiter for OneAtATime {
    fn register(&self, _groups: &[ModelInstanceGroup]) -> Result<Registration, Status> {
        unreachable!("only instances come here")
    }

    fn change(&self, _registration: &Registration, _groups: &[ModelInstanceGroup]) -> Result<(), Status> {
        unreachable!("only instances come here")
    }

    fn admit(&self, model: &str, info: &WorkerInfo) -> Result<Arc<dyn Gate>, Status> {
        assert_eq!(model, "m");
        let mut wakers = self.wakers.lock().unwrap();
        wakers.push(info.waker.clone());
        let limiter = self.this.upgrade().unwrap();
        Ok(Arc::new(Turnstile { limiter, has_left: AtomicBool::new(false), number: wakers.len() - 1 }))
    }
}

impl Gate for Turnstile {
    fn enter(&self) -> bool {
        let mut queue = self.limiter.queue.lock().unwrap();
        if !queue.contains(&self.number) {
            queue.push(self.number);
        }
        self.has_left.store(false, Ordering::SeqCst);
        queue.first() == Some(&self.number)
    }

    fn executed(&self) {
        self.leave();
        self.has_left.store(true, Ordering::SeqCst);
    }

    fn leave(&self) {
        if self.has_left.swap(false, Ordering::SeqCst) {
            return;
        }
        let mut queue = self.limiter.queue.lock().unwrap();
        assert!(queue.contains(&self.number), "left without having entered");
        queue.retain(|&number| number != self.number);
        if let Some(&next) = queue.first() {
            self.limiter.wakers.lock().unwrap()[next].wake();
        }
    }
}

/// A shard that accepts many requests wakes a worker once, and a worker that executes gets more only where no other
/// worker could take it.
#[test]
fn one_wake_up_for_many_requests_and_more_for_a_busy_worker() {
    let scheduler = Direct::new(&purpose(ModelConfig { name: "m".into(), ..Default::default() }), &Services::default());
    let woken: [Arc<AtomicUsize>; 2] = Default::default();
    let workers = [0, 1].map(|at| {
        let count = Arc::clone(&woken[at]);
        let waker = Waker::new(move || _ = count.fetch_add(1, Ordering::SeqCst));
        scheduler.join(WorkerInfo { waker, name: "m".into(), device: 0, rate_limiter: None }).unwrap()
    });
    let woken = || [0, 1].map(|at: usize| woken[at].swap(0, Ordering::SeqCst));
    let answers: Arc<Answers> = Arc::default();
    let send = || {
        let request = Box::new(Request::new(Completion::new(answers.clone(), 0)));
        scheduler.enqueue(request).unwrap().wake_up.now();
    };
    let poll = |at: usize| scheduler.poll(workers[at], 1);
    assert!(matches!((poll(0), poll(1)), (Next::Sleep { .. }, Next::Sleep { .. })));
    (0..4).for_each(|_| send());
    assert_eq!(woken(), [1, 0]);
    let Next::Execute(first) = poll(0) else { panic!("there is something") };
    assert_eq!(woken(), [0, 1], "idle workers can take more");
    assert!(scheduler.ahead(workers[0], 1).is_none(), "which it is about to take");
    let Next::Execute(second) = poll(1) else { panic!("there is something") };
    let third = scheduler.ahead(workers[0], 1).expect("no worker is idle");
    scheduler.dismiss(workers[0]);
    assert!(scheduler.ahead(workers[0], 1).is_none(), "it is to leave");
    let fourth = scheduler.ahead(workers[1], 1).expect("no worker is idle");
    assert!(scheduler.ahead(workers[1], 1).is_none(), "nothing is left");
    assert!(matches!(poll(1), Next::Sleep { .. }), "and the token was given back");
    for mut payload in [first, second, third, fourth] {
        assert_eq!(payload.len(), 1);
        payload.take().into_iter().for_each(|request| request.finish(Response::default()));
    }
    let gated = gated();
    gated.send();
    assert!(gated.scheduler.ahead(gated.workers[0], 1).is_none(), "it would need its resources");
}

struct Gated {
    scheduler: Direct,
    limiter: Arc<OneAtATime>,
    workers: [usize; 2],
    woken: [Arc<AtomicUsize>; 2],
    answers: Arc<Answers>,
}

fn gated() -> Gated {
    let limiter = Arc::new_cyclic(|this| OneAtATime { this: this.clone(), ..Default::default() });
    let services = Services { limiter: Some(limiter.clone()), ..Default::default() };
    let scheduler = Direct::new(&purpose(ModelConfig { name: "m".into(), ..Default::default() }), &services);
    let woken: [Arc<AtomicUsize>; 2] = Default::default();
    let workers = [0, 1].map(|at| {
        let count = Arc::clone(&woken[at]);
        let waker = Waker::new(move || _ = count.fetch_add(1, Ordering::SeqCst));
        scheduler.join(WorkerInfo { waker, name: "m".into(), device: 0, rate_limiter: None }).unwrap()
    });
    Gated { scheduler, limiter, workers, woken, answers: Arc::default() }
}

impl Gated {
    fn send(&self) {
        let request = Box::new(Request::new(Completion::new(self.answers.clone(), 0)));
        self.scheduler.enqueue(request).unwrap().wake_up.now();
    }

    fn payload(&self, at: usize) -> Option<Payload> {
        match self.scheduler.poll(self.workers[at], 1) {
            Next::Execute(payload) => Some(payload),
            Next::Sleep { .. } => None,
            Next::Leave => panic!("sent away"),
        }
    }

    fn finish(&self, at: usize, mut payload: Payload) {
        payload.take().into_iter().for_each(|request| request.finish(Response::default()));
        self.scheduler.executed(self.workers[at]);
    }

    fn woken(&self, at: usize) -> usize {
        self.woken[at].swap(0, Ordering::SeqCst)
    }

    fn in_line(&self) -> Vec<usize> {
        self.limiter.queue.lock().unwrap().clone()
    }
}

#[test]
fn a_worker_asks_its_gate_when_it_has_something_to_execute() {
    let gated = gated();
    assert!(gated.payload(0).is_none());
    assert_eq!(gated.in_line(), [] as [usize; 0], "nothing to execute, no resources requested");
    gated.send();
    gated.send();
    let first = gated.payload(0).unwrap();
    assert!(gated.payload(1).is_none(), "the resource is taken");
    assert_eq!(gated.in_line(), [0, 1]);
    assert!(gated.payload(1).is_none(), "woken for another reason, it keeps its place");
    assert_eq!(gated.in_line(), [0, 1]);
    gated.woken(1);
    gated.finish(0, first);
    assert_eq!(gated.woken(1), 1);
    let second = gated.payload(1).unwrap();
    assert!(gated.payload(0).is_none(), "and the first has nothing more to do");
    gated.finish(1, second);
    assert_eq!(gated.in_line(), [] as [usize; 0]);
    assert_eq!(gated.answers.0.lock().unwrap().len(), 2);
}

#[test]
fn a_worker_that_finds_no_request_behind_its_gate_goes_back() {
    let gated = gated();
    gated.send();
    gated.send();
    let first = gated.payload(0).unwrap();
    assert!(gated.payload(1).is_none());
    gated.finish(0, first);
    // The first worker comes sooner, although the second was woken.
    assert!(gated.payload(0).is_none(), "it is not its turn");
    let second = gated.payload(1).unwrap();
    gated.finish(1, second);
    gated.woken(0);
    assert!(gated.payload(0).is_none());
    assert!(gated.payload(1).is_none());
    assert_eq!(gated.in_line(), [] as [usize; 0], "unused resources are given back");
    let _ = (gated.woken(0), gated.woken(1));
    gated.send();
    assert_eq!(gated.woken(0) + gated.woken(1), 1);
}

#[test]
fn gates_stand_at_the_end_as_well() {
    let gated = gated();
    (0..3).for_each(|_| gated.send());
    let first = gated.payload(0).unwrap();
    gated.scheduler.stop();
    assert!(gated.payload(1).is_none(), "stopped, and still only one at a time");
    gated.finish(0, first);
    for _ in 0..2 {
        let next = gated.payload(1).unwrap();
        gated.finish(1, next);
    }
    for worker in gated.workers {
        assert!(matches!(gated.scheduler.poll(worker, 1), Next::Leave));
        gated.scheduler.left(worker);
    }
    assert_eq!(gated.in_line(), [] as [usize; 0]);
    assert_eq!(gated.answers.0.lock().unwrap().len(), 3);
}

#[test]
fn a_worker_dismissed_in_the_queue_gives_its_place_up() {
    let gated = gated();
    (0..2).for_each(|_| gated.send());
    let first = gated.payload(0).unwrap();
    assert!(gated.payload(1).is_none());
    gated.scheduler.dismiss(gated.workers[1]);
    assert!(matches!(gated.scheduler.poll(gated.workers[1], 1), Next::Leave));
    assert_eq!(gated.in_line(), [0]);
    gated.scheduler.left(gated.workers[1]);
    gated.finish(0, first);
    let second = gated.payload(0).unwrap();
    gated.finish(0, second);
    assert_eq!(gated.answers.0.lock().unwrap().len(), 2);
}

/// Forms nothing.
struct Nothing;

impl PayloadFormer for Nothing {
    fn weight(_request: &Request) -> usize {
        1
    }

    fn check(&mut self, _arrivals: &mut Arrivals<'_>, _now_ns: u64, _is_draining: bool) -> PayloadStatus {
        PayloadStatus::Wait { drained: 0, wake_at: 1, until_ns: None }
    }

    fn cut(&mut self, _arrivals: &mut Arrivals<'_>) -> Payload {
        Payload::default()
    }

    fn sweep(&mut self, _arrivals: &mut Arrivals<'_>) {}
}

struct Lent;

impl Borrowable for Lent {
    fn run_here(&self, request: Box<Request>) -> Result<Ticket, Box<Request>> {
        Err(request)
    }
}

/// Of many workers that a model once had, the few that are left are found, wherever their numbers are.
#[test]
fn shards_find_the_instances_that_are_there() {
    let purpose = purpose(ModelConfig { name: "m".into(), ..Default::default() });
    let queue = BatchQueue::new(Nothing, false, 1, &purpose, &Services::default());
    let info = WorkerInfo { waker: Waker::new(|| ()), name: "m".into(), device: 0, rate_limiter: None };
    let workers: Vec<usize> = (0..100).map(|_| queue.join(info.clone()).unwrap()).collect();
    assert!(queue.lenders_from(3).is_empty(), "none is lent");
    workers.iter().for_each(|&worker| queue.lend(worker, Arc::new(Lent)));
    queue.lend(workers[7], Arc::new(Lent));
    assert_eq!(queue.lender_count.load(Ordering::SeqCst), 100);
    assert_eq!(queue.lenders_from(98).as_slice(), [workers[98], workers[99], workers[0], workers[1]]);
    let stay = [workers[41], workers[97]];
    for &worker in workers.iter().filter(|worker| !stay.contains(worker)) {
        queue.dismiss(worker);
        queue.left(worker);
    }
    assert_eq!(queue.lender_count.load(Ordering::SeqCst), 2);
    for (seat, first) in [(0, stay), (1, [stay[1], stay[0]]), (1_000, stay)] {
        assert_eq!(queue.lenders_from(seat).as_slice(), first, "{seat}");
    }
    // A change under way is not waited for.
    let change = queue.lenders.write().unwrap();
    assert!(queue.lenders_from(0).is_empty());
    drop(change);
}
