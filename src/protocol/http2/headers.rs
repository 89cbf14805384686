//! A decoded header list and the rules that a message's head must keep (RFC 9113 section 8).
//!
//! One list per connection is filled again and again. A block that is equal to the one before it, under an unchanged
//! HPACK table, is not decoded at all: clients that repeat a call send equal blocks.

use std::ops::Range;

use crate::hpack::{self, Field, Sink};

/// What a field counts beyond its octets (RFC 9113 section 10.5.1).
pub(super) const FIELD_OVERHEAD: usize = 32;

#[derive(Clone, Copy)]
struct FieldAt {
    name: u32,
    value: u32,
    end: u32,
    never_indexed: bool,
}

/// The pseudo-headers, in the order of their places in [`Headers`].
#[derive(Clone, Copy)]
enum Pseudo {
    Method,
    Scheme,
    Path,
    Authority,
    Status,
}

const PSEUDOS: usize = 5;

/// A head or trailers, borrowed by the handler for the time of the call.
pub struct Headers {
    bytes: Vec<u8>,
    fields: Vec<FieldAt>,
    pseudo: [Option<(u32, u32)>; PSEUDOS],
    content_length: Option<u64>,
    fault: Option<&'static str>,
    size: usize,
    size_max: usize,
    identity: u64,
    /// The block that led to all this, if it may be recognised.
    block: Vec<u8>,
    /// Longer blocks are not recognised.
    block_max: usize,
}

impl Headers {
    pub fn method(&self) -> Option<&[u8]> {
        self.pseudo(Pseudo::Method)
    }

    pub fn scheme(&self) -> Option<&[u8]> {
        self.pseudo(Pseudo::Scheme)
    }

    pub fn path(&self) -> Option<&[u8]> {
        self.pseudo(Pseudo::Path)
    }

    pub fn authority(&self) -> Option<&[u8]> {
        self.pseudo(Pseudo::Authority)
    }

    /// Client role: three digits.
    pub fn status(&self) -> Option<&[u8]> {
        self.pseudo(Pseudo::Status)
    }

    /// The content-length field, which agrees with itself if it came more than once.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Regular fields, in order. Names are lower-case tokens; values have no NUL, CR or LF.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| (self.octets(field.name, field.value), self.octets(field.value, field.end)))
    }

    /// The value of the first field with this (lower-case) name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|field| field.0 == name).map(|field| field.1)
    }

    /// Regular fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// True if the sender marked the field at this place as one that must never be kept in a table.
    pub fn is_never_indexed(&self, at: usize) -> bool {
        self.fields.get(at).is_some_and(|field| field.never_indexed)
    }

    /// Two lists of one connection with equal identities are equal: what was derived from the first, such as the route
    /// of a call, holds for the second. The reverse need not be true.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Bytes of the list by RFC 9113 section 10.5.1.
    pub fn size(&self) -> usize {
        self.size
    }

    fn pseudo(&self, which: Pseudo) -> Option<&[u8]> {
        self.pseudo[which as usize].map(|(start, end)| self.octets(start, end))
    }

    fn octets(&self, start: u32, end: u32) -> &[u8] {
        &self.bytes[Range { start: start as usize, end: end as usize }]
    }
}

