//! Runs a test in a process without other tests, because it changes something that exists once in a process, such as
//! the log.

use std::process::Command;

use crate::variant::is_second_run;

/// Set in a process that was started for a single test.
const OWN_PROCESS: &str = "NEREID_TEST_OWN_PROCESS";

/// Whether this process was started only for the test `name`. If not, this function runs the test in a process of its
/// own, and the caller returns; the second run of a binary omits such tests.
pub fn is_own_process(name: &str) -> bool {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return true;
    }
    if is_second_run() {
        return false;
    }
    let mut alone = Command::new(std::env::current_exe().expect("the path of this test binary"));
    alone.args(["--exact", name, "--color=never"]).env(OWN_PROCESS, "1");
    let output = alone.output().expect("run this test in a process of its own");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name} in a process of its own: {}\n{report}", output.status);
    assert!(report.contains("test result: ok. 1 passed"), "{name} did not run:\n{report}");
    false
}
