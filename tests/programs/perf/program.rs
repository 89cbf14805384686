//! `nereid perf` as a user starts it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;

use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::usual;

/// How a run ended, and what it said.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    /// That ended it, if one did.
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn perf<S: AsRef<OsStr>>(arguments: &[S]) -> Outcome {
    let mut command = command(arguments);
    let output = command.output().unwrap_or_else(|error| panic!("nereid perf does not start: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let status = output.status;
    Outcome { code: status.code(), signal: status.signal(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nereid"));
    command.arg("perf").args(arguments).stdin(Stdio::null());
    command
}

/// A run that is under way. Dropping it ends it.
pub struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    progress: Receiver<String>,
    stderr: String,
}

impl Running {
    pub fn start<S: AsRef<OsStr>>(arguments: &[S]) -> Running {
        let mut command = command(arguments);
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("nereid perf does not start: {error}"));
        let mut stdout = child.stdout.take().expect("it is piped");
        let stdout = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).expect("text");
            text
        });
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let (say, progress) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| say.send(line)));
        Running { child, stdout: Some(stdout), progress, stderr: String::new() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it tells of this on stderr.
    pub fn wait_for(&mut self, part: &str) {
        loop {
            let line = self.progress.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("it never says {part:?}: {error}: {}", self.stderr));
            self.stderr += &format!("{line}\n");
            if line.contains(part) {
                return;
            }
        }
    }

    pub fn finish(mut self) -> Outcome {
        let silence = loop {
            match self.progress.recv_timeout(PATIENCE) {
                Ok(line) => self.stderr += &format!("{line}\n"),
                Err(silence) => break silence,
            }
        };
        let stderr = std::mem::take(&mut self.stderr);
        assert_eq!(silence, RecvTimeoutError::Disconnected, "it does not end: {stderr}");
        let status = self.child.wait().expect("its end");
        let stdout = self.stdout.take().and_then(|reader| reader.join().ok()).expect("what it printed");
        Outcome { code: status.code(), signal: status.signal(), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same, and it has to end well, with figures. A busy host may keep the load generator from its core, and the
/// figures are void then: it measures again, over the same reports.
pub fn measured(arguments: &[&str]) -> Outcome {
    const TRIES: usize = 20;
    let mut outcome = perf(arguments);
    for _ in 1..TRIES {
        if outcome.code != Some(4) {
            break;
        }
        outcome = perf(arguments);
    }
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:#?}");
    outcome
}

/// `numbers` takes batches, and leaves one size open; `text` takes strings.
pub fn start() -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("numbers", 8, &[Pair::new("INT32", "16"), Pair::new("FP32", "-1, 4")]);
    repository.identity("text", 8, &[Pair::new("BYTES", "-1")]);
    let server = Server::start(usual(), repository.path(), &["--allow-client-shm=true", "--id=harbour"]);
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
