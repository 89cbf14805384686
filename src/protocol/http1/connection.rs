//! The server's side of a connection.
//!
//! Bytes are consumed from where they were received; only what cannot be used yet (an unfinished head, requests
//! beyond the bound of pipelining) is kept. Every way out of a malformed or refused request ends in an answer in its
//! place in the order of answers, after which the connection stops reading.

use super::body::{Body, BodyError};
use super::chunked::Chunked;
use super::head::{BodyLength, Head, HeadEnd, HeadError, Method, Version};
use super::incoming::{Broken, Coding, Incoming, Target};
use super::outbox::Outbox;
use super::response::{PlainResponse, Response, ResponseHead};
use super::{BodyPlan, Direct, ExchangeId, Handler, Limits};
use nereid_memory::{Gather, Pool};

/// Missing bytes from which a body is received directly.
const DIRECT_FROM: usize = 4096;
/// Empty lines before a request that are skipped, in bytes (RFC 9112, section 2.2).
const BLANK_MAX: usize = 64;
/// What a stash may keep of its memory when it is empty.
const STASH_KEPT: usize = 16 * 1024;

/// Bytes that are kept, while requests wait for their answers, so that the end of their peer is noticed.
const LISTEN_MAX: usize = 64 * 1024;

pub struct Connection {
    limits: Limits,
    pool: Pool,
    outbox: Outbox,
    head: Head,
    head_end: HeadEnd,
    blank: usize,
    input: Input,
    stash: Stash,
    /// Complete requests may lie in the stash: reading stopped at a bound.
    resumable: bool,
    draining: bool,
    /// Each answer requests the peer to go; an idle connection stays.
    leaving: bool,
    /// The peer will send nothing more.
    input_ended: bool,
}

#[derive(Debug)]
enum Input {
    Head,
    Body(Incoming),
    /// Nothing more is read.
    Stopped,
}

impl Connection {
    pub fn new(limits: Limits, pool: Pool) -> Connection {
        Connection {
            limits,
            outbox: Outbox::new(pool.clone()),
            pool,
            head: Head::default(),
            head_end: HeadEnd::default(),
            blank: 0,
            input: Input::Head,
            stash: Stash::default(),
            resumable: false,
            draining: false,
            leaving: false,
            input_ended: false,
        }
    }

    /// Consumes received bytes, whatever pieces they come in, and calls `handler` for what they hold. Without bytes it
    /// goes on with what is kept: see [`has_input`](Connection::has_input).
    pub fn receive(&mut self, bytes: &[u8], handler: &mut impl Handler) {
        if self.stash.is_empty() && !self.is_direct_out() {
            let used = self.consume(bytes, handler);
            self.stash.push(bytes.get(used..).unwrap_or_default());
        } else {
            let mut stash = std::mem::take(&mut self.stash);
            stash.push(bytes);
            if !self.is_direct_out() {
                let used = self.consume(stash.unread(), handler);
                stash.advance(used);
            }
            self.stash = stash;
        }
        if self.is_stopped() {
            self.stash.clear();
        } else if self.input_ended && !self.resumable {
            self.cut_off(handler);
        } else if self.stash.unread().len() > self.limits.head.saturating_add(self.limits.unsent) {
            // The owner reads on although nothing is wanted.
            self.stop();
        }
    }

    /// Nothing has come or gone for a while: gives back the memory that is kept for what comes next.
    pub fn rest(&mut self) {
        self.outbox.rest();
        if self.stash.is_empty() {
            self.stash = Stash::default();
        }
    }

    /// True if [`receive`](Connection::receive) without bytes would find a request that was kept back by a bound.
    pub fn has_input(&self) -> bool {
        self.resumable && !self.is_paused() && !self.is_stopped()
    }

    /// The peer will send nothing more. Its complete requests are still answered.
    pub fn end_of_input(&mut self, handler: &mut impl Handler) {
        self.input_ended = true;
        if !self.resumable {
            self.cut_off(handler);
        }
    }

