//! Makes connections, on a thread of its own where the load may not wait for one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::PerfError;
use super::driver::Driver;
use super::plan::{Endpoint, Protocol, Target};
use super::threads::Order;
use nereid_client::{connect_tcp, connect_unix};
use nereid_ipc::ClientEnd;
use nereid_shard::{MailOf, Mailbox};

/// A server that refuses connections for so long is away.
const AWAY_AFTER: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);
/// A server greets a client of its rings at once.
const GREETING_PATIENCE: Duration = Duration::from_secs(20);

/// A connected socket.
#[derive(Debug)]
pub struct Socket {
    pub fd: OwnedFd,
    /// The rings whose bell it is.
    pub ring: Option<Box<ClientEnd>>,
}

impl Socket {
    pub fn plain(fd: OwnedFd) -> Socket {
        Socket { fd, ring: None }
    }
}

/// Connects to `target` now.
pub fn connect(target: &Target) -> io::Result<Socket> {
    match &target.endpoint {
        Endpoint::Unix(path) if target.protocol == Protocol::Ipc => {
            let mut stream = connect_unix(path)?;
            stream.set_read_timeout(Some(GREETING_PATIENCE))?;
            let end = ClientEnd::greet(&mut stream).map_err(|error| io::Error::other(error.to_string()))?;
            Ok(Socket { fd: stream.into(), ring: Some(Box::new(end)) })
        }
        Endpoint::Unix(path) => connect_unix(path).map(|stream| Socket::plain(stream.into())),
        Endpoint::Tcp { host, port } => connect_tcp(host, *port).map(|stream| Socket::plain(stream.into())),
    }
}

pub struct Connector {
    target: Target,
    wanted: Sender<Mailbox<MailOf<Driver>>>,
}

impl Connector {
    pub fn start(target: &Target) -> Result<Connector, PerfError> {
        let (wanted, requests) = mpsc::channel::<Mailbox<MailOf<Driver>>>();
        let served = target.clone();
        // It ends when no thread can request a connection any more; no thread waits for that.
        let body = move || {
            for mailbox in requests {
                let outcome = insist(&served, || mailbox.is_closed());
                mailbox.post(Order::Connection(outcome));
            }
        };
        let spawned = thread::Builder::new().name("perf-connect".to_owned()).spawn(body);
        spawned.map_err(|source| PerfError::System { what: "a thread that connects".to_owned(), source })?;
        Ok(Connector { target: target.clone(), wanted })
    }

    /// A connection for the calling thread, at once.
    pub fn connect(&self) -> Result<Socket, PerfError> {
        let endpoint = || self.target.endpoint.clone();
        connect(&self.target)
            .map_err(|error| PerfError::Unreachable { endpoint: endpoint(), reason: error.to_string() })
    }

    /// Asks for a connection that comes by mail.
    pub fn request(&self, mailbox: Mailbox<MailOf<Driver>>) -> impl Fn() + Send + 'static {
        let wanted = self.wanted.clone();
        move || drop(wanted.send(mailbox.clone()))
    }
}

/// Tries again and again, for a server may be on its way back.
fn insist(target: &Target, over: impl Fn() -> bool) -> Result<Socket, String> {
    let began = Instant::now();
    loop {
        match connect(target) {
            Ok(socket) => return Ok(socket),
            Err(error) if began.elapsed() > AWAY_AFTER || over() => return Err(error.to_string()),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
