//! The server's side of an HTTP/1.1 connection, whatever pieces its bytes come in.
//!
//! Bytes that are read whole, in pieces, into the memory of a body, and without recognising heads that come again give
//! the same requests and the same answers. The client's side reads as many answers as there were exchanges.

use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::http1::{
    BodyPlan, ClientError, Connection, ExchangeId, Handler, Head, Limits, PlainResponse, RequestBody, RequestHead,
    Response, ResponseHead, ResponseParser, ResponseSink, put_chunk, put_last_chunk,
};

use crate::{Dice, Target, pool, split};

pub const TARGET: Target = Target {
    name: "http1",
    run,
    runs: 8_000,
    words: &[
        "\r\n",
        "\r\n\r\n",
        "\n",
        "GET ",
        "HEAD ",
        "POST ",
        " HTTP/1.0",
        " HTTP/1.1",
        "Content-Length: ",
        "Transfer-Encoding: chunked\r\n",
        "Inference-Header-Content-Length: ",
        "Connection: close\r\n",
        "Connection: keep-alive\r\n",
        "Expect: 100-continue\r\n",
        "Host: a\r\n",
        "http://",
        "?",
        ":",
        ",",
        "0\r\n\r\n",
        "5\r\nhello\r\n",
        "ffffffff",
        ";",
        "\t",
        "/refuse",
        "/chunked",
        "/plain",
    ],
    seeds,
};

fn run(data: &[u8]) -> bool {
    let (mut dice, input) = split(data);
    let limits = limits(&mut dice);
    let is_ended = dice.one_in(2);
    let pool = pool();
    let whole = Exchange::new(&limits, &pool).play(&[input], false, is_ended);
    let pieces = dice.cut(input);
    let (takes_direct, answers_late) = (dice.one_in(2), dice.one_in(2));
    let cut = Exchange { answers_late, ..Exchange::new(&limits, &pool) }.play(&pieces, takes_direct, is_ended);
    whole.compare(&cut, input);
    let fresh = Exchange::new(&Limits { repeated_head: 0, ..limits }, &pool).play(&[input], false, is_ended);
    whole.compare(&fresh, input);
    whole.check_answers(&mut dice);
    !whole.heads.is_empty()
}

/// Small ones more often than those of the server, so that they are reached.
fn limits(dice: &mut Dice) -> Limits {
    if dice.one_in(4) {
        return Limits { body: 1 << 20, ..Limits::default() };
    }
    let request_line = *dice.pick(&[16, 40, 200, 1000]);
    Limits {
        request_line,
        head: request_line + *dice.pick(&[0, 60, 200, 1000]),
        headers: *dice.pick(&[0, 2, 5, 128]),
        body: *dice.pick(&[0, 10, 200, 20_000]),
        chunks: *dice.pick(&[0, 1, 3, 100]),
        discard: *dice.pick(&[0, 10, 100]),
        pipelined: *dice.pick(&[1, 2, 5, 64]),
        // A connection that is fed more than this beside a head ends: its owner reads although nothing is wanted.
        unsent: 1 << 20,
        repeated_head: *dice.pick(&[30, 80, 64 * 1024]),
    }
}

/// What came of an input.
#[derive(Default)]
struct Outcome {
    /// Heads, bodies and ends without a body, each with its exchange.
    events: Vec<String>,
    /// Of each head, whether it was one of a HEAD request.
    heads: Vec<bool>,
    output: Vec<u8>,
    should_close: bool,
    in_flight: usize,
}

/// A connection, and a service that answers by the path.
struct Exchange {
    connection: Connection,
    pool: Pool,
    outcome: Outcome,
    /// Answers of several requests are given together, the last one first.
    answers_late: bool,
}

struct Service<'a> {
    pool: &'a Pool,
    outcome: &'a mut Outcome,
    due: Vec<(ExchangeId, String, usize)>,
}

