//! A blocking connection, with TLS or without.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use super::Endpoint;
use super::connect::{connect_tcp, connect_unix};
use super::http::CallError;
use super::tls::Security;

/// Of a socket that came without a bound.
const LONGEST: Duration = Duration::from_secs(3600);
/// Bytes of an exchange that earn it more time.
const STEP_BYTES: usize = 64 << 10;

fn after(patience: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(patience).unwrap_or(now + LONGEST)
}

/// Until when more of an answer has to be there. A server cannot put it off with single bytes, nor with what belongs to
/// no answer.
pub(crate) struct Deadline {
    patience: Duration,
    at: Instant,
    next_bytes: usize,
}

impl Deadline {
    pub(crate) fn new(patience: Duration) -> Deadline {
        Deadline { patience, at: after(patience), next_bytes: STEP_BYTES }
    }

    /// `bytes`: what was exchanged since the beginning; the head of the answer counts as much as a step.
    pub(crate) fn note(&mut self, bytes: usize, has_head: bool) {
        let bytes = bytes.saturating_add(if has_head { STEP_BYTES } else { 0 });
        if bytes >= self.next_bytes {
            (self.at, self.next_bytes) = (after(self.patience), bytes.saturating_add(STEP_BYTES));
        }
    }

    pub(crate) fn at(&self) -> Instant {
        self.at
    }
}

/// A socket whose reads end in time.
pub trait Socket {
    fn limit_reads(&self, left: Duration) -> io::Result<()>;

    fn end_reads_at(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { self.limit_reads(left) }
    }
}

impl Socket for TcpStream {
    fn limit_reads(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))
    }
}

impl Socket for UnixStream {
    fn limit_reads(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))
    }
}

/// A socket below TLS: one read of a session may be many of the socket, which all end at the same time.
pub struct Timed<S> {
    socket: S,
    until: Instant,
}

impl<S: Socket + Read> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.end_reads_at(self.until)?;
        self.socket.read(buffer)
    }
}

impl<S: Write> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

pub enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
    TlsTcp(Box<StreamOwned<ClientConnection, Timed<TcpStream>>>),
    TlsUnix(Box<StreamOwned<ClientConnection, Timed<UnixStream>>>),
}

impl Wire {
    /// `patience`: the longest time until an answer, or more of it, is there, which turns a hang into an error.
    pub fn connect(endpoint: &Endpoint, security: Option<&Security>, patience: Duration) -> Result<Wire, String> {
        let session = security.map(Security::session).transpose()?;
        let text = |error: io::Error| error.to_string();
        match endpoint {
            Endpoint::Tcp { host, port } => {
                let stream = connect_tcp(host, *port).map_err(text)?;
                stream.set_write_timeout(Some(patience)).map_err(text)?;
                Ok(match session {
                    None => Wire::Tcp(stream),
                    Some(session) => {
                        let socket = Timed { socket: stream, until: after(patience) };
                        Wire::TlsTcp(Box::new(StreamOwned::new(session, socket)))
                    }
                })
            }
            Endpoint::Unix(path) => {
                let stream = connect_unix(path).map_err(text)?;
                stream.set_write_timeout(Some(patience)).map_err(text)?;
                Ok(match session {
                    None => Wire::Unix(stream),
                    Some(session) => {
                        let socket = Timed { socket: stream, until: after(patience) };
                        Wire::TlsUnix(Box::new(StreamOwned::new(session, socket)))
                    }
                })
            }
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        // Reads have whatever is left to them; writes keep the bound.
        let limit = match self {
            Wire::Tcp(stream) => stream.write_timeout(),
            Wire::Unix(stream) => stream.write_timeout(),
            Wire::TlsTcp(stream) => stream.sock.socket.write_timeout(),
            Wire::TlsUnix(stream) => stream.sock.socket.write_timeout(),
        };
        limit.ok().flatten().unwrap_or(LONGEST)
    }

    fn failure(&self, error: &io::Error) -> CallError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                CallError::TimedOut(format!("no answer within {} s", self.patience().as_secs()))
            }
            _ => CallError::Connection(error.to_string()),
        }
    }

    /// Reads something; the end is an error, for an answer is awaited.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, CallError> {
        let until = after(self.patience());
        self.receive_until(buffer, until)
    }

    /// The same until a point in time.
    pub(crate) fn receive_until(&mut self, buffer: &mut [u8], until: Instant) -> Result<usize, CallError> {
        loop {
            let read = match self {
                Wire::Tcp(stream) => stream.end_reads_at(until).and_then(|()| stream.read(buffer)),
                Wire::Unix(stream) => stream.end_reads_at(until).and_then(|()| stream.read(buffer)),
                Wire::TlsTcp(stream) => {
                    stream.sock.until = until;
                    stream.read(buffer)
                }
                Wire::TlsUnix(stream) => {
                    stream.sock.until = until;
                    stream.read(buffer)
                }
            };
            match read {
                Ok(0) => return Err(CallError::Connection("the server closed the connection".to_owned())),
                Ok(n) => return Ok(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure(&error)),
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // The first bytes wait for the handshake, which reads.
        let until = after(self.patience());
        let sent = match self {
            Wire::Tcp(stream) => stream.write_all(bytes),
            Wire::Unix(stream) => stream.write_all(bytes),
            Wire::TlsTcp(stream) => {
                stream.sock.until = until;
                stream.write_all(bytes).and_then(|()| stream.flush())
            }
            Wire::TlsUnix(stream) => {
                stream.sock.until = until;
                stream.write_all(bytes).and_then(|()| stream.flush())
            }
        };
        sent.map_err(|error| self.failure(&error))
    }
}
