//! The head of a request: its line, its fields, and what they state about the body and the connection.
//!
//! A head is copied once into storage that the connection reuses, so that it outlives the receive buffer and costs no
//! allocation. What RFC 9112, section 6.3, calls a framing error is refused here: two readers that disagree about
//! where a request ends are the way requests are smuggled.

use std::cell::Cell;
use std::mem::MaybeUninit;

use super::Limits;
use super::repeated::Gaps;
use super::response::JSON_LENGTH;

/// A request's head in its own storage.
#[derive(Debug, Clone, Default)]
pub struct Head {
    pub(super) raw: Vec<u8>,
    method: Method,
    method_name: Span,
    path: Span,
    query: Option<Span>,
    version: Version,
    pub(super) fields: Vec<(Span, Span)>,
    /// A bit for each length that a field's name has, by [`bit_of`]: most names that are looked up are not there.
    lengths: u64,
    pub(super) body: BodyLength,
    keep_alive: bool,
    expects_continue: bool,
    /// By these the next head may differ and still be this one; `None`: it is not recognised.
    pub(super) gaps: Option<Gaps>,
    mark: Cell<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Patch,
    /// Any other token; [`Head::method_name`] has it.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    Http10,
    #[default]
    Http11,
}

/// What the head states about the body's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    /// 0 if nothing is stated. A length beyond 64 bits is the largest number.
    Known(u64),
    Chunked,
    /// `Content-Length` is no number. The connection answers 400 unless the handler does, and ends.
    Unparsable,
}

impl Default for BodyLength {
    fn default() -> BodyLength {
        BodyLength::Known(0)
    }
}

/// A head that gets an answer instead of a handler. The connection ends after each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeadError {
    #[error("malformed HTTP request")]
    Malformed,
    #[error("unsupported HTTP version")]
    Version,
    #[error("request line exceeds the maximum of {limit} bytes")]
    LineTooLong { limit: usize },
    #[error("request head exceeds the maximum of {limit} bytes")]
    TooLong { limit: usize },
    #[error("request has more than the maximum of {limit} header fields")]
    TooManyFields { limit: usize },
    #[error("conflicting Content-Length header fields")]
    ConflictingLengths,
    #[error("request has more than one Host header field")]
    ManyHosts,
    #[error("Transfer-Encoding needs HTTP/1.1")]
    CodingInOldVersion,
    #[error("Transfer-Encoding must end with one 'chunked'")]
    CodingNotChunked,
    #[error("unsupported Transfer-Encoding")]
    UnsupportedCoding,
}

impl HeadError {
    pub fn status(self) -> u16 {
        match self {
            HeadError::LineTooLong { .. } => 414,
            HeadError::TooLong { .. } | HeadError::TooManyFields { .. } => 431,
            HeadError::Version => 505,
            HeadError::UnsupportedCoding => 501,
            _ => 400,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }
}

/// The bit of names of that length. The longest share one.
fn bit_of(length: usize) -> u64 {
    1 << length.min(63)
}

impl Head {
    pub fn method(&self) -> Method {
        self.method
    }

    /// The method as it was spelt.
    pub fn method_name(&self) -> &str {
        self.text(self.method_name)
    }

    /// The target's path as it was sent, without the query. Of an absolute target only what follows the authority.
    pub fn path(&self) -> &str {
        match self.text(self.path) {
            "" => "/",
            path => path,
        }
    }

    /// What stands behind the first `?` of the target.
    pub fn query(&self) -> Option<&str> {
        self.query.map(|span| self.text(span))
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// The value of the first field of that name; names match in any case.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let named = self.fields_of_length(name.len()).find(|(field, _)| self.has_name(*field, name));
        named.map(|(_, value)| self.bytes(*value))
    }

    /// The values of all fields of that name.
    pub fn headers_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let named = self.fields_of_length(name.len()).filter(move |(field, _)| self.has_name(*field, name));
        named.map(|(_, value)| self.bytes(*value))
    }

    /// Fields whose names are so long.
    fn fields_of_length(&self, length: usize) -> impl Iterator<Item = &(Span, Span)> {
        let fields = if self.lengths & bit_of(length) == 0 { &[] } else { &self.fields[..] };
        fields.iter().filter(move |(field, _)| field.len() == length)
    }

