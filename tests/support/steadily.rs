//! Comparisons with the official server, repeated where that server crashed.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::server::crashes;

/// Runs a comparison, and again, three times in all, where the official server crashed in it: it does so now and then
/// when its index is read while a model unloads (SIGSEGV), which says nothing about ours. Nothing else is excused.
pub fn steadily(comparison: impl Fn()) {
    const ATTEMPTS: usize = 3;
    for attempt in 1..=ATTEMPTS {
        let before = crashes();
        let Err(failure) = catch_unwind(AssertUnwindSafe(&comparison)) else { return };
        if attempt == ATTEMPTS || crashes() == before {
            resume_unwind(failure);
        }
        say_that_it_failed(attempt);
    }
}

/// Says on the terminal that the official server failed by itself: the harness captures what tests print.
pub fn say_that_it_failed(attempt: usize) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    let _ = writeln!(std::io::stderr(), "REPEATED {test}: the official server failed by itself in attempt {attempt}");
}
