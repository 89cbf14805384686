//! Who lets runs go on: the thread that has them, one after the other.
//!
//! What one run does can let another one go on, and where requests have no home that happens in the same thread. They
//! wait in line here instead of on the stack, so that a long line of ensembles needs no more of it than one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::run::Run;
use nereid_request::{Home, Job, NeverWaits, WakeUp};

thread_local! {
    /// The runs that go on next in this thread; none while it drives none.
    static LINE: RefCell<Option<VecDeque<Arc<Run>>>> = const { RefCell::new(None) };
}

/// Lets a run go on.
pub struct Advance(pub Arc<Run>);

impl Job for Advance {
    fn run(self: Box<Self>, home: &mut dyn Home) {
        drive(self.0, home);
    }
}

/// Lets a run begin in the thread that has its request. Returns who is to be woken for it.
pub fn start(run: Arc<Run>) -> WakeUp {
    let mut doorstep = Doorstep::default();
    let first = Arc::clone(&run);
    drive(run, &mut doorstep);
    if !doorstep.timed.is_empty() {
        let timed = doorstep.timed;
        first.at_home(Box::new(move |home: &mut dyn Home| {
            timed.into_iter().for_each(|(at_ns, job)| home.run_at(at_ns, job));
        }));
    }
    let last = doorstep.wake_ups.pop();
    doorstep.wake_ups.into_iter().for_each(WakeUp::now);
    last.unwrap_or_default()
}

/// Stands in for the home of a request that is only just handed in.
#[derive(Default)]
struct Doorstep {
    wake_ups: Vec<WakeUp>,
    timed: Vec<(u64, Box<dyn Job>)>,
}

impl Home for Doorstep {
    fn wake(&mut self, wake_up: WakeUp) {
        if !wake_up.is_needless() {
            self.wake_ups.push(wake_up);
        }
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        self.timed.push((at_ns, job));
    }
}

/// Ends the line, also when a run panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        // Dropped outside the borrow: the last holder of a run may let others go on.
        drop(LINE.with_borrow_mut(Option::take));
    }
}

fn drive(run: Arc<Run>, home: &mut dyn Home) {
    let is_first = LINE.with_borrow_mut(|line| match line {
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
    let _end = End;
    // Runs answer their requests, and these may be limited; what they send has its credits from elsewhere.
    let _never_waits = NeverWaits::here();
    while let Some(run) = LINE.with_borrow_mut(|line| line.as_mut().and_then(VecDeque::pop_front)) {
        run.advance(home);
    }
}