    /// The memory into which the rest of the current body may be received without a copy, if its length is known and
    /// enough of it is missing. [`direct_received`](Connection::direct_received) must get it back before anything else
    /// is received.
    pub fn take_direct(&mut self) -> Option<Direct> {
        let Input::Body(incoming) = &mut self.input else { return None };
        let Coding::Length { missing } = incoming.coding else { return None };
        let Target::Store(body) = &mut incoming.target else { return None };
        if missing < DIRECT_FROM || !self.stash.is_empty() {
            return None;
        }
        let (block, at) = body.take_block(&self.pool)?;
        incoming.direct = true;
        Some(Direct { len: missing.min(block.len().saturating_sub(at)), block, at })
    }

    /// Takes back what [`take_direct`](Connection::take_direct) gave, `n` bytes of which were received.
    pub fn direct_received(&mut self, direct: Direct, n: usize, handler: &mut impl Handler) {
        let Input::Body(incoming) = &mut self.input else { return };
        if !std::mem::take(&mut incoming.direct) {
            return;
        }
        if let Coding::Length { missing } = &mut incoming.coding {
            let n = n.min(*missing);
            *missing -= n;
            match &mut incoming.target {
                Target::Store(body) => body.put_block(direct.block, n),
                Target::Discard { left } => *left = left.saturating_sub(n),
            }
        }
        self.receive(&[], handler);
    }

    /// Answers an exchange. Answers leave in the order of the requests; one for an exchange that is answered already,
    /// or whose connection has ended, is dropped.
    pub fn respond(&mut self, exchange: ExchangeId, response: Response) {
        self.before_answer(exchange);
        self.outbox.respond(exchange, response);
        self.after_answer();
    }

    /// The same for an answer as most are.
    pub fn respond_plainly(&mut self, exchange: ExchangeId, response: PlainResponse) {
        self.before_answer(exchange);
        self.outbox.respond_plainly(exchange, response);
        self.after_answer();
    }

    /// Begins an answer whose length is not known. An HTTP/1.0 peer gets it up to the connection's end.
    pub fn respond_chunked(&mut self, exchange: ExchangeId, head: ResponseHead) {
        self.before_answer(exchange);
        self.outbox.respond_chunked(exchange, &head);
    }

    /// Adds `data` to an answer begun by [`respond_chunked`](Connection::respond_chunked).
    pub fn chunk(&mut self, exchange: ExchangeId, data: Gather) {
        self.outbox.chunk(exchange, data);
    }

    /// Ends an answer begun by [`respond_chunked`](Connection::respond_chunked).
    pub fn finish(&mut self, exchange: ExchangeId) {
        self.outbox.finish(exchange);
        self.after_answer();
    }

    /// What is to be sent.
    pub fn output(&mut self) -> &mut Gather {
        self.outbox.output()
    }

    /// Bytes of answers that are not yet taken from [`output`](Connection::output), those that wait for their turn
    /// included.
    pub fn unsent(&self) -> usize {
        self.outbox.unsent()
    }

    /// Of those, the ones up to the end of what this exchange was answered so far, without answers that stand before it
    /// and have not begun to leave.
    pub fn unsent_of(&self, exchange: ExchangeId) -> usize {
        self.outbox.unsent_of(exchange)
    }

    /// True if this exchange is the next one to be answered: what it is given goes out.
    pub fn is_oldest(&self, exchange: ExchangeId) -> bool {
        self.outbox.is_oldest(exchange)
    }

    /// Requests that are not completely answered.
    pub fn in_flight(&self) -> usize {
        self.outbox.len()
    }

    /// False while a bound is reached or nothing more is to come.
    pub fn wants_read(&self) -> bool {
        match self.input {
            Input::Head => !self.is_paused() && !self.input_ended,
            Input::Body(_) => true,
            Input::Stopped => false,
        }
    }

