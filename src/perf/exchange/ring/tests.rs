//! Calls through rings, with the server's end on the other side and no socket between them.

use std::collections::HashMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nereid_ipc::{ClientFrame, ServerEnd, Sizes, encode, from_server};
use nereid_wire::inference::ModelInferRequest;
use prost::Message;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;
use crate::ModelInfo;
use crate::plan::tests::plan;
use crate::plan::{Endpoint, Expected, Input, Plan, Protocol, SharedMemory, Target, Template};

const ARENA: usize = 8192;

/// Both ends of new rings, and the sockets between them.
pub fn pair() -> ((ClientEnd, UnixStream), (Peer, UnixStream)) {
    let (mut mine, other) = UnixStream::pair().unwrap();
    let sizes = Sizes { ring_bytes: 64 << 10, arena_bytes: ARENA };
    let (end, object) = ServerEnd::create(sizes, b"nereid-ipc/test", Box::new(())).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let objects = [object.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&objects)));
    let hello = end.hello();
    sendmsg(other.as_fd(), &[IoSlice::new(&hello.0)], &mut ancillary, SendFlags::empty()).unwrap();
    let client = ClientEnd::greet(&mut mine).unwrap();
    ((client, mine), (Peer { end, open: HashMap::new(), cancelled: Vec::new(), metadata: Vec::new() }, other))
}

/// What a server does with its end.
pub struct Peer {
    pub end: ServerEnd,
    open: HashMap<u32, Vec<u8>>,
    cancelled: Vec<u32>,
    metadata: Vec<Vec<u8>>,
}