    /// All fields in their order and original spelling.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|&(name, value)| (self.text(name), self.bytes(value)))
    }

    /// How many leading bytes of the body are JSON, if the head has the field for it. Of a value that is no plain
    /// number the digits in front: 0 if it has none.
    #[inline]
    pub fn json_length(&self) -> Option<usize> {
        let value = match &self.gaps {
            Some(gaps) => self.bytes(gaps.json()?),
            None => self.header(JSON_LENGTH)?,
        };
        Some(leading_number(value))
    }

    /// What a handler noted of this head; 0 if nothing. It stays for the heads that follow on the same connection, as
    /// long as they differ in the numbers of their lengths only.
    pub fn mark(&self) -> u64 {
        self.mark.get()
    }

    pub fn set_mark(&self, mark: u64) {
        self.mark.set(mark);
    }

    /// The bytes of the head, its lengths left out: what heads that share a mark have in common.
    pub fn put_kind(&self, into: &mut Vec<u8>) {
        let Some(gaps) = self.gaps else { return into.extend_from_slice(&self.raw) };
        let mut from = 0;
        for gap in gaps.spans() {
            into.extend_from_slice(self.raw.get(from..gap.start as usize).unwrap_or_default());
            from = gap.end as usize;
        }
        into.extend_from_slice(self.raw.get(from..).unwrap_or_default());
    }

    /// True if it can be recognised when it comes again.
    pub fn is_recognisable(&self) -> bool {
        self.gaps.is_some()
    }

    pub fn body_length(&self) -> BodyLength {
        self.body
    }

    /// True if the peer means to go on with the connection (RFC 9112, section 9.3).
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// True if the peer waits for `100 Continue` before it sends the body (RFC 9110, section 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Reads a head that ends with its empty line, and takes a copy of it.
    pub(super) fn parse(&mut self, raw: &[u8], limits: &Limits) -> Result<(), HeadError> {
        (self.gaps, self.mark) = (None, Cell::new(0));
        self.raw.clear();
        self.raw.extend_from_slice(raw);
        self.fields.clear();
        self.lengths = 0;
        self.query = None;
        let mut fields = [const { MaybeUninit::uninit() }; Limits::MAX_HEADERS];
        let room = limits.headers.min(Limits::MAX_HEADERS);
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(&self.raw, fields.get_mut(..room).unwrap_or_default());
        match parsed {
            Ok(httparse::Status::Complete(len)) if len == self.raw.len() => {}
            Ok(_) => return Err(HeadError::Malformed),
            Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooManyFields { limit: room }),
            Err(httparse::Error::Version) if names_other_version(&self.raw) => return Err(HeadError::Version),
            Err(_) => return Err(HeadError::Malformed),
        }
        let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
            return Err(HeadError::Malformed);
        };
        let span = |part: &[u8]| {
            let start = part.as_ptr().addr().saturating_sub(self.raw.as_ptr().addr());
            Span { start: start as u32, end: (start + part.len()) as u32 }
        };
        self.method = Method::named(method);
        self.method_name = span(method.as_bytes());
        self.version = if version == 0 { Version::Http10 } else { Version::Http11 };
        let target = without_authority(target);
        let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        self.path = span(path.as_bytes());
        self.query = query.map(|query| span(query.as_bytes()));
        self.fields.extend(request.headers.iter().map(|field| (span(field.name.as_bytes()), span(field.value))));
        self.interpret()
    }

    /// Works out what the fields state about framing and persistence.
    fn interpret(&mut self) -> Result<(), HeadError> {
        let (mut length, mut close, mut keep, mut expects) = (None, false, false, false);
        let mut codings = Codings::default();
        let (mut lengths, mut hosts) = (0, 0);
        for &(name, value) in &self.fields {
            lengths |= bit_of(name.len());
            // Few names matter, and their lengths differ.
            match name.len() {
                4 if self.has_name(name, "host") => hosts += 1,
                6 if self.has_name(name, "expect") => {
                    expects |= self.bytes(value).eq_ignore_ascii_case(b"100-continue");
                }
                10 if self.has_name(name, "connection") => {
                    for option in list(self.bytes(value)) {
                        close |= option.eq_ignore_ascii_case(b"close");
                        keep |= option.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                14 if self.has_name(name, "content-length") => match (length, self.bytes(value)) {
                    (Some(first), value) if first != value => return Err(HeadError::ConflictingLengths),
                    (_, value) => length = Some(value),
                },
                17 if self.has_name(name, "transfer-encoding") => codings.add(self.bytes(value)),
                _ => {}
            }
        }
        // None at all is taken, as Triton takes it: there is one host here.
        if hosts > 1 {
            return Err(HeadError::ManyHosts);
        }
        let body = match (codings.given, length) {
            (true, _) if self.version == Version::Http10 => return Err(HeadError::CodingInOldVersion),
            (true, _) => codings.check()?,
            (false, Some(value)) => content_length(value),
            (false, None) => BodyLength::Known(0),
        };
        // The chunks decide, and a reader that went by the length would find another request behind this one: so
        // nothing that follows on this connection is read (RFC 9112, section 6.3).
        let overrides_length = codings.given && length.is_some();
        close |= overrides_length;
        self.lengths = lengths;
        self.body = body;
        self.keep_alive = !close && (keep || self.version == Version::Http11);
        // An HTTP/1.0 peer reads no interim responses (RFC 9110, section 10.1.1).
        self.expects_continue = expects && self.version == Version::Http11;
        self.gaps = if overrides_length { None } else { Gaps::of(self) };
        Ok(())
    }

    pub(super) fn has_name(&self, field: Span, name: &str) -> bool {
        self.bytes(field).eq_ignore_ascii_case(name.as_bytes())
    }

    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        self.raw.get(span.start as usize..span.end as usize).unwrap_or_default()
    }

    fn text(&self, span: Span) -> &str {
        std::str::from_utf8(self.bytes(span)).unwrap_or_default()
    }
}

