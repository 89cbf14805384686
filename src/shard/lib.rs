//! A shard: one thread on one core, which runs connections, timers and all work that needs no model, in turns.
//!
//! Nothing on a shard is shared, so cancelling, timing out and disconnecting are plain function calls. A shard never
//! blocks and never waits for a lock that is held longer than O(1). Other threads reach it through its [`Mailbox`]
//! only.
//!
//! ```text
//! start ─► thread ─► host (glommio for io_uring, a loop for epoll) ─► Shard::turn, again and again
//!                                                                      │ mail, work, flush, engine, events, timers
//!                                                                      └ parks when idle: the mailbox wakes it
//! ```

pub mod clock;
pub mod engine;
pub mod listener;
pub mod load;
pub mod mailbox;
mod park_policy;
pub mod placement;
pub mod probe;
pub mod timer;
pub mod turn;
pub mod watch;

use std::io;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use engine::{Engine, Epoll, Limits, Uring, host};
use nereid_memory::Pool;
use nereid_queue::Spin;
use nereid_queue::waits::SHARDS;
use tracing::error;

pub use clock::{Clock, Monotonic};
pub use load::{Load, LoadGuard};
pub use mailbox::{Inbox, Mail, Mailbox, mailbox};
pub use park_policy::ParkPolicy;
pub use probe::EngineKind;
pub use timer::{TimerKey, Timers};
pub use turn::{Core, Handler, MailOf, Shard, WithReplies};
use watch::TurnWatch;

/// Where the turns of a shard on io_uring run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// In an executor of glommio, for shards that run as long as the process: glommio 0.9 never closes the eventfd of
    /// an executor that has run a task.
    Glommio,
    /// On the bare thread, for shards that come and go.
    Thread,
}

/// How one shard is to run.
#[derive(Clone)]
pub struct Options {
    /// The name of its thread; the kernel keeps 15 bytes.
    pub name: String,
    pub engine: EngineKind,
    pub host: Host,
    /// The core that it is bound to.
    pub cpu: Option<usize>,
    /// The permission to spin on its core.
    pub spin: Spin,
    pub limits: Limits,
    pub timers_max: usize,
    pub pool: Pool,
}

/// A shard that runs.
#[derive(Debug)]
pub struct Running {
    thread: JoinHandle<io::Result<()>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("no thread could be started for {name}: {source}")]
    Thread { name: String, source: io::Error },
    #[error("{name} could not start: {source}")]
    Engine { name: String, source: io::Error },
}

/// A shard whose thread has begun; several can begin at the same time.
#[derive(Debug)]
pub struct Starting {
    name: String,
    runs: mpsc::Receiver<io::Result<()>>,
    thread: JoinHandle<io::Result<()>>,
}

/// Starts a shard on a thread of its own and returns once it runs. `make` builds its handler there, from the [`Core`],
/// so that it can listen before other threads can reach the shard.
pub fn start<H: Handler + 'static>(
    options: Options,
    inbox: Inbox<MailOf<H>>,
    make: impl FnOnce(&mut Core<H::Timer>) -> io::Result<H> + Send + 'static,
) -> Result<Running, StartError> {
    begin(options, inbox, make)?.finish()
}

/// The same without waiting.
pub fn begin<H: Handler + 'static>(
    options: Options,
    inbox: Inbox<MailOf<H>>,
    make: impl FnOnce(&mut Core<H::Timer>) -> io::Result<H> + Send + 'static,
) -> Result<Starting, StartError> {
    let name = options.name.clone();
    let (ready, runs) = mpsc::sync_channel(1);
    let body = move || {
        let outcome = run(&options, inbox, make, || drop(ready.send(Ok(()))));
        // The thread's result carries the error too, for when no thread waits here any more.
        let copy = outcome.as_ref().err().map(|error| io::Error::new(error.kind(), error.to_string()));
        let _ = ready.send(copy.map_or(Ok(()), Err));
        outcome
    };
    let thread = thread::Builder::new().name(name.clone()).spawn(body);
    match thread {
        Ok(thread) => Ok(Starting { name, runs, thread }),
        Err(source) => Err(StartError::Thread { name, source }),
    }
}

impl Starting {
    /// Waits until it runs, or has failed to.
    pub fn finish(self) -> Result<Running, StartError> {
        let Starting { name, runs, thread } = self;
        match runs.recv() {
            Ok(Ok(())) => Ok(Running { thread }),
            Ok(Err(source)) => Err(StartError::Engine { name, source }),
            Err(_) => Err(StartError::Engine { name, source: io::Error::other("its thread panicked") }),
        }
    }
}

/// Runs a shard on the calling thread until its handler has stopped; `started` is called when its first turn is near.
pub fn run<H: Handler>(
    options: &Options,
    inbox: Inbox<MailOf<H>>,
    make: impl FnOnce(&mut Core<H::Timer>) -> io::Result<H>,
    started: impl FnOnce(),
) -> io::Result<()> {
    let Options { engine, cpu, limits, .. } = *options;
    let clock: Rc<dyn Clock> = Rc::new(Monotonic);
    let begin = || {
        let waker = inbox.waker();
        let engine: Box<dyn Engine> = match engine {
            EngineKind::IoUring => Box::new(Uring::new(limits, Rc::clone(&clock), waker).map_err(io::Error::other)?),
            EngineKind::Epoll => Box::new(Epoll::new(limits, Rc::clone(&clock), waker)?),
        };
        let mut core = Core::new(engine, Rc::clone(&clock), options.pool.clone(), options.timers_max);
        let handler = make(&mut core)?;
        let mut shard = Shard::new(handler, core, inbox);
        let mut park_policy = ParkPolicy::new(options.spin.clone(), &SHARDS);
        let watch = TurnWatch::of_process(&options.name);
        let mut may_park = false;
        started();
        Ok(move || {
            let moved = watch
                .measure(|| shard.turn(may_park))
                .inspect_err(|error| report(&options.name, options.engine, error))?;
            may_park = park_policy.may_park(moved, shard.waited(), shard.core.now_ns());
            Ok(!shard.handler.stopped())
        })
    };
    match (engine, options.host) {
        (EngineKind::IoUring, Host::Glommio) => host::run_on_glommio(cpu, &options.name, begin),
        (EngineKind::IoUring, Host::Thread) | (EngineKind::Epoll, _) => host::run_plainly(cpu, begin),
    }
}

/// Nobody waits for the thread's result while the server runs: the log is where an operator finds the reason.
fn report(name: &str, engine: EngineKind, error: &io::Error) {
    match engine {
        EngineKind::IoUring => {
            error!("{name}: io_uring has failed: {error}. If that lasts, start with --io-engine=epoll")
        }
        EngineKind::Epoll => error!("{name}: epoll has failed: {error}"),
    }
}

impl Running {
    /// Waits for the end that the handler decides on. A panic of the shard's thread is an error here.
    pub fn join(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the shard's thread panicked")))
    }

    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

#[cfg(test)]
mod tests;
