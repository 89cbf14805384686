//! The one thread that writes traces, and the bounded queue in front of it.
//!
//! The thread starts with the first setting that samples. Traces that find the queue full are dropped and counted; the
//! message that a setting has ended is never dropped.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::collector::Collector;
use super::files::Files;
use super::options::{Mode, TraceOptions};
use super::phases;
use super::record::Finished;
use crate::exemplars::Exemplars;

/// Complete traces that may wait.
const TRACES_WAITING_MAX: usize = 8192;
/// Bytes that they may hold, tensors included.
const BYTES_WAITING_MAX: usize = 64 << 20;
/// Losses are logged no more often than this.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Counts of traces since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Complete traces.
    pub completed: AtomicU64,
    /// Traces and spans that could not be written or sent, or for which there was no room.
    pub dropped: AtomicU64,
    /// Entries that were left out of traces that had too many.
    pub cut: AtomicU64,
    waiting: AtomicUsize,
    bytes_waiting: AtomicUsize,
    /// Spans that wait here and in the collector's queue.
    pub(super) spans_waiting: AtomicUsize,
}

impl Counts {
    pub(super) fn lost(&self, n: u64) {
        self.dropped.fetch_add(n, Ordering::Relaxed);
    }
}

pub(super) enum Message {
    Trace(Box<Finished>),
    SettingEnded(u64),
    /// Write everything, close, and answer.
    Finish(SyncSender<()>),
}

/// The sending end. Clones share the queue.
#[derive(Clone)]
pub(super) struct Queue(Arc<QueueCore>);

struct QueueCore {
    sender: Sender<Message>,
    /// What the thread will take, until it is started.
    waiting: Mutex<Option<(Receiver<Message>, TraceOptions)>>,
    counts: Arc<Counts>,
    exemplars: Arc<Exemplars>,
    settings: AtomicU64,
    mode: Mode,
    spans_max: usize,
}

impl Queue {
    pub fn new(options: &TraceOptions) -> Queue {
        let (sender, receiver) = channel();
        Queue(Arc::new(QueueCore {
            sender,
            waiting: Mutex::new(Some((receiver, options.clone()))),
            counts: Arc::default(),
            exemplars: Arc::default(),
            settings: AtomicU64::new(0),
            mode: options.mode,
            spans_max: options.processor.queue_max,
        }))
    }

    /// Starts the thread, once.
    pub fn start(&self) -> io::Result<()> {
        let taken = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((receiver, options)) = taken else { return Ok(()) };
        let (counts, mode) = (Arc::clone(&self.0.counts), options.mode);
        let exemplars = Some((Arc::clone(&self.0.exemplars), mode));
        let run = move || match mode {
            Mode::Triton => Writer::new(counts, exemplars, Files::new(&options.file)).run(&receiver),
            Mode::OpenTelemetry => match Collector::new(&options, Arc::clone(&counts)) {
                Ok(collector) => Writer::new(counts, exemplars, collector).run(&receiver),
                Err(error) => {
                    warn!("traces are dropped: {error}");
                    // An exemplar would lead nowhere.
                    Writer::new(counts, None, DiscardTraces).run(&receiver);
                }
            },
        };
        std::thread::Builder::new().name("trace".to_owned()).spawn(run).map(drop)
    }

    pub fn has_collector(&self) -> bool {
        self.0.mode == Mode::OpenTelemetry
    }

    pub fn counts(&self) -> &Arc<Counts> {
        &self.0.counts
    }

    pub fn exemplars(&self) -> &Exemplars {
        &self.0.exemplars
    }

    pub fn next_setting(&self) -> u64 {
        self.0.settings.fetch_add(1, Ordering::Relaxed)
    }

