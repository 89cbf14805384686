//! The protocols of this crate under loom: every interleaving, with the weak memory orders that the code requests.

mod batching;
mod bell;
mod frames;
mod wake_flag;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use self::wake_flag::Parker;
use super::{Acquisition, Armed, BatcherToken, IdleState, Mpsc, Sleeper, Wake, Worker};

/// Forced switches per run: enough for all known bugs of this kind, and few enough for the run to end.
const PREEMPTIONS: usize = 3;

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

impl Wake for thread::Thread {
    fn wake(&self) {
        self.unpark();
    }
}

#[test]
fn mpsc_loses_nothing_and_keeps_each_producers_order() {
    model(PREEMPTIONS, || {
        let queue = Arc::new(Mpsc::new());
        let producers: Vec<_> = (0..2)
            .map(|p| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || (0..2).for_each(|i| queue.push((p, Box::new(i)))))
            })
            .collect();
        let mut next = [0, 0];
        let mut take = |queue: &Mpsc<(usize, Box<usize>)>| {
            let mut consumer = queue.consume().unwrap();
            while let Some((p, i)) = consumer.pop() {
                assert_eq!(*i, next[p]);
                next[p] += 1;
            }
        };
        take(&queue);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        take(&queue);
        assert_eq!(next, [2, 2]);
    });
}

#[test]
fn mpsc_hands_the_right_to_pop_from_thread_to_thread() {
    model(PREEMPTIONS, || {
        let queue = Arc::new(Mpsc::new());
        queue.push(0);
        let other = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                queue.push(1);
                queue.consume().map_or(0, |mut consumer| std::iter::from_fn(|| consumer.pop()).count())
            }
        });
        let mine = queue.consume().map_or(0, |mut consumer| std::iter::from_fn(|| consumer.pop()).count());
        let theirs = other.join().unwrap();
        let left = queue.consume().map_or(0, |mut consumer| std::iter::from_fn(|| consumer.pop()).count());
        assert_eq!(mine + theirs + left, 2);
    });
}

#[test]
fn mpsc_is_consumed_by_one_thread_at_a_time() {
    model(PREEMPTIONS, || {
        let queue = Arc::new(Mpsc::with_state(0));
        queue.push(());
        let consume = |queue: &Mpsc<(), usize>| {
            for _ in 0..2 {
                if let Some(mut inbox) = queue.consume() {
                    let (rounds, mut outlet) = inbox.parts();
                    *rounds += 1;
                    outlet.pop();
                }
            }
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || consume(&queue))
            })
            .collect();
        consume(&queue);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!((1..=6).contains(queue.consume().expect("all are through").parts().0));
    });
}

#[test]
fn mpsc_drops_what_is_left() {
    model(PREEMPTIONS, || {
        let token = std::sync::Arc::new(());
        let queue = Arc::new(Mpsc::new());
        let other = thread::spawn({
            let (queue, token) = (Arc::clone(&queue), std::sync::Arc::clone(&token));
            move || queue.push(token)
        });
        drop(queue.consume().unwrap().pop());
        other.join().unwrap();
        drop(queue);
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    });
}

/// A lost wake-up leaves the consumer parked for ever, which loom reports as a deadlock.
#[test]
fn sleeper_never_misses_work() {
    model(PREEMPTIONS, || {
        let queue = Arc::new(Mpsc::new());
        let sleeper = Arc::new(Sleeper::new(thread::current()));
        for value in 0..2 {
            let (queue, sleeper) = (Arc::clone(&queue), Arc::clone(&sleeper));
            thread::spawn(move || {
                queue.push(value);
                sleeper.notify();
            });
        }
        let mut left = 2;
        let mut consumer = queue.consume().unwrap();
        while left > 0 {
            while consumer.pop().is_some() {
                left -= 1;
            }
            if left > 0 {
                sleeper.sleep(|| !consumer.is_empty(), thread::park);
            }
        }
    });
}

fn token(workers: usize) -> BatcherToken {
    let token = BatcherToken::new();
    (0..workers).for_each(|worker| assert_eq!(token.join(), Ok(worker)));
    token
}

