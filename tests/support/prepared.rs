//! Files that tests download or build, under target/, once for all test binaries.

use crate::paths;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory `target/<name>`, filled by `make` unless an earlier run has completed that. Concurrent callers wait.
/// `name` contains everything on which the contents depend.
pub fn prepared(name: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let target = paths::target();
    let root = target.join(name);
    let lock = target.join(format!("{name}.lock"));
    let lock = File::create(&lock).map_err(|error| format!("{lock:?}: {error}"))?;
    lock.lock().map_err(|error| format!("the lock of {root:?}: {error}"))?;
    let complete = root.join("complete");
    if !complete.exists() {
        // The files of an interrupted attempt may be incomplete.
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).map_err(|error| format!("{root:?}: {error}"))?;
        make(&root)?;
        fs::write(&complete, b"").map_err(|error| format!("{complete:?}: {error}"))?;
    }
    Ok(root)
}

/// Runs a command to its end; Err contains its output.
pub fn step(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Err(error) => Err(format!("{:?}: {error}", command.get_program())),
        Ok(output) => {
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            if output.status.success() { Ok(out.into_owned()) } else { Err(format!("{}: {out}{err}", output.status)) }
        }
    }
}

/// A file of this repository.
pub fn source(path: &str) -> PathBuf {
    paths::root().join(path)
}

/// A hash of the contents (FNV-1a), so that results of an older file are not used for a newer one.
pub fn fingerprint(contents: &[&[u8]]) -> String {
    let bytes = contents.iter().flat_map(|bytes| bytes.iter());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
