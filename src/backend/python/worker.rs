//! One worker: its process, its link, and its monitor thread.
//!
//! The monitor thread starts the process, which dies with the thread, serves the messages of the worker's other
//! threads, and waits for the end of the process. Messages of the worker's main thread are served by the thread that
//! waits for it: the instance's while it executes, or the thread that loads or unloads.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use super::health::ReadinessQuery;
use super::link::{Bounds, Link, LinkError};
use super::marshal::{Malformed, Value, Writer};
use super::message::{ANSWER, REFUSED, from_worker};
use super::open_requests::OpenRequests;
use super::process::{self, Process, ending, wait_readable};
use super::worker_supervisor::not_healthy;
use nereid_clock::now_ns;
use nereid_gpu::Gpus;
use nereid_queue::waits::INSTANCES;
use nereid_queue::{AdaptiveSpin, CoreInUse, Spin};
use nereid_request::{Grant, Status};

/// Handles a worker's messages other than results, and cleans up after the worker's end. The thread that received the
/// message calls it; it must not wait for the worker.
pub trait MessageHandler: Send + Sync {
    fn handle(&self, worker: &Arc<Worker>, kind: u32, value: &Value<'_>) -> Result<(), Malformed>;

    /// Sets the grant of the execution on behalf of which the model makes further calls; `None`: none.
    fn set_grant(&self, grant: Option<Grant>);

    /// Sends waiting responses: clients may have made room for them.
    fn flush_responses(&self, worker: &Arc<Worker>);

    /// Cleans up after the worker's end; no further message of it follows.
    fn ended(&self, worker: &Arc<Worker>);
}

/// The last call of a worker's monitor thread; may take any time.
pub type OnEnd = Box<dyn FnOnce(Arc<Worker>) + Send>;

/// The arguments of a worker's start.
pub struct Plan {
    /// The name of the instance, or of the model without one.
    pub name: String,
    /// The model's name, for messages.
    pub model: String,
    pub command: Command,
    /// See [`program`].
    pub archive: Arc<OwnedFd>,
    pub bounds: Bounds,
    /// It calls memory fences at every position.
    pub fences: bool,
    pub gpus: Arc<Gpus>,
    pub spin: Spin,
    pub handler: Arc<dyn MessageHandler>,
    pub ended: OnEnd,
}

/// How to wait for a message of a worker.
#[derive(Default)]
pub struct Wait<'a> {
    /// After this time the worker is killed.
    pub limit: Option<Duration>,
    /// The polling interval for messages that are sent without a ring.
    pub poll_every: Option<Duration>,
    /// The adaptive spin, where spinning is allowed.
    pub spin: Option<&'a mut AdaptiveSpin>,
}

impl Wait<'_> {
    pub fn within(limit: Option<Duration>) -> Wait<'static> {
        Wait { limit, ..Wait::default() }
    }
}

/// Why the awaited message of a worker does not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// How its process ended.
    Died(String),
    /// It exceeded the time limit, and was killed.
    Late(Duration),
}

