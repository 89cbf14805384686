//! `nereid perf` as a user starts it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::repository::{Pair, Repository};
use crate::support::server::Server;
use crate::support::variant::usual;

/// How a run ended, and what it said.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn perf<S: AsRef<OsStr>>(arguments: &[S]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nereid"));
    command.arg("perf").args(arguments).stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|error| panic!("nereid perf does not start: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// The same, and it has to end well.
pub fn measured(arguments: &[&str]) -> Outcome {
    let outcome = perf(arguments);
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:#?}");
    outcome
}

/// `numbers` takes batches, and leaves one size open; `text` takes strings.
pub fn start() -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("numbers", 8, &[Pair::new("INT32", "16"), Pair::new("FP32", "-1, 4")]);
    repository.identity("text", 8, &[Pair::new("BYTES", "-1")]);
    let server = Server::start(usual(), repository.path(), &["--allow-client-shm=true"]);
    (repository, server)
}

/// A directory for reports that goes with its owner.
pub struct Reports(PathBuf);

impl Reports {
    pub fn new() -> Reports {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("perf-reports-{}-{count}", std::process::id());
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).expect("the build's temporary directory can be written");
        Reports(root)
    }

    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    pub fn write(&self, name: &str, content: &str) -> String {
        let path = self.at(name);
        std::fs::write(&path, content).unwrap_or_else(|error| panic!("{path}: {error}"));
        path
    }

    pub fn read(&self, name: &str) -> String {
        let path = self.at(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
