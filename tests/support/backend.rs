//! The C backend of tests/backends, compiled when a test asks for it.

#![allow(dead_code)] // Every test binary takes the part of tests/support that it needs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::skip::skip;

/// A directory for `--backend-directory` that holds the C identity as backend `copycat`, for configs that name it as
/// their `runtime` as `identity/libtriton_foreign.so`, and as what another server takes for `identity`. None, after a visible skip, without a C compiler.
pub fn directory() -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(compile) {
        Ok(directory) => Some(directory.clone()),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn compile() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/backends/identity.c");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("backends-{}", std::process::id()));
    for (backend, library) in [
        ("copycat", "libtriton_copycat.so"),
        ("identity", "libtriton_foreign.so"),
        ("identity", "libtriton_identity.so"),
    ] {
        let folder = directory.join(backend);
        std::fs::create_dir_all(&folder).map_err(|error| format!("{folder:?}: {error}"))?;
        let mut compiler = Command::new("cc");
        compiler.args([
            "-std=c11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fvisibility=hidden",
            "-shared",
            "-fPIC",
            "-o",
        ]);
        match compiler.arg(folder.join(library)).arg(&source).output() {
            Err(error) => return Err(format!("no C compiler: {error}")),
            // A compiler that is there and refuses our own source is a failure, not a reason to skip.
            Ok(output) => assert!(output.status.success(), "{source:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
    Ok(directory)
}
