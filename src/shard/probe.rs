//! The choice of the engine: io_uring is tried out at start-up, on a thread of its own, before other parts depend on
//! it.
//!
//! Reading a version number would not do: containers refuse io_uring by seccomp, distributions by sysctl, and memory
//! that may be locked runs out. So the real engine does everything once, on sockets of its own. glommio, which hosts
//! the shard, panics in its executor's thread where io_uring is refused, so its executor is started last, after the
//! engine has worked.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::rc::Rc;
use std::str::FromStr;
use std::thread::JoinHandle;

use super::Host;
use super::clock::{Clock, Monotonic};
use super::engine::{Engine, Event, Limits, Park, Received, Unavailable, Uring, Waker, host, sys};
use nereid_memory::Key;
use nereid_memory::{BlockMut, FrameLayout, Scatter, Slice};
use nereid_queue::Wake;

/// glommio refuses to start below this.
const LOCKED_MEMORY: u64 = 512 * 1024;
/// Each step takes microseconds; one that takes far longer does not work. Models load at the same time, on all cores.
const STEP_NS: u64 = 2_000_000_000;

/// The value of `--io-engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineRequest {
    #[default]
    Auto,
    Exactly(EngineKind),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    IoUring,
    Epoll,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an engine: auto, io_uring or epoll")]
pub struct UnknownEngine(String);

/// The engine that will run, and the message to log about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenEngine {
    pub engine: EngineKind,
    pub message: String,
}

/// Chooses the engine. `probe` is only called if its result matters. An error if io_uring was requested and is not
/// available.
pub fn choose(
    wanted: EngineRequest,
    probe: impl FnOnce() -> Result<(), Unavailable>,
) -> Result<ChosenEngine, Unavailable> {
    let found = match wanted {
        EngineRequest::Exactly(EngineKind::Epoll) => {
            return Ok(ChosenEngine {
                engine: EngineKind::Epoll,
                message: "using the epoll engine, as requested".into(),
            });
        }
        _ => probe(),
    };
    match (found, wanted) {
        (Ok(()), _) => Ok(ChosenEngine { engine: EngineKind::IoUring, message: "using the io_uring engine".into() }),
        (Err(reason), EngineRequest::Auto) => {
            let message = format!("io_uring is not available ({reason}): using the epoll engine");
            Ok(ChosenEngine { engine: EngineKind::Epoll, message })
        }
        (Err(reason), EngineRequest::Exactly(_)) => Err(reason),
    }
}

/// A trial of io_uring that runs beside the rest of the start.
pub struct Probe(io::Result<JoinHandle<Result<(), Unavailable>>>);

impl Probe {
    /// Tries out everything that the io_uring engine needs.
    pub fn begin() -> Probe {
        Probe::of(Host::Glommio)
    }

    /// The same for shards that run there.
    pub fn of(host: Host) -> Probe {
        // The ring belongs to the thread that makes it, and so does its failure.
        Probe(std::thread::Builder::new().name("io-probe".into()).spawn(move || {
            if let Some(limit) = sys::memory_lock_limit()?
                && limit < LOCKED_MEMORY
            {
                return Err(Unavailable::LockLimit { limit, needed: LOCKED_MEMORY });
            }
            Trial::new()?.run()?;
            if host == Host::Thread {
                return Ok(());
            }
            // Its own rings need more than ours do: memory that it registers, and system calls of its own.
            host::run_on_glommio(None, "io-probe", || Ok(|| Ok(false))).map_err(Unavailable::Host)
        }))
    }

    /// Waits for the end of the trial; the error names what is missing.
    pub fn outcome(self) -> Result<(), Unavailable> {
        self.0?.join().unwrap_or_else(|_| Err(Unavailable::System(io::Error::other("the probe itself failed"))))
    }
}

/// Why an event did not come.
enum StepError {
    /// The ring could not be entered, for whatever step.
    Enter(io::Error),
    /// Another event came, or none.
    Event,
}

impl StepError {
    fn into_unavailable(self, lacking: &'static str) -> Unavailable {
        match self {
            StepError::Enter(error) => Unavailable::refused("io_uring_enter")(error),
            StepError::Event => Unavailable::Lacks(vec![lacking]),
        }
    }
}

/// A small engine and the event that each step waits for.
struct Trial {
    engine: Uring,
    events: Vec<Event>,
}

impl Trial {
    fn new() -> Result<Trial, Unavailable> {
        let limits = Limits { connections: 1, chunks: 1, listeners: 1 };
        Ok(Trial { engine: Uring::new(limits, Rc::new(Monotonic), Waker::new()?)?, events: Vec::new() })
    }

