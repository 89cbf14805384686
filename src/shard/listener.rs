//! The listening sockets, TCP and Unix.
//!
//! One socket per port, without SO_REUSEPORT unless it is requested: a second server on the same port must fail to
//! start. Accepted sockets inherit TCP_NODELAY from their listener, which saves a call per connection.

use std::fs::{Metadata, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, test_kill_process};

use super::engine::sys;

/// Connections that may wait to be accepted. The kernel caps it at net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Bytes that a socket's path may have (unix(7): 108 with the zero behind it).
const UNIX_PATH_MAX: usize = 107;
/// How long a socket may outlive the process that listens on it: the kernel ends the operations of an io_uring, and
/// closes what they hold, in a thread of its own behind the end of the process.
const OUTLIVES_FOR: Duration = Duration::from_secs(10);
/// How long to wait before it is tried again, at first and at last. Each try stays in the socket's queue, which may be
/// short.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// Binds a TCP address, closed on exec and with SO_REUSEADDR, so that a restart need not wait for old connections.
pub fn bind(address: &SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = sys::tcp_socket(address)?;
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if reuse_port {
        sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    sys::set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    sys::bind(socket.as_fd(), address)?;
    Ok(socket.into())
}

/// Lets a bound socket take connections. `AddrInUse`: another process has bound the same address and listens.
pub fn listen(socket: BorrowedFd<'_>) -> io::Result<()> {
    sys::listen(socket, BACKLOG)
}

/// Both at once.
#[cfg(test)]
pub fn tcp(address: &SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = bind(address, reuse_port)?;
    listen(socket.as_fd())?;
    Ok(socket)
}

/// Lets a listener take no further connection: the kernel drops the first packet of each (SYN), and clients send it
/// again after a second. Connections whose handshake has begun come in. Where processes share a port, a listener that
/// is closed after this has nothing in its queue that the kernel would reset, and the packet that is sent again reaches
/// another process.
pub fn hold_new(listener: BorrowedFd<'_>) -> io::Result<()> {
    /// Of the byte of flags in a TCP header (RFC 9293 section 3.1).
    const FLAGS_AT: u32 = 13;
    const SYN: u32 = 2;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    sys::attach_filter(
        listener,
        &[
            step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, FLAGS_AT),
            step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, SYN),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        ],
    )
}

/// A socket that listens on a path, and the file that it made there.
#[derive(Debug)]
pub struct Unix {
    pub listener: UnixListener,
    pub file: SocketFile,
}

/// The file of a Unix socket, removed with its owner unless another file has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// The file of a socket that another process made, which is this process's from now on.
    pub fn at(path: &Path) -> io::Result<SocketFile> {
        let found = std::fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.to_owned(), id: (found.dev(), found.ino()) })
    }

    /// Leaves the file where it is, for the process that has the socket now.
    pub fn keep(mut self) {
        self.path.clear();
    }
}

/// Listens on a path, which becomes a file with these permissions, or with those that the umask leaves. What a dead
/// server left behind is replaced; the socket of a running server is `AddrInUse`, and any other file `AlreadyExists`.
pub fn unix(path: &Path, mode: Option<u32>) -> io::Result<Unix> {
    check_length(path)?;
    let listener = match bind_unix(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            bind_unix(path)?
        }
        bound => bound?,
    };
    let file = SocketFile::at(path)?;
    // Nobody can connect before it listens.
    if let Some(mode) = mode {
        set_mode(path, mode)?;
    }
    sys::listen(listener.as_fd(), BACKLOG)?;
    Ok(Unix { listener, file })
}

/// A bound socket, closed on exec.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Sets the permissions of the socket's file at a path. Any other file is left alone.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is in the way"));
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

