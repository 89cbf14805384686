//! The client's side: request heads to send, and responses as they arrive. For the load generator and for tests.
//!
//! Bodies are handed on in the pieces in which they arrive, because what is measured may be a stream.

use std::collections::VecDeque;
use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::Limits;
use super::chunked::{ChunkError, Chunked, Piece};
use super::head::HeadEnd;
use super::response::put_field;

/// Fields of a response's head that take no memory of their own; few heads have more.
const HEADERS_ON_STACK: usize = 16;

/// What kind of body follows a request's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBody {
    None,
    Length(usize),
    Chunked,
}

/// A request's head as a client writes it.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub host: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: RequestBody,
}

impl RequestHead<'_> {
    /// Appends the head with its empty line.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.target.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        put_field(out, "Host", self.host);
        for (name, value) in self.headers {
            put_field(out, name, value);
        }
        match self.body {
            RequestBody::None => {}
            RequestBody::Length(len) => put_field(out, "Content-Length", itoa::Buffer::new().format(len)),
            RequestBody::Chunked => put_field(out, "Transfer-Encoding", "chunked"),
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends one chunk of a chunked body; an empty one would end it and is left out.
pub fn put_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }
}

/// Ends a chunked body.
pub fn put_last_chunk(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n\r\n");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    #[error("malformed HTTP response")]
    Malformed,
    #[error("response head exceeds the maximum of {limit} bytes")]
    HeadTooLong { limit: usize },
    #[error("malformed chunked response")]
    Chunks,
    #[error("the response answers no request")]
    Unasked,
    #[error("the connection ended inside a response")]
    CutOff,
}

impl From<ChunkError> for ClientError {
    fn from(_: ChunkError) -> ClientError {
        ClientError::Chunks
    }
}

/// What a client gets of its responses, in order.
pub trait ResponseSink {
    /// A final status and its fields, as they were spelt.
    fn head(&mut self, status: u16, headers: &[(&str, &[u8])]);
    fn body(&mut self, bytes: &[u8]);
    /// The response is complete; `keep_alive`: whether another request may follow on this connection.
    fn done(&mut self, keep_alive: bool);
}

/// Reads the responses to the requests that were [`sent`](ResponseParser::sent).
#[derive(Debug)]
pub struct ResponseParser {
    limits: Limits,
    /// For each request without a response: whether it was a HEAD request.
    asked: VecDeque<bool>,
    stash: Vec<u8>,
    head_end: HeadEnd,
    state: ResponseState,
    keep_alive: bool,
}

#[derive(Debug)]
enum ResponseState {
    Head,
    Length { missing: u64 },
    Chunked(Chunked),
    UntilEnd,
}

impl Default for ResponseParser {
    fn default() -> ResponseParser {
        ResponseParser::new(Limits::default())
    }
}

impl ResponseParser {
    pub fn new(limits: Limits) -> ResponseParser {
        ResponseParser {
            limits,
            asked: VecDeque::new(),
            stash: Vec::new(),
            head_end: HeadEnd::default(),
            state: ResponseState::Head,
            keep_alive: true,
        }
    }

    /// A request was sent; responses to HEAD requests have no body whatever their head contains.
    pub fn sent(&mut self, is_head: bool) {
        self.asked.push_back(is_head);
    }

    /// Requests that have no complete response yet.
    pub fn outstanding(&self) -> usize {
        self.asked.len()
    }

    pub fn receive(&mut self, bytes: &[u8], sink: &mut impl ResponseSink) -> Result<(), ClientError> {
        if self.stash.is_empty() {
            let used = self.consume(bytes, sink)?;
            self.stash.extend_from_slice(bytes.get(used..).unwrap_or_default());
        } else {
            let mut stash = std::mem::take(&mut self.stash);
            stash.extend_from_slice(bytes);
            let used = self.consume(&stash, sink)?;
            stash.drain(..used);
            self.stash = stash;
        }
        Ok(())
    }

