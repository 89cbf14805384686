//! Python environments with the official Triton client, ONNX Runtime and other packages that tests use, each created
//! once for its file of requirements.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use crate::paths;
use crate::skip::skip;

/// How a file begins that lists everything itself: files of requirements have no way to say so.
const NO_DEPENDENCIES: &[u8] = b"# no-deps";

/// An environment with the packages of one of the files in tests/python.
#[derive(Clone, Debug)]
pub struct Python {
    root: PathBuf,
}

impl Python {
    /// The environment of the client and ONNX Runtime.
    pub fn get() -> Option<Python> {
        Python::with("requirements.txt")
    }

    /// The environment under target/ with the packages of tests/python/`requirements`. The first caller creates it,
    /// others wait. None, after a visible skip, if Python, its venv module or the packages are not available.
    pub fn with(requirements: &'static str) -> Option<Python> {
        type Made = Vec<(&'static str, Result<Python, String>)>;
        static MADE: Mutex<Made> = Mutex::new(Vec::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let known = made.iter().find(|(name, _)| *name == requirements).map(|(_, python)| python.clone());
        let python = known.unwrap_or_else(|| {
            let python = make(requirements);
            made.push((requirements, python.clone()));
            python
        });
        drop(made);
        match python {
            Ok(python) => Some(python),
            Err(reason) => {
                skip(&reason);
                None
            }
        }
    }

    /// An environment that was created in another way.
    pub fn at(root: &Path) -> Python {
        Python { root: root.to_owned() }
    }

    /// The interpreter itself.
    pub fn interpreter(&self) -> PathBuf {
        self.root.join("bin/python")
    }

    /// tests/python/`script`.
    pub fn script(&self, script: &str) -> PathBuf {
        paths::root().join("tests/python").join(script)
    }

    /// The command that runs it.
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new(self.root.join("bin/python"));
        // -B: no byte code next to the sources.
        command.arg("-B").arg(self.script(script));
        command.env("PYTHONUNBUFFERED", "1");
        command
    }

    /// Runs tests/python/`script`; its output is shown when it fails, and returned.
    pub fn run(&self, script: &str, arguments: &[&str]) -> String {
        let output = self.command(script).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("{script} does not start: {error}"));
        let text = text_of(&output);
        assert!(output.status.success(), "{script} {arguments:?}: {}\n{text}", output.status);
        text
    }

    /// `--backend-config` that names the ONNX Runtime library of this environment.
    pub fn onnxruntime_flag(&self) -> String {
        format!("--backend-config=onnxruntime,library={}", self.onnxruntime().display())
    }

    /// The directory of its packages: `…/lib/python<version>/site-packages`.
    pub fn packages(&self) -> PathBuf {
        let lib = self.root.join("lib");
        let found = entries(&lib).into_iter().map(|python| python.join("site-packages")).find(|path| path.is_dir());
        found.unwrap_or_else(|| panic!("no packages under {}", lib.display()))
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

fn make(requirements: &str) -> Result<Python, String> {
    let requirements = paths::root().join("tests/python").join(requirements);
    let wanted = fs::read(&requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    let root = paths::target().join(format!("python-env-{:016x}", fingerprint(&wanted)));
    let complete = root.join("complete");
    let lock = File::create(root.with_extension("lock")).map_err(|error| format!("lock of {root:?}: {error}"))?;
    lock.lock().map_err(|error| format!("lock of {root:?}: {error}"))?;
    if !complete.exists() {
        // The files of an interrupted attempt may be incomplete.
        let _ = fs::remove_dir_all(&root);
        step(Command::new("python3").args(["-m", "venv"]).arg(&root), "no Python environment")?;
        let mut install = Command::new(root.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "-r"]);
        install.arg(&requirements);
        if wanted.starts_with(NO_DEPENDENCIES) {
            install.arg("--no-deps");
        }
        step(&mut install, "the client's packages cannot be installed")?;
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

/// FNV-1a: the same with every compiler, unlike the standard library's hasher.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
