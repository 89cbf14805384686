//! Listening sockets that another process has opened for this one: a service manager (sd_listen_fds(3)), or the running
//! server that this one replaces ([`super::takeover`]).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use rustix::net::sockopt::set_tcp_nodelay;
use tracing::warn;

#[derive(Debug, PartialEq, Eq)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Who opened a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    ThisServer,
    /// It goes on listening when this server ends: connections wait for the next one.
    ServiceManager,
    /// It ends when this server answers. `is_managed`: it has the socket from a service manager, itself or by another
    /// server.
    RunningServer {
        is_managed: bool,
    },
}

impl Origin {
    /// Whether a service manager keeps the socket open when this server ends.
    pub fn is_managed(self) -> bool {
        matches!(self, Origin::ServiceManager | Origin::RunningServer { is_managed: true })
    }
}

struct InheritedSocket {
    /// The service that the running server answered on it; `None`: from a service manager.
    service: Option<String>,
    origin: Origin,
    address: Address,
    socket: OwnedFd,
}

/// The sockets that no service has taken yet.
#[derive(Default)]
pub struct InheritedSockets {
    sockets: Vec<InheritedSocket>,
    /// Why descriptors are not used; logged once there is a log.
    complaints: Vec<String>,
}

impl InheritedSockets {
    /// Those that the environment announces (LISTEN_FDS). It is to be called before the process has a second thread,
    /// because it removes the variables.
    pub fn of_service_manager() -> InheritedSockets {
        let mut given = ListenFd::from_env();
        let mut sockets = InheritedSockets::default();
        for index in 0..given.len() {
            let socket = match given.take_tcp_listener(index) {
                Ok(Some(socket)) => socket.into(),
                Ok(None) => continue,
                Err(_) => match given.take_unix_listener(index) {
                    Ok(Some(socket)) => socket.into(),
                    Ok(None) => continue,
                    Err(error) => {
                        sockets.complaints.push(format!("a descriptor is not used: {error}"));
                        continue;
                    }
                },
            };
            if let Err(error) = sockets.add(None, Origin::ServiceManager, socket) {
                sockets.complaints.push(format!("a descriptor is not used: {error}"));
            }
        }
        sockets
    }

    /// Adds the socket on which the running server answers `service`, which a service manager has opened if it
    /// `is_managed`.
    pub fn add_of_server(&mut self, service: &str, is_managed: bool, socket: OwnedFd) -> io::Result<()> {
        self.add(Some(service.to_owned()), Origin::RunningServer { is_managed }, socket)
    }

    fn add(&mut self, service: Option<String>, origin: Origin, socket: OwnedFd) -> io::Result<()> {
        let tcp = TcpListener::from(socket);
        let (address, socket) = match tcp.local_addr() {
            Ok(address) => {
                // As of the sockets that this server opens: what it accepts has it from the listener.
                set_tcp_nodelay(&tcp, true)?;
                (Address::Tcp(address), tcp.into())
            }
            Err(_) => {
                let unix = UnixListener::from(OwnedFd::from(tcp));
                let address = unix.local_addr()?;
                let path = address.as_pathname().ok_or_else(|| io::Error::other("its address is no path"))?;
                (Address::Unix(path.to_owned()), unix.into())
            }
        };
        self.sockets.push(InheritedSocket { service, origin, address, socket });
        Ok(())
    }

    pub fn extend(&mut self, more: InheritedSockets) {
        self.sockets.extend(more.sockets);
        self.complaints.extend(more.complaints);
    }

    /// The socket for a service that is to answer at `address`; port 0 is any. A service manager's socket fits if its
    /// port is that: it may listen at more addresses (`[::]` for all of IPv4 as well).
    pub fn take_tcp(&mut self, service: &str, address: SocketAddr) -> Option<(TcpListener, Origin)> {
        self.take(|one| match (&one.address, &one.service) {
            (Address::Tcp(found), None) => found.port() == address.port(),
            (Address::Tcp(found), Some(of)) if one.origin.is_managed() => {
                of == service && found.port() == address.port()
            }
            (Address::Tcp(found), Some(of)) => {
                of == service && found.ip() == address.ip() && (address.port() == 0 || found.port() == address.port())
            }
            (Address::Unix(_), _) => false,
        })
        .map(|(socket, origin)| (socket.into(), origin))
    }