impl Headers {
    /// The head of a gRPC call that came another way than HTTP/2: the path of its method, and its metadata. Two lists
    /// of one connection must have different identities unless they are equal. `None`: no call may have such a head.
    pub fn of_call<'a>(
        identity: u64,
        path: &'a [u8],
        metadata: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Option<Headers> {
        let mut headers = Headers::new(CALL_HEAD_MAX, 0);
        headers.identity = identity;
        let head: [(&[u8], &[u8]); 4] =
            [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b"content-type", b"application/grpc")];
        for (name, value) in head.into_iter().chain(metadata) {
            let legal = is_name(name) && !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'));
            headers.field(Field { name, value, legal, never_indexed: false });
        }
        (headers.check_request().is_ok() && !headers.is_too_large()).then_some(headers)
    }

    pub(super) fn new(size_max: usize, block_max: usize) -> Headers {
        Headers {
            bytes: Vec::new(),
            fields: Vec::new(),
            pseudo: [None; PSEUDOS],
            content_length: None,
            fault: None,
            size: 0,
            size_max,
            identity: 0,
            block: Vec::new(),
            block_max,
        }
    }

    /// Fills the list from one whole block. All of a connection's blocks pass here: the one that is remembered is the
    /// last, and left the table as it found it, so that an equal one would be decoded to the same fields.
    pub(super) fn decode(&mut self, decoder: &mut hpack::Decoder, block: &[u8]) -> Result<(), hpack::Error> {
        if !block.is_empty() && self.block == block {
            return Ok(());
        }
        self.clear();
        self.identity += 1;
        let generation = decoder.generation();
        decoder.decode(block, self)?;
        // A block that changes the table may mean something else the second time.
        if generation == decoder.generation() && block.len() <= self.block_max {
            self.block.extend_from_slice(block);
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(16 << 10);
        self.fields.clear();
        self.fields.shrink_to(256);
        self.pseudo = [None; PSEUDOS];
        self.content_length = None;
        self.fault = None;
        self.size = 0;
        self.block.clear();
    }

    /// More than we announced to take; what is stored is only the beginning.
    pub(super) fn is_too_large(&self) -> bool {
        self.size > self.size_max
    }

    /// Section 8.3.1.
    pub(super) fn check_request(&self) -> Result<(), &'static str> {
        self.check_fields()?;
        if self.status().is_some() {
            return Err("a request carries :status");
        }
        let Some(method) = self.method() else { return Err("a request lacks :method") };
        if method == b"CONNECT" {
            return match (self.authority(), self.scheme(), self.path()) {
                (Some(_), None, None) => Ok(()),
                _ => Err("CONNECT takes :authority and neither :scheme nor :path"),
            };
        }
        if method.is_empty() || self.scheme().is_none_or(<[u8]>::is_empty) {
            return Err("a request lacks :method or :scheme");
        }
        if self.path().is_none_or(<[u8]>::is_empty) {
            return Err("a request lacks :path");
        }
        Ok(())
    }

    /// Section 8.3.2. Returns the status.
    pub(super) fn check_response(&self) -> Result<u16, &'static str> {
        self.check_fields()?;
        let request_only = [Pseudo::Method, Pseudo::Scheme, Pseudo::Path, Pseudo::Authority];
        if request_only.into_iter().any(|which| self.pseudo(which).is_some()) {
            return Err("a response carries a pseudo-header of requests");
        }
        let digits = |status: &[u8]| match status {
            [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
            }
            _ => None,
        };
        match self.status().and_then(digits) {
            Some(101) => Err("HTTP/2 has no status 101"),
            Some(status) => Ok(status),
            None => Err("a response lacks :status"),
        }
    }

    /// Section 8.1: trailers carry no pseudo-headers.
    pub(super) fn check_trailers(&self) -> Result<(), &'static str> {
        self.check_fields()?;
        match self.pseudo.iter().any(Option::is_some) {
            true => Err("trailers carry a pseudo-header"),
            false => Ok(()),
        }
    }

    fn check_fields(&self) -> Result<(), &'static str> {
        self.fault.map_or(Ok(()), Err)
    }

    fn fail(&mut self, why: &'static str) {
        self.fault.get_or_insert(why);
    }

    fn take_pseudo(&mut self, field: &Field<'_>) {
        let which = match field.name {
            b":method" => Pseudo::Method,
            b":scheme" => Pseudo::Scheme,
            b":path" => Pseudo::Path,
            b":authority" => Pseudo::Authority,
            b":status" => Pseudo::Status,
            _ => return self.fail("unknown pseudo-header"),
        };
        if !self.fields.is_empty() {
            return self.fail("a pseudo-header stands behind a regular field");
        }
        if self.pseudo[which as usize].is_some() {
            return self.fail("a pseudo-header is repeated");
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(field.value);
        self.pseudo[which as usize] = Some((start, self.bytes.len() as u32));
    }

    /// Section 8.2.2 and the one field with a value that HTTP/2 itself needs.
    fn check_regular(&mut self, field: &Field<'_>) {
        match field.name {
            b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
                self.fail("a field of HTTP/1.1 connections")
            }
            b"te" if !field.value.eq_ignore_ascii_case(b"trailers") => self.fail("te is not trailers"),
            b"content-length" => match (parse_length(field.value), self.content_length) {
                (None, _) => self.fail("content-length is not a number"),
                (Some(length), Some(before)) if length != before => self.fail("content-length contradicts itself"),
                (length, _) => self.content_length = length,
            },
            _ => {}
        }
    }
}

