//! The C backend of tests/backends/stages.c, which tells the log how its instances are made and what they are given.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::skip::skip;

/// The `--backend-directory` flag with backend `stages` in it. None, after a visible skip, without a C compiler.
pub fn backend_flag() -> Option<String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(compile) {
        Ok(directory) => Some(format!("--backend-directory={}", directory.display())),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn compile() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/backends/stages.c");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stages-{}", std::process::id()));
    let folder = directory.join("stages");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{folder:?}: {error}"))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC"]);
    compiler.args(["-pthread", "-o"]).arg(folder.join("libtriton_stages.so")).arg(&source);
    match compiler.output() {
        Err(error) => Err(format!("no C compiler: {error}")),
        Ok(output) => {
            assert!(output.status.success(), "{source:?}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(directory)
        }
    }
}

/// What the backend said: the lines of the log that begin with `stages: <what> `, in their order.
pub fn said(log: &str, what: &str) -> Vec<String> {
    let start = format!("stages: {what} ");
    let lines = log.lines().filter_map(|line| line.split_once(&start));
    lines.map(|(_, rest)| rest.split_once('.').map_or(rest, |(said, _)| said).to_owned()).collect()
}
