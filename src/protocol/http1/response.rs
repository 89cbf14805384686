//! What is answered, and how its head is written.
//!
//! Replies carry what Triton's carry and no more (no `Date`, no `Server`): the handler's fields, `Content-Type`
//! (`text/plain` where the handler set none, contract/http.md section 1), the framing, and `Connection` where it
//! matters.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::head::Version;
use crate::json;
use nereid_memory::{Gather, Pool, REFUSED, RefusalReason, Slice};

/// Status and fields of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: u16,
    /// What the server lacked, if that is why there is no other answer.
    pub refusal: Option<RefusalReason>,
    /// `text/plain` if nothing is set; an empty one is left out.
    pub content_type: Option<Cow<'static, str>>,
    pub headers: Vec<(Cow<'static, str>, FieldValue)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    Text(Cow<'static, str>),
    Number(u64),
}

impl From<&'static str> for FieldValue {
    fn from(text: &'static str) -> FieldValue {
        FieldValue::Text(Cow::Borrowed(text))
    }
}

impl From<String> for FieldValue {
    fn from(text: String) -> FieldValue {
        FieldValue::Text(Cow::Owned(text))
    }
}

impl From<u64> for FieldValue {
    fn from(number: u64) -> FieldValue {
        FieldValue::Number(number)
    }
}

impl ResponseHead {
    pub fn new(status: u16) -> ResponseHead {
        ResponseHead { status, refusal: None, content_type: None, headers: Vec::new() }
    }

    /// 503, which names what the server lacks.
    pub fn refused(reason: RefusalReason) -> ResponseHead {
        ResponseHead { refusal: Some(reason), ..ResponseHead::new(503) }
    }

    pub fn content_type(mut self, content_type: impl Into<Cow<'static, str>>) -> ResponseHead {
        self.content_type = Some(content_type.into());
        self
    }

