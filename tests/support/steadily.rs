//! What is repeated because a failure said nothing about the server: the official server crashed, or the test did not
//! get the CPU while the server waited for it.

use std::cell::Cell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::server::crashes;

const ATTEMPTS: usize = 3;

/// Runs a comparison, and again, three times in all, where the official server crashed in it: it does so now and then
/// when its index is read while a model unloads (SIGSEGV), which says nothing about ours. Nothing else is excused.
pub fn steadily(comparison: impl Fn()) {
    for attempt in 1..=ATTEMPTS {
        let before = crashes();
        let Err(failure) = catch_unwind(AssertUnwindSafe(&comparison)) else { return };
        if attempt == ATTEMPTS || crashes() == before {
            resume_unwind(failure);
        }
        say_that_it_failed(attempt);
    }
}

/// The time that a server leaves its client for what the test does next.
#[derive(Default)]
pub struct Window {
    open: Cell<Option<(Instant, Duration)>>,
    is_missed: Cell<bool>,
}

impl Window {
    /// Begins; ends the one before.
    pub fn open(&self, limit: Duration) {
        self.close();
        self.open.set(Some((Instant::now(), limit)));
    }

    pub fn close(&self) {
        if let Some((opened, limit)) = self.open.take()
            && opened.elapsed() >= limit
        {
            self.is_missed.set(true);
        }
    }

    fn is_missed(&self) -> bool {
        self.close();
        self.is_missed.get()
    }
}

/// Runs a scenario, and again, three times in all, where it failed and had missed a window: the machine did not run the
/// test, and the server was right to wait no longer. A scenario that fails in time fails.
pub fn in_time(scenario: impl Fn(&Window)) {
    for attempt in 1..=ATTEMPTS {
        let window = Window::default();
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| scenario(&window))) else { return };
        if attempt == ATTEMPTS || !window.is_missed() {
            resume_unwind(failure);
        }
        say("the test was not run while the server waited for it", attempt);
    }
}

/// Says on the terminal that the official server failed by itself.
pub fn say_that_it_failed(attempt: usize) {
    say("the official server failed by itself", attempt);
}

/// On the terminal itself: the harness captures what tests print.
fn say(what: &str, attempt: usize) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    let _ = writeln!(std::io::stderr(), "REPEATED {test}: {what} in attempt {attempt}");
}
