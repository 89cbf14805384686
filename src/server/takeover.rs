//! A new server takes the listening sockets over from the running one (`--take-over=<path>`), so that no connection is
//! refused between the two.
//!
//! The running server listens at the path. The new one connects, gets the listening sockets as descriptors
//! (SCM_RIGHTS), and reports which it took once it answers on them. Only then does the running server stop accepting
//! connections there, and end. If the connection ends without that report, nothing has changed for it. Both messages
//! are one line of JSON each.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::drain::EndReason;
use super::inherited::InheritedSockets;
use nereid_shard::EngineKind;
use nereid_shard::listener::{self, SocketFile};

/// Of the messages. A server of another version must be able to read it in every later one.
const VERSION: u32 = 1;
/// Descriptors in one message: every service and its path, and this exchange's own.
const SOCKETS_MAX: usize = 16;
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// How long the running server may take to answer. It waits while another new server starts.
const OFFER_PATIENCE: Duration = Duration::from_secs(10);
/// The name of the socket at the path among the others.
const OWN_NAME: &str = "take-over";

/// Why a new server cannot take over.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    #[error("cannot listen at the path: {0}")]
    Listen(io::Error),
    #[error("the running server does not hand its sockets over ({0}); it may be doing so for another one just now")]
    NoOffer(io::Error),
    #[error("user {found} is at the other end, and this server runs as {own}: both must run as the same user")]
    OtherUser { found: u32, own: u32 },
    #[error(
        "the running server speaks version {0} of the exchange, and this one version {VERSION}: stop it, then start \
         this one"
    )]
    Version(u32),
    #[error(
        "the running server drives its sockets with {running}, and this one is to do so with {own}: both accept from \
         the same sockets for a moment, which one engine only can; start with --io-engine={running}, or stop the \
         running server first"
    )]
    OtherEngine { running: &'static str, own: &'static str },
}

#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    version: u32,
    engine: String,
    /// The service of each descriptor, in their order.
    services: Vec<String>,
    /// Those of them whose sockets a service manager has opened: it goes on listening there.
    #[serde(default)]
    managed: Vec<String>,
}

/// What the new server reports once it answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenOver {
    pub pid: u32,
    /// The services whose sockets it took.
    pub services: Vec<String>,
}

fn engine_name(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::IoUring => "io_uring",
        EngineKind::Epoll => "epoll",
    }
}

/// A listening socket of the running server.
pub struct OfferedSocket {
    pub service: &'static str,
    /// A service manager has opened it.
    pub is_managed: bool,
    pub socket: OwnedFd,
}

/// The sockets of the running server, as long as it serves.
pub struct OfferedSockets {
    pub sockets: Vec<OfferedSocket>,
    pub engine: EngineKind,
    /// A new server has them, and has not reported yet.
    is_offered: AtomicBool,
}

impl OfferedSockets {
    pub fn new(sockets: Vec<OfferedSocket>, engine: EngineKind) -> OfferedSockets {
        OfferedSockets { sockets, engine, is_offered: AtomicBool::new(false) }
    }

    /// Whether a new server may be about to answer on them.
    pub fn is_offered(&self) -> bool {
        self.is_offered.load(Ordering::Acquire)
    }
}

/// The socket at the path.
pub struct TakeoverListener {
    listener: UnixListener,
    /// `None` while it is the running server's.
    file: Option<SocketFile>,
}

impl TakeoverListener {
    fn bind(path: &Path) -> io::Result<TakeoverListener> {
        // Who can connect gets the sockets; the user is checked as well.
        let listener::Unix { listener, file } = listener::unix(path, Some(0o600))?;
        Ok(TakeoverListener { listener, file: Some(file) })
    }

    /// Starts the thread that hands the sockets over. It ends with them, or when a new server has taken over, which
    /// gets the returned file too.
    pub fn start(mut self, sockets: &Arc<OfferedSockets>, ends: Sender<EndReason>) -> io::Result<Option<SocketFile>> {
        let (sockets, file) = (Arc::downgrade(sockets), self.file.take());
        let thread = std::thread::Builder::new().name("take-over".to_owned());
        thread.spawn(move || self.run(&sockets, &ends)).map(|_| file)
    }

    fn run(self, sockets: &Weak<OfferedSockets>, ends: &Sender<EndReason>) {
        for stream in self.listener.incoming() {
            let Some(sockets) = sockets.upgrade() else { return };
            let outcome = stream.and_then(|stream| self.hand_over(&stream, sockets));
            match outcome {
                Ok(taken) => {
                    let _ = ends.send(EndReason::TakenOver(taken));
                    return;
                }
                Err(error) => warn!("another server was to take over, and did not ({error}): this one goes on"),
            }
        }
    }