/// A model version: requests in an inbox, counted, and a cell that only the holder of the token may touch.
struct Version {
    token: BatcherToken,
    inbox: Mpsc<usize>,
    pending: AtomicUsize,
    done: AtomicUsize,
    all: usize,
    /// loom fails the run if two holders touch it without one having happened before the other.
    batcher: UnsafeCell<usize>,
    wake_count: usize,
    /// A worker takes a second payload with its first.
    takes_ahead: bool,
    finished: AtomicBool,
}

impl Version {
    fn new(workers: usize, requests: usize, wake_count: usize, takes_ahead: bool) -> Arc<Version> {
        Arc::new(Version {
            token: token(workers),
            inbox: Mpsc::new(),
            pending: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            all: requests,
            batcher: UnsafeCell::new(0),
            wake_count,
            takes_ahead,
            finished: AtomicBool::new(false),
        })
    }

    fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    fn enqueue(&self, wake: &dyn Fn(Worker)) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.inbox.push(1);
        if let Some(worker) = self.token.enqueued(|| self.pending()) {
            wake(worker);
        }
    }

    /// One worker's life: waits for the token, waits for a batch of at least `wake_count` (or what is left to come),
    /// cuts at most `cut` requests, passes the token, executes.
    fn work(&self, me: Worker, cut: usize, parker: &Parker, wake: &dyn Fn(Worker)) {
        loop {
            match self.token.acquire(me) {
                Acquisition::Holder => {}
                Acquisition::Stopped => return,
                Acquisition::Idle => loop {
                    match self.token.idle_state(me) {
                        IdleState::Waiting => parker.wait(),
                        IdleState::Holder => break,
                        IdleState::Stopped => return,
                    }
                },
            }
            let Some(payload) = self.form(me, cut, parker) else { return };
            if let Some(worker) = self.token.pass(me, || self.pending() > 0) {
                wake(worker);
            }
            let payload = payload + self.take_ahead(me, cut, wake);
            if self.done.fetch_add(payload, Ordering::Relaxed) + payload == self.all {
                self.finished.store(true, Ordering::Relaxed);
                self.token.stop().into_iter().for_each(wake);
            }
        }
    }

    /// Takes a second payload for a worker that is about to execute, if requests are pending.
    fn take_ahead(&self, me: Worker, cut: usize, wake: &dyn Fn(Worker)) -> usize {
        if !self.takes_ahead || self.pending() == 0 || !self.token.try_hold() {
            return 0;
        }
        let payload = self.drain().min(cut);
        self.take(payload);
        if let Some(worker) = self.token.pass(me, || self.pending() > 0) {
            wake(worker);
        }
        payload
    }

    /// Drains the inbox; the count of requests that are drained, by earlier holders or here, and not cut yet. Only the
    /// holder of the token may call this.
    fn drain(&self) -> usize {
        self.batcher.with_mut(|drained| {
            // SAFETY: only the holder of the token gets here; loom checks exactly that.
            let drained = unsafe { &mut *drained };
            let mut inbox = self.inbox.consume().expect("only the holder drains");
            while inbox.pop().is_some() {
                *drained += 1;
            }
            *drained
        })
    }

    fn take(&self, payload: usize) {
        // SAFETY: only the holder of the token gets here; loom checks exactly that.
        self.batcher.with_mut(|drained| unsafe { *drained -= payload });
        self.pending.fetch_sub(payload, Ordering::Relaxed);
    }

    /// The holder's part: a payload, or `None` when the version is stopped.
    fn form(&self, me: Worker, cut: usize, parker: &Parker) -> Option<usize> {
        loop {
            let drained = self.drain();
            if drained >= self.wake_count {
                let payload = drained.min(cut);
                self.take(payload);
                return Some(payload);
            }
            match self.token.arm(me, self.wake_count, || !self.inbox_is_empty()) {
                Armed::Park => {
                    parker.wait();
                    self.token.disarm(me);
                }
                Armed::DrainAgain => {}
                Armed::Stopped => {
                    self.token.pass(me, || false);
                    return None;
                }
            }
        }
    }

    fn inbox_is_empty(&self) -> bool {
        self.inbox.consume().expect("only the holder drains").is_empty()
    }
}

