//! Clients of shared-memory rings, honest ones and others.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::peers::{Socket, World, framed};
use super::*;
use nereid_ipc::{HELLO_BYTES, Layout, RING_BYTES_MIN, Ring, ServerFrame, Sizes, encode, from_client};
use nereid_memory::{BlockMut, Gather, Regions, Segment};
use nereid_protocol::service::Sent;
use nereid_queue::bell;
use nereid_queue::frames::{Consumer, Producer};

/// Where the bell words stand (docs/ipc.md).
const SERVER_BELL: usize = 1024;
const CLIENT_BELL: usize = 1152;
/// Where it stands that the rings are empty.
const EMPTIED: usize = 1280;
/// What the server's end of a socket holds, whatever the system's default is: some tens of bells.
const BELLS_BYTES: usize = 16 << 10;
/// How long another thread may take for its part.
const PATIENCE: Duration = Duration::from_secs(300);

/// What takes clients of rings, and what it keeps of them.
struct Rings {
    world: World,
    counts: Arc<IpcCounts>,
    regions: Arc<Regions>,
}

impl Rings {
    fn new(seed: u64, clients_max: usize) -> Rings {
        let mut world = World::new(seed);
        let (counts, regions) = (Arc::<IpcCounts>::default(), Arc::<Regions>::default());
        let lender = Arc::clone(&regions);
        world.shard.handler.ipc = Some(IpcSettings {
            sizes: Sizes { ring_bytes: RING_BYTES_MIN, arena_bytes: 1 << 20 },
            users: IpcUsers::Any,
            clients_max,
            counts: Arc::clone(&counts),
            lend: Arc::new(move |name, segment, at, len| lender.lend(name, segment, at, len)),
        });
        Rings { world, counts, regions }
    }

    /// The greeting, and the object of a client that is taken.
    fn greet(&mut self) -> (Socket, Vec<u8>, Option<OwnedFd>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        set_socket_send_buffer_size(&theirs, BELLS_BYTES).unwrap();
        let socket = self.world.enter_through((ours, theirs), Listener { port: Port::Ipc, tls: false });
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut hello = [0; 512];
        let parts = &mut [IoSliceMut::new(&mut hello)];
        let received = recvmsg(&*socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
        let mut object = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                object = descriptors.last().or(object);
            }
        }
        (socket, hello[..received].to_vec(), object)
    }

    fn connect(&mut self) -> RingPeer {
        let (socket, hello, object) = self.greet();
        assert_eq!((hello.len(), &hello[12..16]), (HELLO_BYTES, &[0; 4][..]));
        let size = u64::from_le_bytes(hello[16..24].try_into().unwrap());
        let segment = Arc::new(Segment::open(object.unwrap(), size as usize).unwrap());
        let layout = Layout::read(&segment).unwrap();
        let mut peer = RingPeer {
            requests: Producer::new(layout.request_ring(&segment)),
            responses: Consumer::new(layout.response_ring(&segment)),
            socket,
            segment,
            layout,
            last_call: 0,
            seen: Vec::new(),
        };
        peer.push(from_client::ROUTE, &encode::route(0, b"/unary", &[]));
        self.world.turns(60);
        peer
    }

    /// A call of the service for each of the client.
    fn call(&mut self, peer: &mut RingPeer) -> (u32, CallKey) {
        let number = peer.call();
        let before = self.world.script.borrow().unary.len();
        self.world.turns(60);
        let unary = self.world.script.borrow().unary.clone();
        assert_eq!(unary.len(), before + 1);
        (number, unary[before])
    }

    /// The connection has ended, but for what its client may still read.
    fn is_lingering(&self) -> bool {
        let connections = &self.world.shard.handler.connections;
        connections.len() == 1 && connections.iter().all(|(_, connection)| connection.phase.is_lingering())
    }

    /// Nobody is there any more, and nothing is left.
    fn end(self) {
        let Rings { world, counts, .. } = self;
        world.end();
        wait_for_no_client(&counts);
    }
}

/// A thread of the registry gives the memory back.
fn wait_for_no_client(counts: &IpcCounts) {
    let began = Instant::now();
    while counts.clients() > 0 {
        assert!(began.elapsed() < PATIENCE, "{} clients have memory", counts.clients());
        std::thread::yield_now();
    }
}