    /// True while reading does no harm although nothing is wanted: only a read notices that the peer has left. What
    /// comes is dropped behind the last request, else kept, for which there is this much room.
    pub fn may_listen(&self) -> bool {
        let has_room = self.stash.unread().len() < LISTEN_MAX;
        !self.input_ended && !self.is_direct_out() && (self.is_stopped() || has_room)
    }

    /// True if everything that will ever be sent has been taken from [`output`](Connection::output).
    pub fn should_close(&self) -> bool {
        let finished = self.is_stopped() || (self.draining && self.is_idle());
        finished && self.outbox.is_empty() && self.outbox.unsent() == 0
    }

    /// Winds the connection down: the next answer that nothing follows carries `Connection: close`, and an idle
    /// connection may be closed at once.
    pub fn close_after_responses(&mut self) {
        self.draining = true;
    }

    /// From now on each answer that nothing follows carries `Connection: close`. A connection between requests stays
    /// open, because its peer's next request may be under way.
    pub fn close_after_next_response(&mut self) {
        self.leaving = true;
    }

    /// The request whose body is being received.
    pub fn half_received(&self) -> Option<ExchangeId> {
        match &self.input {
            Input::Body(incoming) if matches!(incoming.target, Target::Store(_)) => Some(incoming.exchange),
            Input::Body(_) | Input::Head | Input::Stopped => None,
        }
    }

    /// True between requests: nothing is half received, unanswered or unsent.
    pub fn is_idle(&self) -> bool {
        matches!(self.input, Input::Head)
            && self.stash.is_empty()
            && self.outbox.is_empty()
            && self.outbox.unsent() == 0
    }

    /// True while a request is half received: the peer's turn, and its owner's reason for a timeout.
    pub fn is_receiving(&self) -> bool {
        match self.input {
            Input::Head => !self.stash.is_empty() && !self.resumable,
            Input::Body(_) => true,
            Input::Stopped => false,
        }
    }

    fn is_stopped(&self) -> bool {
        matches!(self.input, Input::Stopped)
    }

    fn is_direct_out(&self) -> bool {
        matches!(&self.input, Input::Body(Incoming { direct: true, .. }))
    }

    /// True while no new request may begin.
    fn is_paused(&self) -> bool {
        let busy = !self.outbox.is_empty();
        (busy && self.draining)
            || self.outbox.len() >= self.limits.pipelined
            || self.outbox.unsent() > self.limits.unsent
    }

    fn stop(&mut self) {
        self.input = Input::Stopped;
        self.stash.clear();
        self.resumable = false;
    }

    fn before_answer(&mut self, exchange: ExchangeId) {
        if (self.draining || self.leaving) && self.outbox.is_last(exchange) && self.outbox.is_unanswered(exchange) {
            self.outbox.end_after(exchange);
        }
        // An answer that overtakes its request's body: the rest of the body is of no use.
        if let Input::Body(incoming) = &mut self.input
            && incoming.exchange == exchange
            && matches!(incoming.target, Target::Store(_))
        {
            incoming.target = Target::Discard { left: self.limits.discard };
            if matches!(incoming.coding, Coding::Length { missing } if missing > self.limits.discard) {
                self.outbox.end_after(exchange);
            }
        }
    }

    fn after_answer(&mut self) {
        if self.outbox.ended() {
            self.stop();
        }
    }

    /// Ends reading where the peer ended sending; a request that is not complete gets no answer.
    fn cut_off(&mut self, handler: &mut impl Handler) {
        if let Input::Body(incoming) = std::mem::replace(&mut self.input, Input::Stopped)
            && let Target::Store(_) = incoming.target
        {
            self.outbox.abandon(incoming.exchange);
            handler.aborted(incoming.exchange);
        }
        self.stop();
    }

