//! Header blocks of HTTP/2 against the decoder of the crate h2.
//!
//! Blocks of one connection are decoded by both, which find the same fields or both an error; h2 also checks what
//! fields mean, so one that it has no type for ends the comparison. What our encoder writes of the fields, both read.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_core::Stream as _;
use h2::Codec;
use h2::frame::{Frame, Headers};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use nereid_protocol::hpack::{Decoder, Encoder, Error as HpackError, Field};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Target, split};

pub const TARGET: Target = Target {
    name: "hpack",
    run,
    runs: 15_000,
    words: &[
        "\x02\x03\x06",
        "\x04\x07/a/b/cd",
        "\x40\x03key\x05value",
        "\x10\x03key\x05value",
        "\x0f\x00\x01x",
        "\x20",
        "\x3f\x01",
        "\x3f\x41",
        "\x00\x01a\x01b",
        "\x40\x01a\x01b",
        "\x7f\x00",
        "\x7f",
    ],
    seeds,
};

/// One field: name and value.
type Pair = (Vec<u8>, Vec<u8>);

fn run(data: &[u8]) -> bool {
    let (mut dice, mut rest) = split(data);
    // Each block but the last has its length before it.
    let mut blocks = Vec::new();
    while let Some((&len, behind)) = rest.split_first() {
        let (block, behind) = behind.split_at(behind.len().min(usize::from(len)));
        blocks.push(block);
        rest = behind;
    }
    let mut ours = Decoder::new();
    let mut theirs = Peer::default();
    let (mut all, mut passed) = (Vec::new(), false);
    for block in blocks.iter().filter(|block| !block.is_empty()) {
        let mut fields = Vec::new();
        let mut is_legal = true;
        let outcome = ours.decode(block, &mut |field: Field<'_>| {
            // h2 takes any text for a pseudo-header, and quotation marks in names, which are of no token (RFC 9110
            // section 5.6.2).
            let is_quoted = field.name.contains(&b'"');
            assert!(!(field.legal && is_quoted), "legal: {}", field.name.escape_ascii());
            is_legal &= field.legal || is_quoted || field.name.starts_with(b":");
            fields.push((field.name.to_vec(), field.value.to_vec()));
        });
        // What h2 does not take for a field ends its connection, whatever comes behind.
        let is_typed = fields.iter().all(is_typed);
        let cuts = dice.below(4);
        let found = theirs.decode(block, cuts);
        if !is_typed || is_repeated(&fields) {
            return passed;
        }
        assert!(is_legal, "a field of h2 is not legal: {fields:?}");
        match (outcome, found) {
            (Ok(()), Some(found)) => assert_eq!(grouped(&fields), found, "{}", block.escape_ascii()),
            (Err(_), None) => return passed,
            // h2 takes a size update at the beginning of every frame of a block.
            (Err(HpackError::TableSizePlace), Some(_)) if cuts > 0 => return passed,
            (ours, theirs) => {
                // h2 counts the bytes of an integer and we its value.
                let is_long_integer = block.windows(3).any(|bytes| bytes.iter().all(|byte| *byte >= 0x80));
                assert!(is_long_integer, "{ours:?}, but h2 finds {theirs:?}: {}", block.escape_ascii());
                return passed;
            }
        }
        passed = true;
        all.push(fields);
    }
    written(&all);
    passed
}

/// What our encoder makes of the fields, block by block, both decoders read.
fn written(lists: &[Vec<Pair>]) {
    let (mut encoder, mut ours, mut theirs) = (Encoder::new(), Decoder::new(), Peer::default());
    for (number, fields) in lists.iter().enumerate() {
        let mut block = Vec::new();
        let pairs = || fields.iter().map(|(name, value)| (&name[..], &value[..]));
        match number % 3 {
            2 => {
                encoder.begin(&mut block);
                Encoder::encode_stateless(pairs(), &mut block);
            }
            _ => encoder.encode(pairs(), &mut block),
        }
        let mut read = Vec::new();
        let outcome = ours.decode(&block, &mut |field: Field<'_>| {
            read.push((field.name.to_vec(), field.value.to_vec()));
        });
        assert_eq!((outcome, &read), (Ok(()), fields), "{}", block.escape_ascii());
        if !block.is_empty() {
            let found = theirs.decode(&block, 0).unwrap_or_else(|| panic!("h2 refuses {}", block.escape_ascii()));
            assert_eq!(found, grouped(fields), "{}", block.escape_ascii());
        }
        // The peer changes its limit between two blocks.
        let limit = fields.len() * 37 % 4200;
        encoder.set_peer_limit(limit);
        ours.set_limit(4096);
    }
}

/// Values by name: a map keeps the order of those of one name only.
fn grouped(fields: &[Pair]) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut map: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, value) in fields {
        map.entry(name.clone()).or_default().push(value.clone());
    }
    map
}

/// h2 has a type for every field, and knows the pseudo-headers.
fn is_typed((name, value): &Pair) -> bool {
    match &name[..] {
        b":method" => Method::from_bytes(value).is_ok(),
        b":status" => StatusCode::from_bytes(value).is_ok(),
        b":scheme" | b":authority" | b":path" => std::str::from_utf8(value).is_ok(),
        [b':', ..] => false,
        name => HeaderName::from_lowercase(name).is_ok() && HeaderValue::from_bytes(value).is_ok(),
    }
}