impl Handler for Service<'_> {
    fn head(&mut self, exchange: ExchangeId, head: &Head) -> BodyPlan {
        self.outcome.heads.push(head.method_name() == "HEAD");
        self.outcome.events.push(format!("head {} {}", exchange.0, described(head)));
        if head.path().starts_with("/refuse") {
            return BodyPlan::Reject(Response::error(self.pool, ResponseHead::new(403), head.path()));
        }
        BodyPlan::Store { align_at: head.json_length().unwrap_or(0) }
    }

    fn request(&mut self, exchange: ExchangeId, head: &Head, body: Slice) {
        self.outcome.events.push(format!("body {} {} {}", exchange.0, described(head), body.escape_ascii()));
        if let Some(at) = head.json_length().filter(|at| *at < body.len()) {
            assert!(body.window(at..body.len()).is_aligned_to(64), "the tensors behind {at} bytes are not aligned");
        }
        self.due.push((exchange, head.path().to_owned(), body.len()));
    }

    fn aborted(&mut self, exchange: ExchangeId) {
        self.outcome.events.push(format!("aborted {}", exchange.0));
    }
}

/// Everything that a handler can read of a head.
fn described(head: &Head) -> String {
    let fields: Vec<_> = head.headers().map(|(name, value)| format!("{name}={}", value.escape_ascii())).collect();
    for (name, value) in head.headers() {
        let mut named = head.headers_named(name);
        assert!(named.any(|other| other == value), "the field {name} is not found by its name");
    }
    let line = (head.method(), head.method_name(), head.path(), head.query(), head.version(), head.body_length());
    let (keep, expects) = (head.keep_alive(), head.expects_continue());
    format!("{line:?} {fields:?} {keep} {expects} {:?}", head.json_length())
}

impl Exchange {
    fn new(limits: &Limits, pool: &Pool) -> Exchange {
        let (connection, pool) = (Connection::new(limits.clone(), pool.clone()), pool.clone());
        Exchange { connection, pool, outcome: Outcome::default(), answers_late: false }
    }

    fn play(mut self, pieces: &[&[u8]], takes_direct: bool, is_ended: bool) -> Outcome {
        for piece in pieces {
            let mut rest = *piece;
            while takes_direct && !rest.is_empty() {
                let Some(mut direct) = self.connection.take_direct() else { break };
                assert!(direct.len > 0, "no room for the rest of a body");
                let (now, behind) = rest.split_at(direct.len.min(rest.len()));
                direct.block[direct.at..direct.at + now.len()].copy_from_slice(now);
                self.feed(|connection, service| connection.direct_received(direct, now.len(), service));
                rest = behind;
            }
            if !rest.is_empty() {
                self.feed(|connection, service| connection.receive(rest, service));
            }
        }
        if is_ended {
            self.feed(|connection, service| connection.end_of_input(service));
        }
        self.outcome.should_close = self.connection.should_close();
        self.outcome.in_flight = self.connection.in_flight();
        self.outcome
    }

    /// Feeds the connection, and answers its requests until it asks for more.
    fn feed(&mut self, feed: impl FnOnce(&mut Connection, &mut Service)) {
        let Exchange { connection, pool, outcome, .. } = self;
        let mut service = Service { pool, outcome, due: Vec::new() };
        feed(connection, &mut service);
        let mut due = service.due;
        loop {
            self.answer(due);
            self.outcome.output.extend_from_slice(&self.connection.output().to_vec());
            self.connection.output().clear();
            if !self.connection.has_input() {
                return;
            }
            let Exchange { connection, pool, outcome, .. } = self;
            let mut service = Service { pool, outcome, due: Vec::new() };
            connection.receive(&[], &mut service);
            due = service.due;
        }
    }

    fn answer(&mut self, mut due: Vec<(ExchangeId, String, usize)>) {
        if self.answers_late {
            due.reverse();
        }
        for (exchange, path, len) in due {
            let text = format!("{path} {len}");
            let text = Slice::copy_of(text.as_bytes());
            if path.starts_with("/chunked") {
                self.connection.respond_chunked(exchange, ResponseHead::new(200));
                for part in [0..text.len() / 2, text.len() / 2..text.len()] {
                    let mut chunk = Gather::new();
                    chunk.push(&self.pool, text.window(part));
                    self.connection.chunk(exchange, chunk);
                }
                self.connection.finish(exchange);
            } else if path.starts_with("/plain") {
                let tail = [text.clone()].into_iter().collect();
                self.connection.respond_plainly(exchange, PlainResponse { tail, json: text, is_binary: len % 2 == 0 });
            } else {
                self.connection.respond(exchange, Response::text(&self.pool, ResponseHead::new(200), &text));
            }
        }
    }
}

