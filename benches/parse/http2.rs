//! HTTP/2: the server's side of a connection with warm tables and windows.

use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::http2::{Config, Connection, ErrorCode, Handler, Headers, ResetCause, StreamId};

use super::grpc;
use super::operation::Operation;

const PATH: &[u8] = b"/inference.GRPCInferenceService/ModelInfer";
const CALL: [(&[u8], &[u8]); 8] = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", PATH),
    (b":authority", b"127.0.0.1:8001"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-python/1.70.0 grpc-c/45.0.0 (linux; chttp2)"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
];
const HEAD: [(&[u8], &[u8]); 2] = [(b":status", b"200"), (b"content-type", b"application/grpc")];
const TRAILERS: [(&[u8], &[u8]); 1] = [(b"grpc-status", b"0")];

pub fn receive() -> Box<dyn Operation> {
    Box::new(Receive(Call::new()))
}

pub fn respond() -> Box<dyn Operation> {
    Box::new(Respond(Call::new()))
}

struct Call {
    server: Connection,
    client: Connection,
    pool: Pool,
    request: Vec<u8>,
    response: Vec<u8>,
    received: Events,
    answered: Events,
    /// Bytes on their way to the server.
    wire: Vec<u8>,
    message: Gather,
    pieces: Vec<Slice>,
}

/// The events of the current call on one side.
#[derive(Default)]
struct Events {
    stream: Option<StreamId>,
    path_bytes: usize,
    bytes: usize,
    ended: bool,
}

impl Handler for Events {
    fn headers(&mut self, stream: StreamId, headers: &Headers, end_stream: bool) {
        self.path_bytes = headers.path().map_or(0, <[u8]>::len);
        (self.stream, self.ended) = (Some(stream), end_stream);
    }

    fn data(&mut self, _stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        self.bytes += bytes.len();
        self.ended |= end_stream;
        bytes.len()
    }

    fn trailers(&mut self, _stream: StreamId, _headers: &Headers) {
        self.ended = true;
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode, _cause: ResetCause) {
        panic!("stream {} was reset: {code}", stream.get());
    }
}

impl Call {
    fn new() -> Call {
        let pool = Pool::new(64 << 20);
        let mut call = Call {
            server: Connection::server(Config::default(), pool.clone()),
            client: Connection::client(Config::default(), pool.clone()),
            pool,
            request: grpc::request_frame(),
            response: grpc::response_frame(),
            received: Events::default(),
            answered: Events::default(),
            wire: Vec::new(),
            message: Gather::new(),
            pieces: Vec::new(),
        };
        while !(call.client.is_established() && call.server.is_established()) {
            call.put_on_wire();
            call.deliver();
            call.server.output().take(usize::MAX, &mut call.pieces);
            call.take_home();
        }
        call
    }

    /// The client begins the next call; its bytes wait on the wire.
    fn send_request(&mut self) {
        let stream = self.client.open(CALL, false).expect("one more call");
        self.client.send_bytes(stream, &self.request, true).expect("a request");
        self.put_on_wire();
    }

    fn put_on_wire(&mut self) {
        self.wire.clear();
        self.client.output().take(usize::MAX, &mut self.pieces);
        self.pieces.drain(..).for_each(|piece| self.wire.extend_from_slice(&piece));
    }

    fn deliver(&mut self) {
        // A failure shows in `finish`, where the client lacks its answer.
        let _ = self.server.receive(&self.wire, &mut self.received);
    }

    fn write_message(&mut self) {
        self.message.put(&self.pool, &self.response);
    }

    fn answer(&mut self) {
        if let Some(stream) = self.received.stream {
            let _ = self.server.send_headers(stream, HEAD, false);
            let _ = self.server.send_data(stream, &mut self.message, false);
            let _ = self.server.send_headers(stream, TRAILERS, true);
            self.server.output().take(usize::MAX, &mut self.pieces);
        }
    }

    fn take_home(&mut self) {
        for piece in self.pieces.drain(..) {
            assert_eq!(self.client.receive(&piece, &mut self.answered), Ok(()));
        }
    }

    fn finish(&mut self) {
        self.take_home();
        assert!(self.received.ended && self.received.bytes == self.request.len(), "the request did not arrive");
        assert_eq!(self.received.path_bytes, PATH.len());
        assert!(self.answered.ended && self.answered.bytes == self.response.len(), "the answer did not arrive");
        (self.received, self.answered) = (Events::default(), Events::default());
    }
}

struct Receive(Call);

impl Operation for Receive {
    fn prepare(&mut self) {
        self.0.send_request();
    }

    fn perform(&mut self) {
        self.0.deliver();
    }

    fn settle(&mut self) {
        self.0.write_message();
        self.0.answer();
        self.0.finish();
    }
}

struct Respond(Call);

impl Operation for Respond {
    fn prepare(&mut self) {
        self.0.send_request();
        self.0.deliver();
        self.0.write_message();
    }

    fn perform(&mut self) {
        self.0.answer();
    }

    fn settle(&mut self) {
        self.0.finish();
    }
}
