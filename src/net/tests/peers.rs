//! The world around a Net, and its peers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use super::late::{EngineState, Late};
use super::script::{Script, Scripted};
use super::*;
use nereid_memory::{Gather, Peers};
use nereid_protocol::http1::{Response, ResponseHead};
use nereid_protocol::http2::{Headers, ResetCause};
use nereid_shard::clock::{Clock, Manual};
use nereid_shard::engine::{self, Epoll};
use nereid_shard::{self as shard, MailOf, Mailbox, Shard, mailbox};

pub struct World {
    pub shard: Shard<Net<Scripted>>,
    pub clock: Manual,
    pub script: Rc<RefCell<Script>>,
    pub pool: Pool,
    pub engine: Rc<EngineState>,
    /// Whether its shard may park.
    parks: bool,
    mailbox: Mailbox<MailOf<Net<Scripted>>>,
    loads: Load,
}

thread_local! {
    static PARKS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a scenario whose shards may park.
pub fn parking(scenario: fn()) {
    /// A scenario that panics leaves nothing behind for the next test of the thread.
    struct Reset;

    impl Drop for Reset {
        fn drop(&mut self) {
            PARKS.set(false);
        }
    }

    PARKS.set(true);
    let _reset = Reset;
    scenario();
}

/// A peer's socket whose end is seen at once. A process that another test starts holds a copy of every descriptor until
/// it runs its program, so that closing ours alone may take effect turns later.
pub struct Socket(UnixStream);

impl std::ops::Deref for Socket {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        &self.0
    }
}

impl std::ops::DerefMut for Socket {
    fn deref_mut(&mut self) -> &mut UnixStream {
        &mut self.0
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

pub fn ok_text(text: &str) -> Response {
    Response::text(&Pool::new(1 << 20), ResponseHead::new(200), text.as_bytes())
}

pub fn framed(pool: &Pool, message: &[u8]) -> Gather {
    let mut framed = Gather::new();
    framed.put(pool, &[0, 0, 0, 0, message.len() as u8]);
    framed.put(pool, message);
    framed
}

/// An answer whose body belongs to a "runtime", and that runtime's hold on it.
pub fn foreign_response(pool: &Pool, len: usize) -> (Response, Arc<Vec<u8>>) {
    let owner: Arc<Vec<u8>> = Arc::new((0..len).map(|at| (at / 7) as u8).collect());
    let mut body = Gather::new();
    body.push(pool, Slice::foreign_vec(&owner));
    (Response::new(ResponseHead::new(200), body), owner)
}

impl World {
    pub fn new(seed: u64) -> World {
        World::with_timers(seed, 1000)
    }

    /// One whose shard may park.
    pub fn parking(seed: u64) -> World {
        World { parks: true, ..World::new(seed) }
    }

    pub fn with_timers(seed: u64, timers: usize) -> World {
        World::of(seed, timers, Keepalive::default(), |_| None)
    }

    /// With flags of its own, and perhaps TLS, whose mail goes where the mailbox is.
    pub fn of(seed: u64, timers: usize, keepalive: Keepalive, secure: impl FnOnce(Post) -> Option<Secure>) -> World {
        let (clock, pool) = (Manual::new(SECOND_NS), Pool::new(256 << 20));
        let script = Rc::new(RefCell::new(Script::default()));
        let loads = Load::new(1);
        let (mailbox, inbox) = mailbox().unwrap();
        let post = mailbox.clone();
        let secure = secure(Arc::new(move |handshaken| post.post(Mail::Handshaken(handshaken))));
        let net = Net::new(Parts {
            service: Scripted { script: Rc::clone(&script), pool: pool.clone() },
            pool: pool.clone(),
            shares: Shares {
                connection: usize::MAX,
                connection_calls: usize::MAX,
                clients: Arc::new(Peers::new(usize::MAX, usize::MAX)),
                connections: 1000,
                waiting: 100_000,
            },
            grpc_limits: Limits::default(),
            shard: 0,
            listeners: Vec::new(),
            secure,
            keepalive,
            ipc: None,
            slow_peers: SlowPeers::default(),
            recognises_heads: true,
            loads: loads.clone(),
            hand_over: Arc::new(|_, _, _| {}),
            gauges: Arc::default(),
        });
        let shared_clock: Rc<dyn Clock> = Rc::new(clock.clone());
        let epoll = Epoll::new(engine::Limits::default(), Rc::clone(&shared_clock), inbox.waker()).unwrap();
        let state = Rc::default();
        let engine = Box::new(Late::new(epoll, seed, clock.clone(), Rc::clone(&state)));
        let core = Core::new(engine, shared_clock, pool.clone(), timers);
        let shard = Shard::new(net, core, inbox);
        World { shard, clock, script, pool, engine: state, parks: PARKS.get(), mailbox, loads }
    }

    pub fn connect(&mut self, port: Port) -> Socket {
        self.enter(Listener { port, tls: false })
    }

    pub fn enter(&mut self, listener: Listener) -> Socket {
        self.enter_through(UnixStream::pair().unwrap(), listener)
    }

    /// With our end and the server's.
    pub fn enter_through(&mut self, (ours, theirs): (UnixStream, UnixStream), listener: Listener) -> Socket {
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        self.end_park();
        self.mailbox.post(Mail::Accepted { fd: theirs.into(), listener, load_guard: self.loads.enter() });
        self.turns(1);
        Socket(ours)
    }

    /// What comes from another thread ends a park before it is read.
    fn end_park(&mut self) {
        if self.engine.is_parked.get() {
            self.engine.is_woken.set(true);
            self.turns(1);
        }
    }

    pub fn mail(&mut self, call: CallKey, reply: impl Into<Reply>) {
        self.end_park();
        self.mailbox.post(shard::Mail::Actor((call, reply.into())));
        self.turns(1);
    }

    pub fn tell(&mut self, mail: Mail) {
        self.end_park();
        self.mailbox.post(mail);
        self.turns(1);
    }

    pub fn drain(&mut self) {
        self.tell(Mail::Drain);
    }

    pub fn fail_unanswered(&mut self) {
        self.tell(Mail::FailUnanswered);
    }

    pub fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.shard.turn(self.parks).unwrap();
            if self.engine.is_parked.get() {
                assert_eq!(self.shard.handler.forgotten_sends(), 0, "the shard sleeps over the end of a send");
            }
        }
    }