impl Sink for Headers {
    fn field(&mut self, field: Field<'_>) {
        self.size = self.size.saturating_add(field.name.len() + field.value.len() + FIELD_OVERHEAD);
        // The rest is decoded for the sake of the table only.
        if self.is_too_large() {
            return;
        }
        if !field.legal {
            return self.fail("a field has an illegal character");
        }
        if field.name.first() == Some(&b':') {
            return self.take_pseudo(&field);
        }
        self.check_regular(&field);
        let name = self.bytes.len() as u32;
        self.bytes.extend_from_slice(field.name);
        let value = self.bytes.len() as u32;
        self.bytes.extend_from_slice(field.value);
        let end = self.bytes.len() as u32;
        self.fields.push(FieldAt { name, value, end, never_indexed: field.never_indexed });
    }
}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy;
        let mut map = f.debug_map();
        let names = [":method", ":scheme", ":path", ":authority", ":status"];
        for (name, place) in names.iter().zip(self.pseudo) {
            if let Some((start, end)) = place {
                map.entry(name, &text(self.octets(start, end)));
            }
        }
        map.entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

/// Bytes of the head of a call that came another way than HTTP/2.
const CALL_HEAD_MAX: usize = 16 << 10;

/// A token in lower case (RFC 9113 section 8.2.1), or a pseudo-header.
fn is_name(name: &[u8]) -> bool {
    let rest = name.strip_prefix(b":").unwrap_or(name);
    let is_token = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"!#$%&'*+-.^_`|~".contains(byte);
    !rest.is_empty() && rest.iter().all(is_token)
}

