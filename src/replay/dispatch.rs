//! Hands each record to a free worker when its time has come.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::lookahead::{Lookahead, Numbered};
use super::plan::{Plan, Speed};
use super::summary::Summary;
use super::worker::{Done, Verdict, Worker, security};
use nereid_client::{Endpoint, Wire};
use nereid_recording::{Protocol, Reader};

/// Connections that fail one after the other until the server counts as gone.
const FAILURES_MAX: u32 = 20;

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the flags of TLS are of no use: {0}")]
    Tls(String),
    #[error("no server answers at {endpoint}: {reason}; is it running, and is this the port of that protocol?")]
    Unreachable { endpoint: Endpoint, reason: String },
    #[error("the recording has no requests{}", .0.as_ref().map(|note| format!(": {note}")).unwrap_or_default())]
    Empty(Option<String>),
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Sends all records, and returns what came of it.
pub fn replay<R: BufRead>(reader: Reader<R>, plan: Plan) -> Result<Summary, ReplayError> {
    let mut lookahead = Lookahead::new(reader);
    let Some(first) = lookahead.take() else { return Err(ReplayError::Empty(lookahead.note())) };
    let sessions = security(&plan).map_err(ReplayError::Tls)?;
    let protocol = plan.protocol.unwrap_or(first.record.head.protocol);
    let endpoint = plan.server.endpoint(protocol);
    // A server that is not there is an error, not a list of differences.
    Wire::connect(endpoint, None, plan.server.patience)
        .map_err(|reason| ReplayError::Unreachable { endpoint: endpoint.clone(), reason })?;
    let (done, news) = channel();
    let plan = Arc::new(plan);
    let workers =
        Workers { plan: Arc::clone(&plan), sessions, records: Vec::new(), idle: Vec::new(), done: Some(done) };
    let summary = Summary::new(plan.compares);
    Dispatch { workers, news, summary, failures: 0, last_failure: None, busy: 0 }.run(lookahead, first)
}

struct Workers {
    plan: Arc<Plan>,
    sessions: [Option<nereid_client::Security>; 2],
    records: Vec<SyncSender<Numbered>>,
    idle: Vec<usize>,
    /// Only while workers may be added: news end when no worker is left.
    done: Option<Sender<Done>>,
}

impl Workers {
    /// A worker that is free, or a new one while there are fewer than there may be.
    fn free(&mut self) -> Result<Option<usize>, ReplayError> {
        if let Some(worker) = self.idle.pop() {
            return Ok(Some(worker));
        }
        let number = self.records.len();
        if number >= self.plan.concurrency_max.max(1) {
            self.done = None;
        }
        let Some(done) = self.done.clone() else { return Ok(None) };
        // One record: a worker gets the next when it has finished the last.
        let (records, waiting) = sync_channel(1);
        let worker = Worker::new(Arc::clone(&self.plan), self.sessions.clone());
        let thread = thread::Builder::new().name("replay".to_owned());
        thread.spawn(move || worker.run(number, &waiting, &done)).map_err(ReplayError::Thread)?;
        self.records.push(records);
        Ok(Some(number))
    }
}

struct Dispatch {
    workers: Workers,
    news: Receiver<Done>,
    summary: Summary,
    /// Connections that failed since the last answer.
    failures: u32,
    last_failure: Option<(Protocol, String)>,
    busy: usize,
}

impl Dispatch {
    fn run<R: BufRead>(mut self, mut lookahead: Lookahead<R>, first: Numbered) -> Result<Summary, ReplayError> {
        let (started, first_at_ns) = (Instant::now(), first.record.head.at_ns);
        let mut next = Some(first);
        while let Some(numbered) = next {
            let due = match self.workers.plan.speed {
                Speed::Max => None,
                Speed::Times(times) => {
                    let since = numbered.record.head.at_ns.saturating_sub(first_at_ns) as f64 / 1e9 / times;
                    // No record lies further ahead than a year, whatever a file states.
                    started.checked_add(Duration::from_secs_f64(since.clamp(0.0, 31_536_000.0)))
                }
            };
            self.wait_until(due);
            let worker = loop {
                if let Some(worker) = self.workers.free()? {
                    break worker;
                }
                let Ok(done) = self.news.recv() else { break 0 };
                self.note(done);
            };
            if let Some(due) = due {
                self.summary.note_delay(due.elapsed());
            }
            self.summary.note_recorded(&numbered.record);
            if let Some(records) = self.workers.records.get(worker)
                && records.send(numbered).is_ok()
            {
                self.busy += 1;
            }
            if self.failures >= FAILURES_MAX {
                break;
            }
            next = lookahead.take();
        }
        self.workers.done = None;
        while self.busy > 0 {
            let Ok(done) = self.news.recv() else { break };
            self.note(done);
        }
        if let Some((protocol, reason)) = self.last_failure
            && self.failures >= FAILURES_MAX
        {
            let endpoint = self.workers.plan.server.endpoint(protocol).clone();
            return Err(ReplayError::Unreachable { endpoint, reason });
        }
        self.summary.finish(started.elapsed(), lookahead.note(), lookahead.is_damaged());
        Ok(self.summary)
    }

    /// Takes the news of workers until a time has come.
    fn wait_until(&mut self, due: Option<Instant>) {
        loop {
            let left = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
            match self.news.recv_timeout(left) {
                Ok(done) => self.note(done),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn note(&mut self, done: Done) {
        self.busy = self.busy.saturating_sub(1);
        self.workers.idle.push(done.worker);
        match &done.verdict {
            Verdict::Failed(reason) => {
                self.failures = self.failures.saturating_add(1);
                self.last_failure = Some((done.protocol, reason.clone()));
            }
            Verdict::Skipped(_) => {}
            Verdict::Equal | Verdict::NotCompared | Verdict::Different(_) => self.failures = 0,
        }
        self.summary.note(done);
    }
}
