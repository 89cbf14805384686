//! Makes connections, on a thread of its own where the load may not wait for one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::PerfError;
use super::driver::Driver;
use super::plan::{Endpoint, Target};
use super::threads::Order;
use nereid_client::{connect_tcp, connect_unix};
use nereid_shard::{MailOf, Mailbox};

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