    /// The connection has ended: completes a response that lasts up to there.
    pub fn end(&mut self, sink: &mut impl ResponseSink) -> Result<(), ClientError> {
        if matches!(self.state, ResponseState::UntilEnd) {
            self.finish(sink);
        }
        if self.asked.is_empty() && self.stash.is_empty() { Ok(()) } else { Err(ClientError::CutOff) }
    }

    fn consume(&mut self, bytes: &[u8], sink: &mut impl ResponseSink) -> Result<usize, ClientError> {
        let mut used = 0;
        while let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
            match &mut self.state {
                ResponseState::Head => {
                    let limit = self.limits.head;
                    let end = self.head_end.find(rest, limit, limit);
                    let Some(end) = end.map_err(|_| ClientError::HeadTooLong { limit })? else { return Ok(used) };
                    self.read_head(rest.get(..end).unwrap_or_default(), sink)?;
                    used += end;
                }
                ResponseState::Length { missing } => {
                    let n = usize::try_from(*missing).unwrap_or(usize::MAX).min(rest.len());
                    *missing -= n as u64;
                    let complete = *missing == 0;
                    sink.body(rest.get(..n).unwrap_or_default());
                    used += n;
                    if complete {
                        self.finish(sink);
                    }
                }
                ResponseState::Chunked(chunked) => {
                    let (n, piece) = chunked.decode(rest, u64::MAX)?;
                    used += n;
                    match piece {
                        Piece::Data(len) => sink.body(rest.get(n.saturating_sub(len)..n).unwrap_or_default()),
                        Piece::Beyond | Piece::More => {}
                        Piece::End => self.finish(sink),
                    }
                }
                ResponseState::UntilEnd => {
                    sink.body(rest);
                    used = bytes.len();
                }
            }
        }
        Ok(used)
    }

    /// Reads a complete head and settles where the body ends (RFC 9112, section 6.3).
    fn read_head(&mut self, raw: &[u8], sink: &mut impl ResponseSink) -> Result<(), ClientError> {
        let mut fields = [const { MaybeUninit::uninit() }; Limits::MAX_HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        match config.parse_response_with_uninit_headers(&mut response, raw, &mut fields) {
            Ok(httparse::Status::Complete(len)) if len == raw.len() => {}
            _ => return Err(ClientError::Malformed),
        }
        let (Some(status), Some(version)) = (response.code, response.version) else {
            return Err(ClientError::Malformed);
        };
        if status < 200 {
            return Ok(());
        }
        let is_head = *self.asked.front().ok_or(ClientError::Unasked)?;
        // On the stack: a client that measures allocates nothing for an answer.
        let headers: SmallVec<[_; HEADERS_ON_STACK]> =
            response.headers.iter().map(|field| (field.name, field.value)).collect();
        let find = |name: &str| headers.iter().find(|field| field.0.eq_ignore_ascii_case(name)).map(|field| field.1);
        let says = |name: &str, word: &[u8]| find(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
        let until_end = !says("transfer-encoding", b"chunked") && find("content-length").is_none();
        self.keep_alive = match version {
            0 => says("connection", b"keep-alive"),
            _ => !says("connection", b"close"),
        };
        sink.head(status, &headers);
        self.state = if is_head || status == 204 || status == 304 {
            ResponseState::Length { missing: 0 }
        } else if says("transfer-encoding", b"chunked") {
            ResponseState::Chunked(Chunked::new(usize::MAX))
        } else if until_end {
            self.keep_alive = false;
            ResponseState::UntilEnd
        } else {
            let length = find("content-length").and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            ResponseState::Length { missing: length.ok_or(ClientError::Malformed)? }
        };
        if matches!(self.state, ResponseState::Length { missing: 0 }) {
            self.finish(sink);
        }
        Ok(())
    }

    fn finish(&mut self, sink: &mut impl ResponseSink) {
        self.state = ResponseState::Head;
        self.asked.pop_front();
        sink.done(self.keep_alive);
    }
}
