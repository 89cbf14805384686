//! The audit log: one line of JSON for every call that changes the server, written by a thread of its own.
//!
//! It is apart from the log, because it has another reader and must not be switched off by a client. Who records never
//! waits: what finds the queue full is counted and lost, and the log says how many were.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use tracing::{error, info};

use super::log::push_json_string;

/// Records that may wait for the thread.
const RECORDS_MAX: usize = 4096;
/// Bytes of a text in a record; clients choose them.
const TEXT_BYTES_MAX: usize = 512;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    pub at: SystemTime,
    /// `None`: over a Unix socket.
    pub peer: Option<SocketAddr>,
    pub protocol: &'static str,
    /// Method and path, or the name of the RPC.
    pub call: String,
    pub action: &'static str,
    /// What it is about: a model, a region; empty: the server.
    pub subject: String,
    /// The name of the key that let it in; `None`: it needed none, or had none that is valid.
    pub key: Option<Arc<str>>,
    pub outcome: Outcome,
    /// The status that the client got.
    pub status: Cow<'static, str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It had no valid key.
    Refused,
    Failed,
    /// The server ended before.
    Unfinished,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::Unfinished => "unfinished",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("failed to open audit log '{}': {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("failed to start the audit log's thread: {0}")]
    Thread(io::Error),
}

enum Entry {
    Record(Box<AuditRecord>),
    /// Everything before it is written when this is sent.
    Flush(SyncSender<()>),
}

/// See the [module](self).
#[derive(Debug)]
pub struct AuditLog {
    records: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl AuditLog {
    /// `-` is stdout. A file is appended to, and readable by its owner alone when it is new.
    pub fn start(path: &Path) -> Result<AuditLog, AuditError> {
        let sink = match path == Path::new("-") {
            true => Sink::Stdout,
            false => Sink::open(path).map_err(|error| AuditError::Open { path: path.to_owned(), error })?,
        };
        let (records, waiting) = sync_channel(RECORDS_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer { sink, dropped: Arc::clone(&dropped), reported: 0, is_failing: false };
        let thread = std::thread::Builder::new().name("audit-log".to_owned());
        thread.spawn(move || writer.run(&waiting)).map_err(AuditError::Thread)?;
        Ok(AuditLog { records, dropped })
    }

    /// Never waits.
    pub fn record(&self, record: AuditRecord) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.records.try_send(Entry::Record(Box::new(record)))
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that are lost.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all that was recorded is written, for `patience` at most. False if that is not certain.
    pub fn flush(&self, patience: Duration) -> bool {
        let (done, written) = sync_channel(1);
        // At the end of the server no shard records any more, so that the thread soon makes room.
        let started = std::time::Instant::now();
        let mut entry = Entry::Flush(done);
        loop {
            entry = match self.records.try_send(entry) {
                Ok(()) => break,
                Err(TrySendError::Full(entry)) if started.elapsed() < patience => entry,
                Err(_) => return false,
            };
            std::thread::sleep(Duration::from_millis(1));
        }
        written.recv_timeout(patience).is_ok()
    }
}

enum Sink {
    Stdout,
    /// With its device and inode: a file that was moved away is opened anew.
    File {
        path: PathBuf,
        file: std::fs::File,
        id: (u64, u64),
    },
}

impl Sink {
    fn open(path: &Path) -> io::Result<Sink> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let found = file.metadata()?;
        Ok(Sink::File { path: path.to_owned(), file, id: (found.dev(), found.ino()) })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if let Sink::File { path, id, .. } = self {
            let is_there = std::fs::metadata(&*path).is_ok_and(|found| (found.dev(), found.ino()) == *id);
            if !is_there {
                *self = Sink::open(&path.clone())?;
            }
        }
        match self {
            Sink::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush())
            }
            Sink::File { file, .. } => file.write_all(line.as_bytes()),
        }
    }
}