impl Peer {
    /// Takes what is in the ring; the calls whose requests are complete, with their messages.
    pub fn take(&mut self) -> Vec<(u32, Vec<u8>)> {
        let (mut payload, mut complete) = (Vec::new(), Vec::new());
        while let Some(kind) = self.end.take(&mut payload).unwrap() {
            let (call, ends, bytes) = match ClientFrame::read(kind, &payload).unwrap() {
                ClientFrame::Call { call, route: 0, ends, timeout_ns: 0, bytes } => (call, ends, bytes),
                ClientFrame::Data { call, ends, bytes } => (call, ends, bytes),
                ClientFrame::Route { route: 0, path, metadata } => {
                    assert_eq!(path, b"/inference.GRPCInferenceService/ModelInfer");
                    self.metadata = metadata.map(|string| string.unwrap().to_vec()).collect();
                    continue;
                }
                ClientFrame::Cancel { call } => {
                    self.cancelled.push(call);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            self.open.entry(call).or_default().extend_from_slice(bytes);
            if ends {
                let frame = self.open.remove(&call).unwrap();
                let (prefix, message) = frame.split_first_chunk::<5>().unwrap();
                assert_eq!((prefix[0], u32::from_be_bytes(prefix[1..].try_into().unwrap())), (0, message.len() as u32));
                complete.push((call, message.to_vec()));
            }
        }
        complete
    }

    /// Answers with a message, in frames of at most `most` bytes.
    pub fn answer(&mut self, call: u32, message: &[u8], most: usize) {
        let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        let parts = frame.chunks(most).count();
        for (at, part) in frame.chunks(most).enumerate() {
            assert!(self.end.push_data(call, at + 1 == parts, part.len(), |payload| payload.write(part)).unwrap());
        }
    }

    fn status(&mut self, call: u32, code: u32, text: &str) {
        let payload = encode::status(call, code, text, [].into_iter(), 1000);
        assert!(self.end.push(from_server::STATUS, &payload).unwrap());
    }
}

pub fn ring_plan() -> Plan {
    plan(Target { endpoint: Endpoint::Unix("/".into()), tls: None, protocol: Protocol::Ipc })
}

fn template(data: &[u8]) -> Template {
    let (name, datatype, shape) = ("I".to_owned(), "INT8".to_owned(), vec![data.len() as i64]);
    Template {
        inputs: vec![Input { name, datatype, shape, data: Slice::copy_of(data) }],
        outputs: vec!["O".to_owned()],
        ..Template::default()
    }
}

fn request_set(plan: &Plan) -> Arc<RequestSet> {
    let templates = plan.work.streams.iter().flatten().map(|one| Prepared::new(plan, one, None).unwrap()).collect();
    Arc::new(RequestSet::new(plan, templates, vec![None]))
}

fn exchange(data: &[u8]) -> (RingExchange, Peer) {
    let mut plan = ring_plan();
    plan.work.headers = vec![("X-Key".to_owned(), "v".to_owned())];
    plan.work.streams = vec![vec![template(data)]];
    let ((client, _), (peer, _)) = pair();
    (RingExchange::new(request_set(&plan), client).unwrap(), peer)
}

fn begin(exchange: &mut RingExchange, sent_ns: u64) {
    exchange.begin(Flight { sent_ns, ..Flight::default() }).unwrap();
}

#[test]
fn requests_of_any_length_arrive_and_are_answered() {
    for len in [0, 10, 40_000, 500_000] {
        let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let (mut exchange, mut peer) = exchange(&data);
        let mut outcomes = Outcomes::default();
        for round in 1..4 {
            begin(&mut exchange, round);
            let (call, message) = loop {
                if let Some(complete) = peer.take().pop() {
                    break complete;
                }
                exchange.poll(round, &mut outcomes).unwrap();
            };
            assert_eq!(peer.metadata, [&b"x-key"[..], b"v"]);
            let request = ModelInferRequest::decode(&*message).unwrap();
            assert_eq!((request.model_name.as_str(), &request.raw_input_contents[0][..]), ("model", &data[..]));
            peer.answer(call, b"message", if round == 2 { 3 } else { 100 });
            exchange.poll(7 + round, &mut outcomes).unwrap();
            let finished = outcomes.finished.pop().unwrap();
            assert_eq!((finished.outcome, finished.at_ns, finished.flight.responses), (Ok(()), 7 + round, 1));
            let traffic = exchange.take_traffic();
            assert_eq!((traffic.sent, traffic.received), (message.len() as u64 + 5, 12), "{len}");
        }
        assert_eq!((exchange.in_flight(), exchange.has_work()), (0, false));
    }
}

#[test]
fn a_full_ring_takes_no_further_request() {
    let (mut exchange, mut peer) = exchange(&[7; 100_000]);
    begin(&mut exchange, 1);
    assert!(matches!(exchange.begin(Flight::default()), Err(NotBegun::Full(_))), "the rest of the first waits");
    assert!(exchange.has_work() && exchange.in_flight() == 1);
    let mut outcomes = Outcomes::default();
    while peer.take().is_empty() {
        exchange.poll(1, &mut outcomes).unwrap();
    }
    begin(&mut exchange, 2);
}

#[test]
fn failures_have_the_servers_words() {
    let (mut exchange, mut peer) = exchange(b"");
    let mut outcomes = Outcomes::default();
    (0..3).for_each(|_| begin(&mut exchange, 1));
    let calls: Vec<u32> = peer.take().into_iter().map(|(call, _)| call).collect();
    peer.status(calls[0], 5, "no such model");
    assert!(peer.end.push_data(calls[1], true, 0, |_| ()).unwrap());
    assert!(peer.end.push(from_server::LEAVE, &[0; 8]).unwrap());
    exchange.poll(2, &mut outcomes).unwrap();
    let texts: Vec<String> = outcomes.finished.drain(..).map(|one| one.outcome.unwrap_err()).collect();
    assert_eq!(texts, ["NOT_FOUND: no such model", "an answer without a message"]);
    assert!(exchange.is_over() && matches!(exchange.begin(Flight::default()), Err(NotBegun::Over(_))));
    peer.status(0, 3, "a rule");
    assert_eq!(exchange.poll(3, &mut outcomes), Err("the server ended the connection: a rule".to_owned()));
    exchange.fail("gone", 4, &mut outcomes);
    assert_eq!(outcomes.finished.pop().unwrap().outcome, Err("gone".to_owned()));
}

#[test]
fn late_calls_are_cancelled() {
    let (mut exchange, mut peer) = exchange(&[1; 100_000]);
    let mut outcomes = Outcomes::default();
    begin(&mut exchange, 5);
    exchange.expire(5, 6, &mut outcomes).unwrap();
    assert!(outcomes.finished.is_empty(), "it is not late");
    exchange.expire(6, 7, &mut outcomes).unwrap();
    assert_eq!(outcomes.finished.pop().unwrap().outcome, Err(EXPIRED.to_owned()));
    while peer.cancelled.is_empty() {
        assert_eq!(peer.take(), []);
        exchange.poll(8, &mut outcomes).unwrap();
    }
    assert_eq!(peer.cancelled, [1], "the number of the first call");
    // What was under way finds no call.
    peer.answer(1, b"late", 100);
    exchange.poll(9, &mut outcomes).unwrap();
    assert!(outcomes.finished.is_empty() && exchange.in_flight() == 0);
}

#[test]
fn bells_are_rung_for_sleepers_alone() {
    let (mut exchange, mut peer) = exchange(b"x");
    let bells = |exchange: &mut RingExchange| {
        let mut pieces = Vec::new();
        exchange.take_output(&mut pieces);
        pieces.len()
    };
    begin(&mut exchange, 1);
    assert_eq!((bells(&mut exchange), bells(&mut exchange)), (1, 0), "the server sleeps at first");
    begin(&mut exchange, 1);
    assert_eq!(bells(&mut exchange), 0, "it was woken");
    let calls = peer.take();
    peer.answer(calls[0].0, b"", 100);
    assert!(!peer.end.is_bell_due() && exchange.has_frames() && !exchange.park(), "there is a frame already");
    exchange.poll(2, &mut Outcomes::default()).unwrap();
    assert!(exchange.park());
    peer.answer(calls[1].0, b"", 100);
    assert!(peer.end.is_bell_due());
    exchange.unpark();
    exchange.poll(3, &mut Outcomes::default()).unwrap();
    assert!(peer.end.park(true, false));
    begin(&mut exchange, 4);
    assert_eq!(bells(&mut exchange), 1);
}

/// One template with an input and an expected output, whose tensors lie in the arena.
fn in_arena(bytes: usize) -> (Arc<RequestSet>, ArenaLayout) {
    let mut plan = ring_plan();
    plan.work.shared_memory = SharedMemory::Arena { output_bytes: bytes };
    let data = vec![3; bytes];
    let expected = vec![Expected { name: "O".to_owned(), data: Slice::copy_of(&data) }];
    plan.work.streams = vec![vec![Template { expected: Some(expected.clone()), ..template(&data) }]];
    let output = crate::TensorFacts { name: "O".into(), datatype: "BYTES".into(), ..crate::TensorFacts::default() };
    let model_info = ModelInfo { outputs: vec![output], ..ModelInfo::default() };
    let layout = ArenaLayout::of(&plan, &model_info).unwrap().unwrap();
    let template = Prepared::new(&plan, &plan.work.streams[0][0], layout.placements.first()).unwrap();
    let expectation = Arc::new(crate::answer::Expectation::new(expected, None));
    let request_set = RequestSet::new(&plan, vec![template], vec![Some(expectation)]);
    let again = ArenaLayout::of(&plan, &model_info).unwrap();
    (Arc::new(request_set.in_arena(again)), layout)
}

#[test]
fn tensors_in_the_arena_are_written_once_and_compared_there() {
    let (request_set, layout) = in_arena(100);
    let ((client, _), (mut peer, _)) = pair();
    let mut exchange = RingExchange::new(request_set, client).unwrap();
    let (input_at, output_at) = (layout.placements[0].inputs[0] as usize, layout.placements[0].outputs[0].1 as usize);
    for (written, outcome) in [(4, Err("output 'O' is not what was expected".to_owned())), (3, Ok(()))] {
        begin(&mut exchange, 1);
        let (call, message) = peer.take().pop().unwrap();
        let request = ModelInferRequest::decode(&*message).unwrap();
        assert!(request.raw_input_contents.is_empty());
        let region = format!("{:?}", request.inputs[0].parameters.get("shared_memory_region"));
        assert!(region.contains("nereid-ipc/test"), "{region}");
        let (arena_at, _) = peer.end.arena();
        let mut input = Vec::new();
        assert!(peer.end.segment().read(arena_at + input_at, 100, &mut input) && input == [3; 100]);
        assert!(peer.end.segment().write(arena_at + output_at, &[written; 100]));
        peer.answer(call, b"", 100);
        let mut outcomes = Outcomes::default();
        exchange.poll(2, &mut outcomes).unwrap();
        assert_eq!(outcomes.finished.pop().unwrap().outcome, outcome);
    }
}

#[test]
fn an_arena_that_is_too_small_is_refused() {
    let ((client, _), _) = pair();
    let error = RingExchange::new(in_arena(ARENA).0, client).err().unwrap();
    assert!(error.contains("the server's arena has 8192: give it a larger --ipc-arena-bytes"), "{error}");
}
