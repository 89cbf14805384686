//! The one thread that writes the log, and the bounded queue in front of it.
//!
//! A shard or a worker hands over a record without waiting: when the disk or the terminal is slow, messages are dropped
//! and counted, and no request is delayed (docs/design.md, decision 5).

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::recent;
use super::record::{Record, Severity};
use super::switches::Switches;

/// Records that may wait.
pub const CAPACITY: usize = 1024;

/// Bytes that records may hold while they wait.
pub const BYTES_WAITING_MAX: usize = 16 * 1024 * 1024;

/// Bytes that are written at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// The streams that lines are written to.
pub struct Sinks {
    pub plain: Box<dyn Write + Send>,
    /// For warnings and errors; `None`: all go to `plain`.
    pub errors: Option<Box<dyn Write + Send>>,
    /// Gets one line when writing begins to fail: where `plain` is a file, no other stream would show the failure.
    pub fallback: Option<Box<dyn Write + Send>>,
}

/// The sending end. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Queue {
    state: Arc<RwLock<State>>,
    counts: Arc<Counts>,
    capacity: usize,
}

/// Written only where the thread begins or ends: threads that log share the read lock.
#[derive(Debug)]
enum State {
    Writing {
        sender: SyncSender<Entry>,
        thread: JoinHandle<Writer>,
    },
    /// Without a thread until there is a record to write. `None` if a panic lost the writer.
    Parked(Mutex<Option<Box<Writer>>>),
}

#[derive(Debug, Default)]
struct Counts {
    bytes_waiting: AtomicUsize,
    dropped: AtomicU64,
    /// The error of the last write, until one succeeds.
    failure: Mutex<Option<String>>,
}

#[derive(Debug)]
enum Entry {
    Record(Record),
    Flush(SyncSender<()>),
    /// Later lines go to these sinks.
    Move(Box<Sinks>),
}

impl std::fmt::Debug for Sinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sinks")
    }
}

impl Queue {
    /// Starts the thread. It ends when the last clone of the queue is gone and everything is written.
    pub fn start(switches: Arc<Switches>, sinks: Sinks, capacity: usize) -> io::Result<Queue> {
        let counts = Arc::new(Counts::default());
        let writer = Writer {
            switches,
            counts: Arc::clone(&counts),
            sinks,
            reported: 0,
            unreported: 0,
            chunk: String::new(),
            chunk_lines: 0,
            chunk_is_alarming: false,
        };
        let state = Arc::new(RwLock::new(writer.start(capacity)?));
        Ok(Queue { state, counts, capacity })
    }

    /// Queues a record without waiting; drops and counts it where there is no room.
    pub fn push(&self, record: Record) {
        let bytes = record.bytes();
        let before = self.counts.bytes_waiting.fetch_add(bytes, Ordering::Relaxed);
        let has_room = before.saturating_add(bytes) <= BYTES_WAITING_MAX;
        let is_taken = has_room && self.sender().is_some_and(|sender| sender.try_send(Entry::Record(record)).is_ok());
        if !is_taken {
            self.counts.bytes_waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The sender to the thread, which is started again if it is parked.
    fn sender(&self) -> Option<SyncSender<Entry>> {
        if let State::Writing { sender, .. } = &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            return Some(sender.clone());
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let State::Parked(writer) = &mut *state {
            let writer = writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            *state = writer?.start(self.capacity).ok()?;
        }
        match &*state {
            State::Writing { sender, .. } => Some(sender.clone()),
            State::Parked(_) => None,
        }
    }

    /// Ends the thread, once everything is written, until there is more. False if it cannot write: then it stays.
    pub fn park(&self, timeout: Duration) -> bool {
        if !self.flush(timeout) {
            return false;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Parked(_)) {
            return true;
        }
        if let State::Writing { sender, thread } = std::mem::replace(&mut *state, State::Parked(Mutex::default())) {
            drop(sender);
            *state = State::Parked(Mutex::new(thread.join().ok().map(Box::new)));
        }
        true
    }

    /// Directs later records to `sinks`. Waits for room in the queue.
    pub fn move_to(&self, sinks: Sinks) {
        if let Some(sender) = self.sender() {
            // The thread only ends with the last sender.
            let _ = sender.send(Entry::Move(Box::new(sinks)));
        }
    }

    /// Waits until everything handed over before is written, or cannot be; not longer than `timeout`, because the
    /// reader of our stdout may have stopped. True if everything was written or failed.
    pub fn flush(&self, timeout: Duration) -> bool {
        let sender = match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Writing { sender, .. } => sender.clone(),
            State::Parked(_) => return true,
        };
        let deadline = Instant::now() + timeout;
        let (done, written) = sync_channel(1);
        let mut entry = Entry::Flush(done);
        loop {
            entry = match sender.try_send(entry) {
                Ok(()) => break,
                Err(TrySendError::Full(entry)) if Instant::now() < deadline => entry,
                Err(_) => return false,
            };
            std::thread::sleep(Duration::from_millis(1));
        }
        written.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
    }

    /// The error because of which the log cannot be written at present.
    pub fn failure(&self) -> Option<String> {
        self.counts.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Messages dropped since the start: there was no room, or writing failed.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }
}

impl Counts {
    /// `None`: a write succeeded. True if writing begins to fail.
    fn set_failure(&self, failure: Option<String>) -> bool {
        let mut known = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = known.is_none() && failure.is_some();
        *known = failure;
        begins
    }
}

#[derive(Debug)]
struct Writer {
    switches: Arc<Switches>,
    counts: Arc<Counts>,
    sinks: Sinks,
    /// Dropped messages that were reported.
    reported: u64,
    /// Records since then.
    unreported: usize,
    chunk: String,
    chunk_lines: u64,
    chunk_is_alarming: bool,
}

impl Writer {
    fn start(self, capacity: usize) -> io::Result<State> {
        let (sender, entries) = sync_channel(capacity);
        let run = move || self.run(&entries);
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(State::Writing { sender, thread })
    }

