//! HTTP/1.1, the server's side of one connection.

use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::http1::{
    BodyPlan, Connection, ExchangeId, Handler, Head, Limits, RequestBody, RequestHead, Response, ResponseHead,
};

use super::json::{BINARY_REQUEST, BINARY_RESPONSE};
use super::operation::Operation;

const TENSOR: [u8; 64] = [7; 64];
const JSON_LENGTH: &str = "Inference-Header-Content-Length";

pub fn receive() -> Box<dyn Operation> {
    Box::new(Receive(Exchange::new()))
}

pub fn respond() -> Box<dyn Operation> {
    Box::new(Respond { exchange: Exchange::new(), response: None })
}

struct Exchange {
    connection: Connection,
    pool: Pool,
    request: Vec<u8>,
    received: Received,
    pieces: Vec<Slice>,
}

/// The request that is not answered yet.
#[derive(Default)]
struct Received {
    exchange: Option<ExchangeId>,
    body: Slice,
}

impl Handler for Received {
    fn head(&mut self, _exchange: ExchangeId, head: &Head) -> BodyPlan {
        let json = head.header(JSON_LENGTH).and_then(|value| str::from_utf8(value).ok()?.parse().ok());
        BodyPlan::Store { align_at: json.unwrap_or(0) }
    }

    fn request(&mut self, exchange: ExchangeId, _head: &Head, body: Slice) {
        (self.exchange, self.body) = (Some(exchange), body);
    }
}

impl Exchange {
    fn new() -> Exchange {
        let pool = Pool::new(64 << 20);
        let length = BINARY_REQUEST.len().to_string();
        let head = RequestHead {
            method: "POST",
            target: "/v2/models/identity/infer",
            host: "127.0.0.1:8000",
            headers: &[("Content-Type", "application/octet-stream"), (JSON_LENGTH, length.as_str())],
            body: RequestBody::Length(BINARY_REQUEST.len() + TENSOR.len()),
        };
        let mut request = Vec::new();
        head.encode(&mut request);
        request.extend_from_slice(BINARY_REQUEST.as_bytes());
        request.extend_from_slice(&TENSOR);
        let connection = Connection::new(Limits::default(), pool.clone());
        Exchange { connection, pool, request, received: Received::default(), pieces: Vec::new() }
    }

    fn receive(&mut self) {
        self.connection.receive(&self.request, &mut self.received);
    }

    fn response(&self) -> Response {
        let mut body = Gather::new();
        body.put(&self.pool, BINARY_RESPONSE.as_bytes());
        body.put(&self.pool, &TENSOR);
        let head = ResponseHead::new(200)
            .content_type("application/octet-stream")
            .header(JSON_LENGTH, BINARY_RESPONSE.len() as u64);
        Response::new(head, body)
    }

    fn respond(&mut self, response: Response) {
        if let Some(exchange) = self.received.exchange {
            self.connection.respond(exchange, response);
            self.connection.output().take(usize::MAX, &mut self.pieces);
        }
    }

    fn finish(&mut self) {
        assert!(self.received.exchange.take().is_some(), "the request was not parsed");
        assert!(self.received.body.ends_with(&TENSOR), "the tensor did not arrive");
        self.received.body = Slice::empty();
        let sent: usize = self.pieces.drain(..).map(|piece| piece.len()).sum();
        assert!(sent > BINARY_RESPONSE.len() + TENSOR.len(), "only {sent} bytes to send");
    }
}

struct Receive(Exchange);

impl Operation for Receive {
    fn perform(&mut self) {
        self.0.receive();
    }

    fn settle(&mut self) {
        let response = self.0.response();
        self.0.respond(response);
        self.0.finish();
    }
}

struct Respond {
    exchange: Exchange,
    response: Option<Response>,
}

impl Operation for Respond {
    fn prepare(&mut self) {
        self.exchange.receive();
        self.response = Some(self.exchange.response());
    }

    fn perform(&mut self) {
        if let Some(response) = self.response.take() {
            self.exchange.respond(response);
        }
    }

    fn settle(&mut self) {
        self.exchange.finish();
    }
}