/// What a client has read.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Data { call: u32, len: usize, ends: bool },
    Status { call: u32, code: u32, text: String },
    Leave,
}

struct RingPeer {
    socket: Socket,
    segment: Arc<Segment>,
    layout: Layout,
    requests: Producer<Ring>,
    responses: Consumer<Ring>,
    last_call: u32,
    seen: Vec<Seen>,
}

impl RingPeer {
    /// Publishes a frame, and rings if the server sleeps.
    fn push(&mut self, kind: u32, payload: &[u8]) {
        assert!(self.requests.push(kind, payload).unwrap());
        self.ring_if(bell::FRAMES);
    }

    fn ring_if(&mut self, event: u64) {
        if bell::is_due(self.segment.word(SERVER_BELL), event) {
            // The server may have ended.
            let _ = self.socket.write_all(&[1]);
        }
    }

    /// The rings and the arena are empty.
    fn is_emptied(&self) -> bool {
        self.segment.word(EMPTIED).load(Ordering::SeqCst) != 0
    }

    /// The server's bell word.
    fn server_wants(&self) -> u64 {
        self.segment.word(SERVER_BELL).load(Ordering::SeqCst)
    }

    /// Begins a call with a message of a byte.
    fn call(&mut self) -> u32 {
        self.begin(b"\0\0\0\0\x01x", true)
    }

    fn begin(&mut self, bytes: &[u8], ends: bool) -> u32 {
        self.last_call += 1;
        let head = encode::call(self.last_call, 0, ends, 0);
        self.push(from_client::CALL, &[&head[..], bytes].concat());
        self.last_call
    }

    /// Reads so many frames at most.
    fn read(&mut self, most: usize) {
        let mut payload = Vec::new();
        for _ in 0..most {
            let Some(kind) = self.responses.pop(&mut payload).unwrap() else { return };
            self.ring_if(bell::ROOM);
            self.seen.push(match ServerFrame::read(kind, &payload).unwrap() {
                ServerFrame::Data { call, ends, bytes } => Seen::Data { call, len: bytes.len(), ends },
                ServerFrame::Status { call, code, text, .. } => {
                    Seen::Status { call, code, text: String::from_utf8_lossy(text).into_owned() }
                }
                ServerFrame::Leave => Seen::Leave,
            });
        }
    }

    /// Bytes of a call that were read, and whether its end was.
    fn of_call(&self, wanted: u32) -> (usize, bool) {
        let mut found = (0, false);
        for seen in &self.seen {
            if let Seen::Data { call, len, ends } = seen
                && *call == wanted
            {
                found = (found.0 + len, found.1 || *ends);
            }
        }
        found
    }

    fn status_of(&self, wanted: u32) -> Option<(u32, &str)> {
        self.seen.iter().find_map(|seen| match seen {
            Seen::Status { call, code, text } if *call == wanted => Some((*code, text.as_str())),
            _ => None,
        })
    }
}

/// An answer of so many bytes.
fn answer(rings: &Rings, len: usize) -> GrpcReply {
    let mut message = Gather::new();
    message.push(&rings.world.pool, BlockMut::unpooled(len).freeze());
    GrpcReply::Answer(message)
}

/// Reads until a call has ended: the clock stands still, so that nothing but the client's own steps moves the rest.
fn read_to_end(rings: &mut Rings, peer: &mut RingPeer, call: u32, len: usize) {
    for _ in 0..200 {
        peer.read(usize::MAX);
        if peer.of_call(call).1 {
            break;
        }
        rings.world.turns(60);
    }
    assert_eq!(peer.of_call(call), (len, true));
}

#[test]
fn an_answer_that_a_parked_ring_has_no_room_for_goes_on_as_the_client_reads() {
    for seed in 0..10 {
        let mut rings = Rings::new(seed, 1);
        let mut peer = rings.connect();
        let (number, call) = rings.call(&mut peer);
        rings.world.turns(200);
        assert_eq!(peer.server_wants(), bell::FRAMES, "nothing has come for long");
        let large = answer(&rings, 1_200_000);
        rings.world.mail(call, large);
        rings.world.turns(200);
        assert_eq!(peer.server_wants(), bell::FRAMES | bell::ROOM, "seed {seed}");
        read_to_end(&mut rings, &mut peer, number, 1_200_000);
        // Without waiting too.
        let (number, call) = rings.call(&mut peer);
        let small = answer(&rings, 100);
        rings.world.mail(call, small);
        rings.world.turns(60);
        read_to_end(&mut rings, &mut peer, number, 100);
        drop(peer);
        rings.end();
    }
}

