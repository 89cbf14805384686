//! Records exchanges in a file: a bounded queue, and a thread that empties it.
//!
//! A shard never waits. What finds the queue full is dropped and counted; so is what comes when the file has its
//! length. Each record is written as a whole before the thread waits again, so that a server that is killed leaves a
//! file that can be read.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracing::{error, info};

use super::exchange::Exchange;
use super::format::{FORMAT, FileHead, VERSION, WriteError, write_head, write_record};
use super::redaction::Redaction;

/// Exchanges that may wait for the thread.
const QUEUE_MAX: usize = 1024;
/// Bytes that they may hold together; one that holds more waits alone.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// What is recorded, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub path: PathBuf,
    /// One of so many requests is recorded.
    pub rate: u32,
    /// With headers and bodies.
    pub data: bool,
    /// Of the file.
    pub byte_size_max: u64,
    pub redaction: Redaction,
}

#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    #[error("'{}' exists already, and a recording replaces no file; remove it or name another one", .0.display())]
    Exists(PathBuf),
    #[error("cannot create '{}': {error}; does its directory exist, and may this user write there?", path.display())]
    Create { path: PathBuf, error: io::Error },
    #[error("cannot write '{}': {error}", path.display())]
    Head { path: PathBuf, error: WriteError },
    #[error("cannot start the thread that writes: {0}")]
    Thread(io::Error),
}

/// What became of a request that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Written,
    /// The queue was full.
    Dropped,
    /// The file had its length.
    Full,
    /// It could not be written.
    Failed,
}

impl Outcome {
    pub const ALL: [Outcome; 4] = [Outcome::Written, Outcome::Dropped, Outcome::Full, Outcome::Failed];

    /// The label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Written => "written",
            Outcome::Dropped => "dropped",
            Outcome::Full => "full",
            Outcome::Failed => "failed",
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// By [`Outcome`].
    outcomes: [AtomicU64; 4],
    bytes_written: AtomicU64,
    bytes_waiting: AtomicU64,
    /// Nothing more is written.
    is_over: AtomicBool,
    /// And that is because of an error.
    has_failed: AtomicBool,
}

