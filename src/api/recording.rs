//! Which requests are recorded (`--record`), and what is kept of them until their answers are there
//! (docs/record-and-replay.md).
//!
//! Requests and answers are kept by reference; the recorder's own thread reads them. Only unary inference through the
//! HTTP and the gRPC port is recorded.

use std::collections::HashMap;
use std::sync::Arc;

use super::access::Restrictions;
use super::grpc::methods::Method;
use super::http::events;
use super::routes::{Route, labelled_route, route};
use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::grpc::{Encoding, Message, Mode, PREFIX_BYTES};
use nereid_protocol::http1::{self, FieldValue, Head, JSON_LENGTH};
use nereid_protocol::http2::Headers;
use nereid_protocol::service::{CallKey, GrpcPlan, GrpcReply, HttpReply, Panicked, Replies, Reply, Token};
use nereid_recording::{Answer, Body, Exchange, Protocol, REDACTED, Recorder};

/// Requests of a shard that are kept until their answers are there.
const OPEN_MAX: usize = 4096;
/// The part of the memory of requests that may wait to be written.
const POOL_PART: u64 = 16;

/// The recorder of one shard.
pub struct RequestRecorder {
    recorder: Arc<Recorder>,
    /// Bytes that may wait to be written.
    held_max: u64,
    /// Requests since the last one that was chosen.
    passed: u32,
    open: HashMap<CallKey, Open>,
    tokens: HashMap<Token, CallKey>,
}

struct Open {
    exchange: Exchange,
    token: Option<Token>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A piece that may be kept: what another process can change, or what a caller only lent, is copied.
fn kept(piece: &Slice) -> Slice {
    if piece.is_lent() { Slice::copy_of(piece) } else { piece.stable() }
}

/// The pieces of what goes out, by reference; it stays as it is.
fn shared(gather: &mut Gather) -> Vec<Slice> {
    let mut pieces = Vec::new();
    gather.take(usize::MAX, &mut pieces);
    pieces.iter().for_each(|piece| gather.push_whole(piece.clone()));
    pieces
}

/// The pieces of an answer; of one with binary tensors only its JSON, unless contents are recorded.
fn answer_of(pieces: &[Slice], json_len: Option<usize>, has_data: bool) -> Body {
    let byte_size = pieces.iter().map(|piece| piece.len() as u64).sum();
    let mut left = json_len.filter(|_| !has_data).unwrap_or(usize::MAX);
    let mut of_body = Vec::new();
    for piece in pieces {
        let n = piece.len().min(left);
        left -= n;
        if n > 0 {
            of_body.push(kept(&piece.window(0..n)));
        }
    }
    Body { pieces: of_body, byte_size, json_len, ..Body::default() }
}

impl RequestRecorder {
    pub fn new(recorder: Arc<Recorder>, pool: &Pool) -> RequestRecorder {
        let held_max = pool.limit() as u64 / POOL_PART;
        RequestRecorder { recorder, held_max, passed: 0, open: HashMap::new(), tokens: HashMap::new() }
    }

    fn has_data(&self) -> bool {
        self.recorder.settings().data
    }

    /// Whether the next request is recorded: one of so many.
    fn chooses(&mut self) -> bool {
        let is_chosen = self.passed == 0;
        self.passed += 1;
        if self.passed >= self.recorder.settings().rate {
            self.passed = 0;
        }
        if !is_chosen || !self.recorder.is_open() {
            return false;
        }
        let has_room = self.open.len() < OPEN_MAX;
        if !has_room {
            self.recorder.drop_one();
        }
        has_room
    }

    fn value(&self, name: &str, value: &[u8], keys: &Restrictions) -> String {
        let is_secret = keys.is_key_header(name) || self.recorder.settings().redaction.redacts_header(name);
        if is_secret { REDACTED.to_owned() } else { text(value) }
    }

    /// A request came through the HTTP port.
    pub fn begin_http(&mut self, call: CallKey, head: &Head, body: &Slice, keys: &Restrictions) {
        let path = head.path().as_bytes();
        let Some(Route::Infer(target)) = route(path).or_else(|| labelled_route(path)) else { return };
        if head.method() != http1::Method::Post || events::wanted(head) || !self.chooses() {
            return;
        }
        let is_packed = matches!(head.header("Content-Encoding"), Some(b"gzip" | b"deflate"));
        let (json_len, byte_size) = (head.json_length(), body.len() as u64);
        let of_body = match json_len {
            Some(json_len) if !self.has_data() && !is_packed => body.window(0..json_len.min(body.len())),
            _ => body.clone(),
        };
        let headers = match self.has_data() {
            true => head.headers().map(|(name, value)| (name.to_owned(), self.value(name, value, keys))).collect(),
            false => Vec::new(),
        };
        let exchange = Exchange {
            at_ns: self.recorder.now_ns(),
            took_ns: 0,
            protocol: Protocol::Http,
            model: text(target.model),
            version: text(target.version.unwrap_or_default()),
            path: head.path().to_owned(),
            headers,
            request: Body { pieces: vec![kept(&of_body)], byte_size, is_packed, json_len, has_prefix: false },
            answer: None,
        };
        self.open.insert(call, Open { exchange, token: None });
    }

