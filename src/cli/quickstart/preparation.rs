//! The preparation of an example: a folder, a lock on it, and programs that run while their progress is shown.
//!
//! The lock is a file that every program gets as its standard input. Where this program is killed, programs that it
//! started may live on, and so does the lock until they end, so that no other process works in the same folder
//! meanwhile.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use super::super::runtime::Progress;

/// Lines that are kept of a program's output, for the reason of a failure, which pip prints behind several retries.
const LINES_KEPT: usize = 12;
const LINE_BYTES_MAX: u64 = 2000;
/// Characters of it that are shown.
const DETAIL_CHARS_MAX: usize = 600;
/// The interval of [`Event::Tick`].
const TICK: Duration = Duration::from_millis(200);
/// Texts that pip prints where there is no network.
const UNREACHABLE: [&str; 8] = [
    "connection broken",
    "Connection",
    "timed out",
    "resolve",
    "SSLError",
    "ProxyError",
    "Network is unreachable",
    "Could not fetch URL",
];

/// Why an example could not be prepared. Each text names the next step.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error("there is no place for examples: neither XDG_DATA_HOME nor HOME is set")]
    NoHome,
    #[error("python3 is needed to make the example, but it does not start ({0}). Install Python 3.8 or newer")]
    NoPython(String),
    #[error(
        "python3 cannot make a virtual environment ({0}). On Debian and Ubuntu: apt install python3-venv; elsewhere \
         install Python's modules venv and ensurepip"
    )]
    NoVenv(String),
    #[error("{what} cannot be downloaded; is this host connected, and are proxies set? pip printed: {detail}")]
    Unreachable { what: &'static str, detail: String },
    #[error("pip does not find {what} for this Python and machine; a newer python3 on the PATH may help: {detail}")]
    NotOffered { what: &'static str, detail: String },
    #[error(
        "what was downloaded as {what} is not the file that this program was tested with, and was not used: {detail}"
    )]
    OtherFile { what: &'static str, detail: String },
    #[error(
        "there is no space left in {}; the example takes about {mib} MiB while it is made. Make room, or set \
         XDG_DATA_HOME to another place ({detail})", folder.display()
    )]
    NoSpace { folder: PathBuf, mib: u64, detail: String },
    #[error("{what} failed: {detail}")]
    Failed { what: &'static str, detail: String },
    #[error(
        "{} cannot be written: {source}. XDG_DATA_HOME names another place for what this program installs",
        path.display()
    )]
    File { path: PathBuf, source: io::Error },
}

/// A folder in which this process alone works.
pub(super) struct Workplace {
    pub folder: PathBuf,
    /// MiB that the work takes at most.
    pub mib: u64,
    lock: File,
}

/// An event of a running program.
pub(super) enum Event<'a> {
    /// A line on its standard output.
    Line(&'a str),
    /// No output for a while.
    Tick,
}

/// The end of a program: its status and the last lines of its output.
pub(super) struct Ended {
    pub status: ExitStatus,
    pub last_words: String,
}

impl Ended {
    /// As much of the last words as an error can show.
    pub fn detail(&self) -> String {
        let skipped = self.last_words.chars().count().saturating_sub(DETAIL_CHARS_MAX);
        let end: String = self.last_words.chars().skip(skipped).collect();
        if skipped == 0 { end } else { format!("... {end}") }
    }
}

