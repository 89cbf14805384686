//! The floor: a plain echo of the requests' bytes in the server's place, on the server's core.
//!
//! The cost of sockets and wake-ups differs from machine to machine, and on a virtual one from hour to hour. The floor
//! goes through the same kernel paths with no protocol and no model behind them, in turn with the engines, so that a
//! reader can separate the server's part from the machine's. It is this binary in a process of its own, and ends with
//! its standard input.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;

use nereid_memory::Slice;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::line::Peer;
use super::load::Tally;

/// Its name in lists of engines.
pub const FLOOR: &str = "floor";
/// The argument that makes this binary the floor.
pub const FLOOR_ARGUMENT: &str = "--serve-floor";

const LISTENER: u64 = u64::MAX;
const INPUT: u64 = u64::MAX - 1;
const RECEIVE_BYTES: usize = 256 * 1024;

/// Echoes until standard input ends. Prints its port first.
pub fn serve() -> Result<(), String> {
    // Otherwise the thread has the name of this binary, with its hash.
    rustix::thread::set_name(c"floor").map_err(|error| error.to_string())?;
    let text = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(text)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
    watch(&poll, &listener, LISTENER)?;
    watch(&poll, std::io::stdin(), INPUT)?;
    println!("{}", listener.local_addr().map_err(text)?.port());
    let mut echoes: Vec<Option<Echo>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    loop {
        events.clear();
        match epoll::wait(&poll, spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        for event in &events {
            match event.data.u64() {
                INPUT => return Ok(()),
                LISTENER => {
                    let (socket, _) = listener.accept().map_err(text)?;
                    socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map_err(text)?;
                    watch(&poll, &socket, echoes.len() as u64)?;
                    echoes.push(Some(Echo::new(socket)));
                }
                at => {
                    let Some(slot) = echoes.get_mut(at as usize) else { continue };
                    if slot.as_mut().is_some_and(|echo| !echo.turn(&poll, at)) {
                        *slot = None;
                    }
                }
            }
        }
    }
}

fn watch(poll: &OwnedFd, source: impl rustix::fd::AsFd, token: u64) -> Result<(), String> {
    epoll::add(poll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN).map_err(|error| error.to_string())
}

struct Echo {
    socket: TcpStream,
    /// Received bytes; `unsent` of them are still to be sent back, and until then nothing more is read.
    buffer: Vec<u8>,
    unsent: Range<usize>,
    waits_to_write: bool,
}

impl Echo {
    fn new(socket: TcpStream) -> Echo {
        Echo { socket, buffer: vec![0; RECEIVE_BYTES], unsent: 0..0, waits_to_write: false }
    }

    /// One receive and what can be sent; false when the connection is over.
    fn turn(&mut self, poll: &OwnedFd, token: u64) -> bool {
        if self.unsent.is_empty() {
            match self.socket.read(&mut self.buffer) {
                Ok(0) => return false,
                Ok(n) => self.unsent = 0..n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        while !self.unsent.is_empty() {
            match self.socket.write(&self.buffer[self.unsent.clone()]) {
                Ok(n) => self.unsent.start += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        if self.waits_to_write == self.unsent.is_empty() {
            self.waits_to_write = !self.unsent.is_empty();
            let wanted = if self.waits_to_write { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            return epoll::modify(poll, &self.socket, epoll::EventData::new_u64(token), wanted).is_ok();
        }
        true
    }
}

/// A client of the floor: sends a request's bytes and waits for them to come back.
pub struct EchoPeer {
    requests: Vec<Slice>,
    /// Requests in flight, the oldest first, each with its time.
    sent: VecDeque<(usize, u64)>,
    free: Vec<usize>,
    /// Bytes of the oldest one that are back.
    back: usize,
    differs: bool,
    unsent: Vec<Slice>,
}

impl EchoPeer {
    pub fn new(requests: Vec<Slice>) -> EchoPeer {
        let free = (0..requests.len()).collect();
        EchoPeer { requests, sent: VecDeque::new(), free, back: 0, differs: false, unsent: Vec::new() }
    }
}

impl Peer for EchoPeer {
    fn begin(&mut self, now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        if tally.open {
            for at in self.free.drain(..) {
                self.unsent.push(self.requests[at].clone());
                self.sent.push_back((at, now_ns));
            }
        }
        Ok(())
    }

    fn receive(&mut self, mut bytes: &[u8], now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        while !bytes.is_empty() {
            let &(at, sent_ns) = self.sent.front().ok_or("bytes that were not sent")?;
            let request = &self.requests[at];
            let (mine, rest) = bytes.split_at(bytes.len().min(request.len() - self.back));
            self.differs |= request[self.back..self.back + mine.len()] != *mine;
            self.back += mine.len();
            bytes = rest;
            if self.back == request.len() {
                let outcome = if self.differs { Err("the echo differs".to_owned()) } else { Ok(()) };
                (self.back, self.differs) = (0, false);
                self.sent.pop_front();
                self.free.push(at);
                tally.answered(sent_ns, now_ns, outcome);
            }
        }
        Ok(())
    }

    fn take_output(&mut self, into: &mut VecDeque<Slice>) {
        into.extend(self.unsent.drain(..));
    }

    fn is_idle(&self) -> bool {
        self.sent.is_empty()
    }
}