impl Method {
    fn named(name: &str) -> Method {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "PUT" => Method::Put,
            "DELETE" => Method::Delete,
            "OPTIONS" => Method::Options,
            "PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }
}

/// The transfer codings of all fields together.
#[derive(Default)]
struct Codings {
    given: bool,
    chunked: usize,
    chunked_is_last: bool,
    others: bool,
}

impl Codings {
    fn add(&mut self, value: &[u8]) {
        self.given = true;
        for coding in list(value) {
            self.chunked_is_last = coding.eq_ignore_ascii_case(b"chunked");
            self.chunked += usize::from(self.chunked_is_last);
            self.others |= !self.chunked_is_last;
        }
    }

    /// RFC 9112, section 6.1: a request's last coding is `chunked`, once. There is no other here.
    fn check(&self) -> Result<BodyLength, HeadError> {
        match (self.chunked, self.chunked_is_last, self.others) {
            (1, true, false) => Ok(BodyLength::Chunked),
            (1, true, true) | (0, _, true) => Err(HeadError::UnsupportedCoding),
            _ => Err(HeadError::CodingNotChunked),
        }
    }
}

/// The elements of a comma-separated list (RFC 9110, section 5.6.1).
fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// The number that a value begins with. One that is too long for any body comes out as some other number.
#[inline]
pub(super) fn leading_number(value: &[u8]) -> usize {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0usize, |number, digit| number.wrapping_mul(10).wrapping_add(usize::from(digit & 15)))
}

pub(super) fn content_length(value: &[u8]) -> BodyLength {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return BodyLength::Unparsable;
    }
    BodyLength::Known(value.iter().fold(0u64, |length, digit| {
        length.checked_mul(10).and_then(|length| length.checked_add(u64::from(digit & 15))).unwrap_or(u64::MAX)
    }))
}

/// True if the request line is whole but for a version that is not supported.
fn names_other_version(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let mut parts = line.split(|&byte| byte == b' ').skip(2);
    let version = parts.next().and_then(|version| version.strip_prefix(b"HTTP/"));
    let [major, b'.', minor] = version.unwrap_or_default() else { return false };
    major.is_ascii_digit() && minor.is_ascii_digit() && parts.next().is_none()
}

/// A target without scheme and authority: servers must take the absolute form too (RFC 9112, section 3.2.2).
fn without_authority(target: &str) -> &str {
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let Some(rest) = scheme.and_then(|scheme| target.get(scheme.len()..)) else { return target };
    rest.find(['/', '?']).and_then(|at| rest.get(at..)).unwrap_or_else(|| rest.get(rest.len()..).unwrap_or_default())
}

/// Finds where a head ends, whatever pieces it comes in, without looking at a byte twice.
#[derive(Debug, Default)]
pub(super) struct HeadEnd {
    searched: usize,
    line_end: Option<usize>,
}

impl HeadEnd {
    /// Nothing of a head was read yet.
    pub fn is_fresh(&self) -> bool {
        self.searched == 0
    }

    /// The length of the head that `input` begins with, once its empty line is there. `input` is the same in every
    /// call, or longer.
    pub fn find(&mut self, input: &[u8], request_line: usize, head: usize) -> Result<Option<usize>, HeadError> {
        let new = input.get(self.searched..).unwrap_or_default();
        let mut end = None;
        for at in memchr::memchr_iter(b'\n', new).map(|at| at + self.searched) {
            let before = input.get(..at).unwrap_or_default();
            if self.line_end.is_none() {
                self.line_end = Some(at);
            } else if before.ends_with(b"\n") || before.ends_with(b"\n\r") {
                end = Some(at + 1);
                break;
            }
        }
        self.searched = input.len();
        if self.line_end.unwrap_or(input.len()) > request_line {
            return Err(HeadError::LineTooLong { limit: request_line });
        }
        if end.unwrap_or(input.len()) > head {
            return Err(HeadError::TooLong { limit: head });
        }
        if end.is_some() {
            *self = HeadEnd::default();
        }
        Ok(end)
    }
}