/// Digits only (RFC 9110 section 8.6); no sign, no list.
fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |length, byte| match byte {
        b'0'..=b'9' => length.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new(1000, 1000);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            headers.field(Field { name, value, legal: true, never_indexed: false });
        }
        headers
    }

    const HEAD: [(&str, &str); 4] = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "b")];

    #[test]
    fn a_call_has_a_path_and_metadata_in_lower_case() {
        let of = |path: &str, fields: &[(&str, &str)]| {
            Headers::of_call(7, path.as_bytes(), fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
        };
        let headers = of("/a/b", &[("key", "value"), ("key-bin", "")]).unwrap();
        assert_eq!((headers.path(), headers.method(), headers.identity()), (Some(&b"/a/b"[..]), Some(&b"POST"[..]), 7));
        assert_eq!(headers.get(b"key"), Some(&b"value"[..]));
        let long = "v".repeat(CALL_HEAD_MAX);
        for wrong in [("Key", "v"), ("", "v"), (":path", "/c"), (":", "v"), ("k y", "v"), ("k", "a\nb"), ("k", &long)] {
            assert!(of("/a/b", &[wrong]).is_none(), "{wrong:?}");
        }
        assert!(of("", &[]).is_none());
    }

    #[test]
    fn a_request_is_taken_apart() {
        let mut fields = HEAD.to_vec();
        fields.extend([("te", "trailers"), ("content-length", "12"), ("content-length", "12"), ("a", "")]);
        let headers = headers(&fields);
        assert_eq!(headers.check_request(), Ok(()));
        assert_eq!((headers.method(), headers.path()), (Some(&b"POST"[..]), Some(&b"/a"[..])));
        assert_eq!((headers.scheme(), headers.authority()), (Some(&b"http"[..]), Some(&b"b"[..])));
        assert_eq!((headers.content_length(), headers.len()), (Some(12), 4));
        assert_eq!((headers.get(b"te"), headers.get(b"a")), (Some(&b"trailers"[..]), Some(&b""[..])));
        assert_eq!(headers.get(b"b"), None);
    }

    #[test]
    fn malformed_requests_are_refused() {
        let with = |more: (&'static str, &'static str)| HEAD.into_iter().chain([more]).collect::<Vec<_>>();
        let without =
            |at: usize| HEAD.into_iter().enumerate().filter(|(i, _)| *i != at).map(|(_, field)| field).collect();
        let cases: Vec<Vec<(&str, &str)>> = vec![
            with((":status", "200")),
            with((":path", "/b")),
            with((":protocol", "websocket")),
            with(("connection", "close")),
            with(("keep-alive", "1")),
            with(("proxy-connection", "x")),
            with(("transfer-encoding", "chunked")),
            with(("upgrade", "h2c")),
            with(("te", "gzip")),
            with(("content-length", "")),
            with(("content-length", "+1")),
            with(("content-length", "1,1")),
            with(("content-length", "99999999999999999999")),
            without(0),
            without(1),
            without(2),
            vec![(":method", "GET"), (":scheme", "http"), (":path", "")],
            vec![(":method", "GET"), ("a", "b"), (":scheme", "http"), (":path", "/")],
            vec![(":method", "CONNECT"), (":authority", "a"), (":path", "/")],
            vec![(":method", "CONNECT")],
        ];
        for fields in cases {
            assert!(headers(&fields).check_request().is_err(), "{fields:?}");
        }
        let mut twice = HEAD.to_vec();
        twice.extend([("content-length", "1"), ("content-length", "2")]);
        assert!(headers(&twice).check_request().is_err());
        assert_eq!(headers(&[(":method", "CONNECT"), (":authority", "a")]).check_request(), Ok(()));
    }

    #[test]
    fn responses_and_trailers_have_rules_of_their_own() {
        assert_eq!(headers(&[(":status", "200"), ("a", "b")]).check_response(), Ok(200));
        for status in ["", "20", "2000", "0a0", "099", "101"] {
            assert!(headers(&[(":status", status)]).check_response().is_err(), "{status}");
        }
        assert!(headers(&[("a", "b")]).check_response().is_err());
        assert!(headers(&[(":status", "200"), (":path", "/")]).check_response().is_err());
        assert_eq!(headers(&[("grpc-status", "0")]).check_trailers(), Ok(()));
        assert!(headers(&[(":status", "200")]).check_trailers().is_err());
    }

    #[test]
    fn a_list_beyond_its_bound_is_counted_but_not_stored() {
        let mut headers = headers(&[("a", "b")]);
        let stored = headers.bytes.len();
        for _ in 0..1000 {
            let value = &[b'v'; 4000][..];
            headers.field(Field { name: b"n", value, legal: true, never_indexed: false });
        }
        assert!(headers.is_too_large());
        assert_eq!((headers.bytes.len(), headers.len(), headers.size()), (stored, 1, 34 + 1000 * 4033));
    }

    #[test]
    fn an_equal_block_is_recognised_until_the_table_changes() {
        let mut decoder = hpack::Decoder::new();
        let mut headers = Headers::new(1000, 1000);
        let mut identity = |block: &[u8]| {
            headers.decode(&mut decoder, block).unwrap();
            (headers.identity(), headers.iter().map(|field| field.1.to_vec()).collect::<Vec<_>>())
        };
        let insert = [0x40, 1, b'a', 1, b'1'];
        let first = identity(&insert);
        assert_ne!(identity(&insert).0, first.0, "inserting twice is not the same as once");
        let named = identity(&[0xbe]);
        assert_eq!(identity(&[0xbe]), named);
        identity(&[0x40, 1, b'a', 1, b'2']);
        let other = identity(&[0xbe]);
        assert_ne!(other.0, named.0);
        assert_eq!(other.1, [b"2"]);
        assert_eq!(identity(&[]).1.len(), 0);
    }
}