/// h2 refuses pseudo-headers that come twice or behind other fields, and fields of a connection.
fn is_repeated(fields: &[Pair]) -> bool {
    let is_pseudo = |field: &&Pair| field.0.starts_with(b":");
    let pseudo: Vec<&Pair> = fields.iter().take_while(is_pseudo).collect();
    let names: std::collections::BTreeSet<_> = pseudo.iter().map(|field| &field.0).collect();
    let of_connection: [&[u8]; 6] =
        [b"connection", b"transfer-encoding", b"upgrade", b"keep-alive", b"proxy-connection", b"te"];
    names.len() != pseudo.len()
        || fields.iter().skip(pseudo.len()).any(|field| is_pseudo(&field))
        || fields.iter().any(|(name, _)| of_connection.contains(&&name[..]))
}

/// The frames that h2 reads.
#[derive(Default)]
struct Pipe(Vec<u8>);

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let len = into.remaining().min(self.0.len());
        if len == 0 {
            return Poll::Pending;
        }
        into.put_slice(&self.0[..len]);
        self.0.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The reading half of h2.
struct Peer {
    codec: Codec<Pipe, Bytes>,
    stream: u32,
}

impl Default for Peer {
    fn default() -> Peer {
        Peer { codec: Codec::new(Pipe::default()), stream: 1 }
    }
}

impl Peer {
    /// Decodes a block, perhaps cut into several frames; `None`: an error.
    fn decode(&mut self, block: &[u8], cuts: usize) -> Option<BTreeMap<Vec<u8>, Vec<Vec<u8>>>> {
        let size = block.len().div_ceil(cuts + 1).max(1);
        let pieces: Vec<&[u8]> = block.chunks(size).collect();
        let stream = self.stream;
        self.stream += 2;
        for (at, piece) in pieces.iter().enumerate() {
            let kind = if at == 0 { 1 } else { 9 };
            let flags = if at + 1 == pieces.len() { 4 } else { 0 };
            let pipe = &mut self.codec.get_mut().0;
            pipe.extend_from_slice(&(piece.len() as u32).to_be_bytes()[1..]);
            pipe.extend_from_slice(&[kind, flags]);
            pipe.extend_from_slice(&stream.to_be_bytes());
            pipe.extend_from_slice(piece);
        }
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut self.codec).poll_next(&mut context) {
            Poll::Ready(Some(Ok(Frame::Headers(headers)))) => Some(pairs(headers)),
            Poll::Ready(Some(Err(_)) | None) => None,
            Poll::Ready(Some(Ok(frame))) => panic!("h2 reads {frame:?}"),
            Poll::Pending => panic!("h2 waits for more than a whole block"),
        }
    }
}

fn pairs(headers: Headers) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let (pseudo, fields) = headers.into_parts();
    let mut map: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    for (name, value) in &fields {
        map.entry(name.as_str().as_bytes().to_vec()).or_default().push(value.as_bytes().to_vec());
    }
    let known = [
        (":method", pseudo.method.map(|value| value.as_str().to_owned())),
        (":scheme", pseudo.scheme.map(|value| value[..].to_owned())),
        (":authority", pseudo.authority.map(|value| value[..].to_owned())),
        (":path", pseudo.path.map(|value| value[..].to_owned())),
        (":status", pseudo.status.map(|value| value.as_str().to_owned())),
    ];
    for (name, value) in known {
        if let Some(value) = value {
            map.insert(name.as_bytes().to_vec(), vec![value.into_bytes()]);
        }
    }
    map
}

fn seeds() -> Vec<Vec<u8>> {
    let call: [(&[u8], &[u8]); 8] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b":authority", b"localhost:8001"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-python/1.60.0 grpc-c/37.0.0 (linux; chttp2)"),
        (b"grpc-accept-encoding", b"identity, deflate, gzip"),
        (b"authorization", b"Bearer secret"),
    ];
    let answer: [(&[u8], &[u8]); 4] =
        [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"x-a", b"b"), (b"grpc-status", b"0")];
    let mut seeds = Vec::new();
    for (number, lists) in
        [&[&call[..], &call[..]][..], &[&answer[..], &answer[..]], &[&call[..], &answer[..], &call[1..3]]]
            .into_iter()
            .enumerate()
    {
        let mut encoder = Encoder::new();
        let mut seed = (number as u32).to_be_bytes().to_vec();
        for list in lists {
            let mut block = Vec::new();
            encoder.encode(list.iter().copied(), &mut block);
            seed.push(block.len() as u8);
            seed.extend_from_slice(&block);
        }
        seeds.push(seed);
    }
    // Huffman codes, size updates, names from the dynamic table, and values that are never put into one.
    let huffman = b"\x828684\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
    let block = [
        &b"\x20\x3f\xe1\x1f\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..],
        b"\x40\x03key\x05value\x10\x08password\x06secret",
    ]
    .concat();
    seeds.push([&[0, 0, 0, 9, block.len() as u8][..], &block, &[4, 0xbe, 0x7e, 1, b'x']].concat());
    seeds.push([&[0, 0, 0, 8, huffman.len() as u8][..], huffman].concat());
    seeds
}
