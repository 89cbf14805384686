//! Limits that a container or an operator may set; the kernel enforces them on the server (see confine.c).

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::paths;
use crate::skip::skip;

/// The command line that starts the server and makes these system calls fail with `error` (`EPERM`, `ENOSYS`). None,
/// after a visible skip, without a C compiler.
pub fn refusing(error: &str, calls: &str) -> Option<Vec<String>> {
    words(&["refuse", error, calls])
}

/// The same for a list of the only system calls that are allowed (see confine.c); any other ends the process, or fails.
pub fn allowing(calls: &str, kills: bool) -> Option<Vec<String>> {
    words(&["allow", if kills { "KILL" } else { "EPERM" }, calls])
}

/// The same for a limit on locked memory.
pub fn locking_at_most(bytes: u64) -> Option<Vec<String>> {
    words(&["memlock", &bytes.to_string()])
}

fn words(which: &[&str]) -> Option<Vec<String>> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(compile) {
        Ok(program) => {
            let program = program.display().to_string();
            let server = crate::server::binary().to_string_lossy().into_owned();
            let words = [program.as_str()].into_iter().chain(which.iter().copied()).chain(["--", &server]);
            Some(words.map(str::to_string).collect())
        }
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn compile() -> Result<PathBuf, String> {
    let source = paths::root().join("tests/support/confine.c");
    let program = paths::temporary().join(format!("confine-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    match compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source).output()
    {
        Err(error) => Err(format!("no C compiler: {error}")),
        Ok(output) => {
            assert!(output.status.success(), "{source:?}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(program)
        }
    }
}