/// Runs `workers` threads and `enqueuers` more (the model's own thread is the last one) until all requests are done.
fn serve(preemptions: usize, workers: usize, enqueuers: usize, each: usize, wake_count: usize, cut: usize) {
    serve_with(preemptions, workers, enqueuers, each, wake_count, cut, false);
}

fn serve_with(
    preemptions: usize,
    workers: usize,
    enqueuers: usize,
    each: usize,
    wake_count: usize,
    cut: usize,
    takes_ahead: bool,
) {
    model(preemptions, move || {
        let version = Version::new(workers, enqueuers * each, wake_count, takes_ahead);
        let parkers: Arc<Vec<Parker>> = Arc::new((0..workers).map(|_| Parker::new()).collect());
        let handles: Vec<_> = (0..workers)
            .map(|me| {
                let (version, parkers) = (Arc::clone(&version), Arc::clone(&parkers));
                thread::spawn(move || version.work(me, cut, &parkers[me], &|worker| parkers[worker].call()))
            })
            .collect();
        let others: Vec<_> = (1..enqueuers)
            .map(|_| {
                let (version, parkers) = (Arc::clone(&version), Arc::clone(&parkers));
                thread::spawn(move || (0..each).for_each(|_| version.enqueue(&|worker| parkers[worker].call())))
            })
            .collect();
        (0..each).for_each(|_| version.enqueue(&|worker| parkers[worker].call()));
        others.into_iter().for_each(|other| other.join().unwrap());
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert!(version.finished.load(Ordering::Relaxed));
        assert_eq!(version.pending(), 0);
    });
}

#[test]
fn one_worker_sees_every_request() {
    serve(PREEMPTIONS, 1, 2, 1, 1, 1);
}

#[test]
fn an_armed_holder_wakes_at_its_count() {
    serve(PREEMPTIONS, 1, 2, 1, 2, 2);
}

#[test]
fn two_workers_share_the_token() {
    serve(PREEMPTIONS, 2, 1, 2, 1, 1);
}

#[test]
fn two_workers_and_two_enqueuers() {
    serve(2, 2, 2, 1, 1, 1);
}

/// A worker that takes more than it executes neither keeps the token nor leaves work behind that an idle worker could
/// do.
#[test]
fn a_worker_that_takes_ahead_leaves_nothing_behind() {
    serve_with(PREEMPTIONS, 1, 1, 2, 1, 1, true);
    serve_with(2, 2, 1, 2, 1, 1, true);
}

#[test]
fn two_workers_wait_for_a_batch() {
    serve(2, 2, 2, 1, 2, 2);
}

/// A worker retires while it is claimed: the token is neither lost nor doubled.
#[test]
fn a_claim_and_a_retirement_meet() {
    model(PREEMPTIONS, || {
        let token = Arc::new(token(3));
        let pending = Arc::new(AtomicUsize::new(0));
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.acquire(1), Acquisition::Idle);
        assert_eq!(token.acquire(2), Acquisition::Idle);
        let leaver = thread::spawn({
            let (token, pending) = (Arc::clone(&token), Arc::clone(&pending));
            move || {
                if token.retire(2) {
                    // It comes back at once, still on the stack or not.
                    return Some(token.acquire(2));
                }
                let woken = token.pass(2, || pending.load(Ordering::Relaxed) > 0);
                assert!(woken.is_none_or(|worker| worker == 1));
                None
            }
        });
        let enqueuer = thread::spawn({
            let (token, pending) = (Arc::clone(&token), Arc::clone(&pending));
            move || {
                pending.fetch_add(1, Ordering::Relaxed);
                token.enqueued(|| pending.load(Ordering::Relaxed))
            }
        });
        token.pass(0, || pending.load(Ordering::Relaxed) > 0);
        let came_back = leaver.join().unwrap();
        enqueuer.join().unwrap();
        let first = token.idle_state(1) == IdleState::Holder;
        let second = match came_back {
            Some(Acquisition::Holder) => true,
            Some(Acquisition::Idle) => {
                let place = token.idle_state(2);
                assert_ne!(place, IdleState::Stopped, "a worker that comes back has its node");
                place == IdleState::Holder
            }
            _ => false,
        };
        let free = !first && !second && token.acquire(0) == Acquisition::Holder;
        assert_eq!(usize::from(first) + usize::from(second) + usize::from(free), 1, "exactly one token");
        if free {
            assert!(token.idle_state(1) != IdleState::Waiting, "no work is left with an idle worker and a free token");
        }
    });
}

