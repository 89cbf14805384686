//! Tests that set what a process has only once, such as its global log, run in a process that has no other test.

use std::process::Command;

use crate::variant::is_second_run;

/// Set in a process that was started for one test.
const OWN_PROCESS: &str = "NEREID_TEST_OWN_PROCESS";

/// Whether this process was started for the test `name` alone. Where it was not, the test runs in a process of its own,
/// and the caller has nothing more to do; the second run of a binary leaves such tests out.
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
