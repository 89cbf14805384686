//! Programs under valgrind's memcheck: no invalid access and no leak.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use super::program::in_time;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::is_second_run;

/// Runs a program in the repository's root to its successful end and returns what it said. None without valgrind, after
/// a visible skip, and where the test binary runs for another engine of the shards: these programs have none.
pub fn run<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Option<String> {
    if is_second_run() {
        return None;
    }
    // Under an emulator a program that does not exist starts, and fails.
    let version = Command::new("valgrind").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        skip("there is no valgrind");
        return None;
    }
    let mut command = Command::new("valgrind");
    command.args(["--error-exitcode=99", "--leak-check=full"]);
    command.args(["--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"]);
    command.arg(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = in_time(&mut command);
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {}\n{report}", output.status);
    assert!(report.contains("ERROR SUMMARY: 0 errors"), "{report}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}