impl Outcome {
    fn compare(&self, other: &Outcome, input: &[u8]) {
        let input = input.escape_ascii();
        assert_eq!(self.events, other.events, "{input}");
        assert_eq!(self.output.escape_ascii().to_string(), other.output.escape_ascii().to_string(), "{input}");
        let ends = |outcome: &Outcome| (outcome.should_close, outcome.in_flight);
        assert_eq!(ends(self), ends(other), "{input}");
    }

    /// The client's side finds an answer for each exchange that ended, and nothing else.
    fn check_answers(&self, dice: &mut Dice) {
        let mut client = ResponseParser::default();
        // The answer to a head that is malformed has no exchange that the handler knows.
        self.heads.iter().chain([&false]).for_each(|is_head| client.sent(*is_head));
        let mut answers = Answers::default();
        for piece in dice.cut(&self.output) {
            if let Err(error) = client.receive(piece, &mut answers) {
                panic!("{error}: {}", self.output.escape_ascii());
            }
        }
        if let Err(error) = client.end(&mut answers) {
            assert!(matches!(error, ClientError::CutOff), "{error}");
        }
        assert_eq!(answers.begun, answers.done, "{}", self.output.escape_ascii());
        let ended = self.heads.len() - self.in_flight;
        assert!(answers.done <= self.heads.len() + 1, "{} answers", answers.done);
        if !self.should_close {
            assert_eq!(answers.done, ended, "{}", self.output.escape_ascii());
        }
    }
}

#[derive(Default)]
struct Answers {
    begun: usize,
    done: usize,
}

impl ResponseSink for Answers {
    fn head(&mut self, status: u16, _headers: &[(&str, &[u8])]) {
        assert!((200..600).contains(&status), "{status}");
        self.begun += 1;
    }

    fn body(&mut self, _bytes: &[u8]) {}

    fn done(&mut self, _keep_alive: bool) {
        self.done += 1;
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let json = r#"{"inputs":[{"name":"I","shape":[4],"datatype":"FP32","data":[1,2,3,4]}]}"#;
    let length = json.len().to_string();
    let infer = request("POST", "/v2/models/m/infer", &[("Content-Type", "application/json")], json.as_bytes());
    let mut binary = json.as_bytes().to_vec();
    binary.extend_from_slice(&[7; 64]);
    let binary = request("POST", "/plain/infer", &[("Inference-Header-Content-Length", &length)], &binary);
    let mut chunked = head("POST", "/chunked", &[], RequestBody::Chunked);
    put_chunk(&mut chunked, json.as_bytes());
    put_chunk(&mut chunked, b"and more");
    put_last_chunk(&mut chunked);
    let waits = request("POST", "/refuse", &[("Expect", "100-continue"), ("Connection", "close")], b"0123456789");
    let refused = request("POST", "/refuse?why=not", &[], b"0123456789");
    let get = head("GET", "/v2/health/ready", &[], RequestBody::None);
    let asks_head = head("HEAD", "/v2/health/ready", &[("Connection", "keep-alive")], RequestBody::None);
    let long = request("POST", "/plain", &[("Inference-Header-Content-Length", "5")], &[b'x'; 6000]);
    let old = b"GET http://host/old?a=b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".to_vec();
    let trailers = b"POST /t HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b\r\nbody\r\n0\r\nX: y\r\n\r\n".to_vec();
    let both = b"POST /both HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec();
    let seeds = [
        infer.repeat(3),
        [infer.clone(), binary.clone(), binary.clone(), get.clone()].concat(),
        [chunked.clone(), trailers, both].concat(),
        [refused.clone(), get.clone(), refused, waits.clone()].concat(),
        [asks_head.clone(), chunked, asks_head, old].concat(),
        [long.clone(), long].concat(),
        [b"\r\n\r\n".to_vec(), get.clone(), b"\n".to_vec(), get].concat(),
        [infer, waits].concat(),
    ];
    seeds.into_iter().zip(1u32..).map(|(seed, number)| [&number.to_be_bytes()[..], &seed].concat()).collect()
}

fn head(method: &str, target: &str, headers: &[(&str, &str)], body: RequestBody) -> Vec<u8> {
    let mut out = Vec::new();
    RequestHead { method, target, host: "127.0.0.1:8000", headers, body }.encode(&mut out);
    out
}

fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = head(method, target, headers, RequestBody::Length(body.len()));
    out.extend_from_slice(body);
    out
}
