//! Tests that need a process of their own, because they count or limit what the whole process has.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::rc::Rc;

use super::super::*;
use super::rig::{Make, Rig, epoll, late_epoll, late_uring, rig, uring};
use crate::clock::Clock;
use nereid_memory::Pool;
use nereid_memory::Slab;

/// Runs one ignored test of this file in a process of its own: it counts or limits what the process has.
fn alone(test: &str) {
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--test-threads=1"])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && output.contains("1 passed"), "{name}: {output}");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn no_descriptor_stays_open() {
    alone("descriptors_return_to_their_level");
}

#[test]
#[ignore = "counts the descriptors of its process: run by no_descriptor_stays_open"]
fn descriptors_return_to_their_level() {
    for make in [epoll as Make, uring, late_epoll, late_uring] {
        let before = open_descriptors();
        let Some(mut rig) = rig(make, Limits::default()) else { continue };
        let with_engine = open_descriptors();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        rig.engine.listen(listener.into(), 0).unwrap();
        for _ in 0..50 {
            let mut peer = TcpStream::connect(address).unwrap();
            let fd = rig.accepted(0);
            let key = rig.register(fd);
            peer.write_all(b"x").unwrap();
            rig.receive_exactly(key, 1);
            rig.engine.receive(key).unwrap();
            rig.close(key);
        }
        rig.engine.stop_listening(0).unwrap();
        rig.next(|event| if matches!(event, Event::ListenerClosed { .. }) { Ok(()) } else { Err(event) });
        assert_eq!(open_descriptors(), with_engine);
        let refused = UnixStream::pair().unwrap().0;
        rig.engine.register(refused.into(), Key::from_u64(1 << 32 | 0xffff_fff0).unwrap()).unwrap_err();
        assert_eq!(open_descriptors(), with_engine);
        let _connected: Vec<_> = (0..5).map(|_| rig.unix_pair().1).collect();
        drop(rig);
        assert_eq!(open_descriptors(), before + 5);
    }
}

#[test]
fn an_acceptor_without_descriptors_waits() {
    alone("accepting_pauses_and_goes_on");
}

#[test]
#[ignore = "takes away the descriptors of its process: run by an_acceptor_without_descriptors_waits"]
fn accepting_pauses_and_goes_on() {
    let limit = |soft: u64| {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: 4096 };
        // SAFETY: the kernel reads one limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    };
    type MakeWith = fn(Rc<dyn Clock>) -> Option<Box<dyn Engine>>;
    let makes: [MakeWith; 2] = [
        |clock| Some(Box::new(Epoll::new(Limits::default(), clock, Waker::new().unwrap()).unwrap())),
        |clock| Some(Box::new(Uring::new(Limits::default(), clock, Waker::new().unwrap()).ok()?)),
    ];
    for make in makes {
        // A manual clock, so that the test ends the pause.
        let clock = crate::clock::Manual::new(1);
        let Some(engine) = make(Rc::new(clock.clone())) else { continue };
        let mut rig = Rig { engine, keys: Slab::new(1), waiting: VecDeque::new(), pool: Pool::new(0) };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peers: Vec<OwnedFd> = (0..3).map(|_| sys::tcp_socket(&address).unwrap()).collect();
        // Before the engine begins to accept: io_uring uses the limit of that moment.
        limit(4);
        rig.engine.listen(listener.into(), 0).unwrap();
        rig.turn(Park::Never);
        peers.iter().for_each(|peer| connect(peer, address.port()));
        let (error, retry_at_ns) = rig.next(|event| match event {
            Event::AcceptFailed { listener: 0, error, retry_at_ns } => Ok((error, retry_at_ns)),
            other => Err(other),
        });
        assert_eq!((error.raw_os_error(), retry_at_ns), (Some(libc::EMFILE), 1 + ACCEPT_RETRY_NS));
        clock.advance(ACCEPT_RETRY_NS - 1);
        (0..100).for_each(|_| rig.turn(Park::Never));
        assert!(rig.waiting.is_empty(), "it does not spin: {:?}", rig.waiting);
        limit(4096);
        clock.advance(1);
        (0..3).for_each(|_| drop(rig.accepted(0)));
    }
}

/// Connects a socket that exists already to a port of this host: needs no new descriptor.
fn connect(socket: &OwnedFd, port: u16) {
    // SAFETY: all-zero is a valid address, which lives for the call.
    let result = unsafe {
        let mut to: libc::sockaddr_in = std::mem::zeroed();
        to.sin_family = libc::AF_INET as libc::sa_family_t;
        to.sin_port = port.to_be();
        to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        libc::connect(socket.as_raw_fd(), (&raw const to).cast(), size_of_val(&to) as libc::socklen_t)
    };
    assert_eq!(result, 0);
}
