//! Supervisors with processes that sleep in place of workers.

use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::*;
use crate::python::link::Bounds;
use crate::python::marshal::{Malformed, Value};
use crate::python::worker::{Ended, MessageHandler, Plan, Wait};
use nereid_queue::waits::Waits;
use nereid_queue::{AdaptiveSpin, Spin};
use nereid_request::Grant;

struct NullHandler;

impl MessageHandler for NullHandler {
    fn handle(&self, _worker: &Arc<Worker>, _kind: u32, _value: &Value<'_>) -> Result<(), Malformed> {
        Err(Malformed::Form)
    }

    fn set_grant(&self, _grant: Option<Grant>) {}

    fn flush_responses(&self, _worker: &Arc<Worker>) {}

    fn ended(&self, _worker: &Arc<Worker>) {}
}

/// Starts processes that sleep; the test defines the result of their initialisation.
#[derive(Clone, Default)]
struct Sleepers {
    outcomes: Arc<Mutex<Vec<Result<(), Status>>>>,
    started: Arc<AtomicUsize>,
    /// Losses of state that were reported.
    losses: Arc<AtomicUsize>,
    /// The initialisation waits until it is free.
    gate: Arc<Mutex<()>>,
}

impl WorkerFactory for Sleepers {
    fn start(&self, ended: OnEnd) -> Result<Arc<Worker>, Status> {
        self.started.fetch_add(1, Ordering::SeqCst);
        let mut command = Command::new("sleep");
        command.arg("3600");
        let bounds = Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes: 4096 };
        let (name, model) = ("m_0_0".to_owned(), "m".to_owned());
        let archive = super::super::program::archive().unwrap();
        let handler = Arc::new(NullHandler);
        Worker::start(Plan {
            name,
            model,
            command,
            archive,
            bounds,
            fences: false,
            spin: Default::default(),
            handler,
            ended,
            gpus: Arc::default(),
        })
    }

    fn lost(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    fn initialize(&self, _worker: &Arc<Worker>) -> Result<(), Status> {
        drop(self.gate.lock());
        self.outcomes.lock().unwrap().pop().unwrap_or(Ok(()))
    }
}

fn counts() -> Arc<WorkerCounts> {
    Arc::new(WorkerCounts { filled: AtomicUsize::new(0), restarts: None, deaths: None })
}

fn open(sleepers: &Sleepers, restarts: bool, counts: &Arc<WorkerCounts>) -> Arc<WorkerSupervisor> {
    WorkerSupervisor::open("m_0_0", "m", Box::new(sleepers.clone()), restarts, Arc::clone(counts)).unwrap()
}

/// Kills the serving worker, as if by accident, and waits until the supervisor has handled it.
fn kill(supervisor: &WorkerSupervisor) -> u32 {
    let worker = supervisor.current().unwrap();
    let pid = worker.process_id().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    while matches!(&supervisor.lock().phase, Phase::Filled(current, _) if Arc::ptr_eq(current, &worker)) {
        std::thread::yield_now();
    }
    pid
}

#[test]
fn a_death_is_made_good_without_anybody_asking() {
    let (sleepers, counts) = (Sleepers::default(), counts());
    let supervisor = open(&sleepers, true, &counts);
    assert_eq!(counts.filled.load(Ordering::SeqCst), 1);
    let gate = sleepers.gate.lock().unwrap();
    assert_eq!(sleepers.losses.load(Ordering::SeqCst), 0);
    let dead = kill(&supervisor);
    assert_eq!(sleepers.losses.load(Ordering::SeqCst), 1, "reported before a successor can come");
    assert_eq!((supervisor.current().is_none(), counts.filled.load(Ordering::SeqCst)), (true, 0));
    assert_eq!(supervisor.not_healthy(), "Stub process 'm_0_0' is not healthy.");
    // A request waits for it.
    let (tell, told) = channel();
    let waits = Arc::clone(&supervisor);
    let thread = std::thread::spawn(move || tell.send(waits.worker()).unwrap());
    assert!(told.try_recv().is_err());
    drop(gate);
    let worker = told.recv().unwrap().unwrap();
    assert_ne!(worker.process_id(), Some(dead));
    assert!(worker.is_fit() && Arc::ptr_eq(&worker, &supervisor.current().unwrap()));
    thread.join().unwrap();
    assert_eq!(sleepers.started.load(Ordering::SeqCst), 2);
    let last = supervisor.close().unwrap();
    last.kill("is done");
    last.join();
    assert_eq!(counts.filled.load(Ordering::SeqCst), 0);
}