/// See the [module](self).
pub struct Worker {
    pub name: String,
    model: String,
    pub link: Link,
    pub open: OpenRequests,
    pub readiness: ReadinessQuery,
    handler: Arc<dyn MessageHandler>,
    /// The core on which its process may spin.
    _core: Option<CoreInUse>,
    /// Number and pidfd of the process, once it runs.
    pidfd: OnceLock<(u32, OwnedFd)>,
    has_ended: AtomicBool,
    is_condemned: AtomicBool,
    /// How it ended; or why it was killed.
    ending: Mutex<Option<String>>,
    monitor: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    /// Starts the process; the caller waits for its first message.
    pub fn start(plan: Plan) -> Result<Arc<Worker>, Status> {
        let Plan { name, model, command, archive, bounds, fences, gpus, spin, handler, ended } = plan;
        let cannot =
            |error: std::io::Error| Status::internal(format!("cannot start the Python process of '{name}': {error}"));
        // The process counts as spinning as long as it lives: its polls are not visible here, so it does not spin where
        // they would have to be counted.
        let core = if spin.is_unbounded() { spin.enter() } else { None };
        let spin_ns = core.as_ref().map_or(0, |_| spin.budget_ns());
        let (link, socket) = Link::new(bounds, spin_ns, fences, gpus).map_err(cannot)?;
        let open = OpenRequests::new(link.cancellations(), link.aside_bell.another().map_err(cannot)?);
        let worker = Arc::new(Worker {
            name: name.clone(),
            model,
            link,
            open,
            readiness: ReadinessQuery::default(),
            handler,
            _core: core,
            pidfd: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            is_condemned: AtomicBool::new(false),
            ending: Mutex::default(),
            monitor: Mutex::default(),
        });
        let (started_sender, started) = sync_channel(1);
        let kept = Arc::clone(&worker);
        let monitor = std::thread::Builder::new().name("python-monitor".to_owned());
        let monitor = monitor
            .spawn(move || kept.monitor_process(command, &archive, socket, &started_sender, ended))
            .map_err(cannot)?;
        let outcome = started.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()));
        *worker.monitor.lock().unwrap_or_else(PoisonError::into_inner) = Some(monitor);
        match outcome {
            Ok(()) => Ok(worker),
            Err(error) => {
                worker.join();
                Err(cannot(error))
            }
        }
    }

    pub fn process_id(&self) -> Option<u32> {
        self.pidfd.get().map(|(id, _)| *id)
    }

    pub fn is_alive(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire)
    }

    /// Whether it lives and was not condemned.
    pub fn is_fit(&self) -> bool {
        self.is_alive() && !self.is_condemned.load(Ordering::Acquire)
    }

    /// The error for requests that it leaves unanswered.
    pub fn death_status(&self) -> Status {
        let Worker { name, model, .. } = self;
        Status::internal(format!("{} The process of model '{model}' {}", not_healthy(name), self.ending()))
    }

    /// How it ended, or why it was killed.
    pub fn ending(&self) -> String {
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        ending.clone().unwrap_or_else(|| "ended".to_owned())
    }

    /// Has it write the stacks of its threads to its stderr.
    pub fn write_stacks(&self) {
        if let Some((number, pidfd)) = self.pidfd.get().filter(|_| self.is_alive()) {
            process::write_stacks(*number, pidfd);
        }
    }

    /// Kills it for a reason, which is reported instead of the signal.
    pub fn kill(&self, reason: &str) {
        if self.is_alive() {
            self.ending.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| reason.to_owned());
        }
        self.is_condemned.store(true, Ordering::Release);
        if let Some((_, pidfd)) = self.pidfd.get() {
            process::kill(pidfd);
        }
    }

    /// Waits until the process and its monitor thread have ended.
    pub fn join(&self) {
        if let Some(monitor) = self.take_monitor()
            && monitor.thread().id() != std::thread::current().id()
        {
            let _ = monitor.join();
        }
    }

    /// Its monitor thread, for a caller that waits for the thread's end without holding the worker.
    pub fn take_monitor(&self) -> Option<JoinHandle<()>> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sends a message to the worker's main thread, and wakes it.
    pub fn send(&self, kind: u32, payload: &[u8]) -> Result<(), LinkError> {
        self.push(kind, payload).inspect(|()| self.link.ring())
    }

    /// Queues a message after others that the worker has not read yet; false: there is no room for it now.
    pub fn push_behind(&self, kind: u32, payload: &[u8]) -> Result<bool, LinkError> {
        match self.link.push(kind, payload) {
            Err(LinkError::Full | LinkError::NoMemory | LinkError::Memory(_)) => Ok(false),
            Err(error) => {
                self.kill(&format!("was ended because {error}"));
                Err(error)
            }
            Ok(()) => Ok(true),
        }
    }

    /// The same without the wake-up, which the caller makes later. A worker that makes the write fail is killed.
    pub fn push(&self, kind: u32, payload: &[u8]) -> Result<(), LinkError> {
        let sent = self.link.push(kind, payload);
        if let Err(error @ (LinkError::Corrupt(_) | LinkError::Full)) = &sent {
            self.kill(&format!("was ended because {error}"));
        }
        sent
    }

    /// See [`MessageHandler::lend`].
    pub fn set_grant(&self, grant: Option<Grant>) {
        self.handler.set_grant(grant);
    }

    /// Serves the worker's main thread until it sends one of the `awaited` kinds, and leaves its payload in `payload`.
    pub fn serve(self: &Arc<Self>, awaited: &[u32], payload: &mut Vec<u8>, wait: Wait<'_>) -> Result<u32, Ended> {
        let Wait { limit, poll_every, mut spin } = wait;
        let deadline = limit.map(|limit| (limit, Instant::now() + limit));
        let left = || deadline.map(|(_, deadline)| deadline.saturating_duration_since(Instant::now()));
        loop {
            // In this order, so that messages sent before its end are read.
            let is_alive = self.is_alive();
            loop {
                match self.link.receive(payload) {
                    Ok(Some(kind)) if awaited.contains(&kind) => {
                        self.link.count_handled();
                        return Ok(kind);
                    }
                    Ok(Some(kind)) => {
                        self.handle(kind, payload);
                        self.link.count_handled();
                    }
                    Ok(None) => break,
                    Err(error) => {
                        self.kill(&format!("was ended because {error}"));
                        break;
                    }
                }
                // It may send messages without end.
                if left().is_some_and(|left| left.is_zero()) {
                    break;
                }
            }
            if !is_alive {
                return Err(Ended::Died(self.ending()));
            }
            let left = left();
            if let (Some((limit, _)), Some(Duration::ZERO)) = (deadline, left) {
                self.kill(&format!("was ended because it took more than {} s", limit.as_secs_f64()));
                return Err(Ended::Late(limit));
            }
            let longest = left.into_iter().chain(poll_every).min();
            match &mut spin {
                Some(spin) => self.spin_or_sleep(spin, longest),
                None if self.await_bell(longest) => INSTANCES.count_sleep(),
                None => {}
            }
        }
    }

    /// Spins for a message of the main thread as long as that pays, then sleeps.
    fn spin_or_sleep(&self, spin: &mut AdaptiveSpin, longest: Option<Duration>) {
        let began_ns = now_ns();
        let is_there = spin.spin_until(None, now_ns, || self.link.has_output());
        let has_slept = !is_there && self.await_bell(longest);
        if has_slept {
            spin.waits().count_sleep();
        }
        spin.record_wait(now_ns().saturating_sub(began_ns), has_slept);
    }

    /// Sleeps until the main thread rings, or for at most `longest`; not if it has sent something before it could see
    /// that this thread sleeps. True if it slept.
    fn await_bell(&self, longest: Option<Duration>) -> bool {
        // What a condemned worker sends may be impossible to read: its end is what is waited for.
        let sleeps = self.link.park() || !self.is_fit();
        if sleeps {
            self.sleep(longest);
        }
        self.link.unpark();
        sleeps
    }

    fn sleep(&self, longest: Option<Duration>) {
        let bell = &self.link.output_bell;
        match longest {
            None => bell.wait(),
            Some(longest) => {
                let longest_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
                if wait_readable(&[bell.as_fd()], Some(longest_ms)).is_ok_and(|rung| rung.first() == Some(&true)) {
                    bell.wait();
                }
            }
        }
    }

    fn handle(self: &Arc<Self>, kind: u32, payload: &[u8]) {
        let outcome = Value::read(payload).and_then(|value| match kind {
            from_worker::NEED_SEGMENT => {
                let [len, gone] = value.as_tuple()?;
                let gone = gone.as_sequence()?.iter().map(Value::as_int).collect::<Result<Vec<u32>, _>>()?;
                let grown = self.link.grow(len.as_int()?, &gone);
                self.refuse_if(grown);
                Ok(())
            }
            from_worker::NEED_SLOTS => {
                let added = self.link.add_slots();
                self.refuse_if(added);
                Ok(())
            }
            from_worker::RELEASED => {
                let [keys] = value.as_tuple()?;
                self.release(keys)
            }
            from_worker::READY => self.readiness.answered(&value),
            kind => self.handler.handle(self, kind, &value),
        });
        if let Err(malformed) = outcome {
            error!("the Python process of '{}' sent a message {kind} that cannot be read: {malformed}", self.name);
            self.kill(&format!("was ended because {malformed}"));
        }
    }

    fn refuse_if(&self, outcome: Result<(), Status>) {
        if let Err(status) = outcome
            && let Err(error) = self.link.refuse(&status)
        {
            self.kill(&format!("was ended because its socket failed: {error}"));
        }
    }

    /// Releases ranges that the worker's arrays no longer refer to.
    pub fn release(&self, keys: &Value<'_>) -> Result<(), Malformed> {
        let keys = keys.as_sequence()?.iter().map(Value::as_int).collect::<Result<Vec<u64>, _>>()?;
        self.link.release(&keys);
        Ok(())
    }

    /// Writes an answer to a slot of the worker.
    pub fn answer(&self, slot: u32, answer: Result<Writer, Status>) {
        let (kind, writer) = match answer {
            Ok(writer) => (ANSWER, writer),
            Err(status) => (REFUSED, refusal(&status)),
        };
        let outcome = match self.link.answer(slot, kind, writer.bytes()) {
            Err(LinkError::Memory(status)) => self.link.answer(slot, REFUSED, refusal(&status).bytes()),
            Err(error @ LinkError::NoMemory) => {
                let status = Status::unavailable(error.to_string());
                self.link.answer(slot, REFUSED, refusal(&status).bytes())
            }
            outcome => outcome,
        };
        if let Err(error) = outcome
            && self.is_alive()
        {
            warn!("the Python process of '{}' cannot be answered: {error}", self.name);
            self.kill(&format!("was ended because it cannot be answered: {error}"));
        }
    }

    /// The body of the monitor thread.
    fn monitor_process(
        self: Arc<Self>,
        command: Command,
        archive: &OwnedFd,
        socket: OwnedFd,
        started_sender: &SyncSender<std::io::Result<()>>,
        ended: OnEnd,
    ) {
        let started = Process::start(command, socket.as_fd(), archive.as_fd()).and_then(|process| {
            let pidfd = process.pidfd().try_clone()?;
            let _ = self.pidfd.set((process.id(), pidfd));
            Ok(process)
        });
        // Only the worker holds its end now, so that the socket closes when it dies.
        drop(socket);
        let mut process = match started {
            Ok(process) => process,
            Err(error) => {
                self.has_ended.store(true, Ordering::Release);
                let _ = started_sender.send(Err(error));
                return;
            }
        };
        let _ = started_sender.send(Ok(()));
        let mut payload = Vec::new();
        loop {
            let watched = [self.link.aside_bell.as_fd(), process.pidfd().as_fd()];
            // Also with messages there it looks whether the process has ended. What a condemned one sends may be
            // impossible to read.
            let may_sleep = self.link.park_aside() || !self.is_fit();
            let limit_ms = (!may_sleep).then_some(0);
            let readable = wait_readable(&watched, limit_ms).unwrap_or_else(|_| vec![false, true]);
            self.link.unpark_aside();
            if readable.first() == Some(&true) {
                self.link.aside_bell.wait();
            }
            let attend = AssertUnwindSafe(|| {
                self.attend_aside(&mut payload);
                self.handler.flush_responses(&self);
                self.link.send_freed();
            });
            // The thread stays until the process has ended, and then has what is left of its requests answered.
            if catch_unwind(attend).is_err() {
                self.kill("was ended because the server panicked over its messages");
            }
            if readable.get(1) == Some(&true) {
                break;
            }
        }
        let how = process.wait().map_or_else(|error| format!("is lost: {error}"), ending);
        self.ending.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(how);
        let _ = catch_unwind(AssertUnwindSafe(|| self.attend_aside(&mut payload)));
        self.has_ended.store(true, Ordering::Release);
        // Closes its descriptors before a successor starts.
        drop(process);
        self.readiness.end();
        self.handler.ended(&self);
        self.link.output_bell.ring();
        drop(payload);
        ended(self);
    }

    fn attend_aside(self: &Arc<Self>, payload: &mut Vec<u8>) {
        loop {
            match self.link.receive_aside(payload) {
                Ok(Some(kind)) => {
                    self.handle(kind, payload);
                    self.link.count_handled_aside();
                }
                Ok(None) => return,
                Err(error) => return self.kill(&format!("was ended because {error}")),
            }
        }
    }
}

/// (code, text)
fn refusal(status: &Status) -> Writer {
    let mut writer = Writer::default();
    writer.tuple(2);
    writer.int(status.code as i32);
    writer.text(status.message.as_bytes());
    writer
}