    fn hand_over(&self, stream: &UnixStream, sockets: Arc<OfferedSockets>) -> io::Result<TakenOver> {
        check_user(stream).map_err(io::Error::other)?;
        info!("A starting server gets the listening sockets (--take-over); this one serves until that one answers");
        sockets.is_offered.store(true, Ordering::Release);
        let sent = self.offer(stream, &sockets);
        let watched = Arc::downgrade(&sockets);
        // A socket listens as long as any descriptor of it is open, and the start of the other may take minutes.
        drop(sockets);
        let taken = sent.and_then(|()| read_line::<TakenOver>(stream));
        if taken.is_err()
            && let Some(sockets) = watched.upgrade()
        {
            sockets.is_offered.store(false, Ordering::Release);
        }
        taken
    }

    fn offer(&self, mut stream: &UnixStream, offered: &OfferedSockets) -> io::Result<()> {
        let mut services: Vec<String> = offered.sockets.iter().map(|one| one.service.to_owned()).collect();
        services.push(OWN_NAME.to_owned());
        let managed = offered.sockets.iter().filter(|one| one.is_managed).map(|one| one.service.to_owned()).collect();
        let offer = Offer { version: VERSION, engine: engine_name(offered.engine).to_owned(), services, managed };
        let text = line_of(&offer)?;
        let descriptors: Vec<_> =
            offered.sockets.iter().map(|one| one.socket.as_fd()).chain([self.listener.as_fd()]).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("too many sockets for one message"));
        }
        let sent =
            retry_on_intr(|| rustix::net::sendmsg(stream, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL))?;
        stream.write_all(&text[sent..])
    }
}

/// What the running server handed over, and the connection on which it waits for the report.
pub struct Takeover {
    stream: Option<UnixStream>,
    listener: TakeoverListener,
    /// The engine that both must use.
    pub engine: Option<EngineKind>,
    path: PathBuf,
}

impl Takeover {
    /// Gets the sockets of the server that listens at `path`. Where none does, this server listens there.
    pub fn begin(path: &Path) -> Result<(Takeover, InheritedSockets), TakeoverError> {
        match UnixStream::connect(path) {
            Ok(stream) => Takeover::receive(stream, path),
            Err(_) => {
                let listener = TakeoverListener::bind(path).map_err(TakeoverError::Listen)?;
                let path = path.to_owned();
                Ok((Takeover { stream: None, listener, engine: None, path }, InheritedSockets::default()))
            }
        }
    }

    fn receive(stream: UnixStream, path: &Path) -> Result<(Takeover, InheritedSockets), TakeoverError> {
        check_user(&stream)?;
        stream.set_read_timeout(Some(OFFER_PATIENCE)).map_err(TakeoverError::NoOffer)?;
        let (offer, descriptors) = receive_offer(&stream).map_err(TakeoverError::NoOffer)?;
        if offer.version != VERSION {
            return Err(TakeoverError::Version(offer.version));
        }
        let wrong = |what: &str| TakeoverError::NoOffer(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()));
        let engine =
            [EngineKind::IoUring, EngineKind::Epoll].into_iter().find(|kind| engine_name(*kind) == offer.engine);
        let engine = engine.ok_or_else(|| wrong("it names an engine that is not known here"))?;
        if offer.services.len() != descriptors.len() {
            return Err(wrong("it names more sockets than it sends"));
        }
        let mut sockets = InheritedSockets::default();
        let mut own = None;
        for (service, socket) in offer.services.iter().zip(descriptors) {
            match service.as_str() {
                OWN_NAME => own = Some(UnixListener::from(socket)),
                service => {
                    let is_managed = offer.managed.iter().any(|managed| managed == service);
                    sockets.add_of_server(service, is_managed, socket).map_err(TakeoverError::NoOffer)?;
                }
            }
        }
        let listener = own.ok_or_else(|| wrong("it keeps the socket at the path"))?;
        let listener = TakeoverListener { listener, file: None };
        Ok((Takeover { stream: Some(stream), listener, engine: Some(engine), path: path.to_owned() }, sockets))
    }

    /// An error if this server is to use another engine than the running one.
    pub fn check_engine(&self, own: EngineKind) -> Result<(), TakeoverError> {
        match self.engine {
            Some(running) if running != own => {
                Err(TakeoverError::OtherEngine { running: engine_name(running), own: engine_name(own) })
            }
            _ => Ok(()),
        }
    }

    /// Reports to the running server, where there is one, that this one answers. Returns the listener for the next
    /// server, and whether another server was replaced.
    pub fn finish(mut self, services: Vec<String>) -> (TakeoverListener, bool) {
        let Some(mut stream) = self.stream else { return (self.listener, false) };
        let taken = TakenOver { pid: std::process::id(), services };
        match line_of(&taken).and_then(|line| stream.write_all(&line)) {
            Ok(()) => info!("Took over from the server at {}", self.path.display()),
            Err(error) => warn!("the server at {} ended before this one answered: {error}", self.path.display()),
        }
        let file = SocketFile::at(&self.path);
        self.listener.file =
            file.inspect_err(|error| warn!("{}: {error}: the next server cannot take over", self.path.display())).ok();
        (self.listener, true)
    }
}

/// Only the same user may give or get sockets: root must not serve on sockets that another user may still hold.
fn check_user(stream: &UnixStream) -> Result<(), TakeoverError> {
    let own = rustix::process::geteuid();
    let found = socket_peercred(stream).map_err(|error| TakeoverError::NoOffer(error.into()))?.uid;
    match found == own {
        true => Ok(()),
        false => Err(TakeoverError::OtherUser { found: found.as_raw(), own: own.as_raw() }),
    }
}

