//! Drives runs of ensembles: the thread that has them advances one after the other.
//!
//! A step of one run can let another one advance, and where requests have no home that happens on the same thread. The
//! runs are queued here instead of nesting on the stack, so that a long chain of ensembles needs no more stack than
//! one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::error;

use super::run::Run;
use super::turn::OnWorker;
use nereid_request::{Home, Job, NeverWaits, WakeUp};

thread_local! {
    /// The runs to advance next on this thread; none while it drives none.
    static PENDING_RUNS: RefCell<Option<VecDeque<Arc<Run>>>> = const { RefCell::new(None) };
}

/// Advances a run.
pub struct Advance(pub Arc<Run>);

impl Job for Advance {
    fn run(self: Box<Self>, home: &mut dyn Home) {
        drive(self.0, home);
    }
}

/// Starts a run on the thread that has its request. Returns the wake-up that is due then.
pub fn start(run: Arc<Run>) -> WakeUp {
    let mut home = CollectingHome::default();
    let first = Arc::clone(&run);
    drive(run, &mut home);
    home.put_off.into_iter().for_each(|job| first.at_home(job));
    if !home.timed.is_empty() {
        let timed = home.timed;
        first.at_home(Box::new(move |home: &mut dyn Home| {
            timed.into_iter().for_each(|(at_ns, job)| home.run_at(at_ns, job));
        }));
    }
    let last = home.wake_ups.pop();
    home.wake_ups.into_iter().for_each(WakeUp::now);
    last.unwrap_or_default()
}

/// Continues a run on a worker between two executions.
pub fn go_on(run: Arc<Run>) {
    let _on_worker = OnWorker::begin();
    start(run).now();
}

/// Has the run advanced next, if this thread drives runs at the moment.
pub fn is_next(run: &Arc<Run>) -> bool {
    PENDING_RUNS.with_borrow_mut(|line| line.as_mut().map(|line| line.push_back(Arc::clone(run))).is_some())
}

/// Stands in for the home of a request that is just being handed in, or handed over.
#[derive(Default)]
struct CollectingHome {
    wake_ups: Vec<WakeUp>,
    timed: Vec<(u64, Box<dyn Job>)>,
    put_off: Vec<Box<dyn Job>>,
}

impl Home for CollectingHome {
    fn wake(&mut self, wake_up: WakeUp) {
        if !wake_up.is_needless() {
            self.wake_ups.push(wake_up);
        }
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        self.timed.push((at_ns, job));
    }

    fn next_turn(&mut self, job: Box<dyn Job>) {
        self.put_off.push(job);
    }
}

/// Ends the queue, also when a run panics.
struct PendingRunsGuard;

impl Drop for PendingRunsGuard {
    fn drop(&mut self) {
        // Dropped outside the borrow: dropping the last reference to a run may advance others.
        drop(PENDING_RUNS.with_borrow_mut(Option::take));
    }
}

fn drive(run: Arc<Run>, home: &mut dyn Home) {
    let is_first = PENDING_RUNS.with_borrow_mut(|line| match line {
        Some(line) => {
            line.push_back(run);
            false
        }
        None => {
            *line = Some(VecDeque::from([run]));
            true
        }
    });
    if !is_first {
        return;
    }
    let _guard = PendingRunsGuard;
    // Runs answer their requests, and these answers may be limited; the requests that they send take their credits
    // elsewhere.
    let _never_waits = NeverWaits::here();
    while let Some(run) = PENDING_RUNS.with_borrow_mut(|line| line.as_mut().and_then(VecDeque::pop_front)) {
        if catch_unwind(AssertUnwindSafe(|| run.advance(home))).is_err() {
            error!("a request of an ensemble panicked; it is answered with an error");
            // A second panic leaves the answer to the drop of the request.
            let _ = catch_unwind(AssertUnwindSafe(|| run.abandon()));
        }
    }
}
