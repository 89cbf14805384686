//! Calls of a client's codec through that of a server to a service that notes what it gets.

use super::*;
use crate::grpc::Message;
use crate::http1;
use crate::http2::{Config, Connection};
use crate::service::{GrpcService, HttpService, Port, Reply};
use nereid_memory::Slice;

/// Takes requests with the id `known` without a message.
#[derive(Default)]
pub(super) struct NotingService {
    /// All calls are streams, for which there is no room.
    streams: bool,
    planned: usize,
    offered: usize,
    messages: Vec<(CallKey, Option<usize>)>,
    /// The raw contents of each message.
    pub(super) contents: Vec<(CallKey, Vec<Vec<u8>>)>,
    pub(super) cancelled: Vec<Token>,
}

impl HttpService for NotingService {
    fn http_rules(&self, _: Port) -> http1::IntakeRules {
        let json_length = http1::JsonLength::Nowhere;
        http1::IntakeRules { json_length, unasked_bytes_max: 0, asks_always: false, timing_field: "" }
    }

    fn refuse_http(&mut self, _: Port, _: &http1::Head) -> Option<http1::Response> {
        None
    }

    fn http(
        &mut self,
        _: CallKey,
        _: Port,
        _: &http1::Head,
        _: Slice,
        _: Option<u64>,
        _: &mut Replies,
    ) -> Option<Token> {
        None
    }
}

impl GrpcService for NotingService {
    type Noted = usize;

    fn grpc_plan(&mut self, _: &Headers) -> Result<GrpcPlan, GrpcStatus> {
        self.planned += 1;
        let mut plan = GrpcPlan::new(0, Mode::Infer);
        plan.streaming = self.streams;
        Ok(plan)
    }

    fn is_plan_current(&self, _: &GrpcPlan) -> bool {
        true
    }

    fn grpc_recurring(
        &mut self,
        call: CallKey,
        _: &GrpcPlan,
        token: &mut Option<Token>,
        _: Option<u64>,
        outline: &Outline<'_>,
        _: &mut Replies,
    ) -> Recurring<usize> {
        self.offered += 1;
        if outline.id != b"known" {
            return Recurring::Unknown(Some(self.offered));
        }
        *token = Some(Token(call.0));
        Recurring::Taken
    }

    fn grpc_unary(
        &mut self,
        call: CallKey,
        _: &GrpcPlan,
        message: Message,
        arrived: Arrived<usize>,
        _: &mut Replies,
    ) -> Option<Token> {
        if let Message::Infer(request) = message {
            self.contents.push((call, request.raw.iter().map(|raw| raw.to_vec()).collect()));
        }
        self.messages.push((call, arrived.noted));
        Some(Token(call.0))
    }

    fn grpc_stream(&mut self, _: CallKey, _: &GrpcPlan, _: &Headers, _: &Rc<CallLedger>) -> Option<Token> {
        None
    }

    fn grpc_stream_message(&mut self, _: Token, _: &GrpcPlan, _: Message, _: Arrived<usize>, _: &mut Replies) {}

    fn grpc_stream_half_closed(&mut self, _: Token, _: &mut Replies) {}
}

impl Service for NotingService {
    fn cancelled(&mut self, token: Token) {
        self.cancelled.push(token);
    }

    fn in_flight(&self) -> usize {
        0
    }
}

/// The work of each open call, by the number of its stream.
pub(super) struct Table {
    works: HashMap<u64, Option<Token>>,
    ledger: Rc<CallLedger>,
}

impl Exchanges for &mut Table {
    fn now_ns(&self) -> u64 {
        7
    }

    fn open(&mut self, stream: StreamId, _: Option<Duration>) -> Result<CallKey, RefusalReason> {
        self.works.insert(u64::from(stream.get()), None);
        Ok(CallKey(u64::from(stream.get())))
    }

    fn ledger(&self) -> &Rc<CallLedger> {
        &self.ledger
    }

    fn work(&mut self, call: CallKey) -> Option<&mut Option<Token>> {
        self.works.get_mut(&call.0)
    }

    fn close(&mut self, call: CallKey) -> Option<Token> {
        self.works.remove(&call.0).flatten()
    }
}

pub(super) struct Ends {
    client: Connection,
    pub(super) server: Connection,
    pub(super) state: IntakeState,
    pub(super) service: NotingService,
    replies: Replies,
    readers: ReaderPool,
    table: Table,
}

impl Ends {
    pub(super) fn new() -> Ends {
        Ends::of(Config::default())
    }

    /// With a server that is configured so.
    pub(super) fn of(config: Config) -> Ends {
        let pool = Pool::new(64 << 20);
        Ends {
            client: Connection::client(Config::default(), pool.clone()),
            server: Connection::server(config, pool.clone()),
            state: IntakeState::new(pool),
            service: NotingService::default(),
            replies: Replies::default(),
            readers: ReaderPool::new(Limits::default()),
            table: Table { works: HashMap::new(), ledger: CallLedger::new(usize::MAX, None) },
        }
    }