    /// Consumes what can be consumed and returns how much that was.
    fn consume(&mut self, bytes: &[u8], handler: &mut impl Handler) -> usize {
        let mut used = 0;
        self.resumable = false;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let (n, go_on) = match self.input {
                Input::Head => self.consume_head(rest, handler),
                Input::Body(_) => self.consume_body(rest, handler),
                Input::Stopped => (rest.len(), false),
            };
            used += n;
            if !go_on {
                return used;
            }
        }
    }

    /// Consumes empty lines and one head. The flag: whether there may be more to do.
    fn consume_head(&mut self, bytes: &[u8], handler: &mut impl Handler) -> (usize, bool) {
        if self.is_paused() {
            self.resumable = !bytes.is_empty();
            return (0, false);
        }
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        self.blank += blank;
        let bytes = bytes.get(blank..).unwrap_or_default();
        let Some(first) = bytes.first() else {
            if self.blank > BLANK_MAX {
                self.refuse_head(HeadError::Malformed);
            }
            return (blank, false);
        };
        if self.head_end.is_fresh()
            && self.blank <= BLANK_MAX
            && let Some(end) = self.head.repeat(bytes, self.limits.repeated_head.min(self.limits.head))
        {
            self.blank = 0;
            self.begin_request(handler);
            return (blank + end, true);
        }
        // What begins like this is no method; a TLS client on this port should not have to wait for the bound.
        let found = if self.blank > BLANK_MAX || !first.is_ascii_graphic() {
            Err(HeadError::Malformed)
        } else {
            self.head_end.find(bytes, self.limits.request_line, self.limits.head)
        };
        let parsed = match found {
            Ok(None) => return (blank, false),
            Ok(Some(end)) => {
                let raw = bytes.get(..end).unwrap_or_default();
                self.head.parse(raw, &self.limits).map(|()| end)
            }
            Err(error) => Err(error),
        };
        self.blank = 0;
        match parsed {
            Ok(end) => {
                self.begin_request(handler);
                (blank + end, true)
            }
            Err(error) => {
                self.refuse_head(error);
                (blank + bytes.len(), false)
            }
        }
    }

    fn refuse_head(&mut self, error: HeadError) {
        let id = self.outbox.open(Version::Http11, false, false);
        self.answer_error(id, ResponseHead::new(error.status()), &error.to_string());
        self.stop();
    }

    fn answer_error(&mut self, id: ExchangeId, head: ResponseHead, message: &str) {
        let head = head.content_type("application/json");
        self.outbox.respond(id, Response::error(&self.pool, head, message));
    }

    /// The head in `self.head` is complete: opens its exchange and settles what becomes of the body.
    fn begin_request(&mut self, handler: &mut impl Handler) {
        let keep_alive = self.head.keep_alive();
        let id = self.outbox.open(self.head.version(), keep_alive, self.head.method() == Method::Head);
        let plan = handler.head(id, &self.head);
        let align_at = match plan {
            BodyPlan::Store { align_at } => align_at,
            BodyPlan::Reject(response) => return self.reject(id, response),
        };
        let coding = match self.head.body_length() {
            BodyLength::Chunked => Ok((Coding::Chunked(Chunked::new(self.limits.chunks)), 0)),
            BodyLength::Known(length) => match usize::try_from(length) {
                Ok(missing) if missing <= self.limits.body => Ok((Coding::Length { missing }, missing)),
                _ => Err(self.length_refused(length)),
            },
            BodyLength::Unparsable => {
                Err((ResponseHead::new(400), format!("Unable to parse Content-Length, got: {}", self.length_text())))
            }
        };
        let stored = coding.and_then(|(coding, len)| match Body::new(&self.pool, align_at, len) {
            Ok(body) => Ok((coding, body)),
            Err(exhausted) => Err((ResponseHead::refused(exhausted.reason()), exhausted.to_string())),
        });
        match stored {
            Ok((coding, body)) => {
                if self.head.expects_continue() && !matches!(coding, Coding::Length { missing: 0 }) {
                    self.outbox.go_on(id);
                }
                self.input = Input::Body(Incoming { exchange: id, coding, target: Target::Store(body), direct: false });
            }
            Err((head, message)) => {
                handler.aborted(id);
                self.reject(id, Response::error(&self.pool, head.content_type("application/json"), &message));
            }
        }
    }

    /// Spec contract/http.md section 5: a length beyond an int32 has a text of its own.
    fn length_refused(&self, length: u64) -> (ResponseHead, String) {
        if length <= i32::MAX as u64 {
            return (ResponseHead::new(413), BodyError::TooLong { limit: self.limits.body }.to_string());
        }
        let range = "value is out of range [ -2147483648, 2147483647 ]";
        (ResponseHead::new(400), format!("Unable to parse Content-Length, {range}, got: {}", self.length_text()))
    }

    fn length_text(&self) -> String {
        String::from_utf8_lossy(self.head.header("content-length").unwrap_or_default()).into_owned()
    }

    /// Answers before the body, and keeps the connection only if what follows is known to be short. A peer that waits
    /// for `100 Continue` may send the body or not: there the connection ends.
    fn reject(&mut self, id: ExchangeId, response: Response) {
        let discard = self.limits.discard;
        let coding = match self.head.body_length() {
            BodyLength::Known(0) => Some(Coding::Length { missing: 0 }),
            _ if self.head.expects_continue() => None,
            BodyLength::Known(length) => {
                let missing = usize::try_from(length).ok().filter(|missing| *missing <= discard);
                missing.map(|missing| Coding::Length { missing })
            }
            BodyLength::Chunked => Some(Coding::Chunked(Chunked::new(self.limits.chunks))),
            BodyLength::Unparsable => None,
        };
        let Some(coding) = coding else {
            self.outbox.end_after(id);
            self.outbox.respond(id, response);
            return self.stop();
        };
        self.input =
            Input::Body(Incoming { exchange: id, coding, target: Target::Discard { left: discard }, direct: false });
        self.respond(id, response);
    }

    /// Consumes bytes of the body. The flag: whether there may be more to do.
    fn consume_body(&mut self, bytes: &[u8], handler: &mut impl Handler) -> (usize, bool) {
        let Input::Body(incoming) = &mut self.input else { return (0, false) };
        match incoming.take(&self.pool, &self.limits, bytes) {
            Ok((used, false)) => (used, false),
            Ok((used, true)) => {
                self.complete_request(handler);
                (used, true)
            }
            Err(broken) => {
                self.break_off(&broken, handler);
                (bytes.len(), false)
            }
        }
    }

    fn complete_request(&mut self, handler: &mut impl Handler) {
        let next = if self.head.keep_alive() { Input::Head } else { Input::Stopped };
        if let Input::Body(incoming) = std::mem::replace(&mut self.input, next)
            && let Target::Store(body) = incoming.target
        {
            handler.request(incoming.exchange, &self.head, body.finish());
        }
    }

    /// The body cannot be read on, so neither can the connection.
    fn break_off(&mut self, broken: &Broken, handler: &mut impl Handler) {
        if let Input::Body(Incoming { exchange, target, .. }) = std::mem::replace(&mut self.input, Input::Stopped) {
            if matches!(target, Target::Store(_)) {
                handler.aborted(exchange);
            }
            self.outbox.end_after(exchange);
            self.answer_error(exchange, broken.head(), &broken.to_string());
        }
        self.stop();
    }
}

/// Received bytes that cannot be used yet.
#[derive(Debug, Default)]
struct Stash {
    bytes: Vec<u8>,
    at: usize,
}

impl Stash {
    fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn unread(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn advance(&mut self, n: usize) {
        self.at += n;
        if self.is_empty() {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.at = 0;
        self.bytes.clear();
        self.bytes.shrink_to(STASH_KEPT);
    }
}
