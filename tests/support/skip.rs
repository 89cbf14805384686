//! Visible skips: a test that cannot run on this host prints the reason to the terminal, and fails if skipping is
//! forbidden.

use std::io::Write;

/// If this is set to anything but `0`, every test must run (continuous integration): a skip is a failure.
pub const NO_SKIP: &str = "NEREID_TEST_NO_SKIP";

/// Prints that the calling test is skipped because it needs something that cannot be installed on this host. This is no
/// failure, even if skipping is forbidden.
pub fn skip_for_want_of(what: &str) {
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: this host has no {what}", thread.name().unwrap_or("?"));
}

/// Prints why the calling test is skipped. The test harness captures `eprintln!` of tests that pass, hence the direct
/// write.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    if std::env::var(NO_SKIP).is_ok_and(|value| value != "0") {
        panic!("{test} cannot run, and {NO_SKIP} is set: {reason}");
    }
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
}