    /// A call begins: if it is chosen, its message is kept.
    pub fn plan_call(&mut self, headers: &Headers, plan: &mut GrpcPlan, keys: &Restrictions) {
        if Method::from_number(plan.method) != Some(Method::ModelInfer) || !self.chooses() {
            return;
        }
        plan.mode = Mode::Kept;
        if self.has_data() {
            let own = headers.iter().filter(|(name, _)| !name.starts_with(b":"));
            plan.recorded = own
                .map(|(name, value)| (name.into(), self.value(&text(name), value, keys).into_bytes().into()))
                .collect();
        }
    }

    /// The message of a call is here.
    pub fn begin_grpc(&mut self, call: CallKey, plan: &GrpcPlan, message: &Message) {
        let Message::Compressed(encoding, pieces, _) = message else { return };
        if plan.mode != Mode::Kept {
            return;
        }
        let pieces: Vec<Slice> = pieces.iter().map(kept).collect();
        let exchange = Exchange {
            at_ns: self.recorder.now_ns(),
            took_ns: 0,
            protocol: Protocol::Grpc,
            model: String::new(),
            version: String::new(),
            path: String::new(),
            headers: plan.recorded.iter().map(|(name, value)| (text(name), text(value))).collect(),
            request: Body {
                byte_size: pieces.iter().map(|piece| piece.len() as u64).sum(),
                is_packed: *encoding != Encoding::Identity,
                pieces,
                ..Body::default()
            },
            answer: None,
        };
        self.open.insert(call, Open { exchange, token: None });
    }

    /// The work of a call goes on under this token.
    pub fn began(&mut self, call: CallKey, token: Token) {
        if let Some(open) = self.open.get_mut(&call) {
            open.token = Some(token);
            self.tokens.insert(token, call);
        }
    }

    /// No client waits for the work.
    pub fn cancelled(&mut self, token: Token) {
        if let Some(call) = self.tokens.remove(&token) {
            self.end(call, None);
        }
    }

    fn end(&mut self, call: CallKey, answer: Option<Answer>) {
        let Some(Open { mut exchange, token }) = self.open.remove(&call) else { return };
        token.and_then(|token| self.tokens.remove(&token));
        exchange.took_ns = self.recorder.now_ns().saturating_sub(exchange.at_ns);
        exchange.answer = answer;
        self.recorder.record(exchange, self.held_max);
    }

    /// Records the requests that were answered after the mark.
    #[inline]
    pub fn settle(&mut self, replies: &mut Replies, mark: (usize, usize)) {
        if !self.open.is_empty() {
            self.settle_open(replies, mark);
        }
    }

    fn settle_open(&mut self, replies: &mut Replies, mark: (usize, usize)) {
        let (replies, panicked) = replies.since_mut(mark);
        for one in panicked {
            match one {
                Panicked::Call(call) => self.end(*call, None),
                Panicked::Work(token) => self.cancelled(*token),
            }
        }
        for (call, reply) in replies {
            if !self.open.contains_key(call) {
                continue;
            }
            match reply {
                Reply::SentCallback(_) | Reply::Http(HttpReply::Chunk(_) | HttpReply::End | HttpReply::Abort) => {}
                // An answer of unknown length is not recorded.
                Reply::Http(HttpReply::Head(_)) => self.end(*call, None),
                Reply::Http(HttpReply::Plain(plain)) => {
                    let json_len = plain.is_binary.then_some(plain.json.len());
                    let pieces: Vec<Slice> = std::iter::once(&plain.json).chain(&plain.tail).cloned().collect();
                    let body = answer_of(&pieces, json_len, self.has_data());
                    self.end(*call, Some(Answer { status: 200, message: String::new(), body }));
                }
                Reply::Http(HttpReply::Answer(response)) => {
                    let answer = self.http_answer(response);
                    self.end(*call, Some(answer));
                }
                Reply::Grpc(GrpcReply::Message(message)) => {
                    let answer = self.grpc_answer(message);
                    if let Some(open) = self.open.get_mut(call) {
                        open.exchange.answer = Some(answer);
                    }
                }
                Reply::Grpc(GrpcReply::Answer(message)) => {
                    let answer = self.grpc_answer(message);
                    self.end(*call, Some(answer));
                }
                Reply::Grpc(GrpcReply::End(status)) => {
                    let answer = self.open.get_mut(call).and_then(|open| open.exchange.answer.take());
                    let (code, message) = (status.code as u16, status.message.clone());
                    self.end(*call, Some(Answer { status: code, message, ..answer.unwrap_or_default() }));
                }
            }
        }
    }

    fn http_answer(&self, response: &mut http1::Response) -> Answer {
        let header = |wanted: &str| {
            let found = response.head.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value)
        };
        let json_len = match header(JSON_LENGTH) {
            Some(FieldValue::Number(number)) => usize::try_from(*number).ok(),
            Some(FieldValue::Text(number)) => number.parse().ok(),
            None => None,
        };
        let is_packed = header("Content-Encoding").is_some();
        let status = response.head.status;
        let pieces = shared(&mut response.body);
        let body = Body { is_packed, ..answer_of(&pieces, json_len, self.has_data() || is_packed) };
        Answer { status, message: String::new(), body }
    }

    fn grpc_answer(&self, message: &mut Gather) -> Answer {
        let body = answer_of(&shared(message), None, true);
        let byte_size = body.byte_size.saturating_sub(PREFIX_BYTES as u64);
        Answer { body: Body { byte_size, has_prefix: true, ..body }, ..Answer::default() }
    }
}