    pub fn header(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<FieldValue>) -> ResponseHead {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// A whole answer of known length.
#[derive(Debug)]
pub struct Response {
    pub head: ResponseHead,
    pub body: Gather,
}

impl Response {
    pub fn new(head: ResponseHead, body: Gather) -> Response {
        Response { head, body }
    }

    /// An answer without a body.
    pub fn empty(status: u16) -> Response {
        Response { head: ResponseHead::new(status), body: Gather::new() }
    }

    /// An answer whose body is a copy of `text`.
    pub fn text(pool: &Pool, head: ResponseHead, text: &[u8]) -> Response {
        let mut body = Gather::new();
        body.put(pool, text);
        Response { head, body }
    }

    /// `{"error":"<message>"}` (contract/http.md section 2).
    pub fn error(pool: &Pool, head: ResponseHead, message: &str) -> Response {
        let mut writer = json::Writer::new(Vec::with_capacity(message.len() + 16));
        writer.begin_object();
        writer.key("error");
        writer.string(message);
        writer.end_object();
        Response::text(pool, head, &writer.into_inner())
    }
}

/// An answer of status 200 as most are. It goes out like a [`Response`], but its head is written in one go.
#[derive(Debug)]
pub struct PlainResponse {
    /// Of the tensors behind the JSON: then the head states how long the JSON is, and calls the whole binary.
    pub tail: SmallVec<[Slice; 1]>,
    pub json: Slice,
    pub is_binary: bool,
}

/// Says how many bytes of a body are JSON.
pub const JSON_LENGTH: &str = "Inference-Header-Content-Length";

const PLAIN_BINARY: &[u8] = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: ";
const PLAIN_BINARY_LENGTH: &[u8] = b"\r\nContent-Type: application/octet-stream\r\nContent-Length: ";

impl PlainResponse {
    /// Bytes of the body.
    pub fn body_len(&self) -> usize {
        self.tail.iter().map(|piece| piece.len()).sum::<usize>() + self.json.len()
    }

    /// Writes the head for an HTTP/1.1 peer that keeps its connection.
    pub(super) fn encode_head(&self, out: &mut Vec<u8>) {
        let mut number = itoa::Buffer::new();
        if self.is_binary {
            out.extend_from_slice(PLAIN_BINARY);
            out.extend_from_slice(number.format(self.json.len()).as_bytes());
            out.extend_from_slice(PLAIN_BINARY_LENGTH);
        } else {
            out.extend_from_slice(JSON_OK);
        }
        out.extend_from_slice(number.format(self.body_len()).as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// The same answer for any other peer.
    pub fn into_response(self, pool: &Pool) -> Response {
        let mut head = ResponseHead::new(200);
        head = match self.is_binary {
            true => head.content_type("application/octet-stream").header(JSON_LENGTH, self.json.len() as u64),
            false => head.content_type("application/json"),
        };
        let mut body = Gather::new();
        body.push(pool, self.json);
        self.tail.into_iter().for_each(|piece| body.push(pool, piece));
        Response::new(head, body)
    }
}

/// How the body's end is made known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
    /// By the end of the connection: for peers without chunked coding.
    Close,
}

/// What lacks room, a model or a working instance may be there a second later. Clients and proxies that know the field
/// come again then, the others when they like.
const RETRY_AFTER_S: &str = "1";

/// Room for a head as most are.
const HEAD_BYTES: usize = 256;

/// The head of the commonest answer up to its length.
const JSON_OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ";

impl ResponseHead {
    /// Writes the head with its empty line.
    pub(super) fn encode(&self, version: Version, keep_alive: bool, framing: Framing, out: &mut Vec<u8>) {
        let content_type = self.content_type.as_deref().unwrap_or("text/plain");
        let plain = self.headers.is_empty() && self.status == 200 && version == Version::Http11 && keep_alive;
        if plain
            && content_type == "application/json"
            && let Framing::Length(len) = framing
        {
            out.extend_from_slice(JSON_OK);
            out.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
            out.extend_from_slice(b"\r\n\r\n");
            return;
        }
        let status = if (100..=999).contains(&self.status) { self.status } else { 500 };
        out.reserve(HEAD_BYTES);
        if (status, version) == (200, Version::Http11) {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        } else {
            out.extend_from_slice(if version == Version::Http11 { b"HTTP/1.1 " } else { b"HTTP/1.0 " });
            out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
            out.push(b' ');
            out.extend_from_slice(reason(status).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        if status == 503 {
            put_field(out, "Retry-After", RETRY_AFTER_S);
        }
        if let Some(reason) = self.refusal {
            put_field(out, REFUSED, reason.name());
            reason.count();
        }
        for (name, value) in &self.headers {
            match value {
                FieldValue::Text(text) => put_field(out, name, text),
                FieldValue::Number(number) => {
                    put_clean(out, name);
                    out.extend_from_slice(b": ");
                    out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes());
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
        if !content_type.is_empty() {
            put_field(out, "Content-Type", content_type);
        }
        match framing {
            // RFC 9110, section 8.6: these never carry a length.
            Framing::Length(_) if status < 200 || status == 204 => {}
            Framing::Length(len) => {
                out.extend_from_slice(b"Content-Length: ");
                out.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Framing::Close => {}
        }
        out.extend_from_slice(match (keep_alive, version) {
            (false, _) => b"Connection: close\r\n\r\n",
            (true, Version::Http10) => b"Connection: keep-alive\r\n\r\n",
            (true, Version::Http11) => b"\r\n",
        });
    }

    /// True if a response of this status has a body at all (RFC 9112, section 6.3).
    pub(super) fn has_body(&self) -> bool {
        self.status >= 200 && self.status != 204 && self.status != 304
    }
}

/// Writes one field. Bytes that could end it are replaced: names and values may come from a model.
pub(super) fn put_field(out: &mut Vec<u8>, name: &str, value: &str) {
    put_clean(out, name);
    out.extend_from_slice(b": ");
    put_clean(out, value);
    out.extend_from_slice(b"\r\n");
}

fn put_clean(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    out.extend_from_slice(text.as_bytes());
    let is_bad = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
    let put = out.get_mut(start..).unwrap_or_default();
    // All bytes are read, which takes fewer steps than stopping at the first.
    if put.iter().fold(false, |any, byte| any | is_bad(byte)) {
        put.iter_mut().filter(|byte| is_bad(byte)).for_each(|byte| *byte = b' ');
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_type_is_left_out() {
        let written = |head: ResponseHead, framing| {
            let mut out = Vec::new();
            head.encode(Version::Http11, true, framing, &mut out);
            String::from_utf8(out).unwrap()
        };
        let head = ResponseHead::new(200).content_type("").header("A", "b");
        assert_eq!(written(head.clone(), Framing::Length(0)), "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(written(head, Framing::Chunked), "HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n");
        let head = ResponseHead::new(204);
        assert_eq!(written(head, Framing::Length(0)), "HTTP/1.1 204 No Content\r\nContent-Type: text/plain\r\n\r\n");
    }
}
