//! Makes connections, on a thread of its own where the load may not wait for one.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::PerfError;
use super::driver::Driver;
use super::plan::{Endpoint, Target};
use super::threads::Order;
use nereid_shard::{MailOf, Mailbox};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that refuses connections for so long is away.
const AWAY_AFTER: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// A connected socket.
#[derive(Debug)]
pub struct Socket(pub OwnedFd);

/// Connects to `endpoint` now.
pub fn connect(endpoint: &Endpoint) -> io::Result<Socket> {
    match endpoint {
        Endpoint::Unix(path) => connect_unix(path).map(|stream| Socket(stream.into())),
        Endpoint::Tcp { host, port } => connect_tcp(host, *port).map(|stream| Socket(stream.into())),
    }
}

pub fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return stream.set_nodelay(true).map(|()| stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    connect_unix_within(path, CONNECT_TIMEOUT)
}

/// A blocking socket would wait for ever where a server takes no more connections.
fn connect_unix_within(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let (address, began) = (SocketAddrUnix::new(path)?, Instant::now());
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            // As many as the server lets wait do.
            Err(Errno::AGAIN) if began.elapsed() < patience => thread::sleep(PAUSE),
            Err(Errno::AGAIN) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it takes no connections")),
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).map(|()| stream)
}

pub struct Connector {
    endpoint: Endpoint,
    wanted: Sender<Mailbox<MailOf<Driver>>>,
}

impl Connector {
    pub fn start(target: &Target) -> Result<Connector, PerfError> {
        let (wanted, requests) = mpsc::channel::<Mailbox<MailOf<Driver>>>();
        let endpoint = target.endpoint.clone();
        let served = endpoint.clone();
        // It ends when no thread can request a connection any more; no thread waits for that.
        let body = move || {
            for mailbox in requests {
                let outcome = insist(&served, || mailbox.is_closed());
                mailbox.post(Order::Connection(outcome));
            }
        };
        let spawned = thread::Builder::new().name("perf-connect".to_owned()).spawn(body);
        spawned.map_err(|source| PerfError::System { what: "a thread that connects".to_owned(), source })?;
        Ok(Connector { endpoint, wanted })
    }

    /// A connection for the calling thread, at once.
    pub fn connect(&self) -> Result<Socket, PerfError> {
        connect(&self.endpoint)
            .map_err(|error| PerfError::Unreachable { endpoint: self.endpoint.clone(), reason: error.to_string() })
    }

    /// Asks for a connection that comes by mail.
    pub fn request(&self, mailbox: Mailbox<MailOf<Driver>>) -> impl Fn() + Send + 'static {
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_server_that_takes_no_connections_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("nereid-connector-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut waiting = Vec::new();
        let refusal = loop {
            match connect_unix_within(&path, PAUSE) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refusal.kind(), io::ErrorKind::TimedOut, "{refusal}");
        let (taken, _) = listener.accept().unwrap();
        assert!(connect_unix(&path).is_ok(), "there is room for one again");
        drop((taken, waiting, listener));
        assert_eq!(connect_unix(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        std::fs::remove_file(&path).unwrap();
    }
}