#[test]
fn who_asks_during_a_pause_is_refused_at_once_and_told_why() {
    let (sleepers, counts) = (Sleepers::default(), counts());
    let supervisor = open(&sleepers, true, &counts);
    // The first attempt comes at once, and fails; so do those that come before a slow test asks.
    sleepers.outcomes.lock().unwrap().extend(std::iter::repeat_n(Err(Status::internal("no luck")), 1000));
    let killed = Instant::now();
    kill(&supervisor);
    let error = loop {
        match supervisor.worker() {
            // An attempt that takes longer than a request waits.
            Err(error) if error.message.ends_with("it is being started again") => {}
            Err(error) => break error,
            Ok(worker) => panic!("{:?} works", worker.process_id()),
        }
    };
    let text = "Stub process 'm_0_0' is not healthy. The process of model 'm' cannot be started again: no luck; \
                it will be started again";
    assert_eq!(error, Status::refused(RefusalReason::ModelUnavailable, text));
    // No other instance can execute, so requests are not held back.
    supervisor.hold_back();
    // A pause ends with the instance.
    assert!(supervisor.close().is_none());
    // The serving worker and the first attempt; a further one only after a pause of a second or more.
    let most = 2 + killed.elapsed().as_secs() as usize;
    let started = sleepers.started.load(Ordering::SeqCst);
    assert!((2..=most).contains(&started), "{started} starts, at most {most}");
    let outcomes_left = sleepers.outcomes.lock().unwrap().len();
    assert_eq!(started, 1 + 1000 - outcomes_left, "each start was an attempt");
    assert!(matches!(supervisor.worker(), Err(status) if status.code == nereid_request::Code::Internal));
    assert_eq!(sleepers.started.load(Ordering::SeqCst), started, "who asks starts none");
}

#[test]
fn an_instance_that_goes_takes_who_is_being_initialised_with_it() {
    let (sleepers, counts) = (Sleepers::default(), counts());
    let supervisor = open(&sleepers, true, &counts);
    let gate = sleepers.gate.lock().unwrap();
    kill(&supervisor);
    let candidate = loop {
        if let Some(candidate) = supervisor.lock().candidate.clone() {
            break candidate;
        }
        std::thread::yield_now();
    };
    let closing = Arc::clone(&supervisor);
    let thread = std::thread::spawn(move || closing.close().is_none());
    // It is killed although it has not sent a message yet.
    while candidate.is_alive() {
        std::thread::yield_now();
    }
    drop(gate);
    assert!(thread.join().unwrap());
    assert_eq!((candidate.ending().as_str(), counts.filled.load(Ordering::SeqCst)), ("is not needed any more", 0));
}

/// The thread that waits for a process spins and sleeps like others of an instance, and is counted like them.
#[test]
fn waits_for_a_process_are_counted() {
    const SPIN_NS: u64 = 2_000_000;
    // Far more than this takes.
    const LIMIT: Duration = Duration::from_secs(60);
    // Those of the process count what other tests do too.
    static WAITS: Waits = Waits::new();
    let (sleepers, counts) = (Sleepers::default(), counts());
    let supervisor = open(&sleepers, false, &counts);
    let worker = supervisor.current().unwrap();
    let mut spin = AdaptiveSpin::new(Spin::new(SPIN_NS, 1), &WAITS);
    // The last wait was short.
    spin.record_wait(0, false);
    let killed = Arc::clone(&worker);
    let kills = std::thread::spawn(move || {
        while WAITS.spun_ns() < SPIN_NS {
            std::thread::yield_now();
        }
        killed.kill("was waited for");
    });
    let wait = Wait { limit: Some(LIMIT), spin: Some(&mut spin), ..Wait::default() };
    assert!(matches!(worker.serve(&[], &mut Vec::new(), wait), Err(Ended::Died(_))), "no spin was counted");
    kills.join().unwrap();
    assert!(WAITS.sleeps() > 0);
    worker.join();
    drop(supervisor.close());
}

#[test]
fn without_restarts_a_death_is_for_good() {
    let (sleepers, counts) = (Sleepers::default(), counts());
    let supervisor = open(&sleepers, false, &counts);
    kill(&supervisor);
    let text = "Stub process 'm_0_0' is not healthy. The process of model 'm' was ended by signal 9 (SIGKILL)";
    assert!(matches!(supervisor.worker(), Err(status) if status == Status::internal(text)));
    assert_eq!(sleepers.started.load(Ordering::SeqCst), 1);
    assert!(supervisor.close().is_none());
}

#[test]
fn an_instance_without_a_worker_holds_back_while_another_works() {
    let (sleepers, counts) = (Sleepers::default(), counts());
    let (here, there) = (open(&sleepers, false, &counts), open(&sleepers, true, &counts));
    kill(&here);
    let asked = Instant::now();
    here.hold_back();
    assert!(asked.elapsed() >= HOLD_BACK_MAX);
    // Nor when the other one ends as well.
    let last = there.close().unwrap();
    here.hold_back();
    last.kill("is done");
    last.join();
}

#[test]
fn what_cannot_be_initialised_at_first_is_an_error_and_leaves_nothing() {
    let sleepers = Sleepers::default();
    sleepers.outcomes.lock().unwrap().push(Err(Status::internal("no luck")));
    let outcome = WorkerSupervisor::open("m_0_0", "m", Box::new(sleepers), true, counts());
    assert!(matches!(outcome, Err(status) if status == Status::internal("no luck")));
}
