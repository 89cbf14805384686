//! The backends of tests/backends, each compiled when a test first needs it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::paths;
use crate::skip::skip;

/// A directory for `--backend-directory` with the identity backend in C under three names: as backend `copycat`, as
/// `identity/libtriton_foreign.so` for configurations that name it as their `runtime`, and as the backend `identity` of
/// other servers. None, after a visible skip, without a C compiler.
pub fn directory() -> Option<PathBuf> {
    let libraries = ["copycat/libtriton_copycat.so", "identity/libtriton_foreign.so", "identity/libtriton_identity.so"];
    made("identity.c", &libraries)
}

/// The flag for that directory.
pub fn directory_flag() -> Option<String> {
    directory().map(|directory| format!("--backend-directory={}", directory.display()))
}

/// A directory for `--backend-directory` with the backend compiled from `file` (`.c` or `.cc`), under the name of the
/// file. None, after a visible skip, without a compiler.
pub fn compiled(file: &str) -> Option<PathBuf> {
    let name = file.split('.').next().unwrap_or(file);
    made(file, &[&format!("{name}/libtriton_{name}.so")])
}

/// The same under other names: `libraries` are `<backend>/libtriton_<backend>.so`.
pub fn compiled_as(file: &str, libraries: &[&str]) -> Option<PathBuf> {
    made(file, libraries)
}

/// The result of compiling each file.
type Made = HashMap<String, Result<PathBuf, String>>;

fn made(file: &str, libraries: &[&str]) -> Option<PathBuf> {
    static MADE: Mutex<Option<Made>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default().entry(file.to_owned()).or_insert_with(|| compile(file, libraries));
    match made {
        Ok(directory) => Some(directory.clone()),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn compile(file: &str, libraries: &[&str]) -> Result<PathBuf, String> {
    let source = paths::root().join("tests/backends").join(file);
    let directory = paths::temporary().join(format!("{file}-{}", std::process::id()));
    let headers = ["include", "tests/native_programs"].map(|path| paths::root().join(path));
    let (program, standard) = if file.ends_with(".cc") { ("c++", "-std=c++17") } else { ("cc", "-std=c11") };
    for library in libraries {
        let path = directory.join(library);
        let folder = path.parent().unwrap_or(&directory);
        std::fs::create_dir_all(folder).map_err(|error| format!("{folder:?}: {error}"))?;
        let mut compiler = Command::new(program);
        compiler.args([standard, "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC"]);
        for headers in &headers {
            compiler.arg("-I").arg(headers);
        }
        match compiler.args(["-pthread", "-o"]).arg(&path).arg(&source).output() {
            Err(error) => return Err(format!("no compiler '{program}': {error}")),
            // If there is a compiler and it rejects our own source, that is a failure and not a reason to skip.
            Ok(output) => assert!(output.status.success(), "{source:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
    Ok(directory)
}
