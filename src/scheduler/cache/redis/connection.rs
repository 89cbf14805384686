//! One connection to Redis, on which each command has a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_keepalive;
use rustls::{ClientConnection, StreamOwned};

use super::Options;
use super::reply::{self, Garbled, Parsed, Reply};

pub struct Connection(Stream);

enum Stream {
    Plain(TcpStream),
    Secure(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// Why there is no reply. The connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("it does not speak the protocol of Redis")]
    Malformed,
    #[error("it sends a value that is too large")]
    TooLarge,
}

const READ_BYTES: usize = 64 * 1024;

impl Connection {
    pub fn open(options: &Options) -> Result<Connection, Failure> {
        let mut failure = io::Error::new(ErrorKind::NotFound, "its name stands for no address");
        let deadline = Instant::now() + options.connect_timeout;
        for address in options.address.resolved() {
            match TcpStream::connect_timeout(&address, left(deadline)?) {
                Ok(socket) => return Connection::over(socket, options, deadline),
                Err(error) => failure = error,
            }
        }
        options.address.renew();
        Err(failure.into())
    }

    fn over(socket: TcpStream, options: &Options, deadline: Instant) -> Result<Connection, Failure> {
        socket.set_nodelay(true)?;
        if options.keep_alive {
            set_socket_keepalive(&socket, true).map_err(io::Error::from)?;
        }
        let mut connection = Connection(match &options.security {
            None => Stream::Plain(socket),
            Some(security) => {
                let session = security.session().map_err(|error| Failure::Refused(error.to_string()))?;
                Stream::Secure(Box::new(StreamOwned::new(session, socket)))
            }
        });
        if let Some(password) = &options.password {
            let (user, password) = (options.user.as_bytes(), password.as_bytes());
            // Redis before version 6 has no users.
            match user {
                b"default" => connection.demand(&[b"AUTH", password], deadline)?,
                user => connection.demand(&[b"AUTH", user, password], deadline)?,
            }
        }
        if options.database != 0 {
            connection.demand(&[b"SELECT", options.database.to_string().as_bytes()], deadline)?;
        }
        Ok(connection)
    }

    fn demand(&mut self, words: &[&[u8]], deadline: Instant) -> Result<(), Failure> {
        match self.command(words, deadline)? {
            Reply::Error(text) => Err(Failure::Refused(text)),
            _ => Ok(()),
        }
    }

    pub fn command(&mut self, words: &[&[u8]], deadline: Instant) -> Result<Reply, Failure> {
        let command = reply::command(words);
        let mut rest = &command[..];
        while !rest.is_empty() {
            self.limit(deadline)?;
            let count = match &mut self.0 {
                Stream::Plain(socket) => socket.write(rest),
                Stream::Secure(stream) => stream.write(rest),
            };
            let count = again(count)?;
            rest = rest.get(count..).unwrap_or_default();
        }
        if let Stream::Secure(stream) = &mut self.0 {
            stream.flush()?;
        }
        let mut bytes = Vec::new();
        let mut piece = vec![0; READ_BYTES];
        // A large value is not parsed again for each of its pieces.
        let mut wanted = 0;
        loop {
            self.limit(deadline)?;
            let count = match &mut self.0 {
                Stream::Plain(socket) => socket.read(&mut piece),
                Stream::Secure(stream) => stream.read(&mut piece),
            };
            match count {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                count => bytes.extend_from_slice(piece.get(..again(count)?).unwrap_or_default()),
            }
            if bytes.len() < wanted {
                continue;
            }
            match reply::parse(&bytes) {
                Ok(Parsed::Whole(reply)) => return Ok(reply),
                Ok(Parsed::Part(bytes)) => wanted = bytes,
                Err(Garbled::Malformed) => return Err(Failure::Malformed),
                Err(Garbled::TooLarge) => return Err(Failure::TooLarge),
            }
        }
    }

    /// Ends every read and write at `deadline`.
    fn limit(&mut self, deadline: Instant) -> Result<(), Failure> {
        let socket = match &self.0 {
            Stream::Plain(socket) => socket,
            Stream::Secure(stream) => &stream.sock,
        };
        let left = left(deadline)?;
        socket.set_read_timeout(Some(left))?;
        socket.set_write_timeout(Some(left))?;
        Ok(())
    }
}

fn left(deadline: Instant) -> Result<Duration, Failure> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> Failure {
    io::Error::new(ErrorKind::TimedOut, "it took too long").into()
}

/// An interrupted call moved nothing; one that reached its time limit is late.
fn again(count: io::Result<usize>) -> Result<usize, Failure> {
    match count {
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Err(late()),
        count => Ok(count?),
    }
}
