//! Repeats tests after failures that are not the server's: the official server crashed, or the test did not get the CPU
//! in time.

use std::cell::Cell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::server::crashes;

const ATTEMPTS: usize = 3;
/// One miss says nothing of the next: a machine that is busy rarely misses the window of so many attempts.
pub const ATTEMPTS_IN_TIME: usize = 8;

/// Runs a comparison up to three times, as long as the official server crashes in it. That server sometimes crashes
/// (SIGSEGV) when its index is read while a model unloads. Any other failure is a failure of the test.
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

/// The time limit that a server sets for the next action of its client, here the test.
#[derive(Default)]
pub struct Window {
    open: Cell<Option<(Instant, Duration)>>,
    is_missed: Cell<bool>,
}

impl Window {
    /// Begins a window; ends the previous one.
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

/// Runs a scenario up to [`ATTEMPTS_IN_TIME`] times, as long as it fails after it has missed a window: then the
/// machine did not run the test in time, and the server was right to wait no longer. A scenario that fails in time is a
/// failure.
pub fn in_time(scenario: impl Fn(&Window)) {
    for attempt in 1..=ATTEMPTS_IN_TIME {
        let window = Window::default();
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| scenario(&window))) else { return };
        if attempt == ATTEMPTS_IN_TIME || !window.is_missed() {
            resume_unwind(failure);
        }
        say("the test was not run while the server waited for it", attempt);
    }
}

/// Prints to the terminal that the official server failed by itself.
pub fn say_that_it_failed(attempt: usize) {
    say("the official server failed by itself", attempt);
}

/// Writes to the terminal directly, because the harness captures the output of tests.
fn say(what: &str, attempt: usize) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    let _ = writeln!(std::io::stderr(), "REPEATED {test}: {what} in attempt {attempt}");
}