#[derive(Debug)]
struct Called(Arc<AtomicUsize>);

impl Sent for Called {
    fn sent(self: Box<Self>, _: u64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Its bell word is always set, and it never reads its socket, which fills up.
#[test]
fn a_bell_that_nobody_hears_holds_up_no_answer() {
    let mut rings = Rings::new(3, 1);
    let mut peer = rings.connect();
    let is_stuck = |rings: &Rings| {
        rings.world.shard.handler.connections.iter().all(|(_, connection)| connection.send.is_in_engine())
    };
    for round in 0.. {
        assert!(round < 2_000, "the socket takes every bell");
        peer.segment.word(CLIENT_BELL).store(u64::MAX, Ordering::SeqCst);
        let (_, call) = rings.call(&mut peer);
        let small = answer(&rings, 10);
        rings.world.mail(call, small);
        rings.world.turns(60);
        peer.read(usize::MAX);
        if is_stuck(&rings) {
            rings.world.turns(200);
            if is_stuck(&rings) {
                break;
            }
        }
    }
    let (number, call) = rings.call(&mut peer);
    let large = answer(&rings, 300_000);
    rings.world.mail(call, large);
    rings.world.turns(60);
    read_to_end(&mut rings, &mut peer, number, 300_000);
    // An answer is sent when it is in the ring, and not when the bell is heard.
    let called = Arc::<AtomicUsize>::default();
    let (number, call) = rings.call(&mut peer);
    let mut message = Gather::new();
    message.push(&rings.world.pool, BlockMut::unpooled(300_000).freeze());
    rings.world.mail(call, GrpcReply::Message(message));
    rings.world.mail(call, Reply::SentCallback(Box::new(Called(Arc::clone(&called)))));
    rings.world.turns(60);
    assert_eq!(called.load(Ordering::SeqCst), 0, "most of it waits");
    for _ in 0..200 {
        peer.read(usize::MAX);
        rings.world.turns(60);
    }
    assert!(peer.of_call(number) == (300_000, false) && is_stuck(&rings));
    assert_eq!(called.load(Ordering::SeqCst), 1);
    // Nor does it hold up the end.
    peer.push(99, b"");
    rings.world.turns(200);
    assert_eq!(rings.world.script.borrow().cancelled, [Token(call.0)]);
    for _ in 0..3 {
        rings.world.clock.advance(SECOND_NS);
        rings.world.turns(60);
    }
    peer.read(usize::MAX);
    assert!(rings.is_lingering() && peer.status_of(0).is_some());
    drop(peer);
    rings.end();
}

/// Its bell word is set all the time, so that whatever is written has a bell.
#[test]
fn nothing_follows_the_farewell_of_a_client_that_broke_a_rule() {
    for seed in 0..10 {
        let mut rings = Rings::new(seed, 1);
        let mut peer = rings.connect();
        let (_, open) = rings.call(&mut peer);
        let (_, answered) = rings.call(&mut peer);
        peer.segment.word(CLIENT_BELL).store(u64::MAX, Ordering::SeqCst);
        peer.push(99, b"");
        rings.world.turns(200);
        let mut cancelled: Vec<u64> = rings.world.script.borrow().cancelled.iter().map(|token| token.0).collect();
        cancelled.sort_unstable();
        assert_eq!(cancelled, [open.0, answered.0], "seed {seed}");
        peer.segment.word(CLIENT_BELL).store(u64::MAX, Ordering::SeqCst);
        let late = answer(&rings, 10);
        rings.world.mail(answered, late);
        for _ in 0..3 {
            rings.world.clock.advance(SECOND_NS);
            rings.world.turns(60);
        }
        assert!(rings.is_lingering() && !peer.is_emptied(), "seed {seed}");
        peer.read(usize::MAX);
        assert!(matches!(peer.seen[..], [Seen::Status { call: 0, .. }]), "{:?}", peer.seen);
        drop(peer);
        rings.end();
    }
}

/// It has frames that it has not read, by definition.
#[test]
fn a_client_that_reads_too_slowly_can_read_what_lies_in_its_ring() {
    let mut rings = Rings::new(12, 1);
    rings.world.shard.handler.slow_peers = patient(3);
    let mut peer = rings.connect();
    let (_, open) = rings.call(&mut peer);
    let (number, call) = rings.call(&mut peer);
    let large = answer(&rings, 300_000);
    rings.world.mail(call, large);
    rings.world.turns(60);
    let seconds = (1..20).find(|_| {
        rings.world.clock.advance(SECOND_NS);
        rings.world.turns(60);
        rings.world.shard.handler.connections.iter().all(|(_, connection)| connection.phase != ClosePhase::Open)
    });
    assert!(seconds.is_some() && rings.is_lingering());
    assert_eq!(rings.world.script.borrow().cancelled, [Token(open.0)]);
    assert_eq!(rings.world.read_bytes(&mut peer.socket).iter().filter(|byte| **byte != 1).count(), 0);
    assert!(!peer.is_emptied());
    peer.read(usize::MAX);
    let (read, is_whole) = peer.of_call(number);
    assert!(read >= 32 << 10 && !is_whole, "{read}");
    // For a while, and then it can see that nothing is left.
    for _ in 0..timeouts::LINGER_S {
        rings.world.clock.advance(SECOND_NS);
        rings.world.turns(60);
    }
    assert_eq!(rings.world.shard.handler.connections.len(), 0);
    wait_for_no_client(&rings.counts);
    assert!(peer.is_emptied());
    drop(peer);
    rings.end();
}

#[test]
fn memory_of_a_client_that_has_left_counts_until_no_model_uses_it_and_is_empty_then() {
    let mut rings = Rings::new(4, 1);
    let peer = rings.connect();
    let found = rings.regions.get(&peer.layout.name).unwrap();
    let tensor = found.window(0, 5).unwrap().slice();
    let (theirs, arena) = (Arc::clone(&peer.segment), peer.layout.arena.0);
    assert!(theirs.write(arena, b"guest") && theirs.write(arena + 100_000, b"more"));
    drop((peer, found));
    rings.world.turns(60);
    assert_eq!((rings.world.shard.handler.connections.len(), rings.counts.clients()), (0, 1));
    let (_, hello, object) = rings.greet();
    let text = String::from_utf8_lossy(&hello[HELLO_BYTES..]).into_owned();
    assert_eq!(text, "1 clients are connected, as many as --ipc-connections allows");
    assert_eq!((hello[12], object.is_none()), (Code::ResourceExhausted as u8, true));
    assert_eq!(RefusedClient::ALL.map(|reason| rings.counts.refused(reason)), [0, 1, 0]);
    assert_eq!(&*tensor, b"guest");
    drop(tensor);
    wait_for_no_client(&rings.counts);
    for at in [arena, arena + 100_000] {
        let mut bytes = Vec::new();
        assert!(theirs.read(at, 4, &mut bytes) && bytes == [0; 4], "{at}");
    }
    let mut magic = Vec::new();
    assert!(theirs.read(0, 8, &mut magic) && magic == nereid_ipc::MAGIC, "the header stays");
    assert_eq!(theirs.word(EMPTIED).load(Ordering::SeqCst), 1, "and says so");
    drop(rings.connect());
    rings.world.turns(60);
    rings.end();
}

/// What a client that broke a rule is sent stays in its ring until it has closed its side.
#[test]
fn a_farewell_can_be_read_after_the_end_of_the_socket() {
    let mut rings = Rings::new(5, 1);
    let mut peer = rings.connect();
    peer.push(99, b"");
    rings.world.turns(200);
    assert_eq!(rings.counts.clients(), 1);
    assert_eq!(rings.world.read_bytes(&mut peer.socket), b"", "it ended its side");
    peer.read(usize::MAX);
    assert_eq!(peer.status_of(0), Some((Code::InvalidArgument as u32, "a frame has an unknown kind")));
    drop(peer);
    rings.end();
    // A client that never closes its side has it for a while only.
    let mut rings = Rings::new(6, 1);
    let mut peer = rings.connect();
    peer.push(99, b"");
    rings.world.turns(200);
    for _ in 0..timeouts::LINGER_S {
        assert_eq!(rings.world.shard.handler.connections.len(), 1);
        rings.world.clock.advance(SECOND_NS);
        rings.world.turns(60);
    }
    rings.end();
}

/// Its answers fill the backlog, so that the server takes no frame; its half a request is not late because of that.
#[test]
fn a_request_that_the_server_leaves_in_the_ring_is_not_late() {
    const MANY: usize = 1_600;
    let mut rings = Rings::new(7, 1);
    rings.world.shard.handler.slow_peers = patient(3);
    let mut peer = rings.connect();
    let half = peer.begin(b"\0\0\0\0\x04ab", false);
    for _ in 0..MANY / 100 {
        for _ in 0..100 {
            peer.call();
        }
        rings.world.turns(60);
    }
    let calls = rings.world.script.borrow().unary.clone();
    assert_eq!(calls.len(), MANY);
    for call in calls {
        let message = framed(&rings.world.pool, &[7; 200]);
        rings.world.mail(call, GrpcReply::Answer(message));
    }
    peer.push(from_client::DATA, &[&encode::data(half, true)[..], b"cd"].concat());
    for _ in 0..8 {
        rings.world.clock.advance(SECOND_NS);
        rings.world.turns(60);
        // In drops, but it reads.
        peer.read(5);
    }
    assert_eq!(rings.world.script.borrow().unary.len(), MANY, "no frame was taken");
    for _ in 0..20 {
        peer.read(usize::MAX);
        rings.world.turns(60);
    }
    assert_eq!((peer.status_of(half), rings.world.script.borrow().unary.len()), (None, MANY + 1));
    drop(peer);
    rings.end();
}

#[test]
fn calls_that_come_too_late_for_the_end_are_refused() {
    let mut rings = Rings::new(8, 1);
    let mut peer = rings.connect();
    let (open, call) = rings.call(&mut peer);
    rings.world.drain();
    rings.world.turns(60);
    let (early, early_call) = rings.call(&mut peer);
    for _ in 0..3 {
        rings.world.clock.advance(SECOND_NS);
        rings.world.turns(200);
    }
    let late = peer.call();
    rings.world.turns(60);
    peer.read(usize::MAX);
    let refusal = Some((Code::Unavailable as u32, OUT_OF_TIME));
    assert_eq!((peer.seen.first(), peer.status_of(late)), (Some(&Seen::Leave), refusal));
    rings.world.turns(200);
    // Without a bell: the server finds it before it ends the connection.
    peer.last_call += 1;
    let quiet = peer.last_call;
    let head = encode::call(quiet, 0, true, 0);
    assert!(peer.requests.push(from_client::CALL, &[&head[..], b"\0\0\0\0\x01x"].concat()).unwrap());
    for call in [call, early_call] {
        let small = answer(&rings, 10);
        rings.world.mail(call, small);
    }
    rings.world.turns(200);
    assert_eq!(rings.world.shard.handler.connections.len(), 0);
    // The server ends: what is in the ring stays.
    wait_for_no_client(&rings.counts);
    assert!(!peer.is_emptied());
    peer.read(usize::MAX);
    assert_eq!((peer.of_call(open), peer.of_call(early), peer.status_of(quiet)), ((10, true), (10, true), refusal));
    drop(peer);
    rings.end();
}

/// Numbers that meet under a fixed hash are no reason to refuse them, and a new one is not an open one.
#[test]
fn calls_may_have_any_numbers() {
    let mut rings = Rings::new(9, 1);
    let mut peer = rings.connect();
    let numbers = [1, u32::MAX, 1 << 31, 0x8000_0001, 7];
    for number in numbers {
        peer.last_call = number - 1;
        rings.call(&mut peer);
    }
    peer.last_call = 6;
    peer.call();
    rings.world.turns(200);
    peer.read(usize::MAX);
    let text = "the number of a new call is 0 or that of a call that is open";
    assert_eq!(peer.status_of(0), Some((Code::InvalidArgument as u32, text)));
    drop(peer);
    rings.end();
}