struct Writer {
    sink: Sink,
    dropped: Arc<AtomicU64>,
    /// Lost records that the log has reported.
    reported: u64,
    is_failing: bool,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Entry>) {
        while let Ok(entry) = waiting.recv() {
            match entry {
                Entry::Record(record) => self.write(&record),
                Entry::Flush(done) => {
                    let _ = done.try_send(());
                }
            }
            self.report_losses();
        }
    }

    fn write(&mut self, record: &AuditRecord) {
        match self.sink.write(&line(record)) {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                info!("the audit log can be written again");
            }
            Ok(()) => {}
            Err(failure) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_failing, true) {
                    error!("the audit log cannot be written, its records are lost and counted: {failure}");
                }
            }
        }
    }

    fn report_losses(&mut self) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if !self.is_failing && dropped != self.reported {
            error!("{} records of the audit log were lost", dropped.wrapping_sub(self.reported));
            self.reported = dropped;
        }
    }
}

/// The line of a record, with its end.
fn line(record: &AuditRecord) -> String {
    let mut text = String::from("{\"time\":\"");
    text.push_str(&DateTime::<Utc>::from(record.at).to_rfc3339_opts(SecondsFormat::Millis, true));
    text.push('"');
    let peer = record.peer.map_or_else(|| "unix".to_owned(), |peer| peer.to_string());
    let members = [
        ("peer", Some(&*peer)),
        ("protocol", Some(record.protocol)),
        ("call", Some(&*record.call)),
        ("action", Some(record.action)),
        ("subject", Some(&*record.subject).filter(|subject| !subject.is_empty())),
        ("key", record.key.as_deref()),
        ("outcome", Some(record.outcome.name())),
        ("status", Some(&*record.status)),
    ];
    for (name, value) in members {
        let Some(value) = value else { continue };
        let _ = write!(text, ",\"{name}\":");
        let kept = value.get(..value.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default();
        push_json_string(&mut text, kept);
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(subject: &str) -> AuditRecord {
        AuditRecord {
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_243_157_123),
            peer: Some(([127, 0, 0, 1], 4711).into()),
            protocol: "http",
            call: "POST /v2/repository/models/m/load".to_owned(),
            action: "load",
            subject: subject.to_owned(),
            key: Some("alice".into()),
            outcome: Outcome::Failed,
            status: "400".into(),
        }
    }

    #[test]
    fn a_record_is_one_line_of_json_whatever_its_texts_are() {
        let hostile = format!("m\"\n\u{7f}\u{2028}{}", "é".repeat(TEXT_BYTES_MAX));
        let text = line(&record(&hostile));
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let subject = json["subject"].as_str().unwrap();
        assert!(hostile.starts_with(subject) && subject.len() <= TEXT_BYTES_MAX && subject.len() > TEXT_BYTES_MAX - 2);
        let shown = (&json["time"], &json["peer"], &json["key"], &json["outcome"]);
        assert_eq!(shown.0, "2026-11-21T06:39:17.123Z");
        assert_eq!((shown.1, shown.2, shown.3), (&"127.0.0.1:4711".into(), &"alice".into(), &"failed".into()));
        let bare = AuditRecord { peer: None, key: None, ..record("") };
        let json: serde_json::Value = serde_json::from_str(&line(&bare)).unwrap();
        assert_eq!(json["peer"], "unix");
        assert!(json.get("key").is_none() && json.get("subject").is_none());
    }

    #[test]
    fn a_file_that_was_moved_away_is_opened_anew_and_is_private() {
        let directory = std::env::temp_dir().join(format!("nereid-audit-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("audit");
        let log = AuditLog::start(&path).unwrap();
        log.record(record("first"));
        assert!(log.flush(Duration::from_secs(60)));
        std::fs::rename(&path, directory.join("moved")).unwrap();
        log.record(record("second"));
        assert!(log.flush(Duration::from_secs(60)));
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(read("moved").contains("first") && !read("moved").contains("second"));
        assert!(read("audit").contains("second"));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(log.dropped(), 0);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let log = AuditLog::start(Path::new("/dev/full")).unwrap();
        log.record(record("lost"));
        assert!(log.flush(Duration::from_secs(60)));
        assert_eq!(log.dropped(), 1);
        assert!(matches!(AuditLog::start(Path::new("/nowhere/audit")), Err(AuditError::Open { .. })));
    }
}