    /// Turns until the shard parks: the engine takes nothing in some of them.
    pub fn park(&mut self) {
        for _ in 0..1000 {
            self.turns(1);
            if self.engine.is_parked.get() {
                return;
            }
        }
        panic!("the shard does not park");
    }

    pub fn read_bytes(&mut self, peer: &mut Socket) -> Vec<u8> {
        let (mut got, mut dry) = (Vec::new(), 0);
        let mut portion = [0; 65536];
        while dry < 20 {
            match peer.read(&mut portion) {
                Ok(0) => break,
                Ok(n) => {
                    got.extend_from_slice(&portion[..n]);
                    dry = 0;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    dry += 1;
                }
            }
            self.turns(2);
        }
        got
    }

    pub fn read(&mut self, peer: &mut Socket) -> String {
        String::from_utf8_lossy(&self.read_bytes(peer)).into_owned()
    }

    /// Everybody is gone: nothing may be left behind.
    pub fn end(mut self) {
        self.turns(60);
        assert_eq!(self.shard.handler.connections.len(), 0, "connections");
        assert_eq!(self.shard.handler.shared.calls.len(), 0, "calls");
        assert!(!self.shard.handler.has_work());
        assert_eq!(self.loads.total(), 0, "load guards");
        self.clock.advance(2 * SECOND_NS);
        self.turns(3);
        assert_eq!(self.shard.core.timers.next_deadline(), None, "timers");
        self.shard.handler.shared.readers.clear();
        let World { shard, pool, .. } = self;
        drop(shard);
        assert_eq!(pool.bytes_in_use(), 0, "bytes of the pool");
    }
}

/// A client of gRPC with small windows.
pub struct GrpcPeer {
    socket: Socket,
    connection: http2::Connection,
    seen: Seen,
    unsent: Vec<u8>,
}

#[derive(Default)]
struct Seen {
    resets: Vec<u32>,
    /// The one that gets no credit.
    withheld: Option<u32>,
    bodies: HashMap<u32, Vec<u8>>,
    statuses: HashMap<u32, (String, String)>,
    goaway: Option<(http2::ErrorCode, String)>,
}

impl Seen {
    fn status(&mut self, stream: http2::StreamId, headers: &Headers) {
        let text = |name: &[u8]| String::from_utf8_lossy(headers.get(name).unwrap_or_default()).into_owned();
        if headers.get(b"grpc-status").is_some() {
            self.statuses.insert(stream.get(), (text(b"grpc-status"), text(b"grpc-message")));
        }
    }
}

