//! What schedulers build on the token: the state word of a request, tombstones and their sweep, a holder that waits for
//! a batch, an instance that may be borrowed.

use loom::sync::Mutex;

use super::*;

const QUEUED: usize = 0;
const TAKEN: usize = 1;
const EXPIRED: usize = 2;
const CANCELLED: usize = 3;

/// The state word of a request, which decides what can still answer it, as in `request::Admission`.
struct Admission {
    state: AtomicUsize,
    ended: AtomicBool,
    holders: AtomicUsize,
    answers: AtomicUsize,
}

impl Admission {
    fn new() -> Admission {
        let zero = || AtomicUsize::new(0);
        Admission { state: zero(), ended: AtomicBool::new(false), holders: AtomicUsize::new(1), answers: zero() }
    }

    fn leave(&self, to: usize) -> bool {
        self.state.compare_exchange(QUEUED, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn answer(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The request is dropped: it is answered with an error, unless the thread that took it back answers.
    fn drop_request(&self) {
        let is_last = self.holders.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && self.state.load(Ordering::Acquire) < EXPIRED {
            self.answer();
        }
    }
}

/// A request in a level with room for one: worker, timer and client compete, and a second request waits for the room.
#[test]
fn one_of_worker_timer_and_client_answers_and_gives_the_place_back() {
    model(PREEMPTIONS, || {
        let admission = Arc::new(Admission::new());
        let level = Arc::new(AtomicUsize::new(1));
        let home = |to: usize| {
            let (admission, level) = (Arc::clone(&admission), Arc::clone(&level));
            thread::spawn(move || {
                let won = admission.leave(to);
                if won {
                    level.fetch_sub(1, Ordering::AcqRel);
                    admission.answer();
                }
                won
            })
        };
        let (timer, client) = (home(EXPIRED), home(CANCELLED));
        let taken = admission.leave(TAKEN);
        if taken {
            level.fetch_sub(1, Ordering::AcqRel);
            admission.answer();
        }
        admission.drop_request();
        let won = [taken, timer.join().unwrap(), client.join().unwrap()];
        assert_eq!(won.into_iter().filter(|won| *won).count(), 1);
        assert_eq!(admission.answers.load(Ordering::Relaxed), 1, "answered once, by the thread that won it");
        let free = |count: usize| (count < 1).then_some(count + 1);
        assert!(level.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).is_ok(), "the place is free");
    });
}

/// A batch is cut at this many living requests.
const BATCH: usize = 2;

/// A batch queue: requests that can be taken back, and a former that keeps what it drained.
struct BatchQueue {
    token: BatcherToken,
    inbox: Mpsc<Arc<Admission>, Vec<Arc<Admission>>>,
    waiting: AtomicUsize,
    removals: AtomicUsize,
}

impl BatchQueue {
    fn new() -> Arc<BatchQueue> {
        Arc::new(BatchQueue {
            token: token(1),
            inbox: Mpsc::with_state(Vec::new()),
            waiting: AtomicUsize::new(0),
            removals: AtomicUsize::new(0),
        })
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    fn enqueue(&self, worker: &thread::Thread) -> Arc<Admission> {
        let admission = Arc::new(Admission::new());
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.inbox.push(Arc::clone(&admission));
        if self.token.enqueued(|| self.waiting()).is_some() {
            worker.unpark();
        }
        admission
    }

    fn drain(&self, kept: &mut Vec<Arc<Admission>>, mut pop: impl FnMut() -> Option<Arc<Admission>>) {
        kept.extend(std::iter::from_fn(&mut pop));
        kept.retain(|admission| {
            let lives = admission.state.load(Ordering::Acquire) == QUEUED;
            if !lives {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                admission.drop_request();
            }
            lives
        });
    }

    fn take_back(&self, admission: &Admission, worker: &thread::Thread) {
        if !admission.leave(CANCELLED) {
            return;
        }
        admission.answer();
        let Some(mut inbox) = self.inbox.consume() else { return };
        let (kept, mut outlet) = inbox.parts();
        self.drain(kept, || outlet.pop());
        self.removals.fetch_add(1, Ordering::AcqRel);
        drop(inbox);
        if self.token.enqueued(|| usize::MAX).is_some() {
            worker.unpark();
        }
    }

    /// Holds the token, waits for a batch of living requests, and takes it.
    fn work(&self) {
        loop {
            let removals = self.removals.load(Ordering::Acquire);
            let Some(mut inbox) = self.inbox.consume() else {
                thread::yield_now();
                continue;
            };
            let (kept, mut outlet) = inbox.parts();
            self.drain(kept, || outlet.pop());
            let drained = kept.len();
            if drained >= BATCH {
                for admission in kept.drain(..) {
                    self.waiting.fetch_sub(1, Ordering::AcqRel);
                    if admission.leave(TAKEN) {
                        admission.answer();
                    }
                    admission.drop_request();
                }
                return;
            }
            drop(inbox);
            let has_changed = || self.waiting() > drained || self.removals.load(Ordering::Acquire) != removals;
            match self.token.arm(0, BATCH, has_changed) {
                Armed::Park => {
                    thread::park();
                    self.token.disarm(0);
                }
                Armed::DrainAgain => thread::yield_now(),
                Armed::Stopped => unreachable!("no thread stops it"),
            }
        }
    }
}

/// One of three requests is taken back and swept while the others come: two living ones make a batch, or loom reports
/// that the worker sleeps for ever.
#[test]
fn a_sweep_hides_nothing_from_the_holder() {
    model(2, || {
        let queue = BatchQueue::new();
        assert_eq!(queue.token.acquire(0), Acquisition::Holder);
        let worker = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.work()
        });
        let to_wake = worker.thread().clone();
        let first = queue.enqueue(&to_wake);
        let canceller = thread::spawn({
            let (queue, to_wake, first) = (Arc::clone(&queue), to_wake.clone(), Arc::clone(&first));
            move || queue.take_back(&first, &to_wake)
        });
        let others = [queue.enqueue(&to_wake), queue.enqueue(&to_wake)];
        canceller.join().unwrap();
        worker.join().unwrap();
        assert_eq!(first.answers.load(Ordering::Relaxed), 1, "cancelled or taken");
        let answered = others.iter().map(|admission| admission.answers.load(Ordering::Relaxed)).sum::<usize>();
        assert!((1..=2).contains(&answered));
    });
}

/// A holder waits for two requests, and its time may be up at any moment; the next holder serves what it leaves.
#[test]
fn a_holder_whose_time_is_up_takes_what_is_there() {
    model(2, || {
        let version = Version::new(1, 2, 2, false);
        let enqueuer = thread::spawn({
            let version = Arc::clone(&version);
            // Its wake-up finds no sleeper: the holder never parks, its time is always up.
            move || (0..2).for_each(|_| version.enqueue(&|_| {}))
        });
        let mut done = 0;
        while done < 2 {
            assert_eq!(version.token.acquire(0), Acquisition::Holder);
            let armed = version.token.arm(0, 2, || !version.inbox_is_empty());
            if armed == Armed::Park {
                version.token.disarm(0);
            }
            let mut inbox = version.inbox.consume().expect("one worker");
            let taken = std::iter::from_fn(|| inbox.pop()).count();
            drop(inbox);
            version.pending.fetch_sub(taken, Ordering::Relaxed);
            done += taken;
            assert_eq!(version.token.pass(0, || version.pending() > 0), None, "there is no other worker");
            if taken == 0 {
                thread::yield_now();
            }
        }
        enqueuer.join().unwrap();
        assert_eq!(version.pending(), 0);
    });
}

/// An instance that a shard may borrow.
struct BorrowedInstance {
    version: Arc<Version>,
    /// The owner word; `None` once the worker has left with the instance.
    instance: Mutex<Option<UnsafeCell<usize>>>,
}

impl BorrowedInstance {
    fn execute(instance: &UnsafeCell<usize>) {
        // SAFETY: the caller holds the owner word; loom checks exactly that.
        instance.with_mut(|runs| unsafe { *runs += 1 });
    }