fn check_length(path: &Path) -> io::Result<()> {
    if path.as_os_str().len() > UNIX_PATH_MAX {
        let text = format!("the path is longer than {UNIX_PATH_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

/// The error that [`unix`] would return, as far as it can be known without a file at the path.
pub fn try_unix(path: &Path) -> io::Result<()> {
    check_length(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(found) => check_stale(path, &found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            std::fs::metadata(directory).map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Fails unless what is at the path may be replaced.
fn check_stale(path: &Path, found: &Metadata) -> io::Result<()> {
    if !found.file_type().is_socket() {
        let text = "a file that is no socket is in the way";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    if is_served(path, OUTLIVES_FOR)? {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(())
}

/// Removes the socket of a dead server. It is moved aside first and checked again there, because another server may be
/// doing the same.
fn remove_stale(path: &Path) -> io::Result<()> {
    check_stale(path, &std::fs::symlink_metadata(path)?)?;
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}", std::process::id()));
    let aside = PathBuf::from(aside);
    std::fs::rename(path, &aside)?;
    // A path that has become too long to check was checked above.
    if is_served(&aside, Duration::ZERO).unwrap_or(false) {
        std::fs::rename(&aside, path)?;
        return Err(io::ErrorKind::AddrInUse.into());
    }
    std::fs::remove_file(&aside)
}

/// Whether a server listens at the path. A socket of a dead process has so much time to go.
fn is_served(path: &Path, patience: Duration) -> io::Result<bool> {
    let (started, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        match connect(path) {
            Ok(connection) if is_of_dead(&connection) && started.elapsed() < patience => {}
            // Or a server has taken it over from a dead one.
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(false),
            // Its queue is full: a server listens, but is busy.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Connects without waiting for room in the other side's queue: `WouldBlock` if it is full.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Whether the process that has made the other end listen is gone. One of another namespace has no number here.
fn is_of_dead(connection: &UnixStream) -> bool {
    let process = sys::peer_process(connection.as_fd()).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;
    use std::process::Command;

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

    /// A directory that goes with its owner.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("nereid-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_live_one_is_not() {
        let directory = Directory::new("unix");
        let path = directory.0.join("socket");
        let Unix { listener, file } = unix(&path, None).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(unix(&path, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists(), "it is still there");
        // It dies without removing the file. Another test's child may hold a copy of the descriptor for a moment.
        std::mem::forget(file);
        sys::shutdown(listener.as_fd(), true).unwrap();
        drop(listener);
        let Unix { listener: second, file } = unix(&path, None).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(second);
        drop(file);
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0, "nothing is left aside");
    }

    /// A socket outlives its process while the kernel ends the operations of an io_uring.
    #[test]
    fn a_socket_that_outlives_its_server_is_waited_for() {
        let directory = Directory::new("outlives");
        let path = directory.0.join("socket");
        let listener = bind_unix(&path).unwrap();
        let listens = "import socket; socket.socket(fileno=0).listen(16)";
        let process =
            Command::new("python3").args(["-c", listens]).stdin(OwnedFd::from(listener.try_clone().unwrap())).status();
        assert!(process.unwrap().success());
        assert!(is_served(&path, Duration::ZERO).unwrap(), "nobody waits for it");
        let waits = std::thread::spawn({
            let path = path.clone();
            move || unix(&path, None).map(drop)
        });
        // It has tried, perhaps after the one above.
        (0..2).for_each(|_| drop(listener.accept().unwrap()));
        sys::shutdown(listener.as_fd(), true).unwrap();
        waits.join().unwrap().unwrap();
    }

    /// Of a server that takes no connections, a start must not become one more that waits.
    #[test]
    fn a_server_with_a_full_queue_is_found_at_once() {
        let directory = Directory::new("full");
        let path = directory.0.join("socket");
        let listener = bind_unix(&path).unwrap();
        sys::listen(listener.as_fd(), 0).unwrap();
        let _waits = connect(&path).unwrap();
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(unix(&path, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn what_is_no_socket_or_no_path_is_left_alone() {
        let directory = Directory::new("no-unix");
        let path = directory.0.join("file");
        std::fs::write(&path, "mine").unwrap();
        assert_eq!(unix(&path, None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        let long = directory.0.join("x".repeat(UNIX_PATH_MAX));
        assert_eq!(unix(&long, None).unwrap_err().to_string(), "the path is longer than 107 bytes");
        assert_eq!(unix(&directory.0.join("none/socket"), None).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_has_its_permissions_whatever_the_umask_is() {
        let directory = Directory::new("mode-unix");
        let path = directory.0.join("socket");
        let mode = || std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777;
        for wanted in [0o600, 0o666, 0o620] {
            let _socket = unix(&path, Some(wanted)).unwrap();
            assert_eq!(mode(), wanted);
            UnixStream::connect(&path).unwrap();
        }
        let _socket = unix(&path, None).unwrap();
        set_mode(&path, 0o640).unwrap();
        assert_eq!(mode(), 0o640);
        let file = directory.0.join("file");
        std::fs::write(&file, "").unwrap();
        assert!(set_mode(&file, 0o600).is_err());
    }

    #[test]
    fn a_file_that_took_its_place_is_not_removed() {
        let directory = Directory::new("other-unix");
        let path = directory.0.join("socket");
        let Unix { listener: _listener, file } = unix(&path, None).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Not created at once, because it could get the inode that has just become free.
        std::fs::write(directory.0.join("other"), "").unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        let same = std::fs::symlink_metadata(&path).is_ok_and(|found| (found.dev(), found.ino()) == file.id);
        drop(file);
        assert_eq!(path.exists(), !same);
    }
}
