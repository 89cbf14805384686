//! One connection of the client: a socket that never blocks, and the protocol spoken over it.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use nereid_memory::Slice;
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::load::Tally;

/// Pieces of one gathered write.
const PIECES: usize = 32;

/// A protocol in the client's role. Its failures end the run: a connection that breaks has no further numbers.
pub trait Peer {
    /// Begins requests in every free slot while `tally` is open.
    fn begin(&mut self, now_ns: u64, tally: &mut Tally) -> Result<(), String>;
    fn receive(&mut self, bytes: &[u8], now_ns: u64, tally: &mut Tally) -> Result<(), String>;
    /// Appends the bytes to send.
    fn take_output(&mut self, into: &mut VecDeque<Slice>);
    /// True if no request is in flight, and the protocol has no pending work.
    fn is_idle(&self) -> bool;
}

pub struct Line {
    socket: TcpStream,
    token: u64,
    peer: Box<dyn Peer>,
    unsent: VecDeque<Slice>,
    /// The socket was full: epoll reports when it takes more.
    waits_to_write: bool,
}

impl Line {
    pub fn connect(address: SocketAddr, peer: Box<dyn Peer>, poll: &OwnedFd, token: u64) -> Result<Line, String> {
        let socket = TcpStream::connect(address).map_err(|error| format!("connect to {address}: {error}"))?;
        socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map_err(|error| error.to_string())?;
        epoll::add(poll, &socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
            .map_err(|error| format!("epoll: {error}"))?;
        Ok(Line { socket, token, peer, unsent: VecDeque::new(), waits_to_write: false })
    }

    pub fn begin(&mut self, now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        self.peer.begin(now_ns, tally)
    }

    pub fn is_idle(&self) -> bool {
        self.peer.is_idle() && self.unsent.is_empty()
    }

    /// Reads the available bytes, a bounded number of times, because other connections wait.
    pub fn receive(&mut self, buffer: &mut [u8], began: Instant, tally: &mut Tally) -> Result<(), String> {
        for _ in 0..4 {
            match self.socket.read(buffer) {
                Ok(0) if self.peer.is_idle() => return Ok(()),
                Ok(0) => return Err("the server closed a connection with requests in flight".to_owned()),
                Ok(n) => {
                    let now_ns = began.elapsed().as_nanos() as u64;
                    self.peer.receive(&buffer[..n], now_ns, tally)?;
                    if n < buffer.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("receive: {error}")),
            }
        }
        Ok(())
    }

    /// Sends the peer's output, as far as the socket takes it.
    pub fn flush(&mut self, poll: &OwnedFd) -> Result<(), String> {
        self.peer.take_output(&mut self.unsent);
        while !self.unsent.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let count = self.unsent.len().min(PIECES);
            for (piece, slice) in pieces.iter_mut().zip(&self.unsent) {
                *piece = IoSlice::new(slice);
            }
            match self.socket.write_vectored(&pieces[..count]) {
                Ok(mut n) => {
                    while let Some(front) = self.unsent.front_mut() {
                        if n < front.len() {
                            front.advance(n);
                            break;
                        }
                        n -= front.len();
                        self.unsent.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("send: {error}")),
            }
        }
        self.watch_writing(!self.unsent.is_empty(), poll)
    }

    fn watch_writing(&mut self, wanted: bool, poll: &OwnedFd) -> Result<(), String> {
        if wanted == self.waits_to_write {
            return Ok(());
        }
        self.waits_to_write = wanted;
        let flags = if wanted { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        epoll::modify(poll, &self.socket, epoll::EventData::new_u64(self.token), flags)
            .map_err(|error| format!("epoll: {error}"))
    }
}