    fn open(&mut self, method: &[u8]) -> StreamId {
        let head = [
            (&b":method"[..], method),
            (b":scheme", b"http"),
            (b":path", b"/infer"),
            (b":authority", b"a"),
            (b"content-type", b"application/grpc"),
        ];
        self.client.open(head, false).unwrap()
    }

    /// Brings what the client sends to the service; the refusals.
    fn run(&mut self) -> Vec<(StreamId, Refusal)> {
        let bytes = self.client.output().to_vec();
        self.client.output().clear();
        self.with_intake(|server, intake| {
            server.receive(&bytes, intake).unwrap();
            std::mem::take(&mut intake.refused)
        })
    }

    pub(super) fn with_intake<R>(
        &mut self,
        run: impl FnOnce(&mut Connection, &mut Intake<'_, NotingService, &mut Table>) -> R,
    ) -> R {
        let mut intake = Intake {
            state: &mut self.state,
            service: &mut self.service,
            replies: &mut self.replies,
            readers: &mut self.readers,
            exchanges: &mut self.table,
            refused: Vec::new(),
            withholds: false,
            is_overloaded: false,
        };
        run(&mut self.server, &mut intake)
    }

    fn send(&mut self, stream: StreamId, message: &[u8], end_stream: bool) {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let framed = [&[0], &length[..], message].concat();
        self.client.send_bytes(stream, &framed, end_stream).unwrap();
        assert!(self.run().is_empty());
    }

    pub(super) fn ends(&mut self) -> Vec<(CallKey, Code)> {
        let code = |(call, reply)| match reply {
            Reply::Grpc(GrpcReply::End(status)) => (call, status.code),
            other => panic!("{other:?}"),
        };
        self.replies.drain().map(code).collect()
    }
}

/// Model and id of a ModelInferRequest.
const NEW: &[u8] = b"\x0a\x01m\x1a\x03new";
const KNOWN: &[u8] = b"\x0a\x01m\x1a\x05known";

#[test]
fn a_whole_message_is_offered_before_it_is_read() {
    let mut ends = Ends::new();
    let streams = [ends.open(b"POST"), ends.open(b"POST"), ends.open(b"POST")];
    for (stream, message) in streams.into_iter().zip([NEW, KNOWN, NEW]) {
        ends.send(stream, message, true);
    }
    assert_eq!(ends.service.messages, [(CallKey(1), Some(1)), (CallKey(5), Some(3))], "with what was noted of them");
    assert_eq!(ends.service.offered, 3);
    assert_eq!(ends.service.planned, 2, "the second head fills no table of HPACK, and the third equals it");
    assert_eq!(ends.table.works, [1, 3, 5].map(|call| (call, Some(Token(call)))).into());
    assert!(ends.ends().is_empty());
}

/// A stream that the service has no room for is refused: its messages would go nowhere, and its client would wait.
#[test]
fn a_stream_without_work_is_refused() {
    let mut ends = Ends::new();
    ends.service.streams = true;
    let stream = ends.open(b"POST");
    let refused = ends.run();
    let [(refused, Refusal::Grpc(status))] = &refused[..] else { panic!("{}", refused.len()) };
    assert_eq!((*refused, status.code, status.refusal), (stream, Code::ResourceExhausted, Some(RefusalReason::Calls)));
    assert!(ends.table.works.is_empty(), "the call is closed");
}

#[test]
fn a_message_in_parts_is_read_as_it_comes() {
    let mut ends = Ends::new();
    let stream = ends.open(b"POST");
    let framed = [b"\0\0\0\0\x08", NEW].concat();
    for byte in framed.chunks(1) {
        ends.client.send_bytes(stream, byte, false).unwrap();
        assert!(ends.run().is_empty());
    }
    assert_eq!(ends.service.messages, [(CallKey(1), None)]);
    assert_eq!(ends.service.offered, 0);
}

#[test]
fn a_unary_call_has_one_message() {
    let mut ends = Ends::new();
    let (twice, never) = (ends.open(b"POST"), ends.open(b"POST"));
    ends.send(twice, NEW, false);
    ends.send(twice, NEW, true);
    ends.client.send_bytes(never, b"", true).unwrap();
    assert!(ends.run().is_empty());
    assert_eq!(ends.ends(), [(CallKey(1), Code::Internal), (CallKey(3), Code::Internal)]);
    assert_eq!(ends.service.cancelled, [Token(1)]);
}

#[test]
fn a_call_that_is_reset_is_cancelled() {
    let mut ends = Ends::new();
    let stream = ends.open(b"POST");
    ends.send(stream, NEW, false);
    ends.client.reset(stream, ErrorCode::CANCEL);
    assert!(ends.run().is_empty());
    assert_eq!(ends.service.cancelled, [Token(1)]);
    assert!(ends.table.works.is_empty() && ends.state.calls.is_empty() && ends.readers.spare.len() == 1);
}

#[test]
fn what_is_no_grpc_is_refused() {
    let mut ends = Ends::new();
    let stream = ends.open(b"PUT");
    let refused = ends.run();
    assert!(matches!(&refused[..], [(id, Refusal::Http(b"405"))] if *id == stream));
    assert!(ends.table.works.is_empty());
}
