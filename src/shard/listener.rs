//! Sockets that connections come in through.
//!
//! One socket per port, without SO_REUSEPORT unless it is asked for: a second server on the same port must fail to
//! start. Accepted sockets inherit TCP_NODELAY from their listener, which saves a call per connection.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use super::engine::sys;

/// Connections that may wait to be accepted. The kernel caps it at net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Listens on a TCP address, closed on exec and with SO_REUSEADDR, so that a restart need not wait for old connections.
pub fn tcp(address: &SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = sys::tcp_socket(address)?;
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if reuse_port {
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    sys::set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    sys::bind(socket.as_fd(), address)?;
    sys::listen(socket.as_fd(), BACKLOG)?;
    Ok(socket.into())
}

/// Listens on a path. A file that is in the way is an error: it may belong to a server that runs.
pub fn unix(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    sys::listen(listener.as_fd(), BACKLOG)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn a_second_server_fails_unless_both_share() {
        let first = tcp(&"127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = first.local_addr().unwrap();
        assert_eq!(tcp(&address, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(tcp(&address, true).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let shared = tcp(&"127.0.0.1:0".parse().unwrap(), true).unwrap();
        tcp(&shared.local_addr().unwrap(), true).unwrap();
    }

    #[test]
    fn connections_come_in_without_delay() {
        let listener = tcp(&"127.0.0.1:0".parse().unwrap(), false).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    #[test]
    fn six_is_as_good_as_four() {
        // A host without IPv6 has nothing to test here.
        let Ok(listener) = tcp(&"[::1]:0".parse().unwrap(), false) else { return };
        let address = listener.local_addr().unwrap();
        assert!(address.is_ipv6() && address.port() != 0);
        TcpStream::connect(address).unwrap();
    }
}
