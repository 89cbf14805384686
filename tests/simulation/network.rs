//! The network between clients and shards: bytes under way, windows, ends and resets. It has no sockets.
//!
//! A connection's descriptor is one end of a real socket pair, because the server owns and drops descriptors; no byte
//! goes through it. The other end shows whether the server has dropped a connection that it never registered.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nereid_memory::Key;

/// A connection between a client and the server.
pub struct Link {
    /// Bytes that the client has sent and that have not arrived.
    pub up_flight: VecDeque<u8>,
    /// Bytes that have arrived at the server, which has not received them.
    pub up: VecDeque<u8>,
    /// The client sends no more, and its last byte has arrived.
    pub up_ended: bool,
    pub client_shut: bool,
    /// Bytes that the server has sent and that the client has not read.
    pub down: VecDeque<u8>,
    /// Bytes that `down` holds at most: the window of a client.
    pub window: usize,
    /// The server sends no more.
    pub down_ended: bool,
    /// The connection is broken for both sides.
    pub reset: bool,
    /// The client is gone without a word: nothing it does arrives, and it reads nothing.
    pub vanished: bool,
    /// The shard and the key under which it is registered.
    pub registered: Option<(usize, Key)>,
    /// The server has closed it.
    pub closed: bool,
    far: UnixStream,
}

/// What happened on the network that the simulation reacts to.
#[derive(Debug, Clone, Copy)]
pub enum Stir {
    /// There is something to read for the client of this link.
    Readable(usize),
    /// Something has happened for this shard's engine.
    Engine(usize),
}

/// Faults that were injected, by kind.
#[derive(Debug, Default, Clone)]
pub struct Faults(pub BTreeMap<&'static str, u64>);

impl Faults {
    pub fn count(&mut self, kind: &'static str) {
        *self.0.entry(kind).or_default() += 1;
    }

    pub fn add(&mut self, other: &Faults) {
        for (kind, count) in &other.0 {
            *self.0.entry(kind).or_default() += count;
        }
    }
}

#[derive(Default)]
pub struct Network {
    pub links: Vec<Link>,
    by_fd: BTreeMap<RawFd, usize>,
    /// Connections that wait to be accepted: the listener, the descriptor and the link.
    pub backlog: VecDeque<(usize, OwnedFd, usize)>,
    /// Keys of each shard that have something to do.
    pub touched: Vec<Vec<Key>>,
    pub stirs: Vec<Stir>,
    pub faults: Faults,
    /// One of so many operations is refused or fails; 0: none.
    pub refuse_once_in: u64,
}

impl Network {
    pub fn new(shards: usize) -> Network {
        Network { touched: vec![Vec::new(); shards], ..Network::default() }
    }

    /// A client connects to a listener.
    pub fn connect(&mut self, listener: usize, window: usize) -> usize {
        let (near, far) = UnixStream::pair().expect("a socket pair");
        far.set_nonblocking(true).expect("a socket option");
        let id = self.links.len();
        self.links.push(Link {
            up_flight: VecDeque::new(),
            up: VecDeque::new(),
            up_ended: false,
            client_shut: false,
            down: VecDeque::new(),
            window,
            down_ended: false,
            reset: false,
            vanished: false,
            registered: None,
            closed: false,
            far,
        });
        self.backlog.push_back((listener, near.into(), id));
        self.stirs.push(Stir::Engine(0));
        id
    }

    /// The server registers the descriptor of a link.
    pub fn register(&mut self, fd: &OwnedFd, shard: usize, key: Key) -> Option<usize> {
        let link = self.by_fd.remove(&fd.as_raw_fd())?;
        self.links[link].registered = Some((shard, key));
        self.touch(link);
        Some(link)
    }

    /// The server gets the descriptor of a link.
    pub fn accepted(&mut self, fd: &OwnedFd, link: usize) {
        self.by_fd.insert(fd.as_raw_fd(), link);
    }

    /// The server has dropped a connection that it never registered.
    pub fn is_refused(&mut self, link: usize) -> bool {
        let of_backlog = self.backlog.iter().any(|(.., waiting)| *waiting == link);
        let link = &mut self.links[link];
        link.registered.is_none() && !of_backlog && matches!(link.far.read(&mut [0]), Ok(0) | Err(_)) && {
            let gone = !matches!(link.far.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
            link.reset |= gone;
            gone
        }
    }

    /// Lets the engine of a link look at it in its next turn.
    pub fn touch(&mut self, link: usize) {
        if let Some((shard, key)) = self.links[link].registered
            && !self.links[link].closed
        {
            self.touched[shard].push(key);
            self.stirs.push(Stir::Engine(shard));
        }
    }

    /// So many of the bytes under way arrive; true if more are under way.
    pub fn arrive(&mut self, link: usize, most: usize) -> bool {
        let one = &mut self.links[link];
        if one.vanished {
            return false;
        }
        let n = most.min(one.up_flight.len());
        if one.closed || one.reset {
            one.up_flight.clear();
            // Bytes for a socket that is closed are answered with a reset.
            if one.closed && !one.reset && n > 0 {
                one.reset = true;
                one.down.clear();
                self.stirs.push(Stir::Readable(link));
            }
            return false;
        }
        one.up.extend(one.up_flight.drain(..n));
        one.up_ended |= one.client_shut && one.up_flight.is_empty();
        let more = !one.up_flight.is_empty();
        self.touch(link);
        more
    }

    /// The client reads at most so many bytes.
    pub fn read(&mut self, link: usize, most: usize, into: &mut Vec<u8>) {
        let one = &mut self.links[link];
        let n = most.min(one.down.len());
        into.extend(one.down.drain(..n));
        if n > 0 {
            self.touch(link);
        }
    }

    /// The client breaks the connection.
    pub fn reset(&mut self, link: usize) {
        let one = &mut self.links[link];
        one.reset = true;
        one.up_flight.clear();
        one.up.clear();
        one.down.clear();
        self.touch(link);
    }

    /// The server closes its socket: what it has sent still arrives, unless it has not read all that has arrived.
    pub fn close(&mut self, link: usize) {
        let one = &mut self.links[link];
        one.closed = true;
        one.down_ended = true;
        if !one.up.is_empty() && !one.reset {
            one.reset = true;
            one.down.clear();
        }
        one.up.clear();
        self.stirs.push(Stir::Readable(link));
    }
}
