//! Makes connected sockets, with a bound for the time that it may take.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

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