    /// Queues a trace without waiting; drops and counts it where there is no room.
    pub fn push(&self, trace: Finished) {
        let counts = &self.0.counts;
        counts.completed.fetch_add(1, Ordering::Relaxed);
        counts.cut.fetch_add(trace.cut, Ordering::Relaxed);
        let (bytes, spans) = (trace.bytes, if self.has_collector() { trace.spans() } else { 0 });
        let waiting = counts.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes_waiting = counts.bytes_waiting.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let spans_waiting = counts.spans_waiting.fetch_add(spans, Ordering::Relaxed).saturating_add(spans);
        let has_room = waiting <= TRACES_WAITING_MAX
            && bytes_waiting <= BYTES_WAITING_MAX
            // A trace that would not fit into an empty queue is queued alone.
            && (spans_waiting <= self.0.spans_max || spans_waiting == spans);
        if !has_room || self.0.sender.send(Message::Trace(Box::new(trace))).is_err() {
            counts.waiting.fetch_sub(1, Ordering::Relaxed);
            counts.bytes_waiting.fetch_sub(bytes, Ordering::Relaxed);
            counts.spans_waiting.fetch_sub(spans, Ordering::Relaxed);
            counts.lost(1);
        }
    }

    pub fn setting_ended(&self, id: u64) {
        if !self.has_collector() {
            // Without a thread no trace waits for it.
            let _ = self.0.sender.send(Message::SettingEnded(id));
        }
    }

    /// True once everything handed over before is written, and files are closed.
    pub fn finish(&self, timeout: Duration) -> bool {
        let has_thread = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        if !has_thread {
            return true;
        }
        let (done, finished) = sync_channel(1);
        if self.0.sender.send(Message::Finish(done)).is_err() {
            return true;
        }
        finished.recv_timeout(timeout).is_ok()
    }
}

/// A destination of traces: files or a collector.
pub(super) trait Destination {
    fn trace(&mut self, trace: &Finished, counts: &Counts);
    fn setting_ended(&mut self, id: u64, counts: &Counts);
    /// The time of the next own deadline.
    fn due(&self) -> Option<Instant>;
    fn on_time(&mut self, counts: &Counts);
    /// Writes everything; no call follows.
    fn finish(&mut self, counts: &Counts);
}

/// Drops all traces, where no destination could be made.
struct DiscardTraces;

impl Destination for DiscardTraces {
    fn trace(&mut self, trace: &Finished, counts: &Counts) {
        counts.spans_waiting.fetch_sub(trace.spans(), Ordering::Relaxed);
        counts.lost(1);
    }

    fn setting_ended(&mut self, _id: u64, _counts: &Counts) {}

    fn due(&self) -> Option<Instant> {
        None
    }

    fn on_time(&mut self, _counts: &Counts) {}

    fn finish(&mut self, _counts: &Counts) {}
}

struct Writer<D> {
    counts: Arc<Counts>,
    /// Where traced requests are noted for histograms, and what their ids are.
    exemplars: Option<(Arc<Exemplars>, Mode)>,
    destination: D,
    reported: u64,
    reported_at: Option<Instant>,
}