    fn run(mut self) -> Result<(), Unavailable> {
        let lacks = |what: &'static str| move |error: StepError| error.into_unavailable(what);
        let name = format!("nereid-probe-{}-{}", std::process::id(), Monotonic.now_ns());
        let address = SocketAddr::from_abstract_name(name)?;
        let (listener, listening) = (UnixListener::bind_addr(&address)?, 0);
        self.start(|engine| engine.listen(listener.into(), listening))?;
        let peer = UnixStream::connect_addr(&address)?;
        peer.set_read_timeout(Some(std::time::Duration::from_nanos(STEP_NS)))?;
        let accepted = self.wait(|event| match event {
            Event::Accepted { fd, .. } => Some(fd),
            _ => None,
        });
        let fd = accepted.map_err(lacks("multishot accept (Linux 5.19)"))?;
        let key = Key::from_u64(1 << 32).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        self.start(|engine| engine.register(fd, key))?;

        io::Write::write_all(&mut &peer, b"chunk")?;
        self.start(|engine| engine.receive(key))?;
        let chunk = self.wait(|event| match event {
            Event::Received { received: Received::Chunk(chunk), .. } => Some(chunk.to_vec()),
            _ => None,
        });
        chunk.map_err(lacks("receiving into provided buffers (Linux 5.19)"))?;

        io::Write::write_all(&mut &peer, b"direct")?;
        self.start(|engine| engine.receive_direct(key, BlockMut::unpooled(16), 0, 16))?;
        let direct = self.wait(|event| match event {
            Event::Received { received: Received::Direct { .. }, .. } => Some(()),
            _ => None,
        });
        direct.map_err(lacks("receiving (Linux 5.6)"))?;

        io::Write::write_all(&mut &peer, b"scattered")?;
        let layout = FrameLayout { lead: 1, first: 4, head: 1, stride: 4 };
        let scatter = Box::new(Scatter::new(BlockMut::unpooled(16), 0, 16, layout));
        self.start(|engine| engine.receive_scattered(key, scatter))?;
        let scattered = self.wait(|event| match event {
            Event::Received { received: Received::Scattered { .. }, .. } => Some(()),
            _ => None,
        });
        scattered.map_err(lacks("scattered receiving (Linux 5.3)"))?;

        for pieces in [vec![Slice::from_static(b"one")], vec![Slice::from_static(b"two"), Slice::from_static(b"three")]]
        {
            self.start(|engine| engine.send(key, pieces))?;
            let sent = self.wait(|event| match event {
                Event::Sent { result: Ok(_), .. } => Some(()),
                _ => None,
            });
            sent.map_err(lacks("gathered sending (Linux 5.6)"))?;
        }
        let mut answer = [0; 11];
        io::Read::read_exact(&mut &peer, &mut answer)?;

        self.engine.waker().wake();
        let woken = self.wait(|event| matches!(event, Event::Woken).then_some(()));
        woken.map_err(lacks("reading of an eventfd (Linux 5.6)"))?;

        self.start(|engine| engine.receive(key))?;
        self.engine.turn(Park::Never, &mut self.events).map_err(Unavailable::refused("io_uring_enter"))?;
        self.start(|engine| engine.close(key))?;
        let closed = self.wait(|event| matches!(event, Event::Closed { .. }).then_some(()));
        closed.map_err(lacks("cancellation (Linux 5.19)"))?;
        self.start(|engine| engine.stop_listening(listening))?;
        let stopped = self.wait(|event| matches!(event, Event::ListenerClosed { .. }).then_some(()));
        stopped.map_err(lacks("cancellation (Linux 5.5)"))
    }

    fn start(&mut self, what: impl FnOnce(&mut Uring) -> Result<(), super::engine::Refused>) -> io::Result<()> {
        what(&mut self.engine).map_err(io::Error::other)
    }

    /// The first event, if `wanted` accepts it.
    fn wait<T>(&mut self, mut wanted: impl FnMut(Event) -> Option<T>) -> Result<T, StepError> {
        let deadline = Monotonic.now_ns().saturating_add(STEP_NS);
        while Monotonic.now_ns() < deadline {
            self.engine.turn(Park::Until(deadline), &mut self.events).map_err(StepError::Enter)?;
            if let Some(event) = self.events.drain(..).next() {
                return wanted(event).ok_or(StepError::Event);
            }
        }
        Err(StepError::Event)
    }
}

impl FromStr for EngineRequest {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<EngineRequest, UnknownEngine> {
        match text {
            "auto" => Ok(EngineRequest::Auto),
            "io_uring" => Ok(EngineRequest::Exactly(EngineKind::IoUring)),
            "epoll" => Ok(EngineRequest::Exactly(EngineKind::Epoll)),
            _ => Err(UnknownEngine(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_chosen_and_the_choice_is_explained() {
        let forbidden = || Err(Unavailable::Forbidden("io_uring_setup"));
        assert_eq!(choose(EngineRequest::Auto, || Ok(())).unwrap().engine, EngineKind::IoUring);
        let fallen_back = choose(EngineRequest::Auto, forbidden).unwrap();
        assert_eq!(fallen_back.engine, EngineKind::Epoll);
        assert_eq!(
            fallen_back.message,
            "io_uring is not available (io_uring_setup is forbidden to this process, by a seccomp filter or by \
             kernel.io_uring_disabled): using the epoll engine"
        );
        let lacks = || Err(Unavailable::Lacks(vec!["wheels", "wings"]));
        let message = choose(EngineRequest::Auto, lacks).unwrap().message;
        assert_eq!(
            message,
            "io_uring is not available (the kernel's io_uring has no wheels, no wings): using the epoll engine"
        );
        assert!(choose("io_uring".parse().unwrap(), forbidden).is_err());
        assert_eq!(choose("io_uring".parse().unwrap(), || Ok(())).unwrap().engine, EngineKind::IoUring);
        let requested = choose("epoll".parse().unwrap(), || unreachable!("the probe is not needed"));
        assert_eq!(requested.unwrap().engine, EngineKind::Epoll);
        assert!("kqueue".parse::<EngineRequest>().is_err());
    }

    /// Where the ring can be made at all, every step of the trial works; where it cannot, the reason is a known one.
    #[test]
    fn the_probe_agrees_with_the_engine() {
        let made = Uring::new(Limits::default(), Rc::new(Monotonic), Waker::new().unwrap());
        match (Probe::begin().outcome(), made) {
            (Ok(()), Ok(_)) | (Err(Unavailable::LockLimit { .. }), _) => {}
            (Err(probed), Err(made)) => assert_eq!(probed.to_string(), made.to_string()),
            (probed, made) => panic!("{probed:?} but {:?}", made.map(drop)),
        }
    }
}
