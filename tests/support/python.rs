//! The official Triton client and ONNX Runtime, in a Python environment of our own that is made once per set of
//! requirements.

#![allow(dead_code)] // Every test binary takes the part of tests/support that it needs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::skip::skip;

/// An environment with tests/python/requirements.txt installed.
#[derive(Clone, Debug)]
pub struct Python {
    root: PathBuf,
}

impl Python {
    /// The environment under target/; made by the first who asks, others wait. None, after a visible skip, where
    /// Python, its venv module or the packages cannot be had.
    pub fn get() -> Option<Python> {
        static MADE: OnceLock<Result<Python, String>> = OnceLock::new();
        match MADE.get_or_init(make) {
            Ok(python) => Some(python.clone()),
            Err(reason) => {
                skip(reason);
                None
            }
        }
    }

    /// Runs tests/python/`script`; its output is shown when it fails, and returned.
    pub fn run(&self, script: &str, arguments: &[&str]) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
        let mut command = Command::new(self.root.join("bin/python"));
        // -B: no byte code next to the sources.
        command.arg("-B").arg(&path).args(arguments).env("PYTHONUNBUFFERED", "1");
        let output = command.output().unwrap_or_else(|error| panic!("{script} does not start: {error}"));
        let text = text_of(&output);
        assert!(output.status.success(), "{script} {arguments:?}: {}\n{text}", output.status);
        text
    }

    /// `--backend-config` that names the ONNX Runtime library of this environment.
    pub fn onnxruntime_flag(&self) -> String {
        format!("--backend-config=onnxruntime,library={}", self.onnxruntime().display())
    }

    /// The library itself: `…/onnxruntime/capi/libonnxruntime.so.<version>`.
    pub fn onnxruntime(&self) -> PathBuf {
        let lib = self.root.join("lib");
        let found = entries(&lib).into_iter().find_map(|python| {
            let capi = python.join("site-packages/onnxruntime/capi");
            entries(&capi).into_iter().find(|path| name_of(path).starts_with("libonnxruntime.so."))
        });
        found.unwrap_or_else(|| panic!("no libonnxruntime.so.* under {}", lib.display()))
    }
}

fn make() -> Result<Python, String> {
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/requirements.txt");
    let wanted = fs::read(&requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("no target directory")?;
    let root = target.join(format!("python-env-{:016x}", fingerprint(&wanted)));
    let complete = root.join("complete");
    let lock = File::create(root.with_extension("lock")).map_err(|error| format!("lock of {root:?}: {error}"))?;
    lock.lock().map_err(|error| format!("lock of {root:?}: {error}"))?;
    if !complete.exists() {
        // What an interrupted attempt left is not trusted.
        let _ = fs::remove_dir_all(&root);
        step(Command::new("python3").args(["-m", "venv"]).arg(&root), "no Python environment")?;
        let mut install = Command::new(root.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "-r"]);
        step(install.arg(&requirements), "the client's packages cannot be installed")?;
        fs::write(&complete, b"").map_err(|error| format!("{complete:?}: {error}"))?;
    }
    Ok(Python { root })
}

fn step(command: &mut Command, what: &str) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{what}: {}: {}", output.status, text_of(&output))),
        Err(error) => Err(format!("{what}: {:?}: {error}", command.get_program())),
    }
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(directory) else { return Vec::new() };
    read.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// FNV-1a: stable over compilers, unlike the standard library's hasher.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