    fn run(mut self, entries: &Receiver<Entry>) -> Writer {
        loop {
            let entry = match entries.try_recv() {
                Ok(entry) => entry,
                // More may have come while it was written.
                Err(TryRecvError::Empty) if !self.chunk.is_empty() => {
                    self.write_chunk();
                    continue;
                }
                Err(TryRecvError::Empty) => {
                    self.report_losses();
                    match entries.recv() {
                        Ok(entry) => entry,
                        Err(_) => return self,
                    }
                }
                Err(TryRecvError::Disconnected) => {
                    self.write_chunk();
                    self.report_losses();
                    return self;
                }
            };
            match entry {
                Entry::Record(record) => {
                    self.counts.bytes_waiting.fetch_sub(record.bytes(), Ordering::Relaxed);
                    // A message that cannot be written is lost, and not the thread with all later ones.
                    recent::note(&record);
                    if catch_unwind(AssertUnwindSafe(|| self.add(&record))).is_err() {
                        self.counts.dropped.fetch_add(1 + self.chunk_lines, Ordering::Relaxed);
                        self.chunk.clear();
                        self.chunk_lines = 0;
                    }
                    self.unreported += 1;
                    if self.unreported >= CAPACITY {
                        // The queue may never be empty again.
                        self.write_chunk();
                        self.report_losses();
                    }
                }
                Entry::Flush(done) => {
                    self.write_chunk();
                    self.report_losses();
                    let _ = done.try_send(());
                }
                Entry::Move(sinks) => {
                    self.write_chunk();
                    self.sinks = *sinks;
                    self.counts.set_failure(None);
                }
            }
        }
    }

    fn add(&mut self, record: &Record) {
        let goes_to_stderr = record.severity.goes_to_stderr() && self.sinks.errors.is_some();
        if goes_to_stderr != self.chunk_is_alarming || self.chunk.len() >= CHUNK_BYTES {
            // Lines are written in the order of their messages, also where two streams end in one terminal.
            self.write_chunk();
            self.chunk_is_alarming = goes_to_stderr;
        }
        record.write(self.switches.style(), &mut self.chunk);
        self.chunk_lines += 1;
    }

    /// Logs how many messages were dropped since the last report.
    fn report_losses(&mut self) {
        self.unreported = 0;
        let dropped = self.counts.dropped.load(Ordering::Relaxed);
        if dropped == self.reported || !self.switches.shows(Severity::Warning) {
            return;
        }
        self.add(&Record {
            severity: Severity::Warning,
            at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            file: "writer.rs".into(),
            line: line!(),
            message: format!("{} log messages were dropped", dropped.wrapping_sub(self.reported)),
            request_id: None,
            object: None,
        });
        // A report that cannot be written is not itself a loss to report: that would never end.
        if self.write_out().is_ok() {
            self.reported = dropped;
        }
    }

    fn write_chunk(&mut self) {
        let lines = self.chunk_lines;
        if self.write_out().is_err() {
            self.counts.dropped.fetch_add(lines, Ordering::Relaxed);
        }
    }

    fn write_out(&mut self) -> io::Result<()> {
        let sink = match &mut self.sinks.errors {
            Some(errors) if self.chunk_is_alarming => errors,
            _ => &mut self.sinks.plain,
        };
        let written = match self.chunk.is_empty() {
            true => Ok(()),
            false => sink.write_all(self.chunk.as_bytes()).and_then(|()| sink.flush()),
        };
        if !self.chunk.is_empty() {
            self.note(written.as_ref().err());
        }
        self.chunk.clear();
        self.chunk.shrink_to(2 * CHUNK_BYTES);
        self.chunk_lines = 0;
        written
    }

    fn note(&mut self, failure: Option<&io::Error>) {
        let text = failure.map(io::Error::to_string);
        if self.counts.set_failure(text.clone())
            && let (Some(text), Some(fallback)) = (text, &mut self.sinks.fallback)
        {
            // If this fails, too, only the count remains.
            let _ = writeln!(fallback, "the log cannot be written, its messages are dropped and counted: {text}");
        }
    }
}