impl Workplace {
    /// Waits, visibly, while another process works there.
    pub fn enter(folder: &Path, mib: u64, progress: &mut dyn Progress) -> Result<Workplace, PrepareError> {
        let wrong = |path: &Path, source| file_error(path, source, folder, mib);
        fs::create_dir_all(folder).map_err(|source| wrong(folder, source))?;
        let path = folder.join("lock");
        // Not read on purpose, but a program that reads its standard input must find an end.
        let lock = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let lock = lock.map_err(|source| wrong(&path, source))?;
        if lock.try_lock().is_err() {
            progress.step("Waiting for another quickstart, which prepares the same example");
            lock.lock().map_err(|source| wrong(&path, source))?;
        }
        Ok(Workplace { folder: folder.to_path_buf(), mib, lock })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// An empty folder; the files of an interrupted attempt are removed.
    pub fn emptied(&self, name: &str) -> Result<PathBuf, PrepareError> {
        let path = self.path(name);
        self.remove(&path)?;
        fs::create_dir_all(&path).map_err(|source| self.file_error(&path, source))?;
        Ok(path)
    }

    /// Removes a folder, if it is there.
    pub fn remove(&self, path: &Path) -> Result<(), PrepareError> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.file_error(path, error)),
            _ => Ok(()),
        }
    }

    pub fn write(&self, path: &Path, contents: &str) -> Result<(), PrepareError> {
        let folder = path.parent().unwrap_or(&self.folder);
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, contents));
        written.map_err(|source| self.file_error(path, source))
    }

    /// Moves a complete folder to its place, by one rename after its files are on the disk.
    pub fn put(&self, complete: &Path, place: &Path) -> Result<(), PrepareError> {
        let flushed = File::open(complete).and_then(|file| file.sync_all());
        flushed.and_then(|()| fs::rename(complete, place)).map_err(|source| self.file_error(place, source))
    }

    pub fn file_error(&self, path: &Path, source: io::Error) -> PrepareError {
        file_error(path, source, &self.folder, self.mib)
    }

    /// Runs a program to its end. Err: it does not start.
    pub fn run(&self, command: &mut Command, on_event: &mut dyn FnMut(Event<'_>)) -> io::Result<Ended> {
        command.stdin(Stdio::from(self.lock.try_clone()?)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        // The lock is the program's now; the description of it must not hold it any longer than that.
        command.stdin(Stdio::null());
        let mut child = spawned?;
        let (lines, received) = mpsc::sync_channel(LINES_KEPT);
        if let Some(stdout) = child.stdout.take() {
            read(stdout, true, lines.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            read(stderr, false, lines.clone());
        }
        drop(lines);
        // The cause of a failure is in one of the two, and a flood of the other must not hide it.
        let (mut outputs, mut errors) = (VecDeque::new(), VecDeque::new());
        loop {
            let (is_output, line) = match received.recv_timeout(TICK) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    on_event(Event::Tick);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if is_output {
                on_event(Event::Line(&line));
            }
            let last = if is_output { &mut outputs } else { &mut errors };
            if last.len() == LINES_KEPT {
                last.pop_front();
            }
            last.push_back(line);
        }
        let status = child.wait()?;
        outputs.append(&mut errors);
        let mut last_words: String = Vec::from(outputs).join("; ");
        if last_words.is_empty() {
            last_words = status.to_string();
        }
        Ok(Ended { status, last_words })
    }

    /// An error for a program that failed at `what`, with a text of its own where the reason is known.
    pub fn succeeded(&self, ended: &Ended, what: &'static str) -> Result<(), PrepareError> {
        if ended.status.success() {
            return Ok(());
        }
        let detail = ended.detail();
        let contains = |signs: &[&str]| signs.iter().any(|sign| ended.last_words.contains(sign));
        Err(if contains(&["No space left on device", "Disk quota exceeded"]) {
            PrepareError::NoSpace { folder: self.folder.clone(), mib: self.mib, detail }
        } else if contains(&["DO NOT MATCH THE HASHES"]) {
            PrepareError::OtherFile { what, detail }
        } else if contains(&UNREACHABLE) {
            PrepareError::Unreachable { what, detail }
        } else if contains(&["No matching distribution", "Could not find a version"]) {
            PrepareError::NotOffered { what, detail }
        } else {
            PrepareError::Failed { what, detail }
        })
    }
}

fn file_error(path: &Path, source: io::Error, folder: &Path, mib: u64) -> PrepareError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            PrepareError::NoSpace { folder: folder.to_path_buf(), mib, detail: source.to_string() }
        }
        _ => PrepareError::File { path: path.to_path_buf(), source },
    }
}

/// Sends the lines of a stream until its end, each cut to a length that can be shown.
fn read(stream: impl Read + Send + 'static, is_output: bool, lines: SyncSender<(bool, String)>) {
    let mut stream = BufReader::new(stream);
    std::thread::spawn(move || {
        let mut line = Vec::new();
        loop {
            line.clear();
            match stream.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            if !text.is_empty() && lines.send((is_output, text)).is_err() {
                return;
            }
        }
    });
}

/// Bytes of all files in a folder and those below it; files that vanish meanwhile are not counted.
pub(super) fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => size_of(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