/// Stopping and a claim meet: every sleeping worker is woken by one or the other.
#[test]
fn a_claim_and_a_stop_meet() {
    model(PREEMPTIONS, || {
        let token = Arc::new(token(2));
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.acquire(1), Acquisition::Idle);
        token.pass(0, || false);
        let enqueuer = thread::spawn({
            let token = Arc::clone(&token);
            move || token.enqueued(|| 1)
        });
        let stopped = token.stop();
        let claimed = enqueuer.join().unwrap();
        let place = token.idle_state(1);
        match claimed {
            Some(1) => assert_eq!((stopped, place), (vec![], IdleState::Holder)),
            None => assert_eq!((stopped, place), (vec![1], IdleState::Stopped)),
            other => panic!("{other:?} was never idle"),
        }
    });
}

/// A holder's time is up and it passes the token to another worker, which arms in the same way, while an enqueuer is
/// about to wake the first: the wake-up must reach the second.
#[test]
fn a_wake_up_reaches_the_worker_that_is_armed_now() {
    model(PREEMPTIONS, || {
        let token = Arc::new(token(2));
        let pending = Arc::new(AtomicUsize::new(0));
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.arm(0, 1, || false), Armed::Park);
        let second = thread::spawn({
            let (token, pending) = (Arc::clone(&token), Arc::clone(&pending));
            move || {
                match token.acquire(1) {
                    Acquisition::Holder => {}
                    Acquisition::Idle => loop {
                        match token.idle_state(1) {
                            IdleState::Waiting => thread::park(),
                            IdleState::Holder => break,
                            IdleState::Stopped => return,
                        }
                    },
                    Acquisition::Stopped => return,
                }
                while pending.load(Ordering::Relaxed) == 0 && !token.is_stopped() {
                    if token.arm(1, 1, || pending.load(Ordering::Relaxed) > 0) == Armed::Park {
                        // This parks for ever if the wake-up went to the other worker.
                        thread::park();
                        token.disarm(1);
                    }
                }
            }
        });
        let to_wake = second.thread().clone();
        let enqueuer = thread::spawn({
            let (token, pending, to_wake) = (Arc::clone(&token), Arc::clone(&pending), to_wake.clone());
            move || {
                pending.fetch_add(1, Ordering::Relaxed);
                if token.enqueued(|| pending.load(Ordering::Relaxed)) == Some(1) {
                    to_wake.unpark();
                }
            }
        });
        // The first holder's time is up at once.
        let woken = token.disarm(0);
        let serves = woken || pending.load(Ordering::Relaxed) > 0;
        if serves {
            token.stop();
            to_wake.unpark();
        } else if token.pass(0, || pending.load(Ordering::Relaxed) > 0) == Some(1) {
            to_wake.unpark();
        }
        enqueuer.join().unwrap();
        second.join().unwrap();
    });
}

/// The loop of a worker until it is dismissed, and then its leaving, as the schedulers do it.
fn work_until_dismissed(
    token: &BatcherToken,
    me: Worker,
    pending: &AtomicUsize,
    dismissed: &AtomicBool,
    wake: &dyn Fn(Worker),
) {
    let more = || pending.load(Ordering::Relaxed) > 0;
    let wake = |worker: Option<Worker>| worker.into_iter().for_each(wake);
    loop {
        if dismissed.load(Ordering::Relaxed) {
            return;
        }
        let mut turn = token.acquire(me);
        while turn == Acquisition::Idle {
            turn = match token.idle_state(me) {
                IdleState::Holder => Acquisition::Holder,
                IdleState::Stopped => Acquisition::Stopped,
                IdleState::Waiting if !dismissed.load(Ordering::Relaxed) => {
                    thread::park();
                    Acquisition::Idle
                }
                IdleState::Waiting if token.retire(me) => return,
                IdleState::Waiting => Acquisition::Holder,
            };
        }
        if turn == Acquisition::Stopped {
            return;
        }
        while !more() {
            if dismissed.load(Ordering::Relaxed) {
                return wake(token.pass(me, more));
            }
            match token.arm(me, 1, more) {
                Armed::Park => {
                    thread::park();
                    token.disarm(me);
                }
                Armed::DrainAgain => {}
                Armed::Stopped => return wake(token.pass(me, || false)),
            }
        }
        pending.fetch_sub(1, Ordering::Relaxed);
        wake(token.pass(me, more));
    }
}