impl Shared {
    fn count(&self, outcome: Outcome) {
        if let Some(count) = self.outcomes.get(outcome as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

enum Entry {
    Exchange(Box<Exchange>),
    /// Everything before it is written when this is sent.
    Flush(SyncSender<()>),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Recorder {
    settings: Settings,
    queue: SyncSender<Entry>,
    shared: Arc<Shared>,
    started: Instant,
}

impl Recorder {
    /// Creates the file, for its owner alone. One that is there, or a link, is an error.
    pub fn start(settings: Settings, server: &str) -> Result<Recorder, RecorderError> {
        let path = settings.path.clone();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => RecorderError::Exists(path.clone()),
            _ => RecorderError::Create { path: path.clone(), error },
        })?;
        let head = FileHead {
            format: FORMAT.to_owned(),
            version: VERSION,
            server: server.to_owned(),
            started_unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            data: settings.data,
            rate: settings.rate,
            redacted: settings.redaction.names().to_vec(),
        };
        let mut out = BufWriter::new(file);
        let head = write_head(&head, &mut out).and_then(|bytes| Ok(out.flush().map(|()| bytes)?));
        let head_bytes = head.map_err(|error| RecorderError::Head { path, error })?;
        let shared = Arc::new(Shared::default());
        shared.bytes_written.store(head_bytes, Ordering::Relaxed);
        let (queue, waiting) = sync_channel(QUEUE_MAX);
        let writer = Writer { out, settings: settings.clone(), shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("recorder".to_owned());
        thread.spawn(move || writer.run(&waiting)).map_err(RecorderError::Thread)?;
        Ok(Recorder { settings, queue, shared, started: Instant::now() })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Since the recording began.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn path(&self) -> &Path {
        &self.settings.path
    }

    /// Whether a request is worth keeping until its answer; counts it if it is not.
    pub fn is_open(&self) -> bool {
        let is_over = self.shared.is_over.load(Ordering::Relaxed);
        if is_over {
            let has_failed = self.shared.has_failed.load(Ordering::Relaxed);
            self.shared.count(if has_failed { Outcome::Failed } else { Outcome::Full });
        }
        !is_over
    }

    /// Nothing more is written.
    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Relaxed)
    }

    /// A request that is not kept until its answer, because too many are.
    pub fn drop_one(&self) {
        self.shared.count(Outcome::Dropped);
    }

    /// Never waits. `held_max`: bytes that exchanges may hold of the memory of requests while they wait.
    pub fn record(&self, exchange: Exchange, held_max: u64) {
        let held = exchange.held();
        let before = self.shared.bytes_waiting.fetch_add(held, Ordering::Relaxed);
        let fits = before == 0 || before.saturating_add(held) <= held_max.min(QUEUE_BYTES_MAX);
        let sent = fits.then(|| self.queue.try_send(Entry::Exchange(Box::new(exchange))));
        if !matches!(sent, Some(Ok(()))) {
            self.shared.bytes_waiting.fetch_sub(held, Ordering::Relaxed);
            self.shared.count(Outcome::Dropped);
        }
    }

    /// Requests with that outcome.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.shared.outcomes.get(outcome as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Of the file.
    pub fn bytes_written(&self) -> u64 {
        self.shared.bytes_written.load(Ordering::Relaxed)
    }

    /// Waits until all that was recorded is written, for `patience` at most. False if that is not certain.
    pub fn flush(&self, patience: Duration) -> bool {
        let (done, written) = sync_channel(1);
        let (mut entry, started) = (Entry::Flush(done), Instant::now());
        loop {
            entry = match self.queue.try_send(entry) {
                Ok(()) => break,
                Err(TrySendError::Full(entry)) if started.elapsed() < patience => entry,
                Err(_) => return false,
            };
            std::thread::sleep(Duration::from_millis(1));
        }
        written.recv_timeout(patience).is_ok()
    }
}

struct Writer {
    out: BufWriter<File>,
    settings: Settings,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Entry>) {
        loop {
            let entry = match waiting.try_recv() {
                Ok(entry) => entry,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.flush();
                    let Ok(entry) = waiting.recv() else { break };
                    entry
                }
            };
            match entry {
                Entry::Exchange(exchange) => {
                    let held = exchange.held();
                    self.write(*exchange);
                    self.shared.bytes_waiting.fetch_sub(held, Ordering::Relaxed);
                }
                Entry::Flush(done) => {
                    self.flush();
                    let _ = done.try_send(());
                }
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if let Err(failure) = self.out.flush() {
            self.fail(&failure);
        }
    }

    fn fail(&mut self, failure: &dyn std::fmt::Display) {
        self.shared.has_failed.store(true, Ordering::Relaxed);
        if !self.shared.is_over.swap(true, Ordering::Relaxed) {
            let path = self.settings.path.display();
            error!("recording ends, because '{path}' cannot be written: {failure}; requests are served as before");
        }
    }

    fn write(&mut self, exchange: Exchange) {
        if self.shared.is_over.load(Ordering::Relaxed) {
            let has_failed = self.shared.has_failed.load(Ordering::Relaxed);
            return self.shared.count(if has_failed { Outcome::Failed } else { Outcome::Full });
        }
        let Settings { data, byte_size_max, redaction, path, .. } = &self.settings;
        let mut record = exchange.record(*data, redaction);
        let bytes_left = byte_size_max.saturating_sub(self.shared.bytes_written.load(Ordering::Relaxed));
        match write_record(&mut record, bytes_left, &mut self.out) {
            Ok(Some(bytes)) => {
                self.shared.bytes_written.fetch_add(bytes, Ordering::Relaxed);
                self.shared.count(Outcome::Written);
            }
            Ok(None) => {
                self.shared.is_over.store(true, Ordering::Relaxed);
                self.shared.count(Outcome::Full);
                info!(
                    "recording ends, because '{}' has its {byte_size_max} bytes (--record-byte-size)",
                    path.display()
                );
            }
            Err(WriteError::Io(failure)) => {
                self.shared.count(Outcome::Failed);
                self.fail(&failure);
            }
            // That one does not fit into the format.
            Err(_) => self.shared.count(Outcome::Failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::exchange::{Answer, Body};
    use crate::format::Protocol;
    use crate::reader::Reader;
    use nereid_memory::Slice;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("nereid-recorder-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn settings(path: PathBuf) -> Settings {
        Settings { path, rate: 1, data: true, byte_size_max: 1 << 20, redaction: Redaction::default() }
    }

    fn exchange(bytes: usize) -> Exchange {
        let text = format!("{{\"inputs\":[],\"id\":\"{}\"}}", "x".repeat(bytes));
        let body = |text: &str| Body {
            pieces: vec![Slice::copy_of(text.as_bytes())],
            byte_size: text.len() as u64,
            ..Body::default()
        };
        Exchange {
            at_ns: 1,
            took_ns: 2,
            protocol: Protocol::Http,
            model: "m".to_owned(),
            version: String::new(),
            path: "/".to_owned(),
            headers: Vec::new(),
            request: body(&text),
            answer: Some(Answer { status: 200, message: String::new(), body: body("{}") }),
        }
    }

    fn records(path: &Path) -> usize {
        let mut reader = Reader::open(path).unwrap();
        let mut count = 0;
        while reader.next_record().unwrap().is_some() {
            count += 1;
        }
        assert!(!reader.is_cut_short());
        count
    }

    #[test]
    fn what_was_recorded_is_there_while_the_server_runs() {
        let directory = directory("written");
        let path = directory.join("file");
        let recorder = Recorder::start(settings(path.clone()), "nereid 1").unwrap();
        for _ in 0..3 {
            assert!(recorder.is_open());
            recorder.record(exchange(10), u64::MAX);
        }
        assert!(recorder.flush(PATIENCE));
        assert_eq!((records(&path), recorder.count(Outcome::Written)), (3, 3));
        assert_eq!(recorder.bytes_written(), std::fs::metadata(&path).unwrap().len());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_file_or_link_that_is_there_is_not_touched() {
        let directory = directory("exists");
        let (file, link) = (directory.join("file"), directory.join("link"));
        std::fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(directory.join("nowhere"), &link).unwrap();
        for path in [&file, &link] {
            let error = Recorder::start(settings(path.clone()), "").unwrap_err();
            assert!(matches!(&error, RecorderError::Exists(_)), "{error}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"before");
        let error = Recorder::start(settings(directory.join("none/file")), "").unwrap_err();
        assert!(matches!(error, RecorderError::Create { .. }));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_full_file_ends_the_recording() {
        let directory = directory("full");
        let path = directory.join("file");
        let recorder = Recorder::start(Settings { byte_size_max: 3000, ..settings(path.clone()) }, "nereid 1").unwrap();
        for _ in 0..4 {
            recorder.record(exchange(1000), u64::MAX);
        }
        assert!(recorder.flush(PATIENCE));
        assert!(!recorder.is_open());
        assert_eq!((recorder.count(Outcome::Written), recorder.count(Outcome::Full)), (2, 3));
        assert!(std::fs::metadata(&path).unwrap().len() <= 3000);
        assert_eq!(records(&path), 2);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_disk_that_is_full_ends_the_recording() {
        let shared = Arc::new(Shared::default());
        let out = BufWriter::new(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let mut writer = Writer { out, settings: settings("/dev/full".into()), shared: Arc::clone(&shared) };
        writer.write(exchange(100_000));
        writer.write(exchange(1));
        assert_eq!(shared.outcomes[Outcome::Failed as usize].load(Ordering::Relaxed), 2);
        assert!(shared.is_over.load(Ordering::Relaxed));
    }

    #[test]
    fn what_does_not_fit_into_the_queue_is_dropped_and_counted() {
        let (queue, waiting) = sync_channel(2);
        let shared = Arc::new(Shared::default());
        let recorder = Recorder { settings: settings("/nowhere".into()), queue, shared, started: Instant::now() };
        let held = exchange(100).held();
        // An exchange that holds more than all may goes alone.
        recorder.record(exchange(100), held - 1);
        recorder.record(exchange(100), held + 1);
        assert_eq!(recorder.count(Outcome::Dropped), 1);
        recorder.record(exchange(100), u64::MAX);
        recorder.record(exchange(100), u64::MAX);
        assert_eq!(recorder.count(Outcome::Dropped), 2);
        assert_eq!(recorder.shared.bytes_waiting.load(Ordering::Relaxed), 2 * held);
        drop(waiting);
        recorder.record(exchange(100), u64::MAX);
        assert_eq!(recorder.count(Outcome::Dropped), 3);
    }
}
