//! System calls that std does not offer, each as a safe function with its errors typed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use core_affinity::CoreId;

/// Turns −1 into the thread's `errno`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// # Safety
/// `fd` is a descriptor that no other code owns, or negative with `errno` set.
unsafe fn own(fd: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: by contract we are its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Fresh zeroed pages of this process alone; `None` where the system has no memory.
pub fn map_private(bytes: usize) -> Option<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses a place where nothing lies.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED)
}

/// # Safety
/// `at` and `bytes` are those of a [`map_private`], and that memory is not used any more.
pub unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: by contract. It fails only for what is no mapping.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes) };
}

/// How many pages of a mapping are in memory.
#[cfg(test)]
pub fn resident_pages(at: NonNull<u8>, bytes: usize) -> io::Result<usize> {
    let mut pages = vec![0u8; bytes.div_ceil(4096)];
    // SAFETY: the kernel writes a byte for each page of the range, and fails where nothing is mapped.
    check(unsafe { libc::mincore(at.as_ptr().cast(), bytes, pages.as_mut_ptr()) })?;
    Ok(pages.iter().filter(|page| **page & 1 == 1).count())
}

/// Whether it blocks is up to the engine that reads it.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are involved; the new descriptor is ours.
    unsafe { own(libc::eventfd(0, libc::EFD_CLOEXEC)) }
}

/// Sets or clears `O_NONBLOCK`; one call only where it has that value already.
pub fn set_nonblocking(fd: BorrowedFd<'_>, wanted: bool) -> io::Result<()> {
    // SAFETY: the descriptor is open and no pointers are involved.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    let new = if wanted { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    if new != flags {
        // SAFETY: the descriptor is open and no pointers are involved.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, new) })?;
    }
    Ok(())
}

pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `into.len()` bytes to it.
    check_size(unsafe { libc::recv(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) })
}

/// Scattered, without waiting.
///
/// # Safety
/// The pieces that the header names can be written to until the call returns, and no reference to them is in use.
pub unsafe fn receive_message(fd: BorrowedFd<'_>, message: *mut libc::msghdr) -> io::Result<usize> {
    // SAFETY: the header points to as many pieces as it states, of which the kernel writes none beyond its length.
    check_size(unsafe { libc::recvmsg(fd.as_raw_fd(), message, libc::MSG_DONTWAIT) })
}

/// Gathered, without waiting and without SIGPIPE.
///
/// # Safety
/// The pieces can be read until the call returns; another process may write to them meanwhile.
pub unsafe fn send(fd: BorrowedFd<'_>, pieces: &[libc::iovec]) -> io::Result<usize> {
    // SAFETY: all-zero is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the header points to as many pieces as it states, and the kernel only reads through it.
    check_size(unsafe { libc::sendmsg(fd.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// A waiting connection, non-blocking and closed on exec.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (address, length) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: no address is requested; the new descriptor is ours.
    unsafe { own(libc::accept4(listener.as_raw_fd(), address, length, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)) }
}

/// Ends sending (`SHUT_WR`), or both directions.
pub fn shutdown(fd: BorrowedFd<'_>, both: bool) -> io::Result<()> {
    let how = if both { libc::SHUT_RDWR } else { libc::SHUT_WR };
    // SAFETY: no pointers are involved.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), how) }).map(drop)
}

pub fn set_option(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let value_at = (&raw const value).cast();
    // SAFETY: the option's value is an int, and lives for the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value_at, size_of_val(&value) as libc::socklen_t) })
        .map(drop)
}

/// The process that connected the other end of a Unix socket, or that has made it listen; 0: one that has no number in
/// this namespace.
pub fn peer_process(fd: BorrowedFd<'_>) -> io::Result<libc::pid_t> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let at = (&raw mut found).cast();
    // SAFETY: `found` and its length are writable, and the kernel writes at most as many bytes as the length says.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len) })?;
    Ok(found.pid)
}

/// Attaches a classic BPF program to a socket: it returns how many bytes of a packet the socket gets.
pub fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let given = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let (given_at, size) = ((&raw const given).cast(), size_of_val(&given) as libc::socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the kernel copies `len` steps from `filter`, which is a slice of that many, and writes to none of them.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, given_at, size) }).map(drop)
}

/// A TCP socket of the address's family, closed on exec.
pub fn tcp_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are involved; the new descriptor is ours.
    unsafe { own(libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)) }
}

pub fn bind(fd: BorrowedFd<'_>, address: &SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: all-zero is a valid address.
            let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            raw.sin_family = libc::AF_INET as libc::sa_family_t;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            bind_raw(fd, &raw)
        }
        SocketAddr::V6(v6) => {
            // SAFETY: all-zero is a valid address.
            let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_addr.s6_addr = v6.ip().octets();
            raw.sin6_flowinfo = v6.flowinfo();
            raw.sin6_scope_id = v6.scope_id();
            bind_raw(fd, &raw)
        }
    }
}

fn bind_raw<A>(fd: BorrowedFd<'_>, address: &A) -> io::Result<()> {
    let length = size_of::<A>() as libc::socklen_t;
    // SAFETY: only called with socket addresses, which begin with their family.
    check(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(address).cast(), length) }).map(drop)
}

pub fn listen(fd: BorrowedFd<'_>, backlog: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers are involved.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

pub fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are involved; the new descriptor is ours.
    unsafe { own(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }
}

pub fn epoll_add(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, interest: u32, data: u64) -> io::Result<()> {
    epoll_control(epoll, fd, libc::EPOLL_CTL_ADD, interest, data)
}

pub fn epoll_change(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, interest: u32, data: u64) -> io::Result<()> {
    epoll_control(epoll, fd, libc::EPOLL_CTL_MOD, interest, data)
}

pub fn epoll_remove(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
    epoll_control(epoll, fd, libc::EPOLL_CTL_DEL, 0, 0)
}

fn epoll_control(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, what: i32, interest: u32, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: interest, u64: data };
    // SAFETY: the event lives for the call.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, fd.as_raw_fd(), &mut event) }).map(drop)
}

/// Waits for events; `None` waits for ever. Timeouts are rounded up to milliseconds.
pub fn epoll_wait(
    epoll: BorrowedFd<'_>,
    into: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let timeout_ms = timeout.map_or(-1, |timeout| {
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        i32::try_from(ms).unwrap_or(i32::MAX)
    });
    let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
    // SAFETY: the kernel writes at most `room` events.
    let seen = check(unsafe { libc::epoll_wait(epoll.as_raw_fd(), into.as_mut_ptr(), room, timeout_ms) })?;
    Ok(seen as usize)
}

/// Bytes that this process may lock in memory, `None` without a limit.
pub fn memory_lock_limit() -> io::Result<Option<u64>> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one limit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) })?;
    Ok((limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur))
}

/// CPUs that the calling thread may run on, ascending.
pub fn affinity() -> io::Result<Vec<usize>> {
    // The library ends with the system call, and `errno` still holds its error; so does the one below.
    let cores = core_affinity::get_core_ids().ok_or_else(io::Error::last_os_error)?;
    Ok(cores.into_iter().map(|core| core.id).collect())
}

/// Binds the calling thread, and threads that it starts from now on, to one CPU.
pub fn bind_to(cpu: usize) -> io::Result<()> {
    // The library panics at a CPU that its mask has no place for.
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if core_affinity::set_for_current(CoreId { id: cpu }) { Ok(()) } else { Err(io::Error::last_os_error()) }
}