fn line_of(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

fn read_line<T: for<'a> Deserialize<'a>>(stream: impl Read) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MESSAGE_BYTES_MAX as u64)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&line)?)
}

/// The first message, with the descriptors that came with its first byte.
fn receive_offer(stream: &UnixStream) -> io::Result<(Offer, Vec<OwnedFd>)> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut head = vec![0; MESSAGE_BYTES_MAX];
    // A wait that has a timeout is interrupted by signals, whatever their handlers ask for.
    let received = retry_on_intr(|| {
        rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut head)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let offer = read_line(head[..received.bytes].chain(stream))?;
    Ok((offer, descriptors))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::server::inherited::Origin;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("nereid-takeover-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn path(&self) -> PathBuf {
            self.0.join("socket")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn offered() -> (Arc<OfferedSockets>, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sockets = vec![OfferedSocket { service: "http", is_managed: true, socket: listener.into() }];
        (Arc::new(OfferedSockets::new(sockets, EngineKind::Epoll)), address)
    }

    #[test]
    fn sockets_go_from_one_server_to_the_next_and_on() {
        let folder = Folder::new("chain");
        let (first, none) = Takeover::begin(&folder.path()).unwrap();
        none.warn_of_unused();
        assert_eq!(first.engine, None);
        let mode = std::fs::metadata(folder.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (mut sockets, address) = offered();
        let (mut listener, replaced) = first.finish(vec![]);
        assert!(!replaced);
        for _ in 0..3 {
            let (sender, ends) = channel();
            let file = listener.start(&sockets, sender).unwrap().expect("the file is this server's");
            // One that gives up changes nothing.
            let (gone, _) = Takeover::begin(&folder.path()).unwrap();
            assert_eq!(gone.check_engine(EngineKind::Epoll).map_err(|error| error.to_string()), Ok(()));
            assert!(gone.check_engine(EngineKind::IoUring).unwrap_err().to_string().contains("--io-engine=epoll"));
            drop(gone);
            let (next, mut inherited) = Takeover::begin(&folder.path()).unwrap();
            assert!(sockets.is_offered());
            let (taken, origin) = inherited.take_tcp("http", address).unwrap();
            assert_eq!(origin, Origin::RunningServer { is_managed: true });
            assert_eq!(taken.local_addr().unwrap(), address);
            let replaced;
            (listener, replaced) = next.finish(vec!["http".to_owned()]);
            assert!(replaced);
            let report = TakenOver { pid: std::process::id(), services: vec!["http".to_owned()] };
            assert_eq!(ends.recv().unwrap(), EndReason::TakenOver(report));
            file.keep();
            assert!(folder.path().exists());
            let next = vec![OfferedSocket { service: "http", is_managed: origin.is_managed(), socket: taken.into() }];
            sockets = Arc::new(OfferedSockets::new(next, EngineKind::Epoll));
        }
        drop(listener);
        assert!(!folder.path().exists(), "the last one removes the file");
    }

    /// As where the process is stopped and goes on while it waits.
    #[test]
    fn an_offer_that_comes_late_is_waited_for_through_interruptions() {
        if !nereid_test_support::variant::interrupt_next_wait() {
            return nereid_test_support::skip::skip("this host refuses io_uring");
        }
        let folder = Folder::new("interrupted");
        let listener = TakeoverListener::bind(&folder.path()).unwrap();
        let (sockets, _) = offered();
        let running = std::thread::spawn(move || {
            let (stream, _) = listener.listener.accept().unwrap();
            std::thread::sleep(Duration::from_millis(200));
            listener.offer(&stream, &sockets).unwrap();
        });
        let (next, _inherited) = Takeover::begin(&folder.path()).unwrap();
        assert_eq!(next.engine, Some(EngineKind::Epoll));
        running.join().unwrap();
    }

    #[test]
    fn what_is_no_server_is_no_offer() {
        let folder = Folder::new("strange");
        for (text, expected) in [
            ("", "unexpected end of file"),
            ("{\"version\":1", "unexpected end of file"),
            ("no json\n", "expected ident at line 1 column 2"),
            ("{\"version\":9,\"engine\":\"epoll\",\"services\":[]}\n", "speaks version 9 of the exchange"),
            ("{\"version\":1,\"engine\":\"tape\",\"services\":[]}\n", "an engine that is not known here"),
            ("{\"version\":1,\"engine\":\"epoll\",\"services\":[\"http\"]}\n", "more sockets than it sends"),
            ("{\"version\":1,\"engine\":\"epoll\",\"services\":[]}\n", "it keeps the socket at the path"),
        ] {
            let listener::Unix { listener, file } = listener::unix(&folder.path(), None).unwrap();
            let speaker = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(text.as_bytes()).unwrap();
            });
            let error = Takeover::begin(&folder.path()).err().expect("it is refused").to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
            speaker.join().unwrap();
            drop(file);
        }
    }
}
