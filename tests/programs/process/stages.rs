//! The C backend of tests/backends/stages.c, which logs how its instances are created and executed.

use nereid_test_support::backend;

/// The `--backend-directory` flag with backend `stages` in it. None, after a visible skip, without a C compiler.
pub fn backend_flag() -> Option<String> {
    backend::compiled("stages.c").map(|directory| format!("--backend-directory={}", directory.display()))
}

/// What the backend said: the lines of the log that begin with `stages: <what> `, in their order.
pub fn said(log: &str, what: &str) -> Vec<String> {
    let start = format!("stages: {what} ");
    let lines = log.lines().filter_map(|line| line.split_once(&start));
    lines.map(|(_, rest)| rest.split_once('.').map_or(rest, |(said, _)| said).to_owned()).collect()
}