    /// The socket that listens on `path`.
    pub fn take_unix(&mut self, path: &Path) -> Option<(UnixListener, Origin)> {
        let found = self.take(|one| matches!(&one.address, Address::Unix(found) if found == path))?;
        Some((found.0.into(), found.1))
    }

    /// Whether [`take_unix`](Self::take_unix) would find one.
    pub fn has_unix(&self, path: &Path) -> bool {
        self.sockets.iter().any(|one| matches!(&one.address, Address::Unix(found) if found == path))
    }

    fn take(&mut self, fits: impl Fn(&InheritedSocket) -> bool) -> Option<(OwnedFd, Origin)> {
        let index = self.sockets.iter().position(fits)?;
        let InheritedSocket { origin, socket, .. } = self.sockets.swap_remove(index);
        Some((socket, origin))
    }

    /// Logs the sockets of a service manager that nothing has taken: clients that connect there would wait for ever.
    pub fn warn_of_unused(&self) {
        self.complaints.iter().for_each(|complaint| warn!("LISTEN_FDS: {complaint}"));
        for InheritedSocket { address, .. } in self.sockets.iter().filter(|one| one.service.is_none()) {
            warn!("LISTEN_FDS: no service is configured for the socket at {address}: it is closed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(service: Option<&str>, listener: TcpListener) -> InheritedSockets {
        let mut sockets = InheritedSockets::default();
        match service {
            Some(service) => sockets.add_of_server(service, false, listener.into()),
            None => sockets.add(None, Origin::ServiceManager, listener.into()),
        }
        .unwrap();
        sockets
    }

    fn local() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn a_service_managers_socket_is_found_by_its_port() {
        let (listener, address) = local();
        let everywhere = SocketAddr::from(([0, 0, 0, 0], address.port()));
        let mut sockets = sockets(None, listener);
        assert!(sockets.take_tcp("http", SocketAddr::from(([127, 0, 0, 1], address.port() ^ 1))).is_none());
        assert!(sockets.take_tcp("http", SocketAddr::from(([0, 0, 0, 0], 0))).is_none(), "any port is a new one");
        let (taken, origin) = sockets.take_tcp("http", everywhere).unwrap();
        assert_eq!((taken.local_addr().unwrap(), origin), (address, Origin::ServiceManager));
        assert!(sockets.take_tcp("grpc", everywhere).is_none(), "it is taken");
    }

    #[test]
    fn a_servers_socket_is_found_by_service_and_address() {
        let (listener, address) = local();
        let mut sockets = sockets(Some("http"), listener);
        assert!(sockets.take_tcp("grpc", address).is_none());
        assert!(sockets.take_tcp("http", SocketAddr::from(([0, 0, 0, 0], address.port()))).is_none());
        assert!(sockets.take_tcp("http", SocketAddr::from(([127, 0, 0, 1], address.port() ^ 1))).is_none());
        let taken = sockets.take_tcp("http", SocketAddr::from(([127, 0, 0, 1], 0)));
        assert_eq!(taken.expect("any port").1, Origin::RunningServer { is_managed: false });
    }

    /// It may listen at more addresses than the configured one, as it did for the running server.
    #[test]
    fn a_service_managers_socket_that_a_server_had_is_found_by_service_and_port() {
        let (listener, address) = local();
        let mut sockets = InheritedSockets::default();
        sockets.add_of_server("http", true, listener.into()).unwrap();
        let everywhere = SocketAddr::from(([0, 0, 0, 0], address.port()));
        assert!(sockets.take_tcp("grpc", everywhere).is_none());
        let (taken, origin) = sockets.take_tcp("http", everywhere).unwrap();
        assert_eq!((taken.local_addr().unwrap(), origin.is_managed()), (address, true));
    }

    #[test]
    fn a_unix_socket_is_found_by_its_path() {
        let directory = std::env::temp_dir().join(format!("nereid-inherited-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("socket");
        let mut sockets = InheritedSockets::default();
        sockets.add(None, Origin::ServiceManager, UnixListener::bind(&path).unwrap().into()).unwrap();
        assert!(sockets.take_unix(&directory.join("other")).is_none());
        assert!(sockets.take_tcp("http", SocketAddr::from(([0, 0, 0, 0], 0))).is_none());
        assert!(sockets.take_unix(&path).is_some());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
