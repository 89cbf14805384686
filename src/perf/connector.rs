//! Makes connections, on a thread of its own where the load may not wait for one.

use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::PerfError;
use super::crew::Order;
use super::plan::{Endpoint, Target};
use crate::shard::Mailbox;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that nobody can connect to for so long is away.
const AWAY_AFTER: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// A connected socket.
#[derive(Debug)]
pub struct Socket(pub OwnedFd);

/// Connects to `endpoint` now.
pub fn connect(endpoint: &Endpoint) -> std::io::Result<Socket> {
    match endpoint {
        Endpoint::Unix(path) => UnixStream::connect(path).map(|stream| Socket(stream.into())),
        Endpoint::Tcp { host, port } => connect_tcp(host, *port).map(|stream| Socket(stream.into())),
    }
}

pub fn connect_tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return stream.set_nodelay(true).map(|()| stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub struct Connector {
    endpoint: Endpoint,
    wanted: Sender<Mailbox<Order>>,
}

impl Connector {
    pub fn start(target: &Target) -> Result<Connector, PerfError> {
        let (wanted, requests) = mpsc::channel::<Mailbox<Order>>();
        let endpoint = target.endpoint.clone();
        let served = endpoint.clone();
        // It ends when nobody can ask any more; nobody waits for that.
        let body = move || {
            for mailbox in requests {
                let outcome = insist(&served, || mailbox.is_closed());
                mailbox.post(Order::Line(outcome));
            }
        };
        let spawned = thread::Builder::new().name("perf-connect".to_owned()).spawn(body);
        spawned.map_err(|source| PerfError::System { what: "a thread that connects".to_owned(), source })?;
        Ok(Connector { endpoint, wanted })
    }

    /// A connection for the thread that asks, at once.
    pub fn connect(&self) -> Result<Socket, PerfError> {
        connect(&self.endpoint)
            .map_err(|error| PerfError::Unreachable { endpoint: self.endpoint.clone(), reason: error.to_string() })
    }

    /// Asks for a connection that comes by mail.
    pub fn request(&self, mailbox: Mailbox<Order>) -> impl Fn() + Send + 'static {
        let wanted = self.wanted.clone();
        move || drop(wanted.send(mailbox.clone()))
    }
}

/// Tries again and again, for a server may be on its way back.
fn insist(endpoint: &Endpoint, over: impl Fn() -> bool) -> Result<Socket, String> {
    let began = Instant::now();
    loop {
        match connect(endpoint) {
            Ok(socket) => return Ok(socket),
            Err(error) if began.elapsed() > AWAY_AFTER || over() => return Err(error.to_string()),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
