//! Skips that can be seen: a test that cannot run here says so on the terminal, and fails where skipping is forbidden.

use std::io::Write;

/// Set to anything but `0` where every test must run (continuous integration): a skip becomes a failure.
pub const NO_SKIP: &str = "NEREID_TEST_NO_SKIP";

/// Says that the calling test does nothing for want of something that nothing could install on this host: no failure
/// even where skipping is forbidden.
pub fn skip_for_want_of(what: &str) {
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: this host has no {what}", thread.name().unwrap_or("?"));
}

/// Says why the calling test does nothing. The test harness captures `eprintln!` of tests that pass, hence the plain
/// write.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    if std::env::var(NO_SKIP).is_ok_and(|value| value != "0") {
        panic!("{test} cannot run, and {NO_SKIP} is set: {reason}");
    }
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
}