    /// A shard's submission: it executes the request if none waits and none is executing, and hands it over otherwise.
    fn submit(&self, wake: &dyn Fn(Worker)) {
        if self.version.pending() == 0
            && let Ok(instance) = self.instance.try_lock()
            && let Some(instance) = &*instance
        {
            BorrowedInstance::execute(instance);
            return self.done(wake);
        }
        self.version.enqueue(wake);
    }

    fn done(&self, wake: &dyn Fn(Worker)) {
        if self.version.done.fetch_add(1, Ordering::Relaxed) + 1 == self.version.all {
            self.version.token.stop().into_iter().for_each(wake);
        }
    }

    fn work(&self, parker: &Parker, wake: &dyn Fn(Worker)) -> usize {
        while self.version.token.acquire(0) == Acquisition::Holder {
            let Some(_) = self.version.form(0, 1, parker) else { break };
            self.version.token.pass(0, || self.version.pending() > 0);
            // The token is free, and other threads may reach the instance: the owner word decides.
            let instance = self.instance.lock().unwrap();
            BorrowedInstance::execute(instance.as_ref().expect("only we take it away"));
            drop(instance);
            self.done(wake);
        }
        let instance = self.instance.lock().unwrap().take();
        // SAFETY: no other thread can reach it any more.
        instance.map_or(0, |instance| instance.with(|runs| unsafe { *runs }))
    }
}

/// Two shards and the worker at one instance: each request runs once, one at a time, and the instance leaves after the
/// last borrower.
#[test]
fn an_instance_is_run_by_one_thread_at_a_time() {
    model(2, || {
        let version = Version::new(1, 2, 1, false);
        let shared = Arc::new(BorrowedInstance { version, instance: Mutex::new(Some(UnsafeCell::new(0))) });
        let parker = Parker::new();
        let worker = thread::spawn({
            let (shared, parker) = (Arc::clone(&shared), parker.clone());
            // The worker's own last request wakes it: it does not sleep then.
            move || shared.work(&parker, &|_| {})
        });
        let other = thread::spawn({
            let (shared, parker) = (Arc::clone(&shared), parker.clone());
            move || shared.submit(&|_| parker.call())
        });
        shared.submit(&|_| parker.call());
        other.join().unwrap();
        assert_eq!(worker.join().unwrap(), 2);
        assert_eq!(shared.version.pending(), 0);
    });
}