impl http2::Handler for Seen {
    fn headers(&mut self, stream: http2::StreamId, headers: &Headers, _end_stream: bool) {
        self.status(stream, headers);
    }

    fn data(&mut self, stream: http2::StreamId, bytes: &[u8], _end_stream: bool) -> usize {
        self.bodies.entry(stream.get()).or_default().extend_from_slice(bytes);
        if self.withheld == Some(stream.get()) { 0 } else { bytes.len() }
    }

    fn trailers(&mut self, stream: http2::StreamId, headers: &Headers) {
        self.status(stream, headers);
    }

    fn reset(&mut self, stream: http2::StreamId, _code: http2::ErrorCode, _cause: ResetCause) {
        self.resets.push(stream.get());
    }

    fn goaway(&mut self, _last_stream: u32, code: http2::ErrorCode, debug: &[u8]) {
        self.goaway = Some((code, String::from_utf8_lossy(debug).into_owned()));
    }
}

impl GrpcPeer {
    pub fn connect(world: &mut World) -> GrpcPeer {
        GrpcPeer::with_window(world, 1 << 20)
    }

    pub fn with_window(world: &mut World, connection_window: u32) -> GrpcPeer {
        let socket = world.connect(Port::Grpc);
        let config = http2::Config {
            stream_window: 1 << 20,
            connection_window,
            max_header_list_size: 1024,
            ..http2::Config::default()
        };
        let connection = http2::Connection::client(config, Pool::new(256 << 20));
        let mut peer = GrpcPeer { socket, connection, seen: Seen::default(), unsent: Vec::new() };
        peer.run(world, 60);
        peer
    }

    pub fn begin(&mut self, path: &[u8], timeout: Option<&[u8]>) -> http2::StreamId {
        let mut headers: Vec<(&[u8], &[u8])> = vec![
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ];
        headers.extend(timeout.map(|timeout| (&b"grpc-timeout"[..], timeout)));
        self.connection.open(headers.iter().copied(), false).unwrap()
    }

    pub fn send(&mut self, stream: http2::StreamId, bytes: &[u8], end_stream: bool) {
        self.connection.send_bytes(stream, bytes, end_stream).unwrap();
    }

    pub fn call(&mut self, path: &[u8], timeout: Option<&[u8]>) -> http2::StreamId {
        let stream = self.begin(path, timeout);
        self.send(stream, b"\0\0\0\0\x02hi", true);
        stream
    }

    /// Gives no more room to a stream.
    pub fn withhold(&mut self, stream: http2::StreamId) {
        self.seen.withheld = Some(stream.get());
    }

    /// Makes room again for a stream that got none.
    pub fn give_room(&mut self, stream: http2::StreamId) {
        self.seen.withheld = None;
        self.connection.consumed(stream, self.body(stream).len());
    }

    /// Bytes of a stream that the server has given no room for.
    pub fn unsent(&self, stream: http2::StreamId) -> usize {
        self.connection.unsent(stream)
    }

    pub fn is_reset(&self, stream: http2::StreamId) -> bool {
        self.seen.resets.contains(&stream.get())
    }

    pub fn ping(&mut self) {
        self.connection.ping(*b"anyone??");
    }

    /// Pings that the server has sent.
    pub fn pings(&self) -> u64 {
        self.connection.counters().pings_received
    }

    /// The server's last GOAWAY.
    pub fn goaway(&self) -> Option<(http2::ErrorCode, String)> {
        self.seen.goaway.clone()
    }

    /// Lets both sides work.
    pub fn run(&mut self, world: &mut World, turns: usize) {
        let mut portion = [0; 65536];
        for _ in 0..turns {
            self.unsent.extend(self.connection.output().to_vec());
            self.connection.output().clear();
            if let Ok(n) = self.socket.write(&self.unsent) {
                self.unsent.drain(..n);
            }
            world.turns(1);
            while let Ok(n @ 1..) = self.socket.read(&mut portion) {
                self.connection.receive(&portion[..n], &mut self.seen).unwrap();
            }
        }
    }

    pub fn body(&self, stream: http2::StreamId) -> &[u8] {
        self.seen.bodies.get(&stream.get()).map_or(&[], |body| body)
    }

    /// grpc-status and grpc-message, once the call is over.
    pub fn status(&self, stream: http2::StreamId) -> Option<(String, String)> {
        self.seen.statuses.get(&stream.get()).cloned()
    }
}