/// One worker of a version while workers come and go.
struct WorkerSlot {
    dismissed: AtomicBool,
    thread: std::sync::OnceLock<thread::Thread>,
}

struct Changing {
    token: BatcherToken,
    pending: AtomicUsize,
    slots: [WorkerSlot; 2],
}

impl Changing {
    fn new(workers: usize) -> Arc<Changing> {
        let slot = || WorkerSlot { dismissed: AtomicBool::new(false), thread: std::sync::OnceLock::new() };
        Arc::new(Changing { token: token(workers), pending: AtomicUsize::new(0), slots: [slot(), slot()] })
    }

    fn wake(&self, worker: Worker) {
        self.slots[worker].thread.get().expect("set before it acquires").unpark();
    }

    /// Starts the thread of a worker; its handle is set before the worker acquires.
    fn start(this: &Arc<Changing>, me: Worker) -> thread::JoinHandle<()> {
        let this = Arc::clone(this);
        thread::spawn(move || {
            this.slots[me].thread.set(thread::current()).expect("set once");
            work_until_dismissed(&this.token, me, &this.pending, &this.slots[me].dismissed, &|worker| {
                this.wake(worker)
            });
        })
    }

    fn enqueue(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        if let Some(worker) = self.token.enqueued(|| self.pending.load(Ordering::Relaxed)) {
            self.wake(worker);
        }
    }

    fn dismiss(&self, thread: &thread::Thread, worker: Worker) {
        self.slots[worker].dismissed.store(true, Ordering::Relaxed);
        thread.unpark();
    }
}

/// Requests are published while one worker is dismissed and another stays: the one that stays serves what the other did
/// not, or loom reports that it sleeps for ever.
#[test]
fn a_worker_leaves_with_work_pending() {
    model(PREEMPTIONS, || {
        let version = Changing::new(2);
        let (leaver, stayer) = (Changing::start(&version, 0), Changing::start(&version, 1));
        version.enqueue();
        version.dismiss(leaver.thread(), 0);
        version.enqueue();
        leaver.join().unwrap();
        while version.pending.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        version.dismiss(stayer.thread(), 1);
        stayer.join().unwrap();
    });
}

/// A second worker joins while a request is published, and the first one leaves: one of them serves the request.
#[test]
fn a_worker_joins_while_work_is_published() {
    model(PREEMPTIONS, || {
        let version = Changing::new(1);
        let enqueuer = thread::spawn({
            let version = Arc::clone(&version);
            move || version.enqueue()
        });
        let first = Changing::start(&version, 0);
        assert_eq!(version.token.join(), Ok(1));
        let second = Changing::start(&version, 1);
        version.dismiss(first.thread(), 0);
        first.join().unwrap();
        enqueuer.join().unwrap();
        while version.pending.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        version.dismiss(second.thread(), 1);
        second.join().unwrap();
    });
}

/// The number of a worker that left goes to a new one while its node is still on the stack and an enqueuer pops it.
#[test]
fn a_number_is_used_again_while_it_is_popped() {
    model(PREEMPTIONS, || {
        let version = Changing::new(2);
        assert_eq!(version.token.acquire(0), Acquisition::Holder);
        assert_eq!(version.token.acquire(1), Acquisition::Idle);
        assert!(version.token.retire(1));
        version.token.left(1);
        assert_eq!(version.token.join(), Ok(1));
        let second = Changing::start(&version, 1);
        let enqueuer = thread::spawn({
            let version = Arc::clone(&version);
            move || version.enqueue()
        });
        // The first one holds the token and leaves with it.
        let woken = version.token.pass(0, || version.pending.load(Ordering::Relaxed) > 0);
        woken.into_iter().for_each(|worker| version.wake(worker));
        enqueuer.join().unwrap();
        while version.pending.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        version.dismiss(second.thread(), 1);
        second.join().unwrap();
    });
}