impl<D: Destination> Writer<D> {
    fn new(counts: Arc<Counts>, exemplars: Option<(Arc<Exemplars>, Mode)>, destination: D) -> Writer<D> {
        Writer { counts, exemplars, destination, reported: 0, reported_at: None }
    }

    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let message = match self.destination.due() {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(Message::Trace(trace)) => {
                    // A trace that cannot be written is lost, and not the thread with all later ones.
                    let write = AssertUnwindSafe(|| {
                        self.destination.trace(&trace, &self.counts);
                        if let Some((exemplars, mode)) = &self.exemplars {
                            phases::record(exemplars, &trace, *mode);
                        }
                    });
                    if catch_unwind(write).is_err() {
                        self.counts.lost(1);
                    }
                    self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
                    self.counts.bytes_waiting.fetch_sub(trace.bytes, Ordering::Relaxed);
                }
                Ok(Message::SettingEnded(id)) => self.destination.setting_ended(id, &self.counts),
                Ok(Message::Finish(done)) => {
                    self.destination.finish(&self.counts);
                    self.report(true);
                    let _ = done.try_send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.destination.finish(&self.counts),
            }
            if self.destination.due().is_some_and(|due| due <= Instant::now()) {
                let _ = catch_unwind(AssertUnwindSafe(|| self.destination.on_time(&self.counts)));
            }
            self.report(false);
        }
    }

    /// Logs how many were dropped since the last report.
    fn report(&mut self, is_last: bool) {
        let dropped = self.counts.dropped.load(Ordering::Relaxed);
        let is_early = self.reported_at.is_some_and(|at| at.elapsed() < REPORT_INTERVAL);
        if dropped != self.reported && (is_last || !is_early) {
            warn!("{} traces or spans were dropped", dropped.wrapping_sub(self.reported));
            (self.reported, self.reported_at) = (dropped, Some(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::Context;
    use super::super::settings::{Setting, Values};
    use super::super::{Levels, Trace};
    use super::*;

    /// Counts what it gets.
    #[derive(Default)]
    struct Tally(Arc<AtomicUsize>);

    impl Destination for Tally {
        fn trace(&mut self, _trace: &Finished, _counts: &Counts) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn setting_ended(&mut self, _id: u64, _counts: &Counts) {}

        fn due(&self) -> Option<Instant> {
            None
        }

        fn on_time(&mut self, _counts: &Counts) {}

        fn finish(&mut self, _counts: &Counts) {}
    }

    /// The queue, its other end, and traces of so many bytes for it.
    fn queue() -> (Queue, Receiver<Message>, impl Fn(usize) -> Finished) {
        let options = TraceOptions { levels: Levels::TIMESTAMPS, ..TraceOptions::default() };
        let queue = Queue::new(&options);
        let receiver = queue.0.waiting.lock().unwrap().take().unwrap().0;
        let setting = Arc::new(Setting::new(Values::of_start(&options), &options, &queue));
        let trace = Trace::begin(Arc::clone(&setting), queue.clone(), &Arc::default(), Context::parse(b"", None));
        let (position, _) = trace.taken();
        let of = move |bytes| Finished {
            setting: Arc::clone(&setting),
            entries: Vec::new(),
            bytes,
            cut: 0,
            position: position.clone(),
            root: trace.id(),
        };
        (queue, receiver, of)
    }

    /// Has everything written that waits; returns the number of traces.
    fn write(queue: &Queue, receiver: &Receiver<Message>) -> usize {
        let (done, finished) = sync_channel(1);
        queue.0.sender.send(Message::Finish(done)).unwrap();
        let written = Tally::default();
        let count = Arc::clone(&written.0);
        Writer::new(Arc::clone(queue.counts()), None, written).run(receiver);
        finished.recv().unwrap();
        count.load(Ordering::Relaxed)
    }

    #[test]
    fn a_queue_takes_as_much_after_each_overflow_as_before_it() {
        let (queue, receiver, trace_of) = queue();
        let dropped = || queue.counts().dropped.load(Ordering::Relaxed);
        for round in 1..=3 {
            (0..TRACES_WAITING_MAX).for_each(|_| queue.push(trace_of(1)));
            assert_eq!(dropped(), (round - 1) * 3, "round {round}: there is room for all of these");
            (0..3).for_each(|_| queue.push(trace_of(1)));
            assert_eq!(dropped(), round * 3);
            assert_eq!(write(&queue, &receiver), TRACES_WAITING_MAX);
        }
        // The same by bytes: exactly as many fit, and a small one fits behind one that did not.
        for round in 1..=3 {
            queue.push(trace_of(BYTES_WAITING_MAX - 10));
            queue.push(trace_of(11));
            queue.push(trace_of(10));
            queue.push(trace_of(1));
            assert_eq!((dropped(), write(&queue, &receiver)), (9 + 2 * round, 2));
        }
        let counts = queue.counts();
        assert_eq!((counts.waiting.load(Ordering::Relaxed), counts.bytes_waiting.load(Ordering::Relaxed)), (0, 0));
    }
}
