//! Which requests are recorded (`--record`), and what is kept of them until their answers are there
//! (docs/record-and-replay.md).
//!
//! Requests and answers are kept by reference; the recorder's own thread reads them. Only unary inference through the
//! HTTP and the gRPC port is recorded.

use std::collections::HashMap;
use std::sync::Arc;

use super::access::Access;
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
/// The part of it that requests of a shard may keep until their answers are there.
const OPEN_PART: u64 = 64;
/// Bytes of a body that are copied, so that the rest of it is not kept for them.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Bytes of an answer that are copied because others can change them, or need them back.
const STABLE_BYTES_MAX: usize = 1 << 20;

/// The recorder of one shard.
pub struct RequestRecorder {
    recorder: Arc<Recorder>,
    /// Bytes that may wait to be written.
    held_max: u64,
    /// Bytes that requests may keep until their answers are there, and that they do keep.
    open_max: u64,
    open_bytes: u64,
    /// Requests since the last one that was chosen.
    passed: u32,
    open: HashMap<CallKey, Open>,
    tokens: HashMap<Token, CallKey>,
}

struct Open {
    exchange: Exchange,
    /// Bytes of the request.
    held: u64,
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

/// The pieces of an answer; of one with binary tensors only its JSON, unless contents are recorded. None: more would
/// have to be copied than a shard has time for.
fn answer_of(pieces: &[Slice], json_len: Option<usize>, has_data: bool) -> Option<Body> {
    let byte_size = pieces.iter().map(|piece| piece.len() as u64).sum();
    let mut left = json_len.filter(|_| !has_data).unwrap_or(usize::MAX);
    let (mut of_body, mut pinned, mut copied) = (Vec::new(), 0, 0);
    for piece in pieces {
        let n = piece.len().min(left);
        left -= n;
        if n == 0 {
            continue;
        }
        let part = piece.window(0..n);
        if part.is_lent() || part.shared().is_some() {
            copied += n;
            if copied > STABLE_BYTES_MAX {
                return None;
            }
        } else {
            pinned += piece.len() as u64;
        }
        of_body.push(kept(&part));
    }
    Some(Body { pieces: of_body, byte_size, pinned, json_len, ..Body::default() })
}

impl RequestRecorder {
    pub fn new(recorder: Arc<Recorder>, pool: &Pool) -> RequestRecorder {
        let limit = pool.limit() as u64;
        RequestRecorder {
            recorder,
            held_max: limit / POOL_PART,
            open_max: limit / OPEN_PART,
            open_bytes: 0,
            passed: 0,
            open: HashMap::new(),
            tokens: HashMap::new(),
        }
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

    /// Whether nothing more is recorded.
    pub fn is_over(&self) -> bool {
        self.recorder.is_over()
    }

    fn value(&self, name: &str, value: &[u8], access: &Access) -> String {
        let is_key = access.http.is_key_header(name) || access.grpc.is_key_header(name);
        let is_secret = is_key || self.recorder.settings().redaction.redacts_header(name);
        if is_secret { REDACTED.to_owned() } else { text(value) }
    }

    /// A request came through the HTTP port.
    pub fn begin_http(&mut self, call: CallKey, head: &Head, body: &Slice, access: &Access) {
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
        let (of_body, pinned) = match of_body.len() {
            len if len < body.len() && len <= COPIED_BYTES_MAX => (Slice::copy_of(&of_body), 0),
            _ => (kept(&of_body), byte_size),
        };
        let headers = match self.has_data() {
            true => head.headers().map(|(name, value)| (name.to_owned(), self.value(name, value, access))).collect(),
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
            request: Body { pieces: vec![of_body], byte_size, pinned, is_packed, json_len, has_prefix: false },
            answer: None,
        };
        self.keep(call, exchange);
    }

    /// A call begins: if it is chosen, its message is kept.
    pub fn plan_call(&mut self, headers: &Headers, plan: &mut GrpcPlan, access: &Access) {
        if Method::from_number(plan.method) != Some(Method::ModelInfer) || !self.chooses() {
            return;
        }
        plan.mode = Mode::Kept;
        if self.has_data() {
            let own = headers.iter().filter(|(name, _)| !name.starts_with(b":"));
            plan.recorded = own
                .map(|(name, value)| (name.into(), self.value(&text(name), value, access).into_bytes().into()))
                .collect();
        }
    }

    /// Keeps a request until its answer is there, if there is room for it.
    fn keep(&mut self, call: CallKey, exchange: Exchange) {
        let held = exchange.held();
        if self.open.len() >= OPEN_MAX || self.open_bytes.saturating_add(held) > self.open_max {
            return self.recorder.drop_one();
        }
        self.open_bytes += held;
        self.open.insert(call, Open { exchange, held, token: None });
    }

    fn take(&mut self, call: CallKey) -> Option<Exchange> {
        let Open { exchange, held, token } = self.open.remove(&call)?;
        self.open_bytes = self.open_bytes.saturating_sub(held);
        token.and_then(|token| self.tokens.remove(&token));
        Some(exchange)
    }

    /// The message of a call is here.
    pub fn begin_grpc(&mut self, call: CallKey, plan: &GrpcPlan, message: &Message) {
        if plan.mode != Mode::Kept {
            return;
        }
        let Message::Compressed(encoding, pieces, _) = message else {
            // It was too large to be kept.
            return self.recorder.drop_one();
        };
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
        self.keep(call, exchange);
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
        let Some(mut exchange) = self.take(call) else { return };
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
                    let answer = body.map(|body| Answer { status: 200, message: String::new(), body });
                    self.end_with(*call, answer);
                }
                Reply::Http(HttpReply::Answer(response)) => {
                    let answer = self.http_answer(response);
                    self.end_with(*call, answer);
                }
                Reply::Grpc(GrpcReply::Message(message)) => {
                    let answer = self.grpc_answer(message);
                    match self.open.get_mut(call) {
                        Some(open) if answer.is_some() => open.exchange.answer = answer,
                        _ => self.end_with(*call, None),
                    }
                }
                Reply::Grpc(GrpcReply::Answer(message)) => {
                    let answer = self.grpc_answer(message);
                    self.end_with(*call, answer);
                }
                Reply::Grpc(GrpcReply::End(status)) => {
                    let answer = self.open.get_mut(call).and_then(|open| open.exchange.answer.take());
                    let (code, message) = (status.code as u16, status.message.clone());
                    self.end(*call, Some(Answer { status: code, message, ..answer.unwrap_or_default() }));
                }
            }
        }
    }

    /// Records a request with its answer; without one it is dropped.
    fn end_with(&mut self, call: CallKey, answer: Option<Answer>) {
        match answer {
            Some(answer) => self.end(call, Some(answer)),
            None => {
                self.take(call);
                self.recorder.drop_one();
            }
        }
    }

    /// None: it is too large to be copied, where that is needed.
    fn http_answer(&self, response: &mut http1::Response) -> Option<Answer> {
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
        let body = Body { is_packed, ..answer_of(&pieces, json_len, self.has_data() || is_packed)? };
        Some(Answer { status, message: String::new(), body })
    }

    fn grpc_answer(&self, message: &mut Gather) -> Option<Answer> {
        let body = answer_of(&shared(message), None, true)?;
        let byte_size = body.byte_size.saturating_sub(PREFIX_BYTES as u64);
        Some(Answer { body: Body { byte_size, has_prefix: true, ..body }, ..Answer::default() })
    }
}
